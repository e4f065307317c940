"""The kernels of the network in a search, and for given targets: csrc/encoding.cpp, decoding.cpp and search.cpp.

Rows are hypotheses, `beam` per sentence; of whole sentences, the tokens, end to end. Shapes stand beside the names of
arrays; numbers "in the model's type" are in float, or in bf16 in 16 bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.backends.beam_account import BeamAccount, Bools, EndingRules, Ints, StepLimits
from heed.backends.cpu.account_ops import account_structures, prefix_structures, within
from heed.backends.cpu.build import Wanted, addresses, check_range, kernel, raw_addresses
from heed.backends.cpu.declarations import Address, Structure, address, array, constants, ffi, structure
from heed.backends.cpu.packed_model import Layer, PackedModel, Stack, Table
from heed.backends.cpu.packed_weights import Floats32, Numbers, PackedWeight
from heed.backends.live_prefixes import LivePrefixes
from heed.model.architecture import EPSILON

ACTIVATIONS = {name.lower(): value for name, value in constants("Activation").items()}


@dataclass(frozen=True)
class Beams:
    """Where the rows of a search have their past; `beam` rows in a row are a sentence's. Of all, `active` are computed.

    ancestors[slot, position], int32: the slot that holds what the row in `slot` has at `position`; its own position is
    entered by the step. lengths: the new position of each row. heads: number, widths of one's key and value.
    """

    ancestors: NDArray[np.int32]  # (slot, position)
    active: Ints  # (active)
    slots: Ints  # (row)
    lengths: Ints  # (row)
    src_lengths: Ints  # (sentence)
    beam: int
    heads: dict[str, int]

    def structure(self, *, n_positions: int) -> Structure:
        """The C structure that the kernels take. n_positions: the length of the table of positions."""
        (n_slots, capacity), n_rows, n_active = self.ancestors.shape, len(self.slots), len(self.active)
        at = addresses(
            "decoder_step",
            ancestors=(self.ancestors, (n_slots, capacity), np.int32),
            rows=(self.active, (n_active,), np.int64),
            slots=(self.slots, (n_rows,), np.int64),
            lengths=(self.lengths, (n_rows,), np.int64),
            src_lengths=(self.src_lengths, (n_rows // self.beam,), np.int64),
        )
        check_range("decoder_step", "rows", self.active, end=n_rows)
        check_range("decoder_step", "slots", self.slots, end=n_slots)
        check_range("decoder_step", "lengths", self.lengths, end=min(capacity, n_positions))
        sizes = {"n_rows": n_active, "beam": self.beam, "capacity": capacity}
        return structure("Beams", **at, **sizes, heads=self.heads)

    def cache(self, x: Numbers, kv_width: int, dtype: np.dtype[Any]) -> Wanted:
        """A layer's keys and values, as the kernels want them."""
        return x, (*self.ancestors.shape, kv_width), dtype

    def memories(self, x: Ints) -> Wanted:
        """The addresses of a layer's sources, as the kernels want them."""
        return x, self.src_lengths.shape, np.int64


def heads_of(model: PackedModel) -> dict[str, int]:
    """The heads as the kernels take them."""
    return {"n": model.arch.n_heads, "d_k": model.arch.key_width, "d_v": model.arch.value_width}


@dataclass(frozen=True)
class PackedSentences:
    """Whole sentences, end to end: their tokens, as the kernels take them."""

    tokens: Ints  # (token)
    lengths: Ints  # (sentence)

    @cached_property
    def offsets(self) -> Ints:
        """(sentence + 1): where each begins."""
        return np.concatenate([[0], self.lengths.cumsum()])

    @cached_property
    def _rows(self) -> tuple[Ints, Ints, Ints]:
        """(token): the sentence of each, its place in it, its number."""
        sentences, rows = np.repeat(np.arange(len(self.lengths)), self.lengths), np.arange(len(self.tokens))
        return sentences, rows - self.offsets[sentences], rows

    def structures(
        self, kernel: str, model: PackedModel, *, vocab_size: int, n_positions: int
    ) -> tuple[dict[str, Address], dict[str, Address], dict[str, Any]]:
        """Addresses for the structures Sentences and Step, and the fields of Beams. Errors if the kernel could not read
        by these numbers."""
        sentences, places, rows = self._rows
        n = len(self.tokens)
        at = addresses(
            kernel,
            tokens=(self.tokens, (n,), np.int64),
            places=(places, (n,), np.int64),
            sentences=(sentences, (n,), np.int64),
            offsets=(self.offsets, (len(self.lengths) + 1,), np.int64),
            rows=(rows, (n,), np.int64),
        )
        if n == 0 or int(self.lengths.min()) < 1 or self.offsets[-1] != n:
            raise ValueError(f"kernel {kernel}: a sentence is empty, or the lengths are not the tokens'.")
        check_range(kernel, "tokens", self.tokens, end=vocab_size)
        if (longest := int(self.lengths.max())) > n_positions:
            raise IndexError(f"kernel {kernel}: sentences of {longest} positions; expected {n_positions} at most.")
        beams = {"rows": at["rows"], "lengths": at["places"], "n_rows": n, "beam": 1, "heads": heads_of(model)}
        return {"offsets": at["offsets"], "sentences": at["sentences"]}, {"tokens": at["tokens"]}, beams


