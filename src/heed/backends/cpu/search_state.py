"""A model's state between the steps of a search, in the kernels' form."""

from dataclasses import replace

import numpy as np

from heed.backends.beam_account import BeamAccount, Bools, EndingRules, Ints, StepLimits
from heed.backends.cpu.account_ops import reorder_ancestors
from heed.backends.cpu.decoding_ops import Beams, DecoderLayers, EncoderLayers, PackedSentences, heads_of
from heed.backends.cpu.packed_model import PackedModel
from heed.backends.cpu.packed_weights import Floats32, Numbers, product
from heed.backends.live_prefixes import LivePrefixes
from heed.backends.protocol import FIRST_CAPACITY, NotFiniteError

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

    def __init__(self, model: PackedModel, *, n_sentences: int, beam_size: int):
        self._model, self._beam, self._most = model, beam_size, n_sentences
        self._begin()
        self._sentences = np.empty(0, np.int64)  # of each live sentence its place among n_sentences
        self._slots = np.empty(0, np.int64)  # of each row
        self._lengths = np.empty(0, np.int64)  # of each row
        self._longest = 0
        self._memories = np.empty((len(model.memories), 0), np.int64)  # (layer, live sentence): addresses
        self._src_lengths = np.empty(0, np.int64)
        self._kept: dict[int, Numbers] = {}  # what lies at the addresses
        self._encoder, self._decoder = EncoderLayers(model), DecoderLayers(model)

    def _begin(self) -> None:
        """Plans room for as many sentences as there may be, of few positions; the first admission takes it."""
        self._n_places = self._places(FIRST_CAPACITY)
        self._caches: list[Numbers] = []
        self._ancestors = np.zeros((self._n_places * self._beam, FIRST_CAPACITY), np.int32)
        self._free = list(range(self._n_places))[::-1]

    def _places(self, capacity: int) -> int:
        """The number of sentences with `capacity` positions that the caches have room for."""
        model = self._model
        bytes_a_place = self._beam * capacity * len(model.memories) * model.kv_width * model.dtype.itemsize
        return max(1, min(self._most, MAX_CACHES // bytes_a_place))

    def _empty_cache(self, capacity: int) -> Numbers:
        return np.empty((self._n_places * self._beam, capacity, self._model.kv_width), self._model.dtype)

    @property
    def n_free(self) -> int:
        return len(self._free)

    def admit(self, src: Ints, lengths: Ints) -> None:
        if not self._caches:
            self._caches = [self._empty_cache(FIRST_CAPACITY) for _ in self._model.memories]
        sources = PackedSentences(src, lengths)
        memories = self._encoder.encode(sources)
        begins = sources.offsets[:-1] * (self._model.kv_width * memories.itemsize)
        of_layers = memories.ctypes.data + np.arange(len(memories))[:, None] * memories[0].nbytes + begins
        places = [self._free.pop() for _ in lengths]
        for place in places:
            self._kept[place] = memories
        self._sentences = np.concatenate([self._sentences, places])
        self._memories = np.concatenate([self._memories, of_layers], axis=1)
        self._src_lengths = np.concatenate([self._src_lengths, lengths])
        self._lengths = np.concatenate([self._lengths, np.zeros(len(lengths) * self._beam, np.int64)])
        self._slots = self._rows_of(self._sentences)

    def logits(self, tokens: Ints, active: Ints | None = None) -> Floats32:
        if active is None:
            active = np.arange(len(tokens))
        if self._longest == self._capacity:
            self._grow()
        positions = self._model.position_table("tgt", self._longest + 1)
        x = self._decoder.step(tokens, positions, self._caches, self._memories, beams=self._beams(active))
        self._lengths = self._lengths + 1
        self._longest += 1
        return product(x, self._model.output)

    def take_steps(
        self, account: BeamAccount, rules: EndingRules, prefixes: LivePrefixes, step_limits: StepLimits
    ) -> Bools | None:
        if self._longest == self._capacity:
            self._grow()
        step_limits = replace(step_limits, most=min(step_limits.most, self._capacity - self._longest))
        done = self._decoder.search(
            self._model.position_table("tgt", self._longest + step_limits.most),
            self._caches,
            self._memories,
            self._beams(active=np.empty(0, np.int64)),
            account=account,
            rules=rules,
            prefixes=prefixes,
            step_limits=step_limits,
        )
        if done is None:
            raise NotFiniteError
        self._lengths = account.lengths.repeat(self._beam)
        self._longest = int(account.lengths.max())
        return done

    @property
    def _capacity(self) -> int:
        """Positions that there is room for."""
        return self._ancestors.shape[1]

    def _beams(self, active: Ints) -> Beams:
        return Beams(
            *(self._ancestors, active, self._slots, self._lengths, self._src_lengths),
            *(self._beam, heads_of(self._model)),
        )

    def select(self, rows: Ints, sentences: Ints) -> None:
        parents = self._slots[rows]
        if len(sentences) < len(self._sentences):
            stays = np.zeros(len(self._sentences), np.bool_)
            stays[sentences] = True
            for place in self._sentences[~stays].tolist():
                self._free.append(place)
                del self._kept[place]
            self._free.sort(reverse=True)  # the first places first, whose memory is already taken
            self._sentences, self._src_lengths = self._sentences[sentences], self._src_lengths[sentences]
            self._memories = np.ascontiguousarray(self._memories[:, sentences])
            self._lengths = self._lengths[rows]  # all rows of a sentence are as long
            self._longest = int(self._lengths.max()) if len(sentences) else 0
            self._slots = self._rows_of(self._sentences)
        if not np.array_equal(parents, self._slots):
            reorder_ancestors(self._ancestors, self._slots, parents, beam=self._beam, n_positions=self._longest)
        if len(sentences) == 0 and self._n_places < self._most:
            self._caches.clear()  # whoever has seen the list would keep them
            self._begin()

    def _rows_of(self, sentences: Ints) -> Ints:
        return (sentences[:, None] * self._beam + np.arange(self._beam)).ravel()

    def _grow(self) -> None:
        """Twice the positions, if need be for fewer sentences. What lives moves to the first places.

        Nothing else is copied: a copy would take the memory of slots that were never written.
        """
        n_live, n, old_slots = len(self._sentences), self._longest, self._slots
        capacity = 2 * self._capacity
        self._n_places = max(n_live, self._places(capacity))
        self._kept = {place: self._kept[old] for place, old in enumerate(self._sentences.tolist())}
        self._sentences = np.arange(n_live)
        self._free = list(range(n_live, self._n_places))[::-1]
        self._slots = self._rows_of(self._sentences)
        moved = (self._slots - old_slots).astype(np.int32)[:, None]  # an ancestor is a slot of the same sentence
        ancestors = np.zeros((self._n_places * self._beam, capacity), np.int32)
        ancestors[self._slots, :n] = self._ancestors[old_slots, :n] + moved
        self._ancestors = ancestors
        old_caches, self._caches = self._caches, []
        while old_caches:  # one is freed before the next is copied
            cache, larger = old_caches.pop(0), self._empty_cache(capacity)
            for slot, old in zip(self._slots.tolist(), old_slots.tolist(), strict=True):
                larger[slot, :n] = cache[old, :n]
            self._caches.append(larger)
