"""A run in a tracker of experiments: Trackio, or Weights & Biases, whose interface Trackio has."""

import os
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from heed.data.corpora.download import Corpora
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.runs.recipe import Recipe
from heed.runs.tasks.evaluation import Evaluation
from heed.runs.train import train_recipe
from heed.training.callbacks import Callbacks, StepRecord, ValidationRecord

BOARDS = ("trackio", "wandb")


def board_named(name: str) -> Any:
    """The module of a tracker. HeedError if it is none of BOARDS, or not installed."""
    if name not in BOARDS:
        raise HeedError(f"--track {name}: expected {' or '.join(BOARDS)}.")
    try:
        return import_module(name)
    except ImportError:
        package = "'heed-mt[track]'" if name == "trackio" else name
        raise HeedError(f"--track {name}: {name} is not installed; pip install {package}.") from None


def train_tracked(
    recipe: Recipe, run: Path, corpora: Corpora, *, board: Any, project: str, callbacks: Callbacks
) -> list[Evaluation]:
    """Trains as train_recipe does, and reports to a tracker."""
    if os.environ.get("RANK", "0") != "0":  # of several processes the first one reports
        return train_recipe(recipe, run, corpora, callbacks=callbacks)
    tracker, trained = Tracker(board, recipe, run, project=project), None
    try:
        evaluations = train_recipe(recipe, run, corpora, callbacks=tracker.callbacks(callbacks))
        trained = run / "model"
    finally:
        tracker.finish(trained)
    return evaluations


class Tracker:
    """Reports a run's settings, curves and, at the end, translations of its card's examples.

    board: the module, trackio or wandb, which the program has imported. project: under which the run is listed.
    """

    def __init__(self, board: Any, recipe: Recipe, run: Path, *, project: str):
        self._board = board
        board.init(project=project, name=str(run), config=recipe.model_dump(), resume="allow")

    def callbacks(self, given: Callbacks) -> Callbacks:
        """Callbacks that log each record, then call the given ones."""

        def on_step(record: StepRecord) -> None:
            self._log("train", asdict(record), record.step)
            if given.on_step is not None:
                given.on_step(record)

        def on_validation(record: ValidationRecord) -> None:
            self._log("dev", dict(record.numbers), record.step)
            if given.on_validation is not None:
                given.on_validation(record)

        return Callbacks(on_step, on_validation)

    def finish(self, model: Path | None) -> None:
        """Logs the sample translations of a model and ends the tracker's run; without a model, ends it alone."""
        if model is not None:
            translator = Translator.load(model)
            rows = [[each.source, each.text, each.score] for each in translator.translate(list(translator.examples))]
            self._board.log({"samples": self._board.Table(columns=["source", "translation", "score"], data=rows)})
        self._board.finish()

    def _log(self, kind: str, numbers: dict[str, Any], step: int) -> None:
        self._board.log({f"{kind}/{name}": value for name, value in numbers.items() if name != "step"}, step=step)