class _Layers:
    """A stack's layers as the kernels take them. first_word: the first position that has the embedding of its token."""

    def __init__(self, model: PackedModel, stack: Stack, *, first_word: int):
        self._model, self._stack = model, stack  # what lies at the addresses
        self._options = {"activation": ACTIVATIONS[model.arch.activation], "first_word": first_word, "epsilon": EPSILON}
        for name, norm in (("first", stack.first_norm), ("embedding", stack.embedding_norm)):
            self._options |= raw_addresses(**dict(zip((f"{name}_gain", f"{name}_bias"), norm, strict=False)))
        self._array = array("DecoderLayer", [_layer_structure(layer) for layer in stack.layers])

    def _step(
        self, kernel: str, embedding: Table, positions: Numbers, beams: Structure, *, tokens: Address | None
    ) -> Structure:
        d_model, dtype = self._array[0].qkv.d_in, self._model.dtype
        at = addresses(kernel, positions=(positions, (len(positions), d_model), dtype))
        if isinstance(embedding, PackedWeight):
            at["table"] = embedding.structure
        else:
            at |= addresses(kernel, embedding=(embedding, (len(embedding), d_model), dtype))
        sizes = {"n_layers": len(self._array), "d_model": d_model, "d_ff": self._array[0].inner.d_out}
        options = self._options | {"scale": math.sqrt(d_model)}
        return structure("Step", layers=self._array, **sizes, **options, beams=beams[0], tokens=tokens, **at)


class EncoderLayers(_Layers):
    """An encoder's layers for `encode`, and the weights that make the memories of a decoder's layers."""

    def __init__(self, model: PackedModel):
        super().__init__(model, model.encoder, first_word=0)
        self._kv = array("Weight", [weight.structure for weight in model.memories])

    def encode(self, sources: PackedSentences) -> Numbers:
        """(layer, src_token, kv): every decoder layer's memory, all heads' keys and values."""
        model = self._model
        positions = model.position_table("src", int(sources.lengths.max(initial=0)))
        sizes = {"vocab_size": model.src_vocab_size, "n_positions": len(positions)}
        of_sentences, of_step, beams = sources.structures("encode_sources", model, **sizes)
        # The encoder runs as one step over all tokens, as if each were a row of a beam of 1.
        memories = np.empty((len(self._kv), len(sources.tokens), model.kv_width), model.dtype)
        step = self._step("encode_sources", model.src_embedding, positions, structure("Beams", **beams), **of_step)
        sentences = structure(
            "Sentences",
            **of_sentences,
            n_sentences=len(sources.lengths),
            n_memories=len(self._kv),
            kv=self._kv,
            **raw_addresses(memories=memories),
        )
        kernel("encode_sources", model.dtype)(step=step, sources=sentences)
        return memories


