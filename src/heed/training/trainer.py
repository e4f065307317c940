"""The training loop of section 5: steps over token batches, validation, checkpoints, early stop."""

import math
import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch

from heed.backends.choice import backend_for
from heed.backends.protocol import NotFiniteError
from heed.data.batching import PlanPart, Rows, TokenBatches
from heed.errors import HeedError, Stopped, is_out_of_memory
from heed.model.transformer import Transformer
from heed.runtime.device import Machine
from heed.runtime.signals import StopSignals, stop_signals
from heed.training.callbacks import NO_CALLBACKS, Callbacks
from heed.training.checkpoint import Checkpoints, TrainState
from heed.training.distributed import UnresponsiveWorker, Workers
from heed.training.divergence import MARGIN, MAX_DIVERGED, Diverged
from heed.training.logbook import Logbook, duration, short
from heed.training.memory_probe import MemoryProbe
from heed.training.schedule import rate_of_step
from heed.training.settings import TrainingSettings
from heed.training.step import MasterWeights, OutOfMemory, StepResult, make_optimizer, train_step

MAX_FAULTS = 3  # steps in a row without a finite loss before training goes back to a checkpoint
MAX_ROLLBACKS = 3  # times in a row that it goes back to the same one
# Distances between the dropout seeds before and after a rollback, and between those of two workers.
ROLLBACK_SEED, WORKER_SEED = 7919, 104_729

# What a checkpoint changes in the state.
OF_A_CHECKPOINT = (
    *("saved", "checkpoint_step", "best_loss", "best_score", "best_step", "validations_since_best"),
    *("validations_diverged", "diverged_step", "finished"),
)

Validate = Callable[[Transformer], dict[str, float]]


def train(
    model: Transformer,
    batches: TokenBatches,
    settings: TrainingSettings,
    machine: Machine,
    workers: Workers,
    *,
    run: Path,
    checkpoints: Checkpoints,
    validate: Validate,
    report: Callable[[str], None],
    callbacks: Callbacks = NO_CALLBACKS,
    unigram_loss: float = math.inf,
) -> TrainState:
    """Trains until a limit of the settings, from the newest checkpoint if there is one; the last state is saved.

    `validate` returns numbers of the dev set by name, `loss` among them, of a model in evaluation mode. Every random
    draw depends only on seed, step and epoch, so a resumed run takes the same steps as one that was never stopped.
    After SIGINT or SIGTERM it finishes the current step, saves its state and raises Stopped. HeedError if losses stay
    not finite, if not even one pair fits into memory, or, with the state saved, if memory runs out later or if the dev
    loss stays above `unigram_loss` after the warm-up, which is dev's by the frequencies of the words alone.
    """
    weights = MasterWeights(model, machine)
    optimizer = make_optimizer(weights.masters, settings)
    setup = _Setup(weights, optimizer, settings, machine, workers, checkpoints, validate, unigram_loss)
    # Workers may have different amounts of memory, but all must plan the same batches.
    wanted_micro_tokens = workers.broadcast(batches.micro_tokens)
    state = _restore(setup, wanted_micro_tokens)
    if state.step:
        report(f"Resumed from step {state.step:,} (epoch {state.epoch + 1}).")
    if state.best_by != settings.best_by:
        if state.step:
            report(f"The best checkpoint is now chosen by {settings.best_by}, among those from here on.")
        state.best_loss, state.best_score, state.best_step = math.inf, -math.inf, -1
        state.best_by, state.validations_since_best = settings.best_by, 0
    n_rollbacks = 0
    while True:
        batches = _fit_into_memory(setup, batches, state, report)
        _resume_epoch(batches, state, report)
        start_step = state.step
        logbook = Logbook(
            run,
            resumed_step=start_step,
            report=report,
            writing=workers.first,
            rollbacks=state.rollbacks,
            repeated="validation" if state.checkpoint_step != state.step else None,  # of a checkpoint that failed
            callbacks=callbacks,
        )
        with closing(logbook):
            if _run_to_a_limit(_Loop(setup, batches, logbook, state)):
                return state
        state = _restore(setup, wanted_micro_tokens)
        n_rollbacks = n_rollbacks + 1 if state.step == start_step else 1
        if why := _no_way_back(model, settings, state, n_rollbacks):
            raise HeedError(
                f"the loss was not finite {MAX_FAULTS} steps in a row, or the weights or dev's loss at a checkpoint, "
                f"and {why}. Lower training.learning_rate_factor, or set training.clip_norm=1.0 or "
                "training.precision=fp32."
            )
        state.rollbacks += n_rollbacks
        report(f"Going back to step {state.step:,}, continuing with a new dropout seed.")


