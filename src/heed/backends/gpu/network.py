"""The network over packed tokens on a GPU: the modules of model/transformer.py, attention by sequences of any lengths.

Each function is a region that torch.compile fuses: no graph breaks inside, and all layers of a stack share one graph.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

from heed.backends.gpu.relu_product import relu_product
from heed.model.transformer import CrossAttention, DecoderLayer, EncoderLayer, FeedForward, SelfAttention


def check_window(attention: Callable[..., Any]) -> None:
    """ImportError if this attention takes no window, which keeps a target's tokens from the future."""
    if "window_size" not in inspect.signature(attention).parameters:
        raise ImportError(f"they need PyTorch 2.11 or newer, and this is {torch.__version__}")


check_window(varlen_attn)
# A region as it is called: compiled, or as it is written.
Region = Callable[..., Tensor]


def embed(
    table: Float[Tensor, "vocab d_model"],
    position_table: Float[Tensor, "position d_model"],
    ids: Int[Tensor, " token"],
    positions: Int[Tensor, " token"],
    *,
    keep_mask: Bool[Tensor, " token"] | None,
    dropout: float,
    zero_start: bool,
) -> Tensor:
    """Returns scaled embeddings plus positions, with dropout. zero_start: of the sequences' first."""
    words = F.embedding(ids, table) * math.sqrt(table.shape[1])
    if keep_mask is not None:
        words = words * keep_mask[:, None]
    if zero_start:
        words = words * (positions != 0)[:, None]
    return F.dropout(words + F.embedding(positions, position_table), dropout)


def encoder_layer(
    layer: EncoderLayer, x: Float[Tensor, "token d_model"], starts: Int[Tensor, " sequence_and_1"], longest: int
) -> Tensor:
    """Computes `EncoderLayer.forward`."""
    own = layer.self_attention
    x = layer.self_attention_norm(
        x, lambda y: _attend(own, own.qkv(y).split(own.widths, dim=-1), starts, starts, longest=longest)
    )
    return cast(Tensor, layer.feed_forward_norm(x, lambda y: _feed_forward(layer.feed_forward, y)))


def decoder_layer(
    layer: DecoderLayer,
    x: Float[Tensor, "tgt_token d_model"],
    memory: Float[Tensor, "src_token d_model"],
    *,
    starts: Int[Tensor, " sequence_and_1"],
    memory_starts: Int[Tensor, " sequence_and_1"],
    longest: int,
) -> Tensor:
    """Computes `DecoderLayer.forward`, the memory's keys and values included."""
    own, source = layer.self_attention, layer.cross_attention

    def attend_to_source(y: Tensor) -> Tensor:
        qkv = [source.q(y), *source.kv(memory).split(source.widths, dim=-1)]
        return _attend(source, qkv, starts, memory_starts, longest=longest)

    x = layer.self_attention_norm(
        x, lambda y: _attend(own, own.qkv(y).split(own.widths, dim=-1), starts, starts, longest=longest, window=(-1, 0))
    )
    x = layer.cross_attention_norm(x, attend_to_source)
    return cast(Tensor, layer.feed_forward_norm(x, lambda y: _feed_forward(layer.feed_forward, y)))


def _attend(
    attention: SelfAttention | CrossAttention,
    qkv: Sequence[Float[Tensor, "token head_width"]],
    starts: Int[Tensor, " sequence_and_1"],
    key_starts: Int[Tensor, " sequence_and_1"],
    *,
    longest: int,
    window: tuple[int, int] = (-1, -1),
) -> Float[Tensor, "token d_model"]:
    """Each sequence's queries attend to its keys; window: how many before and behind each, -1 for all."""
    q, k, v = (part.unflatten(-1, (attention.n_heads, -1)) for part in qkv)
    mixed = varlen_attn(q, k, v, starts, key_starts, longest, longest, window_size=window)
    return cast(Tensor, attention.out(cast(Tensor, mixed).flatten(1)))


def _feed_forward(module: FeedForward, x: Float[Tensor, "token d_model"]) -> Tensor:
    if module.activation != "relu":
        return cast(Tensor, module(x))
    return cast(Tensor, module.outer(relu_product(x, module.inner.weight, module.inner.bias)))


class Regions:
    """The regions of the network as a pass calls them.

    compiler: how torch.compile is to compile the region of this name (its `backend`); None: not at all.
    """

    def __init__(self, compiler: Callable[[str], Any]):
        self.embed, self.encoder_layer, self.decoder_layer = (
            _region(function, compiler(function.__name__)) for function in (embed, encoder_layer, decoder_layer)
        )


def _region(function: Region, compiler: Any) -> Region:
    if compiler is None:
        return function
    # A graph break is an error: it would launch the region in pieces, and nothing in it is worth one.
    return cast(Region, torch.compile(function, fullgraph=True, backend=compiler))


def final_norm(norm: nn.Module, x: Float[Tensor, "token d_model"]) -> Tensor:
    """A stack's last normalization, which only pre-norm has."""
    return cast(Tensor, norm(x))
