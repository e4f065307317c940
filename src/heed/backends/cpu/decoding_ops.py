"""The kernels of a search's step, on a CPU, without gradients. Rows are hypotheses, `beam` in a row a sentence."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from heed.backends.cpu import structures
from heed.backends.cpu.build import Wanted, addresses, check_range, kernel

PANEL = 32  # outputs that lie together in a packed weight: PANEL of products.h


class PackedWeight:
    """A weight and bias as the products read them."""

    def __init__(self, d_in: int, d_out: int, panels: Tensor, bias: Tensor | None, *quantized: Tensor):
        self.d_in, self.d_out = d_in, d_out
        bias = torch.zeros(d_out) if bias is None else bias.float()
        self._tensors: tuple[Tensor, ...] = (panels, *quantized, F.pad(bias, (0, -d_out % PANEL)))
        self.structure = self._structure()

    def _structure(self) -> ctypes.Structure:
        panels, *quantized, bias = self._tensors
        offsets, steps = quantized or (None, None)
        return structures.Weight(
            panels.data_ptr(), _address(offsets), _address(steps), bias.data_ptr(), self.d_in, self.d_out
        )

    def __deepcopy__(self, memo: object) -> "PackedWeight":
        return self  # it never changes

    def __getstate__(self) -> tuple[int, int, list[NDArray[Any]]]:
        # Arrays, since multiprocessing moves tensors to shared memory, away from the structure's addresses.
        return self.d_in, self.d_out, [tensor.detach().numpy() for tensor in self._tensors]

    def __setstate__(self, state: tuple[int, int, list[NDArray[Any]]]) -> None:
        self.d_in, self.d_out, arrays = state
        self._tensors = tuple(torch.tensor(array) for array in arrays)
        self.structure = self._structure()


class Fp32Weight(PackedWeight):
    """In float."""

    def __init__(self, weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None):
        d_out, d_in = weight.shape
        n_whole = d_out // PANEL
        panels = torch.zeros(-(-d_out // PANEL), d_in, PANEL)
        panels[:n_whole] = weight[: n_whole * PANEL].view(n_whole, PANEL, d_in).transpose(1, 2)
        if d_out % PANEL:
            panels[-1, :, : d_out % PANEL] = weight[n_whole * PANEL :].T
        super().__init__(d_in, d_out, panels, bias)


class Int8Weight(PackedWeight):
    """In whole multiples of an output's step, which is its largest number / 127."""

    def __init__(self, weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None):
        d_out, d_in = weight.shape
        weight = weight.float()
        steps = weight.abs().amax(dim=1).clamp(min=1e-30) / 127
        whole = (weight / steps[:, None]).round_().nan_to_num_()  # of what is not finite the step is not either
        filled = F.pad(whole.to(torch.int8), (0, -d_in % 4, 0, -d_out % PANEL))
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
    (at,) = addresses(name, x=(x, (*x.shape[:-1], weight.d_in), x.dtype))
    kernel(name, x)(at, ctypes.addressof(weight.structure), y.data_ptr(), x.numel() // weight.d_in, relu)
    return y


@dataclass(frozen=True)
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

    @cached_property
    def structure(self) -> ctypes.Structure:
        """As the kernels take it."""
        (n_slots, capacity), n_rows, n_active = self.ancestors.shape, len(self.slots), len(self.active)
        at = addresses(
            "attend_to_past",
            ancestors=(self.ancestors, (n_slots, capacity), torch.int32),
            active=(self.active, (n_active,), torch.int64),
            slots=(self.slots, (n_rows,), torch.int64),
            lengths=(self.lengths, (n_rows,), torch.int64),
            src_lengths=(self.src_lengths, (n_rows // self.beam,), torch.int64),
        )
        check_range("attend_to_past", "active", self.active, 0, n_rows)
        check_range("attend_to_past", "slots", self.slots, 0, n_slots)
        check_range("attend_to_past", "lengths", self.lengths, 0, capacity)
        return structures.Beams(*at, n_active, self.beam, capacity, self.n_heads, *self.widths)

    def cache(self, x: Tensor, dtype: torch.dtype) -> Wanted:
        """A layer's keys and values, as the kernels want them."""
        return x, (*self.ancestors.shape, self.n_heads * sum(self.widths)), dtype

    def memories(self, x: Tensor) -> Wanted:
        """The addresses of a layer's sources, as the kernels want them."""
        return x, self.src_lengths.shape, torch.int64


def attend_to_past(
    qkv: Float[Tensor, "active qkv"], cache: Float[Tensor, "slot position kv"], beams: Beams
) -> Float[Tensor, "active value"]:
    """Every active row's attention to the positions before it and to itself, whose keys and values enter the cache.

    qkv: all heads' Q, K and V.
    """
    keys, values = (beams.n_heads * width for width in beams.widths)
    out = qkv.new_empty(len(qkv), values)
    wanted = (len(beams.active), 2 * keys + values)
    at = addresses("attend_to_past", qkv=(qkv, wanted, qkv.dtype), cache=beams.cache(cache, qkv.dtype))
    kernel("attend_to_past", qkv)(*at, ctypes.addressof(beams.structure), out.data_ptr())
    return out


def attend_to_source(
    q: Float[Tensor, "active query"], memories: Int[Tensor, " sentence"], beams: Beams
) -> Float[Tensor, "active value"]:
    """Every active row's attention to its sentence's source; memories: addresses of (src, all heads' K and V)."""
    keys, values = (beams.n_heads * width for width in beams.widths)
    out = q.new_empty(len(q), values)
    at = addresses("attend_to_source", q=(q, (len(beams.active), keys), q.dtype), memories=beams.memories(memories))
    kernel("attend_to_source", q)(*at, ctypes.addressof(beams.structure), out.data_ptr())
    return out


class DecoderLayers:
    """A decoder's layers for `step`: of each layer six packed weights and three norms' gains and biases.

    Weights in float with everything in float, or in 8 bits with norms, keys and values in bf16.
    """

    def __init__(self, layers: Sequence[tuple[Sequence[PackedWeight], Sequence[Tensor]]], *, epsilon: float):
        self._kept, self._epsilon = layers, epsilon
        self._caches: Sequence[Tensor] | None = None  # those whose addresses the layers have
        self._memories: Tensor | None = None
        self._array = (structures.DecoderLayer * len(layers))()
        for layer, (weights, norms) in zip(self._array, layers, strict=True):
            pointers = (norm.data_ptr() for norm in norms)
            values = (*(weight.structure for weight in weights), *pointers)
            for (name, _), value in zip(structures.DecoderLayer._fields_, values, strict=False):  # type: ignore[misc]
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
        """What the last layer makes of every active row's next token, in float; the rest as `attend_to_…` take it.

        caches and memories are not changed but replaced: the same object has the same addresses.
        """
        (vocab_size, d_model), dtype, n_rows = embedding.shape, embedding.dtype, len(beams.slots)
        if caches is not self._caches or memories is not self._memories:
            for layer, cache, sources in zip(self._array, caches, memories, strict=True):
                layer.cache, layer.memories = addresses(
                    "decoder_step", cache=beams.cache(cache, dtype), memories=beams.memories(sources)
                )
            self._caches, self._memories = caches, memories
        at = addresses(
            "decoder_step",
            tokens=(tokens, (n_rows,), torch.int64),
            embedding=(embedding, (vocab_size, self._array[0].qkv.d_in), dtype),
            positions=(positions, (len(positions), d_model), dtype),
        )
        check_range("decoder_step", "tokens", tokens, 0, vocab_size)
        check_range("decoder_step", "lengths", beams.lengths, 0, len(positions))
        x = torch.empty(len(beams.active), d_model)
        step = structures.Step(
            ctypes.addressof(self._array),
            *(len(self._array), d_model, self._array[0].inner.d_out, beams.structure),
            *at,
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
    x, width = (logits.x, logits.weight.d_in) if isinstance(logits, Int8Logits) else (logits, len(never))
    at, *others = addresses(
        "best_continuations",
        logits=(x, (len(active), width), x.dtype),
        active=(active, (len(active),), torch.int64),
        log_probs=(log_probs, (n_sentences, beam), torch.float64),
        required=(required, (n_sentences, beam), torch.int64),
        never=(never, (logits.weight.d_out if isinstance(logits, Int8Logits) else width,), torch.bool),
        may_end=(may_end, (n_sentences,), torch.bool),
    )
    others += [values.data_ptr(), indices.data_ptr()]
    check_range("best_continuations", "active", active, 0, n_sentences * beam)
    sizes = (len(active), n_sentences, beam)
    if isinstance(logits, Int8Logits):
        structure = ctypes.addressof(logits.weight.structure)
        kernel("int8_best_continuations", x)(at, structure, *others, *sizes, eos, k)
    else:
        kernel("best_continuations", x)(at, *others, *sizes, width, eos, k)
    return values, indices


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