def _no_way_back(model: Transformer, settings: TrainingSettings, state: TrainState, n_rollbacks: int) -> str:
    """Why training cannot go on from this checkpoint after its n-th rollback; an empty string if it can."""
    if state.step == 0:
        return "there is no checkpoint to go back to"
    if not (settings.cutoff or model.arch.has_dropout):
        return (
            f"without dropout, the steps after the checkpoint at step {state.step:,}, which is unharmed, stay the same"
        )
    if n_rollbacks > MAX_ROLLBACKS:
        return f"going back to step {state.step:,} did not help; the checkpoint is unharmed"
    return ""


@dataclass(frozen=True)
class _Setup:
    """What stays the same in a call of `train`, however often it goes back to a checkpoint."""

    weights: MasterWeights
    optimizer: torch.optim.Adam
    settings: TrainingSettings
    machine: Machine
    workers: Workers
    checkpoints: Checkpoints
    validate: Validate
    unigram_loss: float


class _NotFinite(Exception):
    """Too many steps in a row had no finite loss and gradient, or the weights or dev's numbers at a checkpoint."""


def _restore(setup: _Setup, wanted_micro_tokens: int) -> TrainState:
    """The newest checkpoint's state, its weights and moments put in place."""
    state = setup.checkpoints.restore(setup.weights.masters, setup.optimizer)
    if state.wanted_micro_tokens != wanted_micro_tokens:  # the setting or the machine has changed
        state.wanted_micro_tokens = state.micro_tokens = wanted_micro_tokens
    setup.workers.broadcast_parameters(setup.weights.masters)  # their seeds or files may differ
    setup.weights.publish()
    return state


def _fit_into_memory(
    setup: _Setup, batches: TokenBatches, state: TrainState, report: Callable[[str], None]
) -> TokenBatches:
    probe = MemoryProbe(setup.weights, setup.optimizer, setup.machine, setup.workers, setup.settings)
    fitting = probe.largest_fitting(batches.with_micro_tokens(state.micro_tokens))
    if fitting.micro_tokens != state.micro_tokens:
        n_passes = setup.settings.n_passes
        report(
            f"A pass over {n_passes * state.micro_tokens:,} tokens does not fit into memory; training with "
            f"{n_passes * fitting.micro_tokens:,} tokens a pass."
        )
    state.micro_tokens = fitting.micro_tokens
    return fitting


def _resume_epoch(batches: TokenBatches, state: TrainState, report: Callable[[str], None]) -> None:
    """Lets the limits of the batches apply to what is left of the epoch, if it began with other ones."""
    if state.limits not in (None, batches.limits) and state.batch:
        state.earlier_parts.append(PlanPart(state.limits, state.batch))
        state.batch = 0
        report(
            f"The batches have changed in the middle of epoch {state.epoch + 1}: the pairs left in it form new batches."
        )
    state.limits = batches.limits


