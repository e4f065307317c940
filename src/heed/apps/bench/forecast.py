"""A forecast of a training run's time and memory on this machine."""

import math
from dataclasses import dataclass

from heed.apps.bench.inputs import LENGTH_DEVIATION, MEAN_LENGTH
from heed.apps.bench.training_speed import TrainingSpeed, training_speed
from heed.model.architecture import Architecture
from heed.model.cost import Workload, training_flops
from heed.runtime.device import choose_machine
from heed.runtime.memory import memory_of
from heed.training.settings import TrainingSettings


@dataclass(frozen=True)
class Forecast:
    """A run's time and memory on this machine, from steps on random sentences of MEAN_LENGTH tokens on average."""

    parameters: int
    n_steps: int
    least_steps: int  # from which on patience can end it
    step_seconds: float
    hours: float
    target_tokens_per_second: float
    peak_memory_bytes: int
    memory_bytes: int  # that the device has
    flops: float
    dtype: str
    device: str


def forecast(arch: Architecture, settings: TrainingSettings, *, vocab_size: int, n_pairs: int | None) -> Forecast:
    """Times steps of the run's own size. `n_pairs`, the size of the corpus, matters only if `max_epochs` is set."""
    # A step of the big model takes minutes on a laptop: one window is enough.
    speed = training_speed(arch, settings, vocab_size=vocab_size, n_windows=1)
    n_steps = _n_steps(settings, speed, n_pairs)
    n_src, n_tgt = (
        round(rate * speed.step_seconds * n_steps)
        for rate in (speed.source_tokens_per_second, speed.target_tokens_per_second)
    )
    # Keys per query: the expected length of the sentence that a token is in, E[length²] / E[length].
    n_keys = MEAN_LENGTH + LENGTH_DEVIATION**2 / MEAN_LENGTH
    one_pass = Workload(n_src, n_tgt, *(round(n * n_keys) for n in (n_src, n_tgt, n_tgt)))
    return Forecast(
        parameters=speed.parameters,
        n_steps=n_steps,
        least_steps=min(n_steps, _least_steps(settings, speed, n_pairs) or n_steps),
        step_seconds=speed.step_seconds,
        hours=n_steps * speed.step_seconds / 3600,
        target_tokens_per_second=speed.target_tokens_per_second,
        peak_memory_bytes=speed.peak_memory_bytes,
        memory_bytes=memory_of(choose_machine(settings.precision)),
        flops=training_flops(arch, vocab_size, one_pass.times(settings.n_passes), n_steps=n_steps),
        dtype=speed.dtype,
        device=speed.device,
    )


def _n_steps(settings: TrainingSettings, speed: TrainingSpeed, n_pairs: int | None) -> int:
    """Steps until the first of the run's limits."""
    limits = [settings.max_steps]
    if settings.max_epochs is not None and n_pairs is not None:
        limits.append(settings.max_epochs * _epoch_steps(speed, n_pairs))
    if settings.max_minutes is not None:
        limits.append(math.ceil(settings.max_minutes * 60 / speed.step_seconds))
    return min(limits)


def _least_steps(settings: TrainingSettings, speed: TrainingSpeed, n_pairs: int | None) -> int | None:
    """The step from which on patience can end the run; None without patience, or if an epoch's length is not known."""
    if settings.checkpoint_interval[1] == "epochs" and n_pairs is None:
        return None
    epoch_steps = _epoch_steps(speed, n_pairs or 1)
    least = settings.patient_steps(epoch_steps=epoch_steps, step_seconds=speed.step_seconds)
    return None if least is None else math.ceil(settings.warmup_steps + least)


def _epoch_steps(speed: TrainingSpeed, n_pairs: int) -> int:
    return math.ceil(n_pairs * MEAN_LENGTH / (speed.target_tokens_per_second * speed.step_seconds))
