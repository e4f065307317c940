"""Scores of targets: log P(target | source) token by token, perplexity, and the length penalty that ranks them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from heed.backends.choice import backend_for
from heed.backends.protocol import NotFiniteError
from heed.data.batches.batch import Batch
from heed.decoding.settings import LengthPenalty
from heed.model.transformer import Transformer

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.integer[Any]]

LOGITS_AT_A_TIME = 512  # tokens; those of a whole batch over a large vocabulary are gigabytes


@torch.inference_mode()
def token_log_probs(models: Sequence[Transformer], batch: Batch) -> Float[Tensor, "sentence tgt"]:
    """Natural log-probability of every id of tgt_out, eos included, by the models' mean probability; 0 at padding.

    -∞ where a probability is 0. HeedError if one is NaN.
    """
    targets = batch.tgt_out.flatten().index_select(0, batch.tgt_places)
    parts = []
    for model in models:
        features = backend_for(model).target_features(model, batch)
        some = zip(features.split(LOGITS_AT_A_TIME), targets.split(LOGITS_AT_A_TIME), strict=True)
        parts.append(torch.cat([_log_probs(model.output(x), y) for x, y in some]))
    log_probs = torch.logsumexp(torch.stack(parts), dim=0) - math.log(len(parts))
    if log_probs.isnan().any():
        raise NotFiniteError
    return (
        log_probs.new_zeros(batch.tgt_out.numel()).index_copy(0, batch.tgt_places, log_probs).view(batch.tgt_out.shape)
    )


def _log_probs(logits: Tensor, ids: Tensor) -> Tensor:
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    return torch.log_softmax(logits, dim=-1).gather(1, ids[:, None])[:, 0]


def cross_entropy(model: Transformer, batches: Iterable[Batch]) -> float:
    """Mean negative log-likelihood a target token, eos included, in nats; `perplexity` is its exponential."""
    total, n_tokens = 0.0, 0
    for batch in batches:
        total += batch_nll(model, batch)
        n_tokens += batch.n_tgt_tokens
    return total / max(1, n_tokens)


def batch_nll(model: Transformer, batch: Batch) -> float:
    """Negative log-likelihood of the batch's targets, eos included, in nats."""
    return -float(token_log_probs([model], batch).double().sum())


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
