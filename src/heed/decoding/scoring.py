"""log P(target | source), token by token, and perplexity."""

import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from heed.data.batching import Batch
from heed.model.transformer import Transformer


@torch.inference_mode()
def token_log_probs(models: Sequence[Transformer], batch: Batch) -> Float[Tensor, "sentence tgt"]:
    """Natural log-probability of every id of tgt_out, eos included, by the models' mean probability; 0 at padding."""
    parts = []
    for model in models:
        logits = model(batch.src, batch.src_mask, batch.tgt_in)
        logits = logits.float() if logits.dtype == torch.bfloat16 else logits
        parts.append(torch.log_softmax(logits, dim=-1).gather(2, batch.tgt_out[..., None])[..., 0])
    log_probs = torch.logsumexp(torch.stack(parts), dim=0) - math.log(len(parts))
    return log_probs.masked_fill(~batch.tgt_mask, 0.0)


def cross_entropy(model: Transformer, batches: Iterable[Batch]) -> float:
    """Mean negative log-likelihood a target token, eos included, in nats; `perplexity` is its exponential."""
    total, n_tokens = 0.0, 0
    for batch in batches:
        total -= float(token_log_probs([model], batch).double().sum())
        n_tokens += batch.n_tgt_tokens
    return total / max(1, n_tokens)


def perplexity(nats_per_token: float) -> float:
    """e to the cross-entropy; infinity where that overflows."""
    return math.exp(nats_per_token) if nats_per_token < 700 else math.inf
