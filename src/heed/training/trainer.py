"""The training loop of section 5: steps over token batches, validation, checkpoints, early stop."""

import math
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import torch

from heed.backends.protocol import NotFiniteError
from heed.data.batches.token_batches import PlanPart, Step, TokenBatches
from heed.errors import HeedError, Stopped, is_out_of_memory
from heed.model.transformer import Transformer
from heed.runtime.device import Machine
from heed.runtime.progress import Task, progress
from heed.runtime.signals import StopSignals, stop_signals
from heed.training.callbacks import NO_CALLBACKS, Callbacks
from heed.training.checkpoint import Checkpoints, TrainState
from heed.training.distributed import Workers
from heed.training.divergence import MAX_DIVERGED, Diverged, DivergenceCheck
from heed.training.faults import FaultCounter, NotFinite, PendingStep, check_way_back
from heed.training.limits import Limits
from heed.training.logbook import Logbook, short
from heed.training.memory_probe import MemoryProbe
from heed.training.optimizer import Adam
from heed.training.schedule import rate_of_step
from heed.training.settings import TrainingSettings
from heed.training.shared_memory import UnresponsiveWorker
from heed.training.step import MasterWeights, OutOfMemory, sharing_of, train_step
from heed.training.step_log import Progress
from heed.training.step_size import step_size

# Distances between the dropout seeds before and after a rollback, and between those of two workers.
ROLLBACK_SEED, WORKER_SEED = 7919, 104_729

# What a checkpoint changes in the state.
OF_A_CHECKPOINT = (
    *("saved", "checkpoint_step", "best_loss", "best_score", "loss_of_best", "best_step", "validations_since_best"),
    *("validations_diverged", "diverged_step", "finished"),
)

Validate = Callable[[Transformer], dict[str, float]]
NO_STAGES: Mapping[int, str] = MappingProxyType({})


def train(
    model: Transformer,
    batches: TokenBatches,
    settings: TrainingSettings,
    machine: Machine,
    *,
    workers: Workers,
    run: Path,
    checkpoints: Checkpoints,
    validate: Validate,
    report: Callable[[str], None],
    callbacks: Callbacks = NO_CALLBACKS,
    unigram_loss: float = math.inf,
    stages: Mapping[int, str] = NO_STAGES,
    is_trained: bool = False,
) -> TrainState:
    """Trains until a limit of the settings, from the newest checkpoint if there is one; the last state is saved.

    `validate` returns numbers of the dev set by name, `loss` among them, of a model in evaluation mode; it is called on
    all workers, and the first one's numbers count. Every random draw depends only on seed, step and epoch, so a resumed
    run takes the same steps as one that was never stopped.
    After SIGINT, SIGTERM or SIGHUP it finishes the current step, saves its state and raises Stopped. HeedError if
    losses stay not finite, if not even one pair fits into memory, or, with the state saved, if memory runs out later or
    if the dev loss stays above `unigram_loss` after the warm-up, which is dev's by the frequencies of the words alone.

    stages: the steps after which another stage of a mix begins, and what it is. is_trained: whether the model comes
    with trained weights, which are then validated and saved as step 0, so that they may be the best.
    """
    # The newest checkpoint, or the first weights.
    weights = MasterWeights(model, machine)
    optimizer = Adam(weights.masters.parameters(), settings)
    setup = _Setup(
        *(weights, optimizer, settings, machine, workers, checkpoints, validate),
        unigram_loss=unigram_loss,
        stages=stages,
        is_trained=is_trained,
    )
    # Workers may have different amounts of memory, but all must plan the same batches.
    wanted_micro_tokens = workers.broadcast(batches.micro_tokens)
    state = _restore(setup, wanted_micro_tokens)
    _begin_or_resume(state, settings, report)
    # Once unless losses stop being finite: then again, from the newest checkpoint with another dropout seed.
    n_rollbacks = 0
    while True:
        state.plan_name = batches.plan_name
        batches = _fit_memory(setup, batches, state, report)
        _resume_epoch(batches, state, report)
        # The log drops what is behind the checkpoint, since those steps are repeated.
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
        # A checkpoint that keeps leading to the same end is no way back.
        n_rollbacks = n_rollbacks + 1 if state.step == start_step else 1
        check_way_back(settings, state, n_rollbacks, has_dropout=model.arch.has_dropout)
        state.rollbacks += n_rollbacks
        report(f"Going back to step {state.step:,}, continuing with a new dropout seed.")


