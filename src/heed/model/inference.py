"""The model while it translates: weights packed for products with few rows, and what a search keeps between steps.

A search is given one of two states of equal behaviour. `BeamState` is for a CPU with the kernels: sentences come and go
at any step, a beam is reordered without moving its keys, and in fp32 and int8 a hypothesis has the same bits whatever
is searched beside it. `PlainState` is for everything else, on `Transformer.decode`: a group of sentences is searched to
its end before the next.
"""

import ctypes
import math
from contextlib import suppress
from copy import deepcopy
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from heed.backends.cpu import decoding_ops, training_ops
from heed.backends.cpu.build import has_int8, library, ready
from heed.backends.cpu.decoding_ops import Beams, DecoderLayers, Fp32Weight, Int8Logits, Int8Weight, PackedWeight
from heed.backends.cpu.training_ops import Spans
from heed.errors import HeedError
from heed.model.transformer import DecoderLayer, DecoderState, EncoderLayer, Transformer
from heed.runtime.device import DecodingPrecision


def not_finite() -> HeedError:
    """What to raise where a search or a score meets NaN or ∞."""
    return HeedError(
        "the model's numbers are not finite: its weights are damaged, or too large for the precision; take an earlier "
        "checkpoint, or --precision fp32 instead of bf16 or int8."
    )


class Fp32Linear(nn.Module):
    """An nn.Linear in fp32 by Heed's own product."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.packed = Fp32Weight(linear.weight.detach(), linear.bias)

    def forward(self, x: Float[Tensor, "*row d_in"]) -> Float[Tensor, "*row d_out"]:
        return decoding_ops.fp32_product(x, self.packed)


class PackedLinear(nn.Module):
    """An nn.Linear in bf16 by oneDNN, whose order of the weight is found once instead of in every product."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().bfloat16())
        self.bias = None if linear.bias is None else linear.bias.detach().bfloat16()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"weight": self.weight.to_dense()}  # oneDNN's order cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight)

    def forward(self, x: Float[Tensor, "*row d_in"]) -> Float[Tensor, "*row d_out"]:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return y


class Int8Linear(nn.Module):
    """An nn.Linear in 8-bit integers."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.packed = Int8Weight(linear.weight.detach(), linear.bias)

    def forward(self, x: Float[Tensor, "*row d_in"]) -> Float[Tensor, "*row d_out"]:
        return decoding_ops.int8_product(x, self.packed)


# Positions that a search's caches have at first, and the most bytes of all caches: of addresses, since memory that is
# never written is never taken.
FIRST_CAPACITY, MAX_CACHES = 64, 2**33


def prepack(model: Transformer, precision: DecodingPrecision, *, copy: bool = True) -> Transformer:
    """A model to translate with: its products packed where the kernels are at hand, else only cast.

    int8: products in 8 bits, the rest in bf16, the logits in fp32. HeedError where that cannot be. Without `copy` the
    model itself is changed, and a weight is freed as soon as it is packed: memory never holds all of them twice.
    """
    on_cpu = model.src_embedding.weight.is_cpu
    if precision == "int8" and not (on_cpu and has_int8()):
        raise HeedError("int8 needs a CPU with AVX-512 VNNI and Heed's kernels (a C++ compiler); take bf16 or fp32.")
    model = (deepcopy(model) if copy else model).eval().requires_grad_(False)
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    kinds: dict[DecodingPrecision, type[nn.Module]] = {"int8": Int8Linear}
    if on_cpu and library() is not None:
        kinds["fp32"] = Fp32Linear
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            kinds["bf16"] = PackedLinear
    if precision in kinds:
        # The map to logits, the largest, comes last, when the others have shrunk.
        for module in [module for module in model.modules() if not isinstance(module, nn.Linear)][::-1]:
            for name, child in module.named_children():
                if isinstance(child, nn.Linear):
                    setattr(module, name, kinds[precision](child))
            _give_back_freed_memory()
    return model.to(dtype)


def _give_back_freed_memory() -> None:
    """Returns freed memory to the system, where the C library is glibc.

    Packing frees and takes blocks of like sizes, but few fit into the gaps that others leave.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def bytes_a_position(model: Transformer) -> int:
    """The memory that a row of a search takes for each of its positions, at the most."""
    arch, width = model.arch, model.arch.n_heads * (model.arch.key_width + model.arch.value_width)
    # Keys and values of all layers, one of which there is twice while its cache grows; ids and ancestors.
    return (arch.n_layers + 1) * width * model.src_embedding.weight.element_size() + 32


