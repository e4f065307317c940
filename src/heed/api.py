"""The functions of a user's script that work as verbs do: train, load, evaluate, average."""

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from heed.config import shown
from heed.data.corpora.download import Corpora
from heed.decoding.settings import DecodingOptions
from heed.decoding.translator import Translator
from heed.errors import HeedError, check_texts, check_type
from heed.evaluation.tokenization import TokenizationChoice, check_tokenization, choose_tokenization
from heed.model_folder import read_config
from heed.runs.recipe import Recipe, read_recipe
from heed.runs.tasks.evaluation import Evaluation, evaluate_translations, longest_pair
from heed.runtime.device import DecodingPrecisionChoice
from heed.runtime.files import as_path
from heed.runtime.locks import locked

if TYPE_CHECKING:
    from heed.model.transformer import Transformer
    from heed.training.callbacks import StepRecord, ValidationRecord


@dataclass(frozen=True)
class TrainedRun:
    """The result of `heed.train`. `evaluations`: of the averaged model and last checkpoint, on dev and each test."""

    model: Path  # folder of the averaged model, for heed.load
    evaluations: Sequence[Evaluation]


def train(
    recipe: str | Path | Recipe,
    run: str | Path,
    *,
    on_step: "Callable[[StepRecord], None] | None" = None,
    on_validation: "Callable[[ValidationRecord], None] | None" = None,
    corpora: str | Path = "corpora",
    mirror: str | None = None,
    report: Callable[[str], None] = lambda line: None,
    network: "type[Transformer] | None" = None,
    track: Any = None,
    project: str = "heed",
) -> TrainedRun:
    """Trains what a recipe describes in the run folder `run`, and evaluates it. Called again, it resumes.

    recipe: the name of one that comes with Heed, a path, or a Recipe (`heed.read_recipe` takes changes to settings).
    on_step: called every `training.report_every` steps, by the first of several workers.
    on_validation: called at every checkpoint. An exception from either callback ends the run, which the next call
        resumes from the last checkpoint; steps after that are taken, and reported, again. Neither is called while
        teachers train (`training.n_teachers`).
    corpora: folder of downloaded corpora.
    mirror: a folder or URL to take corpora from, instead of where they were published.
    report: called with lines for people to read.
    network: a subclass of `heed.Transformer` in place of the paper's network. The model folder records its name, and
        is loaded with `heed.load(folder, network=…)`. On a CPU it trains in one process, unless its package is
        installed and offers it (docs/explain/extending.md).

    track: trackio or wandb, the module or its name, in which the run gets its settings, curves and sample translations,
        under `project`. Nothing is imported or sent without it.

    HeedError is raised for what you can mend, and says how; Stopped after SIGINT, SIGTERM or SIGHUP, when the state is
    saved. Under torchrun the evaluations are the first worker's; the others have none.
    """
    from heed.model.networks import give
    from heed.runs.tracking import board_named, train_tracked
    from heed.runs.train import train_recipe
    from heed.training.callbacks import Callbacks

    check_type(Callable | None, "a function", on_step=on_step, on_validation=on_validation)
    run = as_path(run)
    wanted = recipe if isinstance(recipe, Recipe) else read_recipe(recipe)
    if network is not None:
        wanted = wanted.model_copy(update={"model": wanted.model.model_copy(update={"network": give(network)})})
    callbacks = Callbacks(on_step, on_validation)
    downloads = Corpora(Path(corpora), mirror, report)
    if track is None:
        evaluations = train_recipe(wanted, run, downloads, callbacks=callbacks)
    else:
        board = board_named(track) if isinstance(track, str) else track
        evaluations = train_tracked(wanted, run, downloads, board=board, project=project, callbacks=callbacks)
    return TrainedRun(run / "model", tuple(evaluations))


def load(
    folder: str | Path,
    *,
    device: str | None = None,
    precision: DecodingPrecisionChoice = "auto",
    network: "type[Transformer] | None" = None,
    **decoding: Unpack[DecodingOptions],
) -> Translator:
    """The translator of a model folder, as `Translator.load`: `heed.load("runs/demo/model").translate("two")`.

    It searches as the model's recipe says; DecodingSettings given as keywords replace the recipe's:
    `heed.load(folder, beam_size=8)`.

    device: cpu, cuda, cuda:1 …; by default the fastest there is.
    precision: "fp32", "bf16", "int8", or "auto", the fastest of them on this machine.
    network: the class that it was trained with, if that is not Heed's own (`heed.train(…, network=…)`). HeedError if
        the folder's is another.
    """
    if network is not None:
        from heed.model.networks import give

        name, of_folder = give(network), read_config(as_path(folder)).arch.network
        if name != of_folder:
            raise HeedError(f"{folder}: its network is {of_folder or 'Transformer'}, not {name}.")
    return Translator.load(folder, device=device, precision=precision, **decoding)


def evaluate(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *others: Sequence[str],
    tokenize: TokenizationChoice = "auto",
    name: str = "texts",
) -> Evaluation:
    """BLEU, chrF and perplexity of a model that was loaded, as `heed evaluate` prints them.

    others: further references, as of `heed.bleu`. tokenize: BLEU's, as of `heed.bleu`; "auto" knows the model's target
    language. name: what reports call the texts.
    """
    if not isinstance(translator, Translator) or not translator.folders:
        raise HeedError("evaluate needs a translator that heed.load loaded from a model folder.")
    for side in (references, *others):
        check_texts(sources=sources, references=side)
        if len(sources) != len(side):
            raise HeedError(f"{len(sources):,} sources, {len(side):,} references: both must have the same number.")
    language = translator.languages[1]
    report = translator.report
    return evaluate_translations(
        translator,
        list(sources),
        list(references),
        *map(list, others),
        name=name,
        tokenize=choose_tokenization(check_tokenization(tokenize), references, language=language, report=report),
        max_tokens=longest_pair(read_config(Path(translator.folders[0])).card),
    )


def average(
    run: str | Path,
    last: int | Literal["best"] = 5,
    *,
    out: str | Path | None = None,
    corpora: str | Path = "corpora",
    mirror: str | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """Averages checkpoints of a run into a model folder, `out` or else RUN/model, and returns its path.

    last: how many of the newest; "best": the average that scores best on dev, for which alone `corpora` and `mirror`
    are used, as by `heed.train`. HeedError if no checkpoint is good, or while the run trains.
    """
    from heed.data.preparation.job import write_dev
    from heed.runs.average import average_best, average_run
    from heed.runs.tasks.task import task_of

    if last != "best" and not (type(last) is int and 1 <= last < 10**9):
        raise HeedError(f'last is {shown(last)}: expected a number from 1 to 999,999,999, or "best".')
    run, out = as_path(run), None if out is None else as_path(out)
    # A training would write its own average and scores into the model's folder, or delete the oldest checkpoints during
    # the search for the best. Where we may not write, none of ours is at work.
    shared = last == "best" or out is None or _real(out).is_relative_to(_real(run))
    recipe = read_recipe(run) if last == "best" else None
    is_run = (run / "checkpoints").is_dir() and os.access(run, os.W_OK)
    with locked(run) if shared and is_run else nullcontext():
        if recipe is None:
            assert isinstance(last, int)
            return average_run(run, last=last, out=out, report=report)
        task = task_of(recipe)
        files = task.text_files(run, Corpora(as_path(corpora), mirror, report))
        write_dev(files, recipe.data.column_names, report=report)
        return average_best(run, task, files.dev, settings=recipe.training, out=out, report=report)[0]


def _real(path: Path) -> Path:
    """Without links; Path.resolve raises for those that run in circles."""
    return Path(os.path.realpath(path))