@dataclass(frozen=True)
class _Setup:
    """The parts of a call of `train` that stay the same, however often it goes back to a checkpoint."""

    weights: MasterWeights
    optimizer: Adam
    settings: TrainingSettings
    machine: Machine
    workers: Workers
    checkpoints: Checkpoints
    validate: Validate
    unigram_loss: float
    stages: Mapping[int, str]
    is_trained: bool


def _restore(setup: _Setup, wanted_micro_tokens: int) -> TrainState:
    """The newest checkpoint's state, its weights and moments put in place."""
    state = setup.checkpoints.restore(setup.weights.masters, setup.optimizer)
    if state.wanted_micro_tokens != wanted_micro_tokens:  # the setting or the machine has changed
        state.wanted_micro_tokens = state.micro_tokens = wanted_micro_tokens
    setup.workers.broadcast_parameters(setup.weights.masters)  # their seeds or files may differ
    setup.weights.copy_to_compute()
    return state


def _begin_or_resume(state: TrainState, settings: TrainingSettings, report: Callable[[str], None]) -> None:
    if state.step:
        report(f"Resumed from step {state.step:,} (epoch {state.epoch + 1}).")
    if state.best_by != settings.best_by:
        if state.step:
            report(f"The best checkpoint is now chosen by {settings.best_by}, among those from here on.")
        state.rank_anew(settings)


def _fit_memory(setup: _Setup, batches: TokenBatches, state: TrainState, report: Callable[[str], None]) -> TokenBatches:
    probe = MemoryProbe(setup.weights, setup.optimizer, setup.machine, setup.workers, setup.settings)
    with progress("Trying the largest batch"):
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
    state.n_windows = batches.n_windows
    if state.limits is not None and (state.window or state.batch) and state.order_seed is None:
        state.order_seed = state.limits.seed
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
        with stop_signals() as stop, suppress(NotFinite):
            try:
                loop.run(stop)
            except HeedError:  # memory ran out, another worker ended, a file cannot be read or written
                with suppress(HeedError):
                    loop.save_between_checkpoints()
                raise
            reached = True
        if loop.workers.any(bool(stop.signal)):  # it came after the last step, and the last checkpoint is saved
            raise _stop_error(stop)
    except UnresponsiveWorker:
        loop.logbook.report("A worker does not answer; the same command resumes from the last checkpoint.")
        raise
    return reached


def _stop_error(stop: StopSignals) -> Stopped:
    """By this worker's signal, or by another's."""
    return Stopped(stop.signal or signal.SIGTERM)


