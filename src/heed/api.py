"""The functions of a user's script: `heed.train` and `heed.load`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from heed.data.corpora.download import Corpora
from heed.decoding.settings import DecodingOptions
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.model.networks import give
from heed.model.transformer import Transformer
from heed.model_folder import read_config
from heed.runs.recipe import Recipe, read_recipe
from heed.runs.tasks.evaluation import Evaluation
from heed.runs.train import train_recipe
from heed.runtime.device import DecodingPrecisionChoice
from heed.training.callbacks import Callbacks, StepRecord, ValidationRecord


@dataclass(frozen=True)
class TrainedRun:
    """The result of `heed.train`. `evaluations`: of the averaged model and last checkpoint, on dev and each test."""

    model: Path  # folder of the averaged model, for heed.load
    evaluations: Sequence[Evaluation]


def train(
    recipe: str | Path | Recipe,
    run: str | Path,
    *,
    on_step: Callable[[StepRecord], None] | None = None,
    on_validation: Callable[[ValidationRecord], None] | None = None,
    corpora: str | Path = "corpora",
    mirror: str | None = None,
    report: Callable[[str], None] = lambda line: None,
    network: type[Transformer] | None = None,
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

    HeedError is raised for what you can mend, and says how; Stopped after SIGINT, SIGTERM or SIGHUP, when the state is
    saved. Under torchrun the evaluations are the first worker's; the others have none.
    """
    wanted = recipe if isinstance(recipe, Recipe) else read_recipe(recipe)
    if network is not None:
        wanted = wanted.model_copy(update={"model": wanted.model.model_copy(update={"network": give(network)})})
    evaluations = train_recipe(
        wanted,
        Path(run),
        Corpora(Path(corpora), mirror, report),
        callbacks=Callbacks(on_step, on_validation),
    )
    return TrainedRun(Path(run) / "model", tuple(evaluations))


def load(
    folder: str | Path,
    *,
    device: str | None = None,
    precision: DecodingPrecisionChoice = "auto",
    network: type[Transformer] | None = None,
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
        name, found = give(network), read_config(Path(folder)).arch.network
        if name != found:
            raise HeedError(f"{folder}: its network is {found or 'Transformer'}, not {name}.")
    return Translator.load(folder, device=device, precision=precision, **decoding)
