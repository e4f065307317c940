"""Checkpoints: a model folder plus the trainer's state, kept to the last n; and their average."""

import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from heed.data.batches.token_batches import PADDED, BatchLimits, Drawn, EpochState, PlanPart, Step, TokenBatches
from heed.errors import HeedError
from heed.model.cost import Workload
from heed.model.transformer import Transformer
from heed.model_folder import MODEL_FILES, ModelCard, load_weights, read_weights, write_model, write_weights
from heed.runtime.files import whole_folder
from heed.runtime.json_files import read_json, write_json
from heed.runtime.manifest import check, seal
from heed.runtime.reading import NotNow
from heed.text.tokenizer_kinds import AnyTokenizer
from heed.training.distributed import Workers
from heed.training.settings import TrainingSettings

# Where a run that is asked to stop between two checkpoints leaves its state: no part of the averages that follow.
STOPPED = "stopped"
BEST = "best"  # the best checkpoint (training.best_by), once it is older than those that are kept
STATE_FILES = (*MODEL_FILES, "trainer.safetensors", "trainer.json")


@dataclass
class TrainState:
    """Where a run stands: all that it needs, besides weights and moments, to resume as if it had never been stopped.

    Dropout and the order of the batches need no state: seed, step, epoch and `rollbacks` decide them.
    """

    plan_name: str = PADDED  # of TokenBatches; older checkpoints do not know it
    step: int = 0  # optimizer steps, including those skipped because loss or gradient was not finite
    epoch: int = 0
    window: int = 0  # of the epoch, where it is planned in several: see TokenBatches
    n_windows: int = 1
    order_seed: int | None = None  # by which the epoch's windows were drawn, if that of the limits has changed since
    batch: int = 0  # batches of this window already used, of those that the limits below make
    limits: BatchLimits | None = None  # not known to older checkpoints
    earlier_parts: list[PlanPart] = field(default_factory=list)  # used of this window before, under other limits
    drawn: Drawn | None = None  # of a mix, when this epoch began; None in its first
    n_src_tokens: int = 0
    n_tgt_tokens: int = 0
    src_src: int = 0  # pairs that attention compared: see Workload
    tgt_tgt: int = 0
    tgt_src: int = 0
    seconds: float = 0.0  # of training, validation left out
    wanted_micro_tokens: int = 0  # tokens a side of one pass, as the settings ask
    micro_tokens: int = 0  # and as memory allows
    saved: float = 0.0  # when the last checkpoint was saved, in the unit that checkpoint_every had then
    saved_unit: str = ""  # "steps", "epochs" or "minutes"; "" in older checkpoints
    checkpoint_step: int = -1  # of the last checkpoint
    rollbacks: int = 0  # decides the dropout seed; grows whenever training goes back to a checkpoint
    window_loss: float = 0.0  # sums since the log's last entry
    window_nll: float = 0.0
    window_tokens: int = 0
    window_steps: int = 0
    window_seconds: float = 0.0
    last_nll: float = 0.0  # a token, in that entry
    best_loss: float = float("inf")  # the lowest dev loss
    best_by: str = "loss"  # what `best_step` is the best by: the setting
    best_score: float = float("-inf")  # the highest, if by a score
    loss_of_best: float = float("inf")  # the dev loss of `best_step`, which decides between equal scores
    best_step: int = -1  # of the best checkpoint; not known to older ones
    validations_since_best: int = 0
    validations_diverged: int = 0  # in a row: worse than the frequencies of the words
    diverged_step: int = -1  # of the first of them
    finished: str = ""  # why training ended

    @property
    def work(self) -> Workload:
        """Tokens and pairs of tokens that the run has processed."""
        return Workload(self.n_src_tokens, self.n_tgt_tokens, self.src_src, self.tgt_tgt, self.tgt_src)

    @property
    def epoch_state(self) -> EpochState:
        """What decides the plan of the present window, besides the epoch's number."""
        return EpochState(self.window, self.order_seed, tuple(self.earlier_parts), self.drawn)

    def plan_of(self, batches: TokenBatches) -> list[Step]:
        """The batches of the present window, those used under earlier limits left out."""
        return batches.plan(self.epoch, self.epoch_state)

    def end_window(self, batches: TokenBatches) -> None:
        """Goes to the beginning of the next window, after the last one to that of the next epoch."""
        drawn = batches.drawn_after(self.epoch, self.epoch_state, step=self.step)
        self.window, self.batch, self.earlier_parts = self.window + 1, 0, []
        if self.window >= self.n_windows:
            self.epoch, self.window, self.order_seed, self.drawn = self.epoch + 1, 0, None, drawn

    def epochs(self, n_batches: int) -> float:
        """Passes over the corpus, the last one counted by its share of batches; `n_batches` are in the present plan."""
        earlier = sum(part.n_batches for part in self.earlier_parts)
        share = (earlier + self.batch) / max(1, earlier + n_batches)
        return self.epoch + (self.window + share) / self.n_windows

    def rank_validation(self, settings: TrainingSettings, numbers: Mapping[str, float], *, patient_after: int) -> None:
        """Counts a validation of this step: whether it is the best so far, by the setting `best_by`.

        patient_after: the step until which a validation that is not the best does not count against the run.
        """
        loss, number = numbers["loss"], numbers[settings.best_number]
        best = {settings.best_number: self.best_score, "loss": self.loss_of_best}
        if settings.best_by == "loss":
            best["loss"] = self.best_loss
        if is_best := settings.rank(numbers) < settings.rank(best):
            self.best_step, self.loss_of_best = self.step, loss
        self.validations_since_best = 0 if is_best or self.step <= patient_after else self.validations_since_best + 1
        self.best_loss = min(loss, self.best_loss)
        if settings.best_by != "loss":
            self.best_score = max(number, self.best_score)

    def rank_anew(self, settings: TrainingSettings) -> None:
        """Begins to choose the best checkpoint among those from here on, since `best_by` has changed."""
        self.best_loss, self.best_score, self.loss_of_best, self.best_step = math.inf, -math.inf, math.inf, -1
        self.best_by, self.validations_since_best = settings.best_by, 0

    def add(self, work: Workload) -> None:
        """Counts what a step's passes went through."""
        self.n_src_tokens += work.n_src
        self.n_tgt_tokens += work.n_tgt
        self.src_src += work.src_src
        self.tgt_tgt += work.tgt_tgt
        self.tgt_src += work.tgt_src


