"""Every head's attention weights for one pair of sentences. Neither training nor search keeps them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heed.model.attention import (
    AttentionMask,
    Dropout,
    Keys,
    Mixed,
    Queries,
    Values,
    attention,
    attention_probabilities,
)
from heed.model.transformer import Transformer


@dataclass(frozen=True)
class AttentionWeights:
    """softmax(Q Kᵀ / √d_k) of each layer and head (equation 1); every row sums to 1."""

    encoder: Float[Tensor, "encoder_layer head src src"]
    decoder: Float[Tensor, "decoder_layer head tgt tgt"]
    cross: Float[Tensor, "decoder_layer head tgt src"]

    def __repr__(self) -> str:
        return (
            f"AttentionWeights({', '.join(f'{name}: {tuple(weights.shape)}' for name, weights in vars(self).items())})"
        )


@torch.inference_mode()
def attention_weights(model: Transformer, src_ids: Sequence[int], tgt_in_ids: Sequence[int]) -> AttentionWeights:
    """Returns the weights that the model's own forward pass makes of one source (with eos) and target (with bos)."""
    src, tgt_in = (torch.tensor(ids, device=model.device_name) for ids in (src_ids, tgt_in_ids))
    recorded: list[Tensor] = []

    def attend(q: Queries, k: Keys, v: Values, mask: AttentionMask, *, dropout: Dropout) -> Mixed:
        recorded.append(attention_probabilities(q.float(), k.float(), mask)[0])
        return attention(q, k, v, mask, dropout=dropout)

    src_mask = torch.ones(1, len(src), dtype=torch.bool, device=src.device)
    memory = model.encode(src[None], src_mask, attend=attend)
    encoder = torch.stack(recorded)
    recorded.clear()
    model.decode_features(tgt_in[None], model.start(memory, src_mask), attend=attend)
    # A decoder layer attends to the target first, then to the source.
    return AttentionWeights(encoder, torch.stack(recorded[0::2]), torch.stack(recorded[1::2]))


@torch.inference_mode()
def mean_cross_attention(
    model: Transformer,
    src: Int[Tensor, "batch src"],
    src_mask: Bool[Tensor, "batch src"],
    tgt_in: Int[Tensor, "batch tgt"],
) -> Float[Tensor, "batch decoder_layer tgt src"]:
    """Each decoder layer's weights over the source, the mean of its heads; rows of padding mean nothing."""
    recorded: list[Tensor] = []
    n_calls = 0

    def attend(q: Queries, k: Keys, v: Values, mask: AttentionMask, *, dropout: Dropout) -> Mixed:
        nonlocal n_calls
        if n_calls % 2 == 1:  # a decoder layer attends to the target first, then to the source
            recorded.append(attention_probabilities(q.float(), k.float(), mask).mean(dim=1))
        n_calls += 1
        return attention(q, k, v, mask, dropout=dropout)

    model.decode_features(tgt_in, model.start(model.encode(src, src_mask), src_mask), attend=attend)
    return torch.stack(recorded, dim=1)
