"""The kernels of a search, without gradients: csrc/encoding.cpp, decoding.cpp, continuations.cpp and search.cpp.

Rows are hypotheses, `beam` per sentence; of an encoder, the tokens of packed sources.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from heed.backends.beam_account import (
    BeamAccount,
    Bools,
    ContinuationRules,
    Continuations,
    EndingRules,
    Ints,
    StepLimits,
)
from heed.backends.cpu.build import IN_FP32, Wanted, addresses, check_range, kernel, raw_addresses
from heed.backends.cpu.declarations import Address, Structure, address, array, constants, ffi, structure
from heed.backends.cpu.weights import PackedWeight
from heed.backends.live_prefixes import AllowedIds, LivePrefixes
from heed.model.architecture import Activation

ACTIVATIONS = {name.lower(): value for name, value in constants("Activation").items()}


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
    def structure(self) -> Structure:
        """As the kernels take it."""
        (n_slots, capacity), n_rows, n_active = self.ancestors.shape, len(self.slots), len(self.active)
        at = addresses(
            "attend_to_past",
            ancestors=(self.ancestors, (n_slots, capacity), torch.int32),
            rows=(self.active, (n_active,), torch.int64),
            slots=(self.slots, (n_rows,), torch.int64),
            lengths=(self.lengths, (n_rows,), torch.int64),
            src_lengths=(self.src_lengths, (n_rows // self.beam,), torch.int64),
        )
        check_range("attend_to_past", "rows", self.active, 0, n_rows)
        check_range("attend_to_past", "slots", self.slots, 0, n_slots)
        check_range("attend_to_past", "lengths", self.lengths, 0, capacity)
        sizes = {"n_rows": n_active, "beam": self.beam, "capacity": capacity}
        return structure("Beams", **at, **sizes, heads=_heads(self.n_heads, self.widths))

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
    shape = (len(beams.active), 2 * keys + values)
    at = addresses("attend_to_past", qkv=(qkv, shape, qkv.dtype), cache=beams.cache(cache, qkv.dtype))
    kernel("attend_to_past", qkv)(**at, beams=beams.structure, **raw_addresses(out=out))
    return out


def attend_to_source(
    q: Float[Tensor, "active query"], memories: Int[Tensor, " sentence"], beams: Beams
) -> Float[Tensor, "active value"]:
    """Every active row's attention to its sentence's source; memories: addresses of (src, all heads' K and V)."""
    keys, values = (beams.n_heads * width for width in beams.widths)
    out = q.new_empty(len(q), values)
    at = addresses("attend_to_source", q=(q, (len(beams.active), keys), q.dtype), memories=beams.memories(memories))
    kernel("attend_to_source", q)(**at, beams=beams.structure, **raw_addresses(out=out))
    return out


@dataclass(frozen=True)
class Layer:
    """A layer's packed weights, and gain and bias of the norms behind its sums, by their names in DecoderLayer."""

    weights: dict[str, PackedWeight]
    norms: dict[str, tuple[Float[Tensor, " d_model"], Float[Tensor, " d_model"]]]


class _Layers:
    """A stack's layers as the kernels take them.

    Weights in float with everything in float, or in bf16 or 8 bits with norms, keys and values in bf16.
    first_norm: with pre-norm, gain and bias of the one before the first sub-layer.
    first_word: the first position that has the embedding of its token, 0 or 1.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        first_norm: Sequence[Tensor],
        activation: Activation,
        first_word: int,
        epsilon: float,
    ):
        self._kept = (layers, first_norm)
        self._sizes = {weight.number_bytes for layer in layers for weight in layer.weights.values()}
        norms = (part for layer in layers for norm in layer.norms.values() for part in norm)
        self._dtypes = {part.dtype for part in (*first_norm, *norms)}
        self._options = {"activation": ACTIVATIONS[activation], "first_word": first_word, "epsilon": epsilon}
        self._options |= raw_addresses(**dict(zip(("first_gain", "first_bias"), first_norm, strict=False)))
        self._array = array("DecoderLayer", [_layer_structure(layer) for layer in layers])

    def _step(
        self, kernel: str, embedding: Tensor, positions: Tensor, beams: Structure, *, tokens: Address | None
    ) -> Structure:
        (vocab_size, d_model), dtype = embedding.shape, embedding.dtype
        if self._dtypes != {dtype} or not self._sizes <= ({4} if dtype == torch.float32 else {1, 2}):
            raise ValueError(f"kernel {kernel}: the model's dtype was changed after its weights were packed.")
        at = addresses(
            kernel,
            embedding=(embedding, (vocab_size, self._array[0].qkv.d_in), dtype),
            positions=(positions, (len(positions), d_model), dtype),
        )
        sizes = {"n_layers": len(self._array), "d_model": d_model, "d_ff": self._array[0].inner.d_out}
        options = self._options | {"scale": math.sqrt(d_model)}
        return structure("Step", layers=self._array, **sizes, **options, beams=beams[0], tokens=tokens, **at)


class EncoderLayers(_Layers):
    """An encoder's layers for `encode`, and the weights that make the memories of a decoder's layers."""

    def __init__(self, layers: Sequence[Layer], memories: Sequence[PackedWeight], **options: Any):
        super().__init__(layers, **options)
        self._kept_memories = memories
        self._kv = array("Weight", [weight.structure for weight in memories])

    def encode(
        self,
        src: Int[Tensor, "sentence src"],
        src_mask: Bool[Tensor, "sentence src"],
        embedding: Float[Tensor, "vocab d_model"],
        positions: Float[Tensor, "place d_model"],
        *,
        n_heads: int,
        widths: tuple[int, int],
    ) -> tuple[Float[Tensor, "layer src_token kv"], Int[Tensor, " sentence"]]:
        """Every decoder layer's memory, all heads' keys and values, of packed sources; where each source begins.

        Real positions come first in each row of src_mask. widths: of one head's key and value.
        """
        # Padding is left out: the kernel gets the real tokens, and each one's place and sentence.
        n_sentences, width = src.shape
        mask = src_mask.numpy()
        sentences, places = map(np.ascontiguousarray, mask.nonzero())  # of each token
        tokens, lengths = src.numpy()[mask], mask.sum(1)
        offsets = np.concatenate([[0], lengths.cumsum()])
        rows = np.arange(len(tokens))
        at = _array_addresses(
            "encode_sources",
            tokens=(tokens, tokens.shape, np.int64),
            places=(places, tokens.shape, np.int64),
            sentences=(sentences, tokens.shape, np.int64),
            offsets=(offsets, (n_sentences + 1,), np.int64),
            rows=(rows, tokens.shape, np.int64),
        )
        # A kernel reads memory by these numbers, so all are checked here.
        if not _within(tokens, len(embedding)):
            raise IndexError(f"kernel encode_sources: tokens out of range; expected 0 to {len(embedding) - 1}.")
        if width > len(positions):
            raise IndexError(f"kernel encode_sources: sources of {width} positions; expected {len(positions)} at most.")
        n, kv_width = len(tokens), n_heads * sum(widths)
        if any(weight.d_out != kv_width for weight in self._kv) or n == 0 or int(lengths.min()) == 0:
            raise ValueError("kernel encode_sources: a source is empty, or the widths are not the memories'.")
        # The encoder runs as one step over all tokens, as if each were a row of a beam of 1.
        memories = embedding.new_empty(len(self._kv), n, kv_width)
        beams = structure(
            "Beams", rows=at["rows"], lengths=at["places"], n_rows=n, beam=1, heads=_heads(n_heads, widths)
        )
        step = self._step("encode_sources", embedding, positions, beams, tokens=at["tokens"])
        sources = structure(
            "Sources",
            offsets=at["offsets"],
            sentences=at["sentences"],
            n_sentences=n_sentences,
            n_memories=len(self._kv),
            kv=self._kv,
            **raw_addresses(memories=memories),
        )
        kernel("encode_sources", embedding)(step=step, sources=sources)
        return memories, torch.from_numpy(offsets[:-1])


class DecoderLayers(_Layers):
    """A decoder's layers for `step` and `search`."""

    def __init__(self, layers: Sequence[Layer], **options: Any):
        super().__init__(layers, **options)
        self._caches: Sequence[Tensor] | None = None  # those whose addresses the layers have
        self._memories: Tensor | None = None

    def step(
        self,
        tokens: Int[Tensor, " row"],
        embedding: Float[Tensor, "vocab d_model"],
        positions: Float[Tensor, "place d_model"],
        caches: Sequence[Float[Tensor, "slot position kv"]],
        memories: Int[Tensor, "layer sentence"],
        beams: Beams,
    ) -> Float[Tensor, "active d_model"]:
        """The last layer's output for every active row's next token, in float; the rest as `attend_to_…` take it.

        caches and memories are not changed but replaced: the same object has the same addresses.
        """
        at = addresses("decoder_step", tokens=(tokens, (len(beams.slots),), torch.int64))
        check_range("decoder_step", "tokens", tokens, 0, len(embedding))
        x = torch.empty(len(beams.active), embedding.shape[1], **IN_FP32)
        step = self._structure(embedding, positions, caches, memories, beams, **at)
        kernel("decoder_step", embedding)(step=step, **raw_addresses(x=x))
        return x

    def search(
        self,
        embedding: Float[Tensor, "vocab d_model"],
        positions: Float[Tensor, "place d_model"],
        caches: Sequence[Float[Tensor, "slot position kv"]],
        memories: Int[Tensor, "layer sentence"],
        beams: Beams,
        output: PackedWeight,
        account: BeamAccount,
        rules: EndingRules,
        fused_rules: ContinuationRules,
        prefixes: LivePrefixes,
        step_limits: StepLimits,
    ) -> Bools | None:
        """As `SearchState.take_steps`; None if a number was not finite. beams: as before the first step."""
        # What the kernel reads and changes in place.
        n_sentences, beam = account.last.shape
        account_structure, rules_structure = _account_structures(account, rules)
        at = addresses("search_steps", never=(fused_rules.never, (len(embedding),), torch.bool))
        of_prefixes = _prefix_structures(prefixes)
        if step_limits.n_waiting is not None:
            at |= _array_addresses("search_steps", n_waiting=(step_limits.n_waiting, (1,), np.int64))
        # Checked once for all steps: sizes, room for the longest hypothesis, ids.
        fits = prefixes.states.shape == (n_sentences, beam) and len(beams.slots) == n_sentences * beam
        if output.d_out != len(embedding) or not fits or fused_rules.k < beam:
            raise ValueError("kernel search_steps: the output, the rows or k do not fit the account.")
        longest = int(account.lengths.max()) + step_limits.most
        if longest > min(account.width, beams.ancestors.shape[1], len(positions)):
            raise IndexError(f"kernel search_steps: there is no room for {longest} positions.")
        if not _within(account.last, len(embedding)):
            raise IndexError("kernel search_steps: an id is out of range.")
        # The search may end before its limit, so the number of steps comes back.
        search = structure(
            "Search",
            **at,
            **of_prefixes,
            account=account_structure[0],
            rules=rules_structure[0],
            output=output.structure[0],
            min_tokens=fused_rules.min_tokens,
            k=fused_rules.k,
            most_steps=step_limits.most,
            least_steps=step_limits.least,
            most_done=step_limits.most_done,
        )
        done, n_steps = np.zeros(n_sentences, np.bool_), ffi.new("int64_t *")
        step = self._structure(embedding, positions, caches, memories, beams, tokens=None)
        kernel("search_steps", embedding)(step=step, search=search, done=address(done.ctypes.data), n_steps=n_steps)
        return None if n_steps[0] < 0 else done

    def _structure(
        self,
        embedding: Tensor,
        positions: Tensor,
        caches: Sequence[Tensor],
        memories: Tensor,
        beams: Beams,
        *,
        tokens: Address | None,
    ) -> Structure:
        if caches is not self._caches or memories is not self._memories:
            for layer, cache, sources in zip(self._array, caches, memories, strict=True):
                at = addresses(
                    "decoder_step", cache=beams.cache(cache, embedding.dtype), memories=beams.memories(sources)
                )
                layer.cache, layer.memories = at["cache"], at["memories"]
            self._caches, self._memories = caches, memories
        check_range("decoder_step", "lengths", beams.lengths, 0, len(positions))
        return self._step("decoder_step", embedding, positions, beams.structure, tokens=tokens)


def best_continuations(
    logits: Float[Tensor, "active vocab"],
    active: Int[Tensor, " active"],
    log_probs: Float[Tensor, "sentence beam"],
    allowed: AllowedIds | None,
    never: Bool[Tensor, " vocab"],
    may_end: Bool[Tensor, " sentence"],
    *,
    eos: int,
    k: int,
) -> tuple[Float[Tensor, "sentence k"], Int[Tensor, "sentence k"]]:
    """As `Backend.best_continuations`."""
    n_sentences, beam = log_probs.shape
    lists, counts = _allowed_lists(allowed, n_sentences * beam)
    values = torch.empty(n_sentences, k, dtype=torch.float64)
    indices = torch.empty(n_sentences, k, dtype=torch.int64)
    at = addresses(
        "best_continuations",
        logits=(logits, (len(active), len(never)), logits.dtype),
        rows=(active, (len(active),), torch.int64),
        log_probs=(log_probs, (n_sentences, beam), torch.float64),
        never=(never, (len(never),), torch.bool),
        may_end=(may_end, (n_sentences,), torch.bool),
    )
    at |= {"allowed": address(lists.ctypes.data), "n_allowed": address(counts.ctypes.data)}
    check_range("best_continuations", "rows", active, 0, n_sentences * beam)
    sizes = {"n_rows": len(active), "n_sentences": n_sentences, "beam": beam, "vocab": len(never)}
    kernel("best_continuations", logits)(**at, **raw_addresses(values=values, indices=indices), **sizes, eos=eos, k=k)
    return values, indices


def _allowed_lists(allowed: AllowedIds | None, n_rows: int) -> tuple[Ints, Ints]:
    """By row, the address of the ids that may follow, or 0, and how many they are."""
    addresses, counts = np.zeros((2, n_rows), np.int64)
    for row, ids in enumerate(allowed or ()):
        if ids is not None:
            if ids.dtype != np.int32 or not ids.flags.c_contiguous:
                raise ValueError(f"kernel best_continuations: allowed ids of {ids.dtype}; expected int32, contiguous.")
            addresses[row], counts[row] = ids.ctypes.data, len(ids)
    return addresses, counts


def _prefix_structures(prefixes: LivePrefixes) -> dict[str, Any]:
    """The prefixes and the states of the rows as the kernels take them; nothing where no sentence has one."""
    if not prefixes:
        return {}
    ends = np.array([prefix.end for prefix in prefixes.prefixes])
    if (prefixes.states < 0).any() or (prefixes.states > ends[:, None]).any():
        raise IndexError("kernel search_steps: a prefix has no such state.")
    of_each = {id(prefix): prefix for prefix in prefixes.prefixes}
    structures = {
        key: structure(
            "Prefix",
            end=prefix.end,
            **_array_addresses(
                "search_steps",
                begins=(prefix.begins, (prefix.end + 1,), np.int64),
                ids=(prefix.ids, prefix.nexts.shape, np.int32),
                nexts=(prefix.nexts, prefix.ids.shape, np.int32),
                needed=(prefix.needed, (prefix.end + 1,), np.int32),
            ),
        )
        for key, prefix in of_each.items()
    }
    states = _array_addresses("search_steps", states=(prefixes.states, prefixes.states.shape, np.int64))
    return {"prefixes": array("Prefix", [structures[id(prefix)] for prefix in prefixes.prefixes]), **states}


def extend_beams(
    account: BeamAccount, continuations: Continuations, rules: EndingRules
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """As `beam_account.extend` of rows that compete."""
    (n, beam), k = account.last.shape, continuations.ids.shape[1]
    account_structure, rules_structure = _account_structures(account, rules)
    at = _array_addresses(
        "extend_beams",
        values=(continuations.log_probs, (n, k), np.float64),
        parents=(continuations.parents, (n, k), np.int64),
        ids=(continuations.ids, (n, k), np.int64),
    )
    if not (k >= beam and account.width > account.lengths.max() and _within(continuations.parents, beam)):
        raise IndexError("kernel extend_beams: a length or parent out of range.")
    rows, done = np.empty((n, beam), np.int64), np.empty(n, np.bool_)
    outputs = {"rows": address(rows.ctypes.data), "done": address(done.ctypes.data)}
    kernel("extend_beams")(account=account_structure, rules=rules_structure, **at, k=k, **outputs)
    return rows, done


def _account_structures(account: BeamAccount, rules: EndingRules) -> tuple[Structure, Structure]:
    """The account and the rules as the kernels take them."""
    # Arrays by the types that the C structures declare.
    (n, beam), n_best, width = account.last.shape, account.best_scores.shape[1], account.width
    i64, f64, i32 = np.int64, np.float64, np.int32
    penalties = _array_addresses("extend_beams", penalties=(rules.penalties, rules.penalties.shape, f64))
    at = _array_addresses(
        "extend_beams",
        lengths=(account.lengths, (n,), i64),
        limits=(account.limits, (n,), i64),
        n_ended=(account.n_ended, (n,), i64),
        log_probs=(account.log_probs, (n, beam), f64),
        last=(account.last, (n, beam), i64),
        history=(account.history, (n, beam, width), i32),
        best_scores=(account.best_scores, (n, n_best), f64),
        best_log_probs=(account.best_log_probs, (n, n_best), f64),
        best_lengths=(account.best_lengths, (n, n_best), i64),
        best_ids=(account.best_ids, (n, n_best, width), i32),
    )
    # Penalties are looked up by length, histories are written at it.
    if not (
        _within(account.limits, len(rules.penalties))
        and (account.lengths >= 0).all()
        and (account.lengths < account.limits).all()
    ):
        raise IndexError("kernel extend_beams: a length or limit out of range.")
    return (
        structure("BeamAccount", **at, n_sentences=n, beam=beam, n_best=n_best, width=width),
        structure("EndingRules", **penalties, eos=rules.eos, early_stopping=rules.early_stopping),
    )


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
    kernel("reorder_ancestors")(**at, n_rows=n_rows, beam=beam, capacity=capacity, n=n_positions)


def _array_addresses(
    kernel: str, **arguments: tuple[NDArray[Any], tuple[int, ...], type[np.generic]]
) -> dict[str, Address]:
    """As `addresses`, of numpy's arrays."""
    for name, (x, shape, dtype) in arguments.items():
        if x.shape != shape or x.dtype != dtype or not x.flags.c_contiguous:
            raise ValueError(f"kernel {kernel}: {name} is {x.shape} of {x.dtype}; expected {shape} of {dtype}.")
    return {name: address(x.ctypes.data) for name, (x, _, _) in arguments.items()}


def _heads(n: int, widths: tuple[int, int]) -> dict[str, int]:
    return {"n": n, "d_k": widths[0], "d_v": widths[1]}


def _layer_structure(layer: Layer) -> Structure:
    norms = {
        f"{name}_{part}": x
        for name, norm in layer.norms.items()
        for part, x in zip(("gain", "bias"), norm, strict=True)
    }
    weights = {name: weight.structure[0] for name, weight in layer.weights.items()}
    return structure("DecoderLayer", **weights, **raw_addresses(**norms))


def _within(numbers: Ints, end: int) -> bool:
    """Whether all are at least 0 and below `end`."""
    return not numbers.size or bool(0 <= numbers.min() <= numbers.max() < end)
