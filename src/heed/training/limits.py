"""When a run saves its next checkpoint, and when it ends: the limits of its settings."""

from heed.training.checkpoint import TrainState
from heed.training.settings import TrainingSettings


class Limits:
    """The limits of the settings, compared with where the run stands.

    elapsed: seconds of training by the first worker's clock, so that all workers stop at the same step. patient_after:
    the step from which on `patience` counts, when the warm-up and all stages of a mix but the last are over.
    """

    def __init__(self, settings: TrainingSettings, state: TrainState, *, last_stage: int = 0):
        """last_stage: the step after which the last stage of a mix begins."""
        self._settings, self._state = settings, state
        self.patient_after = max(settings.warmup_steps, last_stage)
        self._interval, self._unit = settings.checkpoint_interval
        self.max_steps = settings.max_steps
        self.elapsed = state.seconds
        # The last checkpoint's time is of no use if it has another unit, or none, as in older checkpoints.
        if state.saved_unit not in ("", self._unit):
            state.saved = self._clock()
        state.saved = min(state.saved, self._clock())
        state.saved_unit = self._unit

    def checkpoint_is_due(self) -> bool:
        """Whether `checkpoint_every` has passed since the last checkpoint."""
        return self._clock() - self._state.saved >= self._interval

    def mark_checkpoint(self) -> None:
        """Records that the checkpoint of the present step is saved."""
        self._state.saved, self._state.checkpoint_step = self._clock(), self._state.step

    def reason_to_end(self) -> str:
        """Why training is over, or an empty string."""
        settings, state = self._settings, self._state
        if state.step >= settings.max_steps:
            return f"max_steps={settings.max_steps:,}"
        if settings.max_epochs is not None and state.epoch >= settings.max_epochs:
            return f"max_epochs={settings.max_epochs}"
        if settings.max_minutes is not None and self.elapsed >= settings.max_minutes * 60:
            return f"max_minutes={settings.max_minutes:g}"
        # An older Heed counted from the first step on.
        is_patient = settings.patience is not None and state.step > self.patient_after
        if is_patient and state.validations_since_best >= (settings.patience or 0):
            number = "lower dev loss" if settings.best_by == "loss" else f"higher {settings.best_number} on dev"
            return f"no {number} in {settings.patience} validations"
        return ""

    def steps_left(self, epoch_batches: int) -> tuple[float, float]:
        """The fewest and the most steps until the end, as far as they can be predicted; patience makes them differ."""
        settings, state = self._settings, self._state
        left = float(settings.max_steps - state.step)
        if settings.max_epochs is not None:
            done = state.epochs(epoch_batches)
            left = min(left, state.step / max(done, 1e-9) * (settings.max_epochs - done))
        if settings.max_minutes is not None:
            left = min(left, (settings.max_minutes * 60 / max(state.seconds, 1e-9) - 1) * state.step)
        most = max(0.0, left)
        least = settings.patient_steps(
            epoch_steps=epoch_batches,
            step_seconds=state.seconds / max(1, state.step),
            validations=state.validations_since_best,
        )
        return (most if least is None else min(most, max(0, self.patient_after - state.step) + least)), most

    def _clock(self) -> float:
        """How far the run is, in the unit of `checkpoint_every`."""
        return {"steps": self._state.step, "epochs": self._state.epoch, "minutes": self.elapsed / 60}[self._unit]
