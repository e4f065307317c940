"""The kernels of a search's step, on a CPU, without gradients. Rows are hypotheses, `beam` in a row a sentence."""

import ctypes
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heed.kernels.library import kernel

PANEL = 32  # outputs that lie together in a packed weight: PANEL of decoding.cpp


def panels(weight: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "panel d_in PANEL"]:
    """An fp32 weight as `panel_product` reads it."""
    d_out, d_in = weight.shape
    filled = F.pad(weight, (0, 0, 0, -d_out % PANEL))
    return filled.view(-1, PANEL, d_in).transpose(1, 2).contiguous()


def panel_product(
    x: Float[Tensor, "*row d_in"], weight_panels: Tensor, bias: Tensor | None, d_out: int
) -> Float[Tensor, "*row d_out"]:
    """x · Wᵀ + bias in fp32: a row's result has the same bits whatever rows lie beside it. `bias` fills its panels."""
    x = x.contiguous()
    d_in = x.shape[-1]
    y = x.new_empty(*x.shape[:-1], d_out)
    tensors = (x.data_ptr(), weight_panels.data_ptr(), _address(bias), y.data_ptr())
    kernel("panel_product", x)(*tensors, x.numel() // d_in, d_in, d_out)
    return y


class _Int8Weight(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("panels", "offsets", "steps", "bias")),
        *((name, ctypes.c_int64) for name in ("d_in", "d_out")),
    )


class Int8Weight:
    """A weight and bias as `int8_product` reads them; each output's numbers are whole multiples of its step."""

    def __init__(self, weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None):
        """The nearest to an fp32 weight, in steps of an output's largest number / 127."""
        self.d_out, self.d_in = weight.shape
        steps = weight.abs().amax(dim=1).clamp(min=1e-30) / 127
        filled = F.pad((weight / steps[:, None]).round().to(torch.int8), (0, -self.d_in % 4, 0, -self.d_out % PANEL))
        bias = torch.zeros(self.d_out) if bias is None else bias
        self._tensors = (
            filled.view(-1, PANEL, filled.shape[1] // 4, 4).transpose(1, 2).contiguous(),
            -128 * filled.sum(dim=1, dtype=torch.int32),
            F.pad(steps, (0, -self.d_out % PANEL)),
            F.pad(bias, (0, -self.d_out % PANEL)),
        )

    def __deepcopy__(self, memo: object) -> "Int8Weight":
        return self  # it never changes

    def structure(self) -> _Int8Weight:
        """As the kernels take it."""
        return _Int8Weight(*(tensor.data_ptr() for tensor in self._tensors), self.d_in, self.d_out)


def int8_product(
    x: Float[Tensor, "*row d_in"], weight: Int8Weight, *, relu: bool = False, logits: bool = False
) -> Float[Tensor, "*row d_out"]:
    """x · Wᵀ + bias, x in 8 bits by rows; the sums are whole numbers, so they are exact. `logits`: results in fp32."""
    x = x.contiguous()
    y = torch.empty(*x.shape[:-1], weight.d_out, dtype=torch.float32 if logits else x.dtype)
    n, structure = x.numel() // weight.d_in, weight.structure()
    if logits:
        kernel("int8_logits", x)(x.data_ptr(), ctypes.addressof(structure), y.data_ptr(), n)
    else:
        kernel("int8_product", x)(x.data_ptr(), ctypes.addressof(structure), y.data_ptr(), n, relu)
    return y


def attend_to_past(
    qkv: Float[Tensor, "row qkv"],
    cache: Float[Tensor, "slot position kv"],
    ancestors: Int[Tensor, "slot position"],
    slots: Int[Tensor, " row"],
    lengths: Int[Tensor, " row"],
    *,
    n_heads: int,
    widths: tuple[int, int],
) -> Float[Tensor, "row value"]:
    """Every row's attention to the positions before it and to itself, whose keys and values enter the cache.

    qkv: all heads' Q, K and V, widths: of one head's key and value. ancestors[slot, position]: the slot that holds what
    the row in `slot` has at `position`; its own position is entered. lengths: the new position of each row.
    """
    out = qkv.new_empty(len(qkv), n_heads * widths[1])
    tensors = (qkv, cache, ancestors, slots, lengths, out)
    kernel("attend_to_past", qkv)(*(t.data_ptr() for t in tensors), len(qkv), cache.shape[1], n_heads, *widths)
    return out


def attend_to_source(
    q: Float[Tensor, "row query"],
    memories: Int[Tensor, " sentence"],
    src_lengths: Int[Tensor, " sentence"],
    *,
    beam: int,
    n_heads: int,
    widths: tuple[int, int],
) -> Float[Tensor, "row value"]:
    """Every row's attention to its sentence's source; memories: addresses of (src, all heads' K and V)."""
    out = q.new_empty(len(q), n_heads * widths[1])
    tensors = (q, memories, src_lengths, out)
    kernel("attend_to_source", q)(*(t.data_ptr() for t in tensors), len(q), beam, n_heads, *widths)
    return out


@dataclass(frozen=True)
class Int8Logits:
    """Logits that are not worked out: x · Wᵀ. `best_continuations` never holds all of them."""

    x: Float[Tensor, "row d_model"]
    weight: Int8Weight


def best_continuations(
    logits: Float[Tensor, "row vocab"] | Int8Logits,
    log_probs: Float[Tensor, "sentence beam"],
    required: Int[Tensor, "sentence beam"],
    never: Bool[Tensor, " vocab"],
    may_end: Bool[Tensor, " sentence"],
    *,
    eos: int,
    k: int,
) -> tuple[Float[Tensor, "sentence k"], Int[Tensor, "sentence k"]]:
    """In fp64 the k largest sums of a row's log-probability and its next id's: (values, row of the beam · vocab + id).

    required: the only id that a row may take, or -1. Of equals the first; where fewer than k exist, -∞.
    """
    n_sentences, beam = log_probs.shape
    values = torch.empty(n_sentences, k, dtype=torch.float64)
    indices = torch.empty(n_sentences, k, dtype=torch.int64)
    pointers = [t.data_ptr() for t in (log_probs, required, never, may_end, values, indices)]
    if isinstance(logits, Int8Logits):
        structure = logits.weight.structure()
        kernel("int8_best_continuations", logits.x)(
            logits.x.data_ptr(), ctypes.addressof(structure), *pointers, n_sentences, beam, eos, k
        )
    else:
        kernel("best_continuations", logits)(logits.data_ptr(), *pointers, n_sentences, beam, logits.shape[1], eos, k)
    return values, indices


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
