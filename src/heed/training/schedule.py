"""The learning rate of each step: the paper's equation 3 and others, with their settings.

A schedule is a function of the step, counted from 1, the settings and d_model. To add one, write it here and enter it
in SCHEDULES; or in a package of one's own, with an entry point `heed.schedules` of its name.
"""

import math
from collections.abc import Callable
from typing import Self

from pydantic import Field, model_validator

from heed.config import Settings, shown
from heed.errors import HeedError
from heed.runtime.extensions import extension, installed, provider

MAX_COUNT = 10**9  # larger steps, tokens and epochs are mistakes


class ScheduleSettings(Settings):
    """How the learning rate goes. The defaults are the paper's."""

    schedule: str = Field(
        default="paper",
        max_length=100,
        description="how the learning rate goes: paper (equation 3), inverse-square-root, linear, cosine or constant, "
        "each after a linear warm-up; or the name of one that an installed package adds (heed.schedules)",
    )
    learning_rate: float | None = Field(
        default=None,
        gt=0,
        description="the highest learning rate, at the end of the warm-up; the schedule paper derives its own from "
        "d_model, and all others need one",
    )
    learning_rate_factor: float = Field(default=1.0, gt=0, description="multiplies equation 3, or learning_rate")
    warmup_steps: int = Field(
        default=4000, ge=1, le=MAX_COUNT, description="steps in which the learning rate rises (equation 3)"
    )
    max_steps: int = Field(default=100_000, ge=1, le=MAX_COUNT, description="maximum number of optimizer steps")

    @model_validator(mode="after")
    def _a_known_schedule_with_its_rate(self) -> Self:
        if self.schedule not in SCHEDULES and self.schedule not in (others := installed("heed.schedules")):
            known = ", ".join([*SCHEDULES, *others])
            raise ValueError(
                f"schedule={shown(self.schedule)}: expected one of {known}, or one that an installed package offers"
            )
        if self.schedule == "paper" and self.learning_rate is not None:
            raise ValueError(
                "learning_rate has no effect with schedule='paper', whose rate is equation 3's: set "
                "learning_rate_factor, or another schedule"
            )
        if self.schedule in SCHEDULES and self.schedule != "paper" and self.learning_rate is None:
            raise ValueError(f"schedule={shown(self.schedule)} needs learning_rate, its highest; 0.0005, for example")
        if self.schedule in FALLING:
            if "max_steps" not in self.model_fields_set:
                raise ValueError(f"schedule={shown(self.schedule)} falls until max_steps: set it")
            if self.max_steps <= self.warmup_steps:
                raise ValueError(
                    f"schedule={shown(self.schedule)} falls between warmup_steps={self.warmup_steps} and "
                    f"max_steps={self.max_steps}: the latter must be larger"
                )
        return self


Schedule = Callable[[int, ScheduleSettings, int], float]


def package_of(settings: ScheduleSettings) -> str | None:
    """The installed package, with its version, that offers the schedule; None for one of Heed's."""
    return None if settings.schedule in SCHEDULES else provider("heed.schedules", settings.schedule)


def learning_rate(step: int, *, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """factor · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5): equation 3; step counts from 1."""
    return float(factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


def fine_tuning_rate(d_model: int) -> float:
    """A tenth of equation 3's highest rate with its 4,000 steps of warm-up: 7e-5 at d_model 512."""
    return float(f"{learning_rate(4000, d_model=d_model, warmup_steps=4000, factor=0.1):.2g}")


def paper(step: int, settings: ScheduleSettings, d_model: int) -> float:
    """Equation 3."""
    factor = settings.learning_rate_factor
    return learning_rate(step, d_model=d_model, warmup_steps=settings.warmup_steps, factor=factor)


def inverse_square_root(step: int, settings: ScheduleSettings, d_model: int) -> float:
    """peak · min(step / warmup, (warmup / step)^0.5): equation 3 with its peak given."""
    return _peak(settings) * min(step / settings.warmup_steps, math.sqrt(settings.warmup_steps / step))


def linear(step: int, settings: ScheduleSettings, d_model: int) -> float:
    """peak · min(step / warmup, (max − step) / (max − warmup)), never below 0."""
    return _peak(settings) * min(step / settings.warmup_steps, 1 - _decay_progress(step, settings))


def cosine(step: int, settings: ScheduleSettings, d_model: int) -> float:
    """Half a cosine from the peak to 0 (Loshchilov and Hutter 2017), after the warm-up."""
    if step < settings.warmup_steps:
        return _peak(settings) * step / settings.warmup_steps
    return _peak(settings) * (1 + math.cos(math.pi * _decay_progress(step, settings))) / 2


def constant(step: int, settings: ScheduleSettings, d_model: int) -> float:
    """peak · min(step / warmup, 1)."""
    return _peak(settings) * min(step / settings.warmup_steps, 1.0)


def _peak(settings: ScheduleSettings) -> float:
    assert settings.learning_rate is not None  # the settings were checked
    return settings.learning_rate_factor * settings.learning_rate


def _decay_progress(step: int, settings: ScheduleSettings) -> float:
    """Which share of the way from the end of the warm-up to max_steps lies behind; negative before it."""
    return min(1.0, (step - settings.warmup_steps) / (settings.max_steps - settings.warmup_steps))


SCHEDULES: dict[str, Schedule] = {
    "paper": paper,
    "inverse-square-root": inverse_square_root,
    "linear": linear,
    "cosine": cosine,
    "constant": constant,
}
FALLING = ("linear", "cosine")  # that need max_steps


def rate_of_step(step: int, settings: ScheduleSettings, *, d_model: int) -> float:
    """The learning rate of a step, counted from 1. HeedError if another package's rate is not a number."""
    known = SCHEDULES.get(settings.schedule)
    schedule: Schedule = extension("heed.schedules", settings.schedule) if known is None else known
    rate = schedule(step, settings, d_model)
    if known is None and not (isinstance(rate, int | float) and 0 <= rate < math.inf):
        raise HeedError(f"schedule {settings.schedule}: step {step:,} has the learning rate {shown(rate)}.")
    return float(rate)