@runtime_checkable
class SearchState(Protocol):
    """What a search needs of a model. Live sentences are in the order of their admission; each has `beam` rows."""

    @property
    def n_free(self) -> int:
        """Sentences that can be admitted now."""

    def admit(self, src: Int[Tensor, "sentence src"], src_mask: Bool[Tensor, "sentence src"]) -> None:
        """Takes in sources (with eos), behind those that live."""

    @property
    def leaves_out(self) -> bool:
        """Whether it can compute some rows only."""

    def logits(
        self, tokens: Int[Tensor, " row"], active: Int[Tensor, " active"] | None = None, *, lazy: bool = False
    ) -> Float[Tensor, "active vocab"] | Int8Logits:
        """The logits behind `tokens`, which become part of every row; if `lazy`, perhaps not worked out.

        active: the rows that matter, where it can leave out the others.
        """

    def select(self, rows: Int[Tensor, " new_row"], sentences: Int[Tensor, " kept"]) -> None:
        """Keeps these sentences (in their order), and as their rows these, of the same sentences."""


def search_state(model: Transformer, *, n_sentences: int, beam: int) -> SearchState:
    """The state of a search over at most so many sentences at a time."""
    usual = model.arch.positions == "sinusoid" and model.arch.radius is None
    kernels = usual and ready(model.src_embedding.weight)
    kind = BeamState if kernels else PlainState
    return kind(model, n_sentences=n_sentences, beam=beam)


class PlainState:
    """On PyTorch's operations, on any device."""

    leaves_out = False

    def __init__(self, model: Transformer, *, n_sentences: int, beam: int):
        self._model, self._n_sentences, self._beam = model, n_sentences, beam
        self._device = model.src_embedding.weight.device
        self._state: DecoderState | None = None

    @property
    def n_free(self) -> int:
        return self._n_sentences if self._state is None else 0

    def admit(self, src: Tensor, src_mask: Tensor) -> None:
        src, src_mask = src.to(self._device), src_mask.to(self._device)
        self._state = self._model.start(self._model.encode(src, src_mask), src_mask)

    def logits(self, tokens: Tensor, active: Tensor | None = None, *, lazy: bool = False) -> Tensor:
        assert self._state is not None
        return self._model.decode(tokens.to(self._device)[:, None], self._state)[:, 0]

    def select(self, rows: Tensor, sentences: Tensor) -> None:
        assert self._state is not None
        if len(sentences) == 0:
            self._state = None
            return
        all_stay = len(sentences) == len(self._state.src_mask)
        self._state.select(rows.to(self._device), None if all_stay else sentences.to(self._device))


