"""The kernels of a search's step, on a CPU, without gradients. Rows are hypotheses, `beam` in a row a sentence."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heed.kernels.library import kernel

PANEL = 32  # outputs that lie together in a packed weight: PANEL of products.h


def _structure(name: str, fields: Sequence[tuple[str, type]]) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


P, N, F32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_WEIGHT = (*((name, P) for name in ("panels", "offsets", "steps", "bias")), ("d_in", N), ("d_out", N))
_Weight = _structure("_Weight", _WEIGHT)
_Beams = _structure(
    "_Beams",
    (
        *((name, P) for name in ("ancestors", "rows", "slots", "lengths", "src_lengths")),
        *((name, N) for name in ("n_rows", "beam", "capacity", "n_heads", "d_k", "d_v")),
    ),
)
_DecoderLayer = _structure(
    "_DecoderLayer",
    (
        *((name, _Weight) for name in ("qkv", "self_out", "query", "cross_out", "inner", "outer")),
        *((f"{norm}_{part}", P) for norm in ("self", "cross", "feed_forward") for part in ("gain", "bias")),
        ("cache", P),
        ("memories", P),
    ),
)
_Step = _structure(
    "_Step",
    (
        ("layers", P),
        *((name, N) for name in ("n_layers", "d_model", "d_ff")),
        ("beams", _Beams),
        *((name, P) for name in ("tokens", "embedding", "positions")),
        *((name, F32) for name in ("scale", "epsilon")),
    ),
)


class PackedWeight:
    """A weight and bias as the products read them."""

    def __init__(self, d_in: int, d_out: int, panels: Tensor, bias: Tensor | None, *quantized: Tensor):
        self.d_in, self.d_out = d_in, d_out
        bias = torch.zeros(d_out) if bias is None else bias.float()
        self._tensors = (panels, *quantized, F.pad(bias, (0, -d_out % PANEL)))
        offsets, steps = quantized or (None, None)
        self.structure = _Weight(
            panels.data_ptr(), _address(offsets), _address(steps), self._tensors[-1].data_ptr(), d_in, d_out
        )

    def __deepcopy__(self, memo: object) -> "PackedWeight":
        return self  # it never changes


class Fp32Weight(PackedWeight):
    """In float."""

    def __init__(self, weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None):
        d_out, d_in = weight.shape
        filled = F.pad(weight.float(), (0, 0, 0, -d_out % PANEL))
        super().__init__(d_in, d_out, filled.view(-1, PANEL, d_in).transpose(1, 2).contiguous(), bias)


class Int8Weight(PackedWeight):
    """In whole multiples of an output's step, which is its largest number / 127."""

    def __init__(self, weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None):
        d_out, d_in = weight.shape
        weight = weight.float()
        steps = weight.abs().amax(dim=1).clamp(min=1e-30) / 127
        filled = F.pad((weight / steps[:, None]).round().to(torch.int8), (0, -d_in % 4, 0, -d_out % PANEL))
        panels = filled.view(-1, PANEL, filled.shape[1] // 4, 4).transpose(1, 2).contiguous()
        offsets = -128 * filled.sum(dim=1, dtype=torch.int32)
        super().__init__(d_in, d_out, panels, bias, offsets, F.pad(steps, (0, -d_out % PANEL)))


def fp32_product(
    x: Float[Tensor, "*row d_in"], weight: Fp32Weight, *, relu: bool = False
) -> Float[Tensor, "*row d_out"]:
    """x · Wᵀ + bias: a row's result has the same bits whatever rows lie beside it."""
    return _product("panel_product", x, weight, relu)


def int8_product(
    x: Float[Tensor, "*row d_in"], weight: Int8Weight, *, relu: bool = False
) -> Float[Tensor, "*row d_out"]:
    """x · Wᵀ + bias, x in 8 bits by rows; the sums are whole numbers, so they are exact."""
    return _product("int8_product", x, weight, relu)


def _product(name: str, x: Tensor, weight: PackedWeight, relu: bool) -> Tensor:
    x = x.contiguous()
    y = x.new_empty(*x.shape[:-1], weight.d_out)
    structure = ctypes.addressof(weight.structure)
    kernel(name, x)(x.data_ptr(), structure, y.data_ptr(), x.numel() // weight.d_in, relu)
    return y


@dataclass
class Beams:
    """Where the rows of a search have their past; `beam` rows in a row are a sentence's. Of all, `active` are computed.

    ancestors[slot, position]: the slot that holds what the row in `slot` has at `position`; its own position is entered
    by `attend_to_past`. lengths: the new position of each row. widths: of one head's key and value.
    """

    ancestors: Int[Tensor, "slot position"]
    active: Int[Tensor, " active"]
    slots: Int[Tensor, " row"]
    lengths: Int[Tensor, " row"]
    src_lengths: Int[Tensor, " sentence"]
    beam: int
    n_heads: int
    widths: tuple[int, int]

    def structure(self) -> ctypes.Structure:
        """As the kernels take it."""
        tensors = (self.ancestors, self.active, self.slots, self.lengths, self.src_lengths)
        sizes = (len(self.active), self.beam, self.ancestors.shape[1], self.n_heads, *self.widths)
        return _Beams(*(tensor.data_ptr() for tensor in tensors), *sizes)


def attend_to_past(
    qkv: Float[Tensor, "active qkv"], cache: Float[Tensor, "slot position kv"], beams: Beams
) -> Float[Tensor, "active value"]:
    """Every active row's attention to the positions before it and to itself, whose keys and values enter the cache.

    qkv: all heads' Q, K and V.
    """
    out = qkv.new_empty(len(qkv), beams.n_heads * beams.widths[1])
    structure = beams.structure()
    kernel("attend_to_past", qkv)(qkv.data_ptr(), cache.data_ptr(), ctypes.addressof(structure), out.data_ptr())
    return out


def attend_to_source(
    q: Float[Tensor, "active query"], memories: Int[Tensor, " sentence"], beams: Beams
) -> Float[Tensor, "active value"]:
    """Every active row's attention to its sentence's source; memories: addresses of (src, all heads' K and V)."""
    out = q.new_empty(len(q), beams.n_heads * beams.widths[1])
    structure = beams.structure()
    kernel("attend_to_source", q)(q.data_ptr(), memories.data_ptr(), ctypes.addressof(structure), out.data_ptr())
    return out


class DecoderLayers:
    """A decoder's layers for `step`: of each layer six packed weights and three norms' gains and biases.

    Weights in float with everything in float, or in 8 bits with norms, keys and values in bf16.
    """

    def __init__(self, layers: Sequence[tuple[Sequence[PackedWeight], Sequence[Tensor]]], *, epsilon: float):
        self._kept, self._epsilon = layers, epsilon
        self._array = (_DecoderLayer * len(layers))()
        for layer, (weights, norms) in zip(self._array, layers, strict=True):
            pointers = (norm.data_ptr() for norm in norms)
            values = (*(weight.structure for weight in weights), *pointers)
            for (name, _), value in zip(_DecoderLayer._fields_, values, strict=False):  # type: ignore[misc]
                setattr(layer, name, value)

    def step(
        self,
        tokens: Int[Tensor, " row"],
        embedding: Float[Tensor, "vocab d_model"],
        positions: Float[Tensor, "place d_model"],
        caches: Sequence[Float[Tensor, "slot position kv"]],
        memories: Int[Tensor, "layer sentence"],
        beams: Beams,
    ) -> Float[Tensor, "active d_model"]:
        """What the last layer makes of every active row's next token, in float; the rest as `attend_to_…` take it."""
        for layer, cache, addresses in zip(self._array, caches, memories, strict=True):
            layer.cache, layer.memories = cache.data_ptr(), addresses.data_ptr()
        d_model, d_ff = embedding.shape[1], self._array[0].inner.d_out
        x = torch.empty(len(beams.active), d_model)
        step = _Step(
            ctypes.addressof(self._array),
            *(len(self._array), d_model, d_ff, beams.structure()),
            *(tensor.data_ptr() for tensor in (tokens, embedding, positions)),
            *(math.sqrt(d_model), self._epsilon),
        )
        kernel("decoder_step", embedding)(ctypes.addressof(step), x.data_ptr())
        return x


@dataclass(frozen=True)
class Int8Logits:
    """Logits that are not worked out: x · Wᵀ. `best_continuations` never holds all of them."""

    x: Float[Tensor, "active d_model"]
    weight: Int8Weight


def best_continuations(
    logits: Float[Tensor, "active vocab"] | Int8Logits,
    active: Int[Tensor, " active"],
    log_probs: Float[Tensor, "sentence beam"],
    required: Int[Tensor, "sentence beam"],
    never: Bool[Tensor, " vocab"],
    may_end: Bool[Tensor, " sentence"],
    *,
    eos: int,
    k: int,
) -> tuple[Float[Tensor, "sentence k"], Int[Tensor, "sentence k"]]:
    """In fp64 the k largest sums of a row's log-probability and its next id's: (values, row of the beam · vocab + id).

    active: the rows that have logits; the others have no continuation. required: the only id that a row may take, or
    -1. Of equals the first; where fewer than k exist, -∞.
    """
    n_sentences, beam = log_probs.shape
    values = torch.empty(n_sentences, k, dtype=torch.float64)
    indices = torch.empty(n_sentences, k, dtype=torch.int64)
    pointers = [t.data_ptr() for t in (active, log_probs, required, never, may_end, values, indices)]
    sizes = (len(active), n_sentences, beam)
    if isinstance(logits, Int8Logits):
        structure = ctypes.addressof(logits.weight.structure)
        kernel("int8_best_continuations", logits.x)(logits.x.data_ptr(), structure, *pointers, *sizes, eos, k)
    else:
        kernel("best_continuations", logits)(logits.data_ptr(), *pointers, *sizes, logits.shape[1], eos, k)
    return values, indices


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