def _run_to_a_limit(loop: "_Loop") -> bool:
    """Whether the loop reached a limit, or else must go back to a checkpoint. Stopped if a signal came."""
    reached = False
    try:
        with stop_signals() as stop, suppress(_NotFinite):
            try:
                loop.run(stop)
            except HeedError:  # memory ran out, another worker ended, a file cannot be read or written
                with suppress(HeedError):
                    loop.save_between_checkpoints()
                raise
            reached = True
        if loop.workers.any(bool(stop.signal)):  # it came after the last step, and the last checkpoint is saved
            raise _stopped_by(stop)
    except UnresponsiveWorker:
        loop.logbook.report("A worker does not answer; the same command resumes from the last checkpoint.")
        raise
    return reached


def _stopped_by(stop: StopSignals) -> Stopped:
    """By this worker's signal, or by another's."""
    return Stopped(stop.signal or signal.SIGTERM)


class _PendingStep(NamedTuple):
    """A step that the device may still be computing."""

    step: int
    result: StepResult
    micro_batches: list[Rows]
    n_tgt_tokens: int


class _Loop:
    """The steps from a checkpoint to a limit."""

    def __init__(self, setup: _Setup, batches: TokenBatches, logbook: Logbook, state: TrainState):
        self.weights, self.optimizer, self.settings = setup.weights, setup.optimizer, setup.settings
        self.machine, self.workers = setup.machine, setup.workers
        self.checkpoints, self.validate, self.unigram_loss = setup.checkpoints, setup.validate, setup.unigram_loss
        self.batches, self.logbook, self.state = batches, logbook, state
        # Without padding, sentences of any lengths can share a pass; a worker's parts alone would be slow short passes.
        self.merged = not backend_for(setup.weights.model).computes_padding
        self.interval, self.unit = self.settings.checkpoint_interval
        self.epoch_batches = 1
        self.window_loss = torch.tensor(state.window_loss, device=self.machine.device)
        self.window_nll = torch.tensor(state.window_nll, device=self.machine.device)
        # The step before, which is checked only when the next one is queued, so that nothing waits for a GPU.
        self.pending: _PendingStep | None = None
        self.stopping = False
        self.elapsed = state.seconds  # by the first worker's clock, the same on all
        if state.saved_unit not in ("", self.unit):  # the setting has changed
            state.saved = self._clock()
        state.saved = min(state.saved, self._clock())  # older checkpoints do not tell the unit
        state.saved_unit = self.unit
        self.n_faults = 0

    def run(self, stop: StopSignals) -> None:
        """Until a limit; Stopped if a signal came."""
        state = self.state
        if state.validations_diverged >= MAX_DIVERGED:  # in an earlier call
            raise Diverged(state.finished)
        # One that is due already was kept off by a signal or a lack of memory.
        if state.checkpoint_step != state.step and self._checkpoint_is_due():
            self._checkpoint()
        while not (reason := self._limit_reached()):
            plan = self.batches.plan(state.epoch, earlier=state.earlier_parts)
            self.epoch_batches = len(plan)
            for micro_batches in plan[state.batch :]:
                self._step(micro_batches, stop=bool(stop.signal))
                if state.step % self.settings.report_every == 0:
                    self._report()
                if state.batch == len(plan):
                    state.end_epoch()
                self._listen(stop)
                if self._checkpoint_is_due() and not self.stopping:  # a signal need not wait for a validation
                    self._checkpoint()
                    self._listen(stop)
                if self._limit_reached() or self.stopping:
                    break
            else:
                if state.batch or not plan:  # an older Heed saved the end of an epoch like this
                    state.end_epoch()
            if self.stopping:
                self._stop(stop)
        if state.checkpoint_step != state.step:
            self._checkpoint()
        self.logbook.report(f"Training ended at step {state.step:,}: {reason}.")
        if state.best_loss > self.unigram_loss and state.step >= self.settings.warmup_steps:
            self.logbook.report(
                f"The dev loss was never below {self.unigram_loss:.3f}, what the frequencies of the target words alone "
                "give: the model has learned nothing from its sources yet."
            )

    def _step(self, micro_batches: list[Rows], *, stop: bool) -> None:
        """One update of the weights: equation 3's rate, the gradient of the whole batch's mean token loss."""
        settings, state, workers = self.settings, self.state, self.workers
        started = time.perf_counter()
        step = state.step + 1
        seed = settings.seed + ROLLBACK_SEED * state.rollbacks + WORKER_SEED * workers.rank
        torch.manual_seed(seed * 1_000_003 + step)
        shard = workers.shard(micro_batches, merged=self.merged)
        collated = [self.batches.collate(rows) for rows in shard]
        work = self.batches.workload(micro_batches)
        try:
            result = train_step(
                *(self.weights, self.optimizer, collated, settings, self.machine, workers),
                rate=self._learning_rate(step),
                n_tgt_tokens=work.n_tgt,
                stop=stop,
                seconds=state.seconds,
            )
        except OutOfMemory:
            longest = max(max(batch.src.shape[1], batch.tgt_in.shape[1]) for batch in collated)
            self._end_without_memory(f"step {step:,}, on sentences of up to {longest:,} tokens")
        self.window_loss += result.loss
        self.window_nll += result.nll
        state.step, state.batch = step, state.batch + 1
        state.add(work.times(settings.n_passes))
        state.window_tokens += work.n_tgt
        state.window_steps += 1
        self._check_last_step()
        self.pending = _PendingStep(step, result, micro_batches, work.n_tgt)
        seconds = time.perf_counter() - started
        state.seconds += seconds
        state.window_seconds += seconds
        if self.machine.device.type == "cpu":
            self._check_last_step()

    def _listen(self, stop: StopSignals) -> None:
        """For a signal and the time. Several workers learn them together instead, with the sums of the next step."""
        if self.workers.n == 1:
            self.stopping, self.elapsed = bool(stop.signal), self.state.seconds

    def _learning_rate(self, step: int) -> float:
        return rate_of_step(step, self.settings, d_model=self.weights.model.arch.d_model)

    def _check_last_step(self) -> None:
        """Reports the last step if it was not finite and hence skipped; _NotFinite after MAX_FAULTS in a row."""
        if self.pending is None:
            return
        (step, result, micro_batches, n_tgt_tokens), self.pending = self.pending, None
        finite, stopping, self.elapsed = result.wait()
        self.stopping |= stopping
        if finite:
            self.n_faults = 0
            return
        self.n_faults += 1
        self.state.window_tokens -= n_tgt_tokens
        lines = self.batches.lines(micro_batches)
        self.logbook.record("fault", step, lines=" ".join(map(str, lines)), rollbacks=self.state.rollbacks)
        more = " …" if len(lines) > 10 else ""
        self.logbook.report(
            f"step {step:,}: loss or gradient not finite, step skipped. Its {len(lines):,} pairs are "
            f"{self.batches.named(lines[:10])}{more} (metrics.jsonl lists them all)."
        )
        if self.n_faults >= MAX_FAULTS:
            raise _NotFinite

    def _report(self) -> None:
        """Logs the means since the last report."""
        self._check_last_step()
        state = self.state
        if state.window_tokens:  # else every step was skipped
            self._log_window(state.window_tokens)
        self.window_loss.zero_()
        self.window_nll.zero_()
        state.window_tokens = state.window_steps = 0
        state.window_seconds = 0.0

    def _log_window(self, tokens: int) -> None:
        state = self.state
        loss, nll = float(self.window_loss) / tokens, float(self.window_nll) / tokens
        state.last_nll = nll
        speed = tokens / max(1e-9, state.window_seconds)
        rate = self._learning_rate(state.step)
        perplexity = math.exp(min(nll, 700))
        self.logbook.record(
            "train",
            state.step,
            loss=loss,
            perplexity=perplexity,
            learning_rate=rate,
            tgt_tokens_per_second=speed,
            epoch=state.epoch + 1,
        )
        left = duration(self._steps_left() * state.window_seconds / max(1, state.window_steps))
        self.logbook.report(
            f"step {state.step:,}/{self.settings.max_steps:,}  epoch {state.epoch + 1}  loss {loss:.3f}  "
            f"ppl {short(perplexity, 2)}  lr {rate:.2e}  {speed:,.0f} tok/s  {left} left"
        )

    def _steps_left(self) -> float:
        """Steps until the first limit, as far as it can be predicted."""
        settings, state = self.settings, self.state
        left = float(settings.max_steps - state.step)
        if settings.max_epochs is not None:
            done = state.epochs(self.epoch_batches)
            left = min(left, state.step / max(done, 1e-9) * (settings.max_epochs - done))
        if settings.max_minutes is not None:
            left = min(left, (settings.max_minutes * 60 / max(state.seconds, 1e-9) - 1) * state.step)
        return max(0.0, left)

    def _checkpoint_is_due(self) -> bool:
        return self._clock() - self.state.saved >= self.interval

    def _checkpoint(self) -> None:
        """Validates, then saves. _NotFinite if the weights, or the model's numbers on dev, are not finite."""
        self._check_last_step()
        state = self.state
        if not self.weights.are_finite():
            self.logbook.report(f"step {state.step:,}: the weights are not finite, so they are not saved.")
            raise _NotFinite
        numbers = self.workers.broadcast(self._validated() if self.workers.first else {})
        if numbers is None:
            self.logbook.report(f"step {state.step:,}: the model's numbers on dev are not finite; nothing is saved.")
            raise _NotFinite
        before = {name: getattr(state, name) for name in OF_A_CHECKPOINT}
        self.logbook.record("validation", state.step, **numbers)
        self._compare(numbers, train_nll=self.workers.broadcast(self._train_nll()))
        shown = "  ".join(f"{name} {short(value)}" for name, value in numbers.items())
        self.logbook.report(f"step {state.step:,}  dev: {shown}")
        state.finished = self._limit_reached()
        diverged = self._diverged(numbers["loss"])
        state.finished = diverged or state.finished
        if state.finished and state.window_steps:
            self._report()
        state.saved, state.checkpoint_step = self._clock(), state.step
        try:
            self._save()
        except HeedError:  # the resumed run validates and saves again
            for name, value in before.items():
                setattr(state, name, value)
            raise
        if diverged:
            raise Diverged(diverged)

    def _train_nll(self) -> float:
        """Mean negative log-likelihood a token of the steps since the log's last entry, or else of those in it."""
        tokens = self.state.window_tokens
        return float(self.window_nll) / tokens if tokens else self.state.last_nll

    def _compare(self, numbers: dict[str, float], *, train_nll: float) -> None:
        """Counts a validation: whether it is the best so far, and whether the model has diverged."""
        state, settings, loss = self.state, self.settings, numbers["loss"]
        # A slow start is no divergence, unless it is hopeless; nor is overfitting, where the training loss is low.
        learning = loss < state.best_loss and loss < self._hopeless_loss
        is_worse = min(loss, train_nll) > self.unigram_loss + MARGIN
        if is_worse and not learning and state.step >= settings.warmup_steps:
            state.diverged_step = state.diverged_step if state.validations_diverged else state.step
            state.validations_diverged += 1
        else:
            state.validations_diverged = 0
        number, best = (
            numbers[settings.best_number],
            state.best_loss if settings.best_by == "loss" else state.best_score,
        )
        if settings.rank(number) < settings.rank(best):
            state.best_step, state.validations_since_best = state.step, 0
        else:
            state.validations_since_best += 1
        state.best_loss = min(loss, state.best_loss)
        if settings.best_by != "loss":
            state.best_score = max(number, state.best_score)

    @property
    def _hopeless_loss(self) -> float:
        """Twice the loss of a model that holds all ids to be equally likely, near which training begins."""
        return 2 * math.log(self.weights.model.vocab_size)

    def _diverged(self, loss: float) -> str:
        """Why training has failed though all numbers are finite, or an empty string.

        It has if the dev loss stays above that of the words' frequencies, or if it ends far above it without a
        checkpoint that is better.
        """
        settings, state = self.settings, self.state
        learned = state.best_loss < self.unigram_loss
        if state.validations_diverged and state.finished and loss > self._hopeless_loss and not learned:
            state.validations_diverged = max(MAX_DIVERGED, state.validations_diverged)
        if state.validations_diverged < MAX_DIVERGED:
            return ""
        kept = self.checkpoints.path_of(state.best_step) if learned and state.best_step != state.step else None
        usable = (
            f" The best checkpoint, of step {state.best_step:,}, is kept as a usable model: {kept}." if kept else ""
        )
        return (
            f"training has diverged: since step {state.diverged_step:,}, the dev loss ({short(loss)} at step "
            f"{state.step:,}) has been above {self.unigram_loss:.3f}, what the frequencies of the target words alone "
            "give. Train again in another run folder (--run), with a lower training.learning_rate_factor (it was "
            f"{settings.learning_rate_factor:g}) or more training.warmup_steps (it was {settings.warmup_steps:,})."
            f"{usable}"
        )

    def _validated(self) -> dict[str, float] | None:
        """The numbers of dev, or None if the model's are not finite there."""
        try:
            numbers = self.validate(self.weights.model.eval())
            return numbers if math.isfinite(numbers["loss"]) else None
        except NotFiniteError:
            return None
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # Not in the except clause: there the error's traceback keeps the tensors alive, and saving needs memory.
        self._end_without_memory(f"the validation after step {self.state.step:,}")

    def _save(self, *, stopped: bool = False) -> None:
        state = self.state
        state.window_loss, state.window_nll = float(self.window_loss), float(self.window_nll)
        self.checkpoints.save(self.weights.masters, self.optimizer, state, stopped=stopped)

    def save_between_checkpoints(self) -> bool:
        """Saves the state to resume from; whether it is saved, which weights that are not finite are not."""
        with suppress(_NotFinite):  # training ends here, so nothing is gained by going back now
            self._check_last_step()
        state = self.state
        if state.checkpoint_step == state.step or not state.step:
            return True
        if not self.weights.are_finite():
            return False
        self._save(stopped=True)
        return True

    def _stop(self, stop: StopSignals) -> NoReturn:
        if self.save_between_checkpoints():
            self.logbook.report(f"Stopped at step {self.state.step:,}; its state is saved. The same command resumes.")
        else:
            self.logbook.report(
                f"Stopped at step {self.state.step:,}; its weights are not finite, so they are not saved. The same "
                "command resumes from the last checkpoint."
            )
        raise _stopped_by(stop)

    def _end_without_memory(self, when: str) -> NoReturn:
        raise HeedError(
            "memory ran out in "
            f"{when}. Lower training.micro_batch_tokens (now {self.settings.n_passes * self.batches.micro_tokens:,}); "
            "the same command then resumes."
        )

    def _clock(self) -> float:
        """How far the run is, in the unit of checkpoint_every."""
        return {"steps": self.state.step, "epochs": self.state.epoch, "minutes": self.elapsed / 60}[self.unit]

    def _limit_reached(self) -> str:
        """Why training is over, or an empty string."""
        settings, state = self.settings, self.state
        if state.step >= settings.max_steps:
            return f"max_steps={settings.max_steps:,}"
        if settings.max_epochs is not None and state.epoch >= settings.max_epochs:
            return f"max_epochs={settings.max_epochs}"
        if settings.max_minutes is not None and self.elapsed >= settings.max_minutes * 60:
            return f"max_minutes={settings.max_minutes:g}"
        if settings.patience is not None and state.validations_since_best >= settings.patience:
            number = "lower dev loss" if settings.best_by == "loss" else f"higher {settings.best_number} on dev"
            return f"no {number} in {settings.patience} validations"
        return ""