class _Loop:
    """The steps from a checkpoint to a limit."""

    def __init__(self, setup: _Setup, batches: TokenBatches, logbook: Logbook, state: TrainState):
        self.weights, self.optimizer, self.settings = setup.weights, setup.optimizer, setup.settings
        self.machine, self.workers = setup.machine, setup.workers
        self.checkpoints, self.validate = setup.checkpoints, setup.validate
        self.batches, self.logbook, self.state = batches, logbook, state
        self.stages, self.is_trained = setup.stages, setup.is_trained
        self.limits = Limits(self.settings, state, last_stage=max(self.stages, default=0))
        self.progress = Progress(state, self.limits, logbook, self.machine.device)
        self.faults = FaultCounter(batches, logbook, state)
        self.divergence = DivergenceCheck(
            self.settings, state, unigram_loss=setup.unigram_loss, vocab_size=self.weights.model.vocab_size
        )
        # One machine may lack the kernels: workers that divide a step in two ways would lose pairs or take them twice.
        self.computes_padding = self.workers.any(self.weights.computes_padding(self.settings))
        self.sharing = sharing_of(self.weights.model)
        if self.computes_padding and self.sharing == "merged":
            self.sharing = "rows"
        self.epoch_batches = 1
        self.has_told_size = False
        # The step before, which is checked only when the next one is queued, so that nothing waits for a GPU.
        self.pending: PendingStep | None = None
        self.stopping = False
        self.task = Task("Training")

    def run(self, stop: StopSignals) -> None:
        """Until a limit; Stopped if a signal came."""
        state = self.state
        if state.validations_diverged >= MAX_DIVERGED:  # in an earlier call
            raise Diverged(state.finished)
        # What training starts from is the first to beat.
        if self.is_trained and state.step == 0 and state.checkpoint_step < 0:
            self._checkpoint()
        # One that is due already was kept off by a signal or a lack of memory.
        if state.checkpoint_step != state.step and self.limits.checkpoint_is_due():
            self._checkpoint()
        with progress("Training", total=self.limits.max_steps, unit="steps", done=state.step) as self.task:
            while not (reason := self.limits.reason_to_end()):
                self._run_window(stop)
                if self.stopping:
                    self._stop(stop)
        if state.checkpoint_step != state.step:
            self._checkpoint()
        self.logbook.report(f"Training ended at step {state.step:,}: {reason}.")
        if warning := self.divergence.warning():
            self.logbook.report(warning)

    def _run_window(self, stop: StopSignals) -> None:
        """The rest of the steps of the epoch's window, or those until a limit or a signal."""
        state = self.state
        plan = state.plan_of(self.batches)
        self.epoch_batches = len(plan)
        if plan and not self.has_told_size:
            self.has_told_size = True
            size = step_size(self.batches, plan, self.weights, self.settings)
            of_window = "an epoch" if state.n_windows == 1 else f"each of {state.n_windows:,} windows of an epoch"
            self.logbook.report(f"About {size}; {len(plan):,} steps in {of_window}.")
        for rows_of_step in plan[state.batch :]:
            self._step(rows_of_step, stop=bool(stop.signal))
            if state.step % self.settings.report_every == 0:
                self._report()
            if state.batch == len(plan):
                state.end_window(self.batches)
            self._listen(stop)
            if self.limits.checkpoint_is_due() and not self.stopping:  # a signal need not wait for a validation
                self._checkpoint()
                self._listen(stop)
            if self.limits.reason_to_end() or self.stopping:
                return
        if state.batch or not plan:  # an older Heed saved the end of an epoch like this
            state.end_window(self.batches)

    def _step(self, rows_of_step: Step, *, stop: bool) -> None:
        """One update of the weights: equation 3's rate, the gradient of the whole batch's mean token loss."""
        settings, state, workers = self.settings, self.state, self.workers
        started = time.perf_counter()
        step = state.step + 1
        # Step and worker decide the dropout masks, so that no generator's state has to be saved.
        seed = settings.seed + ROLLBACK_SEED * state.rollbacks + WORKER_SEED * workers.rank
        torch.manual_seed(seed * 1_000_003 + step)
        # What this machine computes at a time; the work is counted for all workers together.
        passes = self.batches.passes(rows_of_step, padded=self.computes_padding)
        collated = [self.batches.collate(rows) for rows in workers.shard(passes, self.sharing)]
        work = self.batches.workload(rows_of_step)
        # Forward, backward, the sum over all workers and Adam, queued on the device.
        try:
            result = train_step(
                *(self.weights, self.optimizer, collated, settings),
                workers=workers,
                rate=self._learning_rate(step),
                n_tgt_tokens=work.n_tgt,
                stop=stop,
                seconds=state.seconds,
            )
        except OutOfMemory:
            longest = max(batch.longest for batch in collated)
            self._end_without_memory(f"step {step:,}, on sentences of up to {longest:,} tokens")
        # Where the run stands now; the log's next line takes the means.
        if state.step in self.stages:
            self.logbook.record("stage", step, text=self.stages[state.step])
            self.logbook.report(f"step {step:,}  a new stage of the mix begins: {self.stages[state.step]}.")
        state.step, state.batch = step, state.batch + 1
        state.add(work.times(settings.n_passes))
        self.task.done = step
        self.progress.add(result, work.n_tgt)
        # A GPU still computes this step while the one before it is checked; a CPU has finished both.
        self._check_last_step()
        self.pending = PendingStep(step, result, rows_of_step, work.n_tgt)
        seconds = time.perf_counter() - started
        state.seconds += seconds
        state.window_seconds += seconds
        if self.machine.device.type == "cpu":
            self._check_last_step()

    def _listen(self, stop: StopSignals) -> None:
        """For a signal and the time. Several workers learn them together instead, with the sums of the next step."""
        if self.workers.n == 1:
            self.stopping, self.limits.elapsed = bool(stop.signal), self.state.seconds

    def _learning_rate(self, step: int) -> float:
        return rate_of_step(step, self.settings, d_model=self.weights.model.arch.d_model)

    def _check_last_step(self) -> None:
        """Waits for the pending step, which may have been skipped. NotFinite after MAX_FAULTS in a row."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            with self.workers.deadline():
                outcome = self.faults.check(pending)
            self.stopping |= outcome.stopping
            self.limits.elapsed = outcome.seconds

    def _report(self) -> None:
        """Logs the means since the last report."""
        self._check_last_step()
        self.progress.report(rate=self._learning_rate(self.state.step), epoch_batches=self.epoch_batches)

    def _checkpoint(self) -> None:
        """Validates, then saves. NotFinite if the weights, or the model's numbers on dev, are not finite."""
        self._check_last_step()
        state = self.state
        # All workers validate; the first one has the numbers.
        if not self.weights.are_finite():
            self.logbook.report(f"step {state.step:,}: the weights are not finite, so they are not saved.")
            raise NotFinite
        numbers = self.workers.broadcast(self._validate())
        if numbers is None:
            self.logbook.report(f"step {state.step:,}: the model's numbers on dev are not finite; nothing is saved.")
            raise NotFinite
        # The validation is compared with those before it: best so far, diverged, or the last one.
        before = {name: getattr(state, name) for name in OF_A_CHECKPOINT}
        self.logbook.record("validation", state.step, **numbers)
        self.divergence.count(numbers["loss"], train_nll=self.workers.broadcast(self.progress.mean_nll()))
        state.rank_validation(self.settings, numbers, patient_after=self.limits.patient_after)
        shown = "  ".join(f"{name} {short(value)}" for name, value in numbers.items())
        self.logbook.report(f"step {state.step:,}  dev: {shown}")
        state.finished = self.limits.reason_to_end()
        failure = self.divergence.failure(numbers["loss"], self.checkpoints.path_of)
        state.finished = failure or state.finished
        if state.finished and state.window_steps:
            self._report()
        # A checkpoint that cannot be written leaves the state as if it had not been tried.
        self.limits.mark_checkpoint()
        try:
            self._save()
        except HeedError:  # the resumed run validates and saves again
            for name, value in before.items():
                setattr(state, name, value)
            raise
        if failure:
            raise Diverged(failure)

    def _validate(self) -> dict[str, float] | None:
        """The numbers of dev, or None if the model's are not finite there."""
        try:
            numbers = self.validate(self.weights.model.eval())
            return numbers if not self.workers.first or math.isfinite(numbers["loss"]) else None
        except NotFiniteError:
            return None
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # Not in the except clause: there the error's traceback keeps the tensors alive, and saving needs memory.
        self._end_without_memory(f"the validation after step {self.state.step:,}")

    def _save(self, *, stopped: bool = False) -> None:
        self.progress.store()
        self.checkpoints.save(self.weights.masters, self.optimizer, self.state, stopped=stopped)

    def save_between_checkpoints(self) -> bool:
        """Saves the state to resume from; whether it is saved, which weights that are not finite are not."""
        with suppress(NotFinite):  # training ends here, so nothing is gained by going back now
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
        raise _stop_error(stop)

    def _end_without_memory(self, when: str) -> NoReturn:
        raise HeedError(
            "memory ran out in "
            f"{when}. Lower training.micro_batch_tokens (now {self.settings.n_passes * self.batches.micro_tokens:,}); "
            "the same command then resumes."
        )
