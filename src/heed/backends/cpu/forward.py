"""The network's forward pass by the kernels, over packed sequences.

Training and validation run it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from heed.backends.cpu import training_ops
from heed.backends.cpu.packed import PackedSequences
from heed.backends.cpu.tensors import check_range
from heed.data.batches.batch import Batch
from heed.model.attention import AttentionMask, key_mask, restricted_attention
from heed.model.transformer import (
    ACTIVATIONS,
    AddNorm,
    CrossAttention,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    SelfAttention,
    Side,
    Transformer,
)

# What a layer's projections become: (token, Q | K | V) or (token, Q) → (token, V).
Attention = Callable[[Tensor], Tensor]


def target_features(model: Transformer, batch: Batch) -> Float[Tensor, "tgt_token d_model"]:
    """The decoder's output at the real target positions, sentence by sentence."""
    src, tgt = PackedSequences.of(batch.src_lengths), PackedSequences.of(batch.tgt_lengths)
    src_keep_mask, tgt_keep_mask = batch.keep_masks or (None, None)
    memory = encode(model, batch.src, src, keep_mask=src_keep_mask)
    x = _embed_sequences(model, "tgt", batch.tgt_in, tgt, keep_mask=tgt_keep_mask)
    stream = ResidualStream(x, stack_norms(model, "tgt"), dropout=model.dropout.effective_rate)
    for layer in cast(list[DecoderLayer], list(model.decoder)):
        decoder_layer(
            layer,
            stream,
            self_attention(layer.self_attention, tgt, radius=model.arch.radius, causal=True),
            cross_attention(layer.cross_attention, memory, tgt, src),
        )
    return stream.x[: tgt.n_real]


def encode(
    model: Transformer, src: NDArray[np.int64], sequences: PackedSequences, *, keep_mask: NDArray[np.bool_] | None
) -> Float[Tensor, "src_token d_model"]:
    """The encoder's output. keep_mask: as in `Transformer.encode`."""
    x = _embed_sequences(model, "src", src, sequences, keep_mask=keep_mask)
    stream = ResidualStream(x, stack_norms(model, "src"), dropout=model.dropout.effective_rate)
    for layer in cast(list[EncoderLayer], list(model.encoder)):
        attend = self_attention(layer.self_attention, sequences, radius=model.arch.radius, causal=False)
        stream.add(attend_and_project(layer.self_attention, stream.x, attend))
        stream.add(feed_forward(layer.feed_forward, stream.x))
    return stream.x


def decoder_layer(
    layer: DecoderLayer, stream: "ResidualStream", attend_to_target: Attention, attend_to_source: Attention
) -> None:
    """Does what `DecoderLayer.forward` does, for the rows of packed sequences."""
    stream.add(attend_and_project(layer.self_attention, stream.x, attend_to_target))
    source = layer.cross_attention
    stream.add(linear(source.out, attend_to_source(linear(source.q, stream.x))))
    stream.add(feed_forward(layer.feed_forward, stream.x))


class StackNorms(NamedTuple):
    """A stack's norms, in the order in which they run: with pre-norm one comes first; one is behind each sum."""

    first: nn.LayerNorm | None
    behind_sums: list[nn.LayerNorm]


def stack_norms(model: Transformer, side: Side) -> StackNorms:
    """The norms of the encoder or of the decoder.

    With pre-norm the one behind a sum is the next sub-layer's, or the stack's last: so one kernel adds and normalises,
    as with post-norm.
    """
    stack, last = (model.encoder, model.encoder_norm) if side == "src" else (model.decoder, model.decoder_norm)
    norms: list[nn.LayerNorm] = [part for layer in stack for part in layer.children() if isinstance(part, AddNorm)]
    return StackNorms(norms[0], [*norms[1:], last]) if isinstance(last, nn.LayerNorm) else StackNorms(None, norms)


class ResidualStream:
    """The residual stream of a stack: the sum of its sub-layers' outputs, and `x`, which the next sub-layer reads.

    With post-norm both are the normalised sum; with pre-norm the sum itself flows on.
    """

    def __init__(self, x: Float[Tensor, "token d_model"], norms: StackNorms, *, dropout: float):
        self._norms, self._is_pre, self._dropout = iter(norms.behind_sums), norms.first is not None, dropout
        self._sum = self.x = x
        if norms.first is not None:
            self.x = F.layer_norm(x, x.shape[-1:], norms.first.weight, norms.first.bias, norms.first.eps)

    def add(self, branch: Float[Tensor, "token d_model"]) -> None:
        """Adds a sub-layer's output, with dropout, and normalises."""
        norm = next(self._norms)
        total, self.x = training_ops.sum_and_norm(
            self._sum, branch, norm.weight, norm.bias, dropout=self._dropout, epsilon=norm.eps
        )
        self._sum = total if self._is_pre else self.x


