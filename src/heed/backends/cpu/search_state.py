"""A model's state between the steps of a search, in the kernels' form."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from heed.backends.beam_account import BeamAccount, Bools, ContinuationRules, EndingRules, StepLimits
from heed.backends.cpu import decoding_ops, forward
from heed.backends.cpu.decoding_ops import Beams, DecoderLayers, EncoderLayers, Layer
from heed.backends.cpu.forward import ResidualStream, StackNorms
from heed.backends.cpu.weights import PACKED, Fp32Linear
from heed.backends.live_prefixes import LivePrefixes
from heed.backends.protocol import FIRST_CAPACITY, NotFiniteError
from heed.model.transformer import DecoderLayer, EncoderLayer, Transformer

# The most bytes of all caches together: of addresses, since memory that is never written is never taken.
MAX_CACHES = 2**33


class CpuSearchState:
    """A search's state on the kernels.

    Each sentence has `beam_size` slots; a slot's row writes its keys and values there, position by position. A row's
    past lies in the slots of its ancestors, which `_ancestors` names by position, so that reordering a beam moves no
    keys. The source's keys and values stay where the admission put them.

    Sentences can be added and removed at any step. In fp32 and int8, a hypothesis has the same bits in every batch.
    """

    takes_active_rows = True

    def __init__(self, model: Transformer, *, n_sentences: int, beam_size: int):
        self._model, self._beam, self._arch = model, beam_size, model.arch
        self._widths = (model.arch.key_width, model.arch.value_width)
        self._kv_width = model.arch.n_heads * (model.arch.key_width + model.arch.value_width)
        self._most = n_sentences
        self._begin()
        self._sentences = torch.empty(0, dtype=torch.int64)  # of each live sentence its place among n_sentences
        self._slots = torch.empty(0, dtype=torch.int64)  # of each row
        self._lengths = torch.empty(0, dtype=torch.int64)  # of each row
        self._longest = 0
        # (layer, live sentence): addresses.
        self._memories = torch.empty(model.arch.decoder_layers, 0, dtype=torch.int64)
        self._src_lengths = torch.empty(0, dtype=torch.int64)
        self._kept: dict[int, list[Tensor]] = {}  # what lies at the addresses
        self._norms = forward.stack_norms(model, "tgt")
        self._fused_encoder, self._fused_layers = _fused_encoder(model), _fused_decoder(model, self._norms)

    def _begin(self) -> None:
        """Plans room for as many sentences as there may be, of few positions; the first admission takes it."""
        self._n_places = self._places(FIRST_CAPACITY)
        self._caches: list[Tensor] = []
        self._ancestors = torch.zeros(self._n_places * self._beam, FIRST_CAPACITY, dtype=torch.int32)
        self._free = list(range(self._n_places))[::-1]

    def _places(self, capacity: int) -> int:
        """The number of sentences with `capacity` positions that the caches have room for."""
        weight = self._model.src_embedding.weight
        bytes_a_place = self._beam * capacity * self._arch.decoder_layers * self._kv_width * weight.element_size()
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
        kept, begins = self._encode_sources(src, src_mask)
        offsets = begins * self._kv_width * kept[0].element_size()
        addresses = torch.stack([kv.data_ptr() + offsets for kv in kept])
        places = [self._free.pop() for _ in src]
        for place in places:
            self._kept[place] = kept
        self._sentences = torch.cat([self._sentences, torch.tensor(places)])
        self._memories = torch.cat([self._memories, addresses], dim=1).contiguous()
        self._src_lengths = torch.cat([self._src_lengths, src_mask.sum(1)])
        self._lengths = torch.cat([self._lengths, torch.zeros(len(src) * self._beam, dtype=torch.int64)])
        self._slots = self._rows_of(self._sentences)

    def _encode_sources(self, src: Tensor, src_mask: Tensor) -> tuple[list[Tensor], Tensor]:
        """The keys and values that each layer of the decoder attends to, packed; where each source's begin."""
        if self._fused_encoder is None:
            memory, packed = forward.encode(self._model, src, src_mask)
            kept = [forward.linear(layer.cross_attention.kv, memory) for layer in self._layers()]
            return kept, packed.offsets[: len(src)]
        memories, begins = self._fused_encoder.encode(
            *(src, src_mask, self._model.src_embedding.weight, self._model.position_table("src", src.shape[1])),
            n_heads=self._arch.n_heads,
            widths=self._widths,
        )
        return list(memories), begins

    def logits(self, tokens: Tensor, active: Tensor | None = None) -> Tensor:
        if active is None:
            active = torch.arange(len(tokens))
        if self._longest == self._capacity:
            self._grow()
        x = self._step(tokens, active)
        self._lengths += 1
        self._longest += 1
        return forward.linear(self._model.output, x)

    def take_steps(
        self,
        account: BeamAccount,
        rules: EndingRules,
        fused_rules: ContinuationRules,
        prefixes: LivePrefixes,
        step_limits: StepLimits,
    ) -> Bools | None:
        output = self._model.output
        if self._fused_layers is None or not isinstance(output, PACKED):
            return None
        if self._longest == self._capacity:
            self._grow()
        step_limits = replace(step_limits, most=min(step_limits.most, self._capacity - self._longest))
        embedding, positions = self._tables(step_limits.most)
        done = self._fused_layers.search(
            embedding,
            positions,
            self._caches,
            self._memories,
            self._beams(active=torch.empty(0, dtype=torch.int64)),
            cast(Fp32Linear, output).packed,
            account,
            rules,
            fused_rules,
            prefixes,
            step_limits,
        )
        if done is None:
            raise NotFiniteError
        self._lengths = torch.from_numpy(account.lengths.repeat(self._beam))
        self._longest = int(account.lengths.max())
        return done

    @property
    def _capacity(self) -> int:
        """Positions that there is room for."""
        return self._ancestors.shape[1]

    def _beams(self, active: Tensor) -> Beams:
        return Beams(
            *(self._ancestors, active, self._slots, self._lengths, self._src_lengths),
            *(self._beam, self._arch.n_heads, self._widths),
        )

    def _tables(self, n_steps: int) -> tuple[Tensor, Tensor]:
        """The embedding, and the positions of the next steps."""
        return self._model.tgt_embedding.weight, self._model.position_table("tgt", self._longest + n_steps)

    def _step(self, tokens: Tensor, active: Tensor) -> Tensor:
        beams = self._beams(active)
        if self._fused_layers is not None:
            return self._fused_layers.step(tokens, *self._tables(1), self._caches, self._memories, beams)
        x = forward.embed(self._model, "tgt", tokens[active], self._lengths[active])
        stream = ResidualStream(x, self._norms, dropout=0.0)
        for layer, cache, memories in zip(self._layers(), self._caches, self._memories, strict=True):
            forward.decoder_layer(
                layer,
                stream,
                partial(decoding_ops.attend_to_past, cache=cache, beams=beams),
                partial(decoding_ops.attend_to_source, memories=memories, beams=beams),
            )
        return stream.x

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
        if not torch.equal(parents, self._slots):
            decoding_ops.reorder_ancestors(
                self._ancestors, self._slots, parents, beam=self._beam, n_positions=self._longest
            )
        if len(sentences) == 0 and self._n_places < self._most:
            self._caches.clear()  # whoever has seen the list would keep them
            self._begin()

    def _layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self._model.decoder))

    def _rows_of(self, sentences: Tensor) -> Tensor:
        return torch.from_numpy((sentences.numpy()[:, None] * self._beam + np.arange(self._beam)).ravel())

    def _grow(self) -> None:
        """Twice the positions, if need be for fewer sentences. What lives moves to the first places.

        Nothing else is copied: a copy would take the memory of slots that were never written.
        """
        n_live, n, old_slots = len(self._sentences), self._longest, self._slots
        capacity = 2 * self._capacity
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