class BeamState:
    """On the kernels. A sentence has `beam` slots; a slot's row writes its keys and values there, position by position.

    A row's past lies in the slots of its ancestors, which `_ancestors` names by position; so a beam's reordering
    rewrites some integers. The source's keys and values stay where the admission put them.
    """

    leaves_out = True

    def __init__(self, model: Transformer, *, n_sentences: int, beam: int):
        self._model, self._beam, self._arch = model, beam, model.arch
        self._widths = (model.arch.key_width, model.arch.value_width)
        self._kv_width = model.arch.n_heads * (model.arch.key_width + model.arch.value_width)
        self._most = n_sentences
        self._begin()
        self._sentences = torch.empty(0, dtype=torch.int64)  # of each live sentence its place among n_sentences
        self._slots = torch.empty(0, dtype=torch.int64)  # of each row
        self._lengths = torch.empty(0, dtype=torch.int64)  # of each row
        self._longest = 0
        self._memories = torch.empty(model.arch.n_layers, 0, dtype=torch.int64)  # addresses (layer, live sentence)
        self._src_lengths = torch.empty(0, dtype=torch.int64)
        self._kept: dict[int, list[Tensor]] = {}  # what lies at the addresses
        self._packed_layers = _packed_layers(model)

    def _begin(self) -> None:
        """Plans room for as many sentences as there may be, of few positions; the first admission takes it."""
        self._n_places = self._places(FIRST_CAPACITY)
        self._caches: list[Tensor] = []
        self._ancestors = torch.zeros(self._n_places * self._beam, FIRST_CAPACITY, dtype=torch.int32)
        self._free = list(range(self._n_places))[::-1]

    def _places(self, capacity: int) -> int:
        """For how many sentences of so many positions the caches have room."""
        weight = self._model.src_embedding.weight
        bytes_a_place = self._beam * capacity * self._arch.n_layers * self._kv_width * weight.element_size()
        return max(1, min(self._most, MAX_CACHES // bytes_a_place))

    def _empty_cache(self, capacity: int) -> Tensor:
        n_slots = self._n_places * self._beam
        return self._model.src_embedding.weight.new_empty(n_slots, capacity, self._kv_width)

    @property
    def n_free(self) -> int:
        return len(self._free)

    def admit(self, src: Tensor, src_mask: Tensor) -> None:
        if not self._caches:
            self._caches = [self._empty_cache(FIRST_CAPACITY) for _ in self._model.decoder]
        spans = Spans.of(src_mask)
        memory = self._embed(self._model.src_embedding, spans.lay(src), spans.places)
        for layer in cast(list[EncoderLayer], list(self._model.encoder)):
            memory = layer.over_spans(memory, spans)
        kept = [layer.cross_attention.kv(memory) for layer in self._layers()]
        offsets = spans.offsets[: len(src)] * self._kv_width * memory.element_size()
        addresses = torch.stack([kv.data_ptr() + offsets for kv in kept])
        places = [self._free.pop() for _ in src]
        for place in places:
            self._kept[place] = kept
        self._sentences = torch.cat([self._sentences, torch.tensor(places)])
        self._memories = torch.cat([self._memories, addresses], dim=1).contiguous()
        self._src_lengths = torch.cat([self._src_lengths, src_mask.sum(1)])
        self._lengths = torch.cat([self._lengths, torch.zeros(len(src) * self._beam, dtype=torch.int64)])
        self._slots = self._rows_of(self._sentences)

    def logits(self, tokens: Tensor, active: Tensor | None = None, *, lazy: bool = False) -> Tensor | Int8Logits:
        if active is None:
            active = torch.arange(len(tokens))
        if self._longest == self._ancestors.shape[1]:
            self._grow()
        x = self._step(tokens, active)
        self._lengths += 1
        self._longest += 1
        output = self._model.output
        if lazy and isinstance(output, Int8Linear):
            return Int8Logits(x, output.packed)
        logits: Tensor = output(x)
        return logits

    def _step(self, tokens: Tensor, active: Tensor) -> Tensor:
        beams = Beams(
            *(self._ancestors, active, self._slots, self._lengths, self._src_lengths),
            *(self._beam, self._arch.n_heads, self._widths),
        )
        if self._packed_layers is not None:
            positions = self._model.sinusoid_rows(self._longest + 1)
            embedding = self._model.tgt_embedding.weight
            return self._packed_layers.step(tokens, embedding, positions, self._caches, self._memories, beams)
        x = self._embed(self._model.tgt_embedding, tokens[active], self._lengths[active])
        for layer, cache, memories in zip(self._layers(), self._caches, self._memories, strict=True):
            own, source = layer.self_attention, layer.cross_attention
            x = layer.self_attention_norm(x, own.out(decoding_ops.attend_to_past(own.qkv(x), cache, beams)))
            x = layer.cross_attention_norm(x, source.out(decoding_ops.attend_to_source(source.q(x), memories, beams)))
            x = layer.feed_forward_norm(x, layer.feed_forward(x))
        return x

    def select(self, rows: Tensor, sentences: Tensor) -> None:
        parents = self._slots[rows]
        if len(sentences) < len(self._sentences):
            stays = torch.zeros(len(self._sentences), dtype=torch.bool)
            stays[sentences] = True
            for place in self._sentences[~stays].tolist():
                self._free.append(place)
                del self._kept[place]
            self._free.sort(reverse=True)  # the first places first, whose memory is already taken
            self._sentences, self._src_lengths = self._sentences[sentences], self._src_lengths[sentences]
            self._memories = self._memories[:, sentences].contiguous()
            self._lengths = self._lengths[rows]  # all rows of a sentence are as long
            self._longest = int(self._lengths.max()) if len(sentences) else 0
            self._slots = self._rows_of(self._sentences)
        n = self._longest
        self._ancestors[self._slots, :n] = self._ancestors[parents, :n]
        if len(sentences) == 0 and self._n_places < self._most:
            self._caches.clear()  # whoever has seen the list would keep them
            self._begin()

    def _layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self._model.decoder))

    def _rows_of(self, sentences: Tensor) -> Tensor:
        return (sentences[:, None] * self._beam + torch.arange(self._beam)).flatten()

    def _embed(self, table: nn.Embedding, ids: Tensor, places: Tensor) -> Tensor:
        positions = self._model.sinusoid_rows(int(places.max()) + 1)
        scale = math.sqrt(self._arch.d_model)
        return training_ops.embed(ids, places, table.weight, positions, scale=scale, dropout=0.0)

    def _grow(self) -> None:
        """Twice the positions, if need be for fewer sentences. What lives moves to the first places.

        Nothing else is copied: a copy would take the memory of slots that were never written.
        """
        n_live, n, old_slots = len(self._sentences), self._longest, self._slots
        capacity = 2 * self._ancestors.shape[1]
        self._n_places = max(n_live, self._places(capacity))
        self._kept = {place: self._kept[old] for place, old in enumerate(self._sentences.tolist())}
        self._sentences = torch.arange(n_live)
        self._free = list(range(n_live, self._n_places))[::-1]
        self._slots = self._rows_of(self._sentences)
        moved = (self._slots - old_slots).to(torch.int32)[:, None]  # an ancestor is a slot of the same sentence
        ancestors = torch.zeros(self._n_places * self._beam, capacity, dtype=torch.int32)
        ancestors[self._slots, :n] = self._ancestors[old_slots, :n] + moved
        self._ancestors = ancestors
        old_caches, self._caches = self._caches, []
        while old_caches:  # one is freed before the next is copied
            cache, larger = old_caches.pop(0), self._empty_cache(capacity)
            for slot, old in zip(self._slots.tolist(), old_slots.tolist(), strict=True):
                larger[slot, :n] = cache[old, :n]
            self._caches.append(larger)


def _packed_layers(model: Transformer) -> DecoderLayers | None:
    """The decoder's layers for one kernel call a step, if all their products are Heed's own."""
    layers: list[tuple[list[PackedWeight], list[Tensor]]] = []
    for layer in cast(list[DecoderLayer], list(model.decoder)):
        own, source, feed_forward = layer.self_attention, layer.cross_attention, layer.feed_forward
        weights: list[PackedWeight] = []
        for product in (own.qkv, own.out, source.q, source.out, feed_forward.inner, feed_forward.outer):
            if not isinstance(product, (Fp32Linear, Int8Linear)):
                return None
            weights.append(product.packed)
        norms = (layer.self_attention_norm, layer.cross_attention_norm, layer.feed_forward_norm)
        layers.append((weights, [part for norm in norms for part in (norm.weight, norm.bias)]))
    return DecoderLayers(layers, epsilon=norms[0].eps)