def attend_and_project(
    attention: SelfAttention, x: Float[Tensor, "token d_model"], attend: Attention
) -> Float[Tensor, "token d_model"]:
    """Self-attention with both its projections."""
    return linear(attention.out, attend(linear(attention.qkv, x)))


def self_attention(
    attention: SelfAttention, sequences: PackedSequences, *, radius: int | None, causal: bool
) -> Attention:
    """Attention of each sequence to itself."""
    rate = attention.dropout.effective_rate

    def attend(qkv: Float[Tensor, "token qkv"]) -> Float[Tensor, "token values"]:
        return training_ops.self_attention(
            qkv, sequences, n_heads=attention.n_heads, widths=attention.widths, causal=causal, dropout=rate
        )

    # In PyTorch: the kernels know no radius.
    def attend_within_radius(qkv: Float[Tensor, "token qkv"]) -> Float[Tensor, "token values"]:
        parts = sequences.unpack(qkv).split(attention.widths, dim=-1)
        q, k, v = (part.unflatten(-1, (attention.n_heads, -1)).transpose(1, 2) for part in parts)
        mask = AttentionMask(causal=True, radius=radius) if causal else key_mask(sequences.mask, q, radius=radius)
        mixed = restricted_attention(q, k, v, mask, dropout=attention.dropout)
        return sequences.pack(mixed.transpose(1, 2).flatten(2))

    return attend if radius is None else attend_within_radius


def cross_attention(
    attention: CrossAttention, memory: Float[Tensor, "src_token d_model"], tgt: PackedSequences, src: PackedSequences
) -> Attention:
    """Attention of each target to its source."""
    kv, rate = linear(attention.kv, memory), attention.dropout.effective_rate
    return lambda q: training_ops.cross_attention(
        q, kv, tgt, src, n_heads=attention.n_heads, widths=attention.widths, dropout=rate
    )


def feed_forward(module: FeedForward, x: Float[Tensor, "token d_model"]) -> Float[Tensor, "token d_model"]:
    """Does what `FeedForward.forward` does; training adds the bias and rectifies in one pass."""
    inner = module.inner
    if module.training and module.activation == "relu" and isinstance(inner, nn.Linear):
        hidden = training_ops.bias_relu(training_ops.linear(x, inner.weight, None), inner.bias)
    else:
        hidden = ACTIVATIONS[module.activation](linear(inner, x))
    return linear(module.outer, hidden)


def linear(module: nn.Module, x: Float[Tensor, "token width"]) -> Float[Tensor, "token out"]:
    """The product of an nn.Linear."""
    linear = cast(nn.Linear, module)
    return training_ops.linear(x, linear.weight, linear.bias)


def embed(
    model: Transformer,
    side: Side,
    ids: Int[Tensor, " token"],
    positions: Int[Tensor, " token"],
    *,
    may_lack: bool = False,
) -> Float[Tensor, "token d_model"]:
    """Scaled embeddings plus positional encodings, with dropout; with `may_lack` an id of -1 has no embedding."""
    table = model.src_embedding if side == "src" else model.tgt_embedding
    position_table = model.position_table(side, int(positions.max()) + 1)
    if side == "tgt" and model.arch.decoder_start == "zero":
        least = -1 if may_lack else 0
        check_range("embed", "ids", ids, least=least, end=len(table.weight))  # those that are left out as well
        ids, may_lack = ids.where(positions > 0, -1), True
    norm = model.src_embedding_norm if side == "src" else model.tgt_embedding_norm
    dropout = model.dropout.effective_rate
    embedded = training_ops.embed(
        ids,
        positions,
        table.weight,
        position_table,
        scale=math.sqrt(model.arch.d_model),
        dropout=0.0 if model.arch.embedding_norm else dropout,
        may_lack=may_lack,
    )
    return F.dropout(norm(embedded), dropout) if model.arch.embedding_norm else embedded


def _embed_sequences(
    model: Transformer,
    side: Side,
    given: NDArray[np.int64],
    sequences: PackedSequences,
    *,
    keep_mask: NDArray[np.bool_] | None,
) -> Float[Tensor, "token d_model"]:
    """`embed` of packed sequences' ids, without the embeddings that word dropout or `keep_mask` zeroes."""
    ids = torch.from_numpy(given)
    given_mask = None if keep_mask is None else sequences.unpack(torch.from_numpy(keep_mask))
    # Word dropout draws for padding, too, as in the plain network.
    if (kept := model.word_dropout_mask(sequences.mask, given_mask)) is not None:
        vocab_size = model.src_vocab_size if side == "src" else model.vocab_size
        check_range("embed", "ids", ids, end=vocab_size)  # those that are left out as well
        ids = ids.where(kept[sequences.mask], -1)
    ids = F.pad(ids, (0, len(sequences.positions) - len(ids)))
    return embed(model, side, ids, sequences.positions, may_lack=kept is not None)