def _fused_encoder(model: Transformer) -> EncoderLayers | None:
    """The encoder's layers for one kernel call per admission, if the kernels can compute all their products."""
    norms, layers = forward.stack_norms(model, "src"), cast(list[EncoderLayer], list(model.encoder))
    of_layers = [
        {
            "qkv": layer.self_attention.qkv,
            "self_out": layer.self_attention.out,
            "inner": layer.feed_forward.inner,
            "outer": layer.feed_forward.outer,
        }
        for layer in layers
    ]
    memories = [layer.cross_attention.kv for layer in cast(list[DecoderLayer], list(model.decoder))]
    products = [*memories, *(product for of in of_layers for product in of.values())]
    if model.arch.radius is not None or not all(isinstance(product, PACKED) for product in products):
        return None
    return EncoderLayers(
        [_fused_layer(of, norms, i, ("self", "feed_forward")) for i, of in enumerate(of_layers)],
        [cast(Fp32Linear, memory).packed for memory in memories],
        **_options(model, norms, first_word=0),
    )


def _fused_decoder(model: Transformer, norms: StackNorms) -> DecoderLayers | None:
    """The decoder's layers for one kernel call per step, if the kernels can compute all their products."""
    of_layers = [
        {
            "qkv": layer.self_attention.qkv,
            "self_out": layer.self_attention.out,
            "query": layer.cross_attention.q,
            "cross_out": layer.cross_attention.out,
            "inner": layer.feed_forward.inner,
            "outer": layer.feed_forward.outer,
        }
        for layer in cast(list[DecoderLayer], list(model.decoder))
    ]
    if not all(isinstance(product, PACKED) for of in of_layers for product in of.values()):
        return None
    return DecoderLayers(
        [_fused_layer(of, norms, i, ("self", "cross", "feed_forward")) for i, of in enumerate(of_layers)],
        **_options(model, norms, first_word=1 if model.arch.decoder_start == "zero" else 0),
    )


def _fused_layer(products: Mapping[str, nn.Module], norms: StackNorms, i: int, names: Sequence[str]) -> Layer:
    """The i-th layer; names: of the norms behind its sums."""
    behind = norms.behind_sums[len(names) * i : len(names) * (i + 1)]
    return Layer(
        {name: cast(Fp32Linear, product).packed for name, product in products.items()},
        {name: (norm.weight, norm.bias) for name, norm in zip(names, behind, strict=True)},
    )


def _options(model: Transformer, norms: StackNorms, *, first_word: int) -> dict[str, Any]:
    return {
        "first_norm": [] if norms.first is None else [norms.first.weight, norms.first.bias],
        "activation": model.arch.activation,
        "first_word": first_word,
        "epsilon": norms.behind_sums[0].eps,
    }