class Checkpoints:
    """The checkpoints of a run, in folders named by step."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        keep_best: bool = False,
        tokenizer: AnyTokenizer,
        card: ModelCard,
        report: Callable[[str], None] = lambda line: None,
        workers: Workers | None = None,
    ):
        self.folder, self._tokenizer, self._card, self._report = folder, tokenizer, card, report
        self._keep, self._keep_best = keep, keep_best
        self._workers = workers or Workers()

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, oldest first."""
        return checkpoint_steps(self.folder)

    def save(
        self, model: Transformer, optimizer: torch.optim.Optimizer, state: TrainState, *, stopped: bool = False
    ) -> None:
        """Writes the checkpoint of this step, then deletes those beyond the last n; the first worker does, for all.

        `stopped`: between two checkpoints, only to resume from.
        """
        if not self._workers.first:
            return
        with whole_folder(self.folder / (STOPPED if stopped else str(state.step))) as temporary:
            write_model(temporary, model, self._tokenizer, self._card)
            write_weights(temporary / "trainer.safetensors", _moments(model, optimizer))
            write_json(temporary / "trainer.json", asdict(state))
            seal(temporary)
        if not stopped:
            shutil.rmtree(self.folder / STOPPED, ignore_errors=True)
            for step in self.steps()[: -self._keep]:
                if self._keep_best and step == state.best_step:
                    shutil.rmtree(self.folder / BEST, ignore_errors=True)
                    (self.folder / str(step)).rename(self.folder / BEST)
                else:
                    shutil.rmtree(self.folder / str(step), ignore_errors=True)

    def path_of(self, step: int) -> Path | None:
        """The folder of a checkpoint, if it is kept; that of the best may be another's than the step's name."""
        if (self.folder / str(step)).is_dir():
            return self.folder / str(step)
        best = self.folder / BEST
        return best if best.is_dir() and read_train_state(best).step == step else None

    def restore(self, model: Transformer, optimizer: torch.optim.Optimizer) -> TrainState:
        """Fills model and optimizer from the newest good state and returns it; a new state if there is none.

        A damaged one is reported and put aside as NAME.damaged. HeedError if all are.
        """
        name = self._workers.broadcast(self._newest_good() if self._workers.first else None)
        return TrainState() if name is None else _read_checkpoint(self.folder / name, model, optimizer)

    def _newest_good(self) -> str | None:
        for name in reversed(state_names(self.folder)):
            try:
                check(self.folder / name, STATE_FILES)
                if name == STOPPED and read_train_state(self.folder / name).step <= max(self.steps(), default=-1):
                    continue  # a process was killed before it deleted what the newest checkpoint replaces
                return name
            except NotNow:
                raise
            except HeedError as error:
                aside = self.folder / f"{name}.damaged"
                shutil.rmtree(aside, ignore_errors=True)
                (self.folder / name).rename(aside)
                self._report(f"{error} Put aside as {aside.name}; going back to the state before.")
        if any(self.folder.glob("*.damaged")):  # some of which a call before this one may have put aside
            raise HeedError(
                f"{self.folder}: no undamaged checkpoint is left; restore the folder from a backup, or train again "
                "with another --run."
            )
        return None