class DecoderLayers(_Layers):
    """A decoder's layers for `step` and `search`, and for given targets."""

    def __init__(self, model: PackedModel):
        super().__init__(model, model.decoder, first_word=1 if model.arch.decoder_start == "zero" else 0)
        self._caches: Sequence[Numbers] | None = None  # those whose addresses the layers have
        self._memories: Ints | None = None

    def targets(
        self, targets: PackedSentences, memories: Numbers, sources: PackedSentences, *, weights: bool = False
    ) -> tuple[Floats32, Floats32 | None]:
        """(token, d_model): the last layer's output at every position of given targets, which begin with bos; and with
        `weights` (layer, token, longest source) the mean of all heads' cross-attention.

        memories: of these sources, as `encode` gives them.
        """
        model, name = self._model, "decode_targets"
        positions = model.position_table("tgt", int(targets.lengths.max(initial=0)))
        sizes = {"vocab_size": model.vocab_size, "n_positions": len(positions)}
        of_sentences, of_step, beams = targets.structures(name, model, **sizes)
        n_layers, n = len(self._array), len(targets.tokens)
        if memories.shape != (n_layers, len(sources.tokens), model.kv_width) or len(sources.lengths) != len(
            targets.lengths
        ):
            raise ValueError(f"kernel {name}: the sources are not the targets'.")
        addresses(name, memories=(memories, memories.shape, model.dtype))
        begins = memories.ctypes.data + sources.offsets[:-1] * (model.kv_width * memories.itemsize)
        of_layers = np.arange(n_layers)[:, None] * memories[0].nbytes + begins  # (layer, sentence): addresses
        for layer, sources_of in zip(self._array, of_layers, strict=True):
            layer.memories = address(sources_of)
        beams |= addresses(name, src_lengths=(sources.lengths, sources.lengths.shape, np.int64))
        x = np.empty((n, model.arch.d_model), np.float32)
        longest = int(sources.lengths.max())
        mean = np.zeros((n_layers, n, longest), np.float32) if weights else None
        step = self._step(name, model.tgt_embedding, positions, structure("Beams", **beams), **of_step)
        sentences = structure(
            "Sentences",
            **of_sentences,
            n_sentences=len(targets.lengths),
            causal=True,
            longest_src=longest,
            **({} if mean is None else raw_addresses(weights=mean)),
        )
        kernel(name, model.dtype)(step=step, targets=sentences, **raw_addresses(x=x))
        return x, mean

    def step(
        self, tokens: Ints, positions: Numbers, caches: Sequence[Numbers], memories: Ints, *, beams: Beams
    ) -> Floats32:
        """(active, d_model): the last layer's output for every active row's next token, in float.

        tokens (row); positions (place, d_model). caches: of each layer (slot, position, kv), and memories (layer,
        sentence), addresses of (src, all heads' K and V): they are not changed but replaced, so that the same object
        has the same addresses.
        """
        at = addresses("decoder_step", tokens=(tokens, (len(beams.slots),), np.int64))
        check_range("decoder_step", "tokens", tokens, end=self._model.vocab_size)
        x = np.empty((len(beams.active), self._model.arch.d_model), np.float32)
        step = self._structure(positions, caches, memories, beams, **at)
        kernel("decoder_step", self._model.dtype)(step=step, **raw_addresses(x=x))
        return x

    def search(
        self,
        positions: Numbers,
        caches: Sequence[Numbers],
        memories: Ints,
        beams: Beams,
        *,
        account: BeamAccount,
        rules: EndingRules,
        prefixes: LivePrefixes,
        step_limits: StepLimits,
    ) -> Bools | None:
        """Runs `SearchState.take_steps`; None if a number is not finite. beams: before the first step. Others as
        `step` takes it."""
        # What the kernel reads and changes in place.
        (n_sentences, beam), fused = account.last.shape, rules.fused
        assert fused is not None
        account_structure, rules_structure = account_structures(account, rules)
        output, vocab_size = self._model.output, self._model.vocab_size
        at = addresses("search_steps", never=(fused.never, (vocab_size,), np.bool_))
        of_prefixes = prefix_structures(prefixes)
        if step_limits.n_waiting is not None:
            at |= addresses("search_steps", n_waiting=(step_limits.n_waiting, (1,), np.int64))
        # Checked once for all steps: sizes, room for the longest hypothesis, ids.
        fits = prefixes.states.shape == (n_sentences, beam) and len(beams.slots) == n_sentences * beam
        if output.d_out != vocab_size or not fits or fused.k < beam:
            raise ValueError("kernel search_steps: the output, the rows or k do not fit the account.")
        longest = int(account.lengths.max()) + step_limits.most
        if longest > min(account.width, beams.ancestors.shape[1], len(positions)):
            raise IndexError(f"kernel search_steps: there is no room for {longest} positions.")
        if not within(account.last, vocab_size):
            raise IndexError("kernel search_steps: an id is out of range.")
        # The search may end before its limit, so the number of steps comes back.
        search = structure(
            "Search",
            **at,
            **of_prefixes,
            account=account_structure[0],
            rules=rules_structure[0],
            output=output.structure[0],
            min_tokens=fused.min_tokens,
            k=fused.k,
            most_steps=step_limits.most,
            least_steps=step_limits.least,
            most_done=step_limits.most_done,
        )
        done, n_steps = np.zeros(n_sentences, np.bool_), ffi.new("int64_t *")
        step = self._structure(positions, caches, memories, beams, tokens=None)
        kernel("search_steps", self._model.dtype)(step=step, search=search, done=address(done), n_steps=n_steps)
        return None if n_steps[0] < 0 else done

    def _structure(
        self, positions: Numbers, caches: Sequence[Numbers], memories: Ints, beams: Beams, *, tokens: Address | None
    ) -> Structure:
        model = self._model
        if caches is not self._caches or memories is not self._memories:
            for layer, cache, sources in zip(self._array, caches, memories, strict=True):
                wanted = {"cache": beams.cache(cache, model.kv_width, model.dtype), "memories": beams.memories(sources)}
                at = addresses("decoder_step", **wanted)
                layer.cache, layer.memories = at["cache"], at["memories"]
            self._caches, self._memories = caches, memories
        of_beams = beams.structure(n_positions=len(positions))
        return self._step("decoder_step", model.tgt_embedding, positions, of_beams, tokens=tokens)


def _layer_structure(layer: Layer) -> Structure:
    norms = {
        f"{name}_{part}": x
        for name, norm in layer.norms.items()
        for part, x in zip(("gain", "bias"), norm, strict=True)
    }
    weights = {name: weight.structure[0] for name, weight in layer.weights.items()}
    return structure("DecoderLayer", **weights, **raw_addresses(**norms))
