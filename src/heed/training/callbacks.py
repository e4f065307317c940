"""Callbacks that report on training to the calling program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StepRecord:
    """Means over the steps since the last record, and the learning rate of the last step."""

    step: int
    epoch: int  # counted from 1
    loss: float  # nats a target token, label smoothing included
    perplexity: float  # without label smoothing
    learning_rate: float
    tgt_tokens_per_second: float


@dataclass(frozen=True)
class ValidationRecord:
    """A validation on the dev set. numbers: by name, such as loss (nats a token), perplexity, greedy_bleu."""

    step: int
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class Callbacks:
    """Functions that a run calls, each with its record."""

    on_step: Callable[[StepRecord], None] | None = None
    on_validation: Callable[[ValidationRecord], None] | None = None


NO_CALLBACKS = Callbacks()