def read_train_state(folder: Path) -> TrainState:
    """The state in a checkpoint's folder. HeedError if this version did not write it."""
    values = read_json(folder / "trainer.json")
    if "detours" in values:  # as older checkpoints call it
        values["rollbacks"] = values.pop("detours")
    # Before it was kept, the lowest loss stands for it: only a lower one then decides between equal scores.
    values.setdefault("loss_of_best", values.get("best_loss", math.inf))
    try:
        if values.get("limits") is not None:
            values["limits"] = BatchLimits(*values["limits"])
        values["earlier_parts"] = [PlanPart(BatchLimits(*limits), n) for limits, n in values.get("earlier_parts", [])]
        if values.get("drawn") is not None:
            step, pairs, left = [*values["drawn"], []][:3]  # older checkpoints have none left
            values["drawn"] = Drawn(step, tuple(pairs), tuple(map(tuple, left)))
        return TrainState(**values)
    except (TypeError, ValueError) as error:
        raise HeedError(f"{folder}: not a checkpoint of this Heed ({error}).") from None


def plan_name(folder: Path) -> str | None:
    """The name of the plan of batches of a run's folder `checkpoints`; None if nothing there can be resumed from."""
    for name in reversed(state_names(folder)):
        with suppress(HeedError):  # damaged, which is said, and mended, where it is needed
            return read_train_state(folder / name).plan_name
    return None


def _read_checkpoint(folder: Path, model: Transformer, optimizer: torch.optim.Optimizer) -> TrainState:
    weights, moments = (read_weights(folder / f"{name}.safetensors") for name in ("model", "trainer"))
    train_state = read_train_state(folder)
    try:
        states = {
            parameter: {kind: moments[f"{kind}.{name}"] for kind in ("step", "exp_avg", "exp_avg_sq")}
            for name, parameter in model.named_parameters()
            if moments  # none before the first finite gradient
        }
    except KeyError as error:
        raise HeedError(f"{folder}: not a checkpoint of this Heed ({error}).") from None
    for parameter, state in states.items():
        if any(state[kind].shape != parameter.shape for kind in ("exp_avg", "exp_avg_sq")):
            raise HeedError(f"{folder / 'trainer.safetensors'}: moments of another shape than the weights.")
    load_weights(model, weights, where=folder / "model.safetensors")
    if not states:  # of step 0: in place, since captured passes hold these tensors
        for kept in optimizer.state.values():
            for tensor in kept.values():
                tensor.zero_()
    for parameter, state in states.items():
        optimizer.state[parameter] = {kind: tensor.to(parameter.device) for kind, tensor in state.items()}
    return train_state


def _moments(model: Transformer, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{kind}.{name}": tensor.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for kind, tensor in optimizer.state.get(parameter, {}).items()  # none before the first step
    }


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the whole checkpoints in a run's folder `checkpoints`, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if re.fullmatch(r"0|[1-9][0-9]{0,17}", path.name))


def state_names(folder: Path) -> list[str]:
    """Names of all that can be resumed from in a run's folder `checkpoints`, oldest first."""
    return [str(step) for step in checkpoint_steps(folder)] + [STOPPED] * (folder / STOPPED).is_dir()


def average_weights(folders: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the models' weights, summed in fp64 and rounded once; one checkpoint's tensors in memory at a time.

    The paper averages the last 5 (base) or 20 (big) checkpoints (section 6.1).
    """
    if not folders:
        raise HeedError("there is no checkpoint to average.")
    total: dict[str, Tensor] = {}
    for folder in folders:
        weights = read_weights(folder / "model.safetensors")
        if total and total.keys() != weights.keys():
            raise HeedError(f"{folder}: holds other weights than {folders[0]}; only one architecture can be averaged.")
        for name, tensor in weights.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(folders)).float() for name, tensor in total.items()}
