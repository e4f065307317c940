"""The kernels of a search's step, on a CPU, without gradients. Rows are hypotheses, `beam` in a row a sentence."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heed.kernels.library import kernel

PANEL = 32  # outputs that lie together in a packed weight: PANEL of decoding.cpp


def panels(weight: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "panel d_in PANEL"]:
    """An fp32 weight as `panel_product` reads it."""
    d_out, d_in = weight.shape
    filled = torch.nn.functional.pad(weight, (0, 0, 0, -d_out % PANEL))
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


def int8_product(
    x: Float[Tensor, "*row d_in"],
    weight: Int[Tensor, "d_out d_in"],
    weight_steps: Float[Tensor, " d_out"],
    bias: Float[Tensor, " d_out"] | None,
) -> Float[Tensor, "*row d_out"]:
    """x · Wᵀ + bias, x in 8 bits by rows, W in 8 bits by outputs; the sums are whole numbers, so they are exact."""
    x = x.contiguous()
    d_out, d_in = weight.shape
    n = x.numel() // d_in
    q, steps = torch.empty(n, d_in, dtype=torch.int8), torch.empty(n)
    kernel("quantize", x)(x.data_ptr(), q.data_ptr(), steps.data_ptr(), n, d_in)
    sums = torch._int_mm(q, weight.t())
    y = torch.empty(*x.shape[:-1], d_out)
    kernel("dequantize", x)(
        sums.data_ptr(), steps.data_ptr(), weight_steps.data_ptr(), _address(bias), y.data_ptr(), n, d_out
    )
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


def best_continuations(
    logits: Float[Tensor, "row vocab"],
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
    tensors = (logits, log_probs, required, never, may_end, values, indices)
    kernel("best_continuations", logits)(*(t.data_ptr() for t in tensors), n_sentences, beam, logits.shape[1], eos, k)
    return values, indices


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
