"""Steps whose loss or gradient is not finite: they are skipped, and several in a row lead back to a checkpoint."""

from typing import NamedTuple

from heed.data.batches.token_batches import Step, TokenBatches
from heed.errors import HeedError
from heed.training.checkpoint import TrainState
from heed.training.logbook import Logbook
from heed.training.settings import TrainingSettings
from heed.training.step import QueuedStep, StepOutcome

MAX_FAULTS = 3  # steps in a row without a finite loss before training goes back to a checkpoint
MAX_ROLLBACKS = 3  # times in a row that it goes back to the same one


class NotFinite(Exception):
    """Too many steps in a row had no finite loss and gradient, or the weights or dev's numbers at a checkpoint."""


class PendingStep(NamedTuple):
    """A step that the device may still be computing."""

    step: int
    result: QueuedStep
    rows: Step
    n_tgt_tokens: int


class FaultCounter:
    """Checks steps once the device has computed them, and counts those in a row that it skipped."""

    def __init__(self, batches: TokenBatches, logbook: Logbook, state: TrainState):
        self._batches, self._logbook, self._state = batches, logbook, state
        self._n_faults = 0

    def check(self, pending: PendingStep) -> StepOutcome:
        """Waits for the step; reports it if it was not finite and hence skipped.

        NotFinite after MAX_FAULTS in a row.
        """
        outcome = pending.result.wait()
        if outcome.finite:
            self._n_faults = 0
            return outcome
        self._n_faults += 1
        self._state.window_tokens -= pending.n_tgt_tokens
        self._report(pending)
        if self._n_faults >= MAX_FAULTS:
            raise NotFinite
        return outcome

    def _report(self, pending: PendingStep) -> None:
        lines = self._batches.lines(pending.rows)
        self._logbook.record("fault", pending.step, lines=" ".join(map(str, lines)), rollbacks=self._state.rollbacks)
        more = " …" if len(lines) > 10 else ""
        self._logbook.report(
            f"step {pending.step:,}: loss or gradient not finite, step skipped. Its {len(lines):,} pairs are "
            f"{self._batches.named(lines[:10])}{more} (metrics.jsonl lists them all)."
        )


def check_way_back(settings: TrainingSettings, state: TrainState, n_rollbacks: int, *, has_dropout: bool) -> None:
    """HeedError if training cannot go on from this checkpoint after its n-th rollback."""
    if state.checkpoint_step < 0 and state.step == 0:
        why = "there is no checkpoint to go back to"
    elif not (settings.cutoff or has_dropout):
        why = (
            f"without dropout, the steps after the checkpoint at step {state.step:,}, which is unharmed, stay the same"
        )
    elif n_rollbacks > MAX_ROLLBACKS:
        why = f"going back to step {state.step:,} did not help; the checkpoint is unharmed"
    else:
        return
    raise HeedError(
        f"the loss was not finite {MAX_FAULTS} steps in a row, or the weights or dev's loss at a checkpoint, and "
        f"{why}. Lower training.learning_rate_factor, or set training.clip_norm=1.0 or training.precision=fp32."
    )
