"""Scores of given targets while a model trains: log P(target | source) token by token, and the loss on a dev set."""

from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.dispatch import backend_for
from heed.backends.protocol import NotFiniteError
from heed.data.batches.batch import Batch
from heed.data.batches.padded import sent
from heed.model.transformer import Transformer

LOGITS_AT_A_TIME = 512  # tokens; those of a whole batch over a large vocabulary are gigabytes


@torch.inference_mode()
def token_log_probs(model: Transformer, batch: Batch) -> Float[Tensor, " tgt_token"]:
    """Natural log-probability of every id of tgt_out, eos included.

    -∞ where a probability is 0. HeedError if one is NaN.
    """
    targets = sent(batch.tgt_out, model.output.weight.device)
    features = backend_for(model).target_features(model, batch)
    some = zip(features.split(LOGITS_AT_A_TIME), targets.split(LOGITS_AT_A_TIME), strict=True)
    log_probs = torch.cat([_log_probs(model.output(x), y) for x, y in some])
    if log_probs.isnan().any():
        raise NotFiniteError
    return log_probs


def _log_probs(logits: Float[Tensor, "token vocab"], ids: Int[Tensor, " token"]) -> Float[Tensor, " token"]:
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
    return -float(token_log_probs(model, batch).double().sum())
