"""The kernels of csrc/decoding.cpp: a search's step, without gradients. Rows are hypotheses, `beam` per sentence."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from heed.backends.base import DeferredLogits
from heed.backends.beam_account import BeamAccount, Continuations, EndingRules
from heed.backends.cpu import structures
from heed.backends.cpu.build import Wanted, addresses, check_range, kernel, library
from heed.backends.cpu.weights import PackedWeight
from heed.model.architecture import Activation


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
    """A decoder's layers for `step`: of each layer six packed weights, gains and biases of the norms behind its sums.

    Weights in float with everything in float, or in 8 bits with norms, keys and values in bf16. first_norm: with
    pre-norm, gain and bias of the one before the first sub-layer. first_word: the first position that has the embedding
    of its token, 0 or 1.
    """

    def __init__(
        self,
        layers: Sequence[tuple[Sequence[PackedWeight], Sequence[Tensor]]],
        *,
        first_norm: Sequence[Tensor],
        activation: Activation,
        first_word: int,
        epsilon: float,
    ):
        self._kept, self._epsilon = (layers, first_norm), epsilon
        norm_pointers = [part.data_ptr() for part in first_norm] if first_norm else [None, None]
        self._options = (get_args(Activation).index(activation), first_word, *norm_pointers)
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
            *(len(self._array), d_model, self._array[0].inner.d_out, *self._options, beams.structure),
            *at,
            *(math.sqrt(d_model), self._epsilon),
        )
        kernel("decoder_step", embedding)(ctypes.addressof(step), x.data_ptr())
        return x


@dataclass(frozen=True)
class ProductLogits(DeferredLogits):
    """Logits x · Wᵀ that are not worked out: `best_continuations` never holds all of them."""

    x: Float[Tensor, "active d_model"]
    weight: PackedWeight


def best_continuations(
    logits: Float[Tensor, "active vocab"] | ProductLogits,
    active: Int[Tensor, " active"],
    log_probs: Float[Tensor, "sentence beam"],
    required: Int[Tensor, "sentence beam"],
    never: Bool[Tensor, " vocab"],
    may_end: Bool[Tensor, " sentence"],
    *,
    eos: int,
    k: int,
) -> tuple[Float[Tensor, "sentence k"], Int[Tensor, "sentence k"]]:
    """As `Backend.best_continuations`."""
    n_sentences, beam = log_probs.shape
    values = torch.empty(n_sentences, k, dtype=torch.float64)
    indices = torch.empty(n_sentences, k, dtype=torch.int64)
    x, width = (logits.x, logits.weight.d_in) if isinstance(logits, ProductLogits) else (logits, len(never))
    at, *others = addresses(
        "best_continuations",
        logits=(x, (len(active), width), x.dtype),
        active=(active, (len(active),), torch.int64),
        log_probs=(log_probs, (n_sentences, beam), torch.float64),
        required=(required, (n_sentences, beam), torch.int64),
        never=(never, (logits.weight.d_out if isinstance(logits, ProductLogits) else width,), torch.bool),
        may_end=(may_end, (n_sentences,), torch.bool),
    )
    others += [values.data_ptr(), indices.data_ptr()]
    check_range("best_continuations", "active", active, 0, n_sentences * beam)
    sizes = (len(active), n_sentences, beam)
    if isinstance(logits, ProductLogits):
        structure = ctypes.addressof(logits.weight.structure)
        kernel("product_continuations", x)(at, structure, *others, *sizes, eos, k)
    else:
        kernel("best_continuations", x)(at, *others, *sizes, width, eos, k)
    return values, indices


def extend_beams(
    account: BeamAccount, continuations: Continuations, rules: EndingRules
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """As `beam_account.extend` of rows that compete."""
    (n, beam), n_best, width = account.last.shape, account.best_scores.shape[1], account.width
    k = continuations.ids.shape[1]
    i64, f64, i32 = np.int64, np.float64, np.int32
    at = _array_addresses(
        (account.lengths, (n,), i64),
        (account.limits, (n,), i64),
        (account.n_ended, (n,), i64),
        (account.log_probs, (n, beam), f64),
        (account.last, (n, beam), i64),
        (account.history, (n, beam, width), i32),
        (account.best_scores, (n, n_best), f64),
        (account.best_log_probs, (n, n_best), f64),
        (account.best_lengths, (n, n_best), i64),
        (account.best_ids, (n, n_best, width), i32),
        (rules.penalties, rules.penalties.shape, f64),
        (continuations.log_probs, (n, k), f64),
        (continuations.parents, (n, k), i64),
        (continuations.ids, (n, k), i64),
    )
    rows, done = np.empty((n, beam), i64), np.empty(n, np.bool_)
    if not (
        k >= beam
        and width > account.lengths.max() >= 0
        and len(rules.penalties) > account.limits.max() >= account.lengths.max() + 1
        and 0 <= continuations.parents.min() <= continuations.parents.max() < beam
    ):
        raise IndexError("kernel extend_beams: a length, limit or parent out of range.")
    account_structure = structures.BeamAccount(*at[:10], n, beam, n_best, width)
    rules_structure = structures.EndingRules(at[10], rules.eos, rules.early_stopping)
    library().extend_beams(  # type: ignore[union-attr]
        *(ctypes.addressof(account_structure), ctypes.addressof(rules_structure), *at[11:]),
        *(k, rows.ctypes.data, done.ctypes.data),
    )
    return rows, done


def reorder_ancestors(
    ancestors: Int[Tensor, "slot position"],
    slots: Int[Tensor, " row"],
    parents: Int[Tensor, " row"],
    *,
    beam: int,
    n_positions: int,
) -> None:
    """ancestors[slots, :n_positions] = ancestors[parents, :n_positions]; a row's parent is of its own sentence."""
    (n_slots, capacity), n_rows = ancestors.shape, len(slots)
    at = addresses(
        "reorder_ancestors",
        ancestors=(ancestors, (n_slots, capacity), torch.int32),
        slots=(slots, (n_rows,), torch.int64),
        parents=(parents, (n_rows,), torch.int64),
    )
    check_range("reorder_ancestors", "slots", slots, 0, n_slots)
    check_range("reorder_ancestors", "parents", parents, 0, n_slots)
    if not 0 <= n_positions <= capacity or n_rows % beam:
        raise IndexError(f"kernel reorder_ancestors: {n_positions} positions of {n_rows} rows; expected {capacity}.")
    library().reorder_ancestors(*at, n_rows, beam, capacity, n_positions)  # type: ignore[union-attr]


def _array_addresses(*arguments: tuple[NDArray[Any], tuple[int, ...], type[np.generic]]) -> list[int]:
    """As `addresses`, of numpy's arrays."""
    for x, shape, dtype in arguments:
        if x.shape != shape or x.dtype != dtype or not x.flags.c_contiguous:
            raise ValueError(f"kernel extend_beams: an array is {x.shape} of {x.dtype}; expected {shape} of {dtype}.")
    return [x.ctypes.data for x, _, _ in arguments]
