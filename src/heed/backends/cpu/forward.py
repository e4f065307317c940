"""The network's forward pass by the kernels, over packed sequences.

Training, validation and scoring run all of it; a search runs the encoder and, one step at a time, the decoder's layers.
"""

import math
from collections.abc import Callable
from typing import cast

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from heed.backends.cpu import training_ops
from heed.backends.cpu.build import check_range
from heed.backends.cpu.packed import PackedSequences
from heed.data.batching import Batch
from heed.model.attention import AttentionMask, key_mask, restricted_attention
from heed.model.transformer import (
    AddNorm,
    CrossAttention,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    SelfAttention,
    Side,
    Transformer,
)

Attention = Callable[
    [Tensor], Tensor
]  # what a layer's projections become: (token, Q | K | V) or (token, Q) → (token, V)


def target_features(model: Transformer, batch: Batch) -> Float[Tensor, "tgt_token d_model"]:
    """The decoder's output at the real target positions, sentence by sentence."""
    memory, src = encode(model, batch.src, batch.src_mask)
    tgt = PackedSequences.from_mask(batch.tgt_mask)
    x = embed(model, "tgt", tgt.pack(_with_word_dropout(model, batch.tgt_in)), tgt.positions)
    for layer in cast(list[DecoderLayer], list(model.decoder)):
        x = decoder_layer(
            layer,
            x,
            self_attention(layer.self_attention, tgt, radius=model.arch.radius, causal=True),
            cross_attention(layer.cross_attention, memory, tgt, src),
        )
    return x[: tgt.n_real]


def encode(
    model: Transformer, src: Int[Tensor, "sentence src"], src_mask: Bool[Tensor, "sentence src"]
) -> tuple[Float[Tensor, "src_token d_model"], PackedSequences]:
    """The encoder's output, packed."""
    packed = PackedSequences.from_mask(src_mask)
    x = embed(model, "src", packed.pack(_with_word_dropout(model, src)), packed.positions)
    for layer in cast(list[EncoderLayer], list(model.encoder)):
        attend = self_attention(layer.self_attention, packed, radius=model.arch.radius, causal=False)
        x = add_norm(layer.self_attention_norm, x, attended(layer.self_attention, x, attend))
        x = add_norm(layer.feed_forward_norm, x, feed_forward(layer.feed_forward, x))
    return x, packed


def decoder_layer(layer: DecoderLayer, x: Tensor, attend_to_target: Attention, attend_to_source: Attention) -> Tensor:
    """As `DecoderLayer.forward`, of the rows of packed sequences or of one step of a search."""
    x = add_norm(layer.self_attention_norm, x, attended(layer.self_attention, x, attend_to_target))
    source = layer.cross_attention
    x = add_norm(layer.cross_attention_norm, x, linear(source.out, attend_to_source(linear(source.q, x))))
    return add_norm(layer.feed_forward_norm, x, feed_forward(layer.feed_forward, x))


def attended(attention: SelfAttention, x: Tensor, attend: Attention) -> Tensor:
    """Self-attention with both its projections."""
    return linear(attention.out, attend(linear(attention.qkv, x)))


def self_attention(
    attention: SelfAttention, sequences: PackedSequences, *, radius: int | None, causal: bool
) -> Attention:
    """Attention of each sequence to itself."""
    rate = attention.dropout.present_rate

    def attend(qkv: Tensor) -> Tensor:
        return training_ops.self_attention(
            qkv, sequences, n_heads=attention.n_heads, widths=attention.widths, causal=causal, dropout=rate
        )

    def attend_within_radius(qkv: Tensor) -> Tensor:  # in PyTorch: the kernels know no radius
        parts = sequences.unpack(qkv).split(attention.widths, dim=-1)
        q, k, v = (part.unflatten(-1, (attention.n_heads, -1)).transpose(1, 2) for part in parts)
        mask = AttentionMask(causal=True, radius=radius) if causal else key_mask(sequences.mask, q, radius=radius)
        mixed = restricted_attention(q, k, v, mask, dropout=attention.dropout)
        return sequences.pack(mixed.transpose(1, 2).flatten(2))

    return attend if radius is None else attend_within_radius


def cross_attention(attention: CrossAttention, memory: Tensor, tgt: PackedSequences, src: PackedSequences) -> Attention:
    """Attention of each target to its source."""
    kv, rate = linear(attention.kv, memory), attention.dropout.present_rate
    return lambda q: training_ops.cross_attention(
        q, kv, tgt, src, n_heads=attention.n_heads, widths=attention.widths, dropout=rate
    )


def feed_forward(module: FeedForward, x: Tensor) -> Tensor:
    """As `FeedForward.forward`; training adds the bias and rectifies in one pass."""
    inner = module.inner
    if module.training and isinstance(inner, nn.Linear):
        hidden = training_ops.bias_relu(training_ops.linear(x, inner.weight, None), inner.bias)
    else:
        hidden = F.relu(linear(inner, x))
    return linear(module.outer, hidden)


def add_norm(module: AddNorm, x: Tensor, sublayer: Tensor) -> Tensor:
    """As `AddNorm.forward`."""
    return training_ops.add_norm(
        x, sublayer, module.weight, module.bias, dropout=module.dropout.present_rate, epsilon=module.eps
    )


def linear(module: nn.Module, x: Tensor) -> Tensor:
    """The product of an nn.Linear, or of what `prepack` has put in its place."""
    if isinstance(module, nn.Linear):
        return training_ops.linear(x, module.weight, module.bias)
    y: Tensor = module(x)
    return y


def embed(
    model: Transformer, side: Side, ids: Int[Tensor, " token"], positions: Int[Tensor, " token"]
) -> Float[Tensor, "token d_model"]:
    """Scaled embeddings plus positional encodings, with dropout; an id of -1, left out by word dropout, has none."""
    table = model.src_embedding if side == "src" else model.tgt_embedding
    position_table = model.position_table(side, int(positions.max()) + 1)
    return training_ops.embed(
        ids,
        positions,
        table.weight,
        position_table,
        scale=math.sqrt(model.arch.d_model),
        dropout=model.dropout.present_rate,
        word_dropout=model.training and model.arch.word_dropout > 0,
    )


def _with_word_dropout(model: Transformer, ids: Int[Tensor, "sentence position"]) -> Tensor:
    """The ids, -1 in the place of those that word dropout leaves out."""
    if (kept := model.word_dropout_mask(ids)) is None:
        return ids
    check_range("embed", "ids", ids, 0, model.vocab_size)  # those that are left out as well
    return ids.where(kept, -1)
