"""Scores of targets: perplexity, and the length penalty that ranks them."""

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from heed.decoding.settings import LengthPenalty

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.integer[Any]]


def perplexity(nats_per_token: float) -> float:
    """e to the cross-entropy; infinity where that overflows."""
    return math.exp(nats_per_token) if nats_per_token < 700 else math.inf


def length_penalty(length: int, alpha: float, form: LengthPenalty = "paper") -> float:
    """The number that divides a target's log-probability to give its score; `length` counts its ids, eos included.

    paper: ((5 + length) / 6) ** alpha, Wu et al. 2016, equation 14; section 6.1 uses alpha 0.6. average: length **
    alpha, with alpha 1 the mean log-probability. none: 1.
    """
    return float(length_penalties(np.array([length]), alpha, form)[0])


def length_penalties(lengths: Ints, alpha: float, form: LengthPenalty) -> Floats:
    """`length_penalty` of each length."""
    if form == "none":
        return np.ones(lengths.shape)
    base = (5 + lengths) / 6 if form == "paper" else lengths.astype(np.float64)
    return base**alpha
