"""A run in a tracker of experiments: Trackio, or Weights & Biases, whose interface Trackio has."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from heed.decoding.translator import Translator
from heed.runs.recipe import Recipe
from heed.training.callbacks import Callbacks, StepRecord, ValidationRecord


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
