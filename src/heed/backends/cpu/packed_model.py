"""A network as a search on a CPU reads it: its weights packed, everything in arrays; no PyTorch."""

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from heed.backends.cpu.build import has_int8, has_tiles
from heed.backends.cpu.packed_weights import (
    Floats32,
    Numbers,
    PackedWeight,
    bf16_weight,
    fp32_weight,
    int8_weight,
    move_outliers,
    to_bf16,
)
from heed.backends.protocol import NO_BF16, NO_INT8
from heed.errors import HeedError
from heed.model.architecture import Activation, Architecture, Sharing
from heed.model.cost import Rows, Take
from heed.model.sinusoids import sinusoid
from heed.runtime.device import DecodingPrecision
from heed.runtime.process_tuning import give_back_freed_memory

Side = Literal["src", "tgt"]
Table = Numbers | PackedWeight  # embeddings: (id, d_model), or the 8-bit matrix whose rows they are
# Numbers from which on an embedding in int8 is that matrix, as CTranslate2's are. Tables of common vocabularies are in
# bf16 and exact to 2^-9; at the size of NLLB's, 262 million numbers, they would be 46 % of all memory.
SHARED_SIZE = 1 << 26


@runtime_checkable
class PackedWeights(Protocol):
    """The weights of a network by their names in its state, each asked for once."""

    def table(self, name: str) -> Numbers:
        """Numbers that are no factor of a product."""

    def matrix(self, name: str) -> PackedWeight:
        """A matrix and its bias."""

    def pair(self, first: str, second: str) -> tuple[PackedWeight, PackedWeight]:
        """Two matrices with nothing but an activation or a weighted sum between them."""

    def ends(self, *, share: Sharing) -> tuple[PackedWeight, Table, Table]:
        """The output's matrix, the sources' embedding and the targets'."""


@dataclass(frozen=True)
class Layer:
    """A layer's packed weights by their names in DecoderLayer (kernels.h); gain and bias of the norms behind its sums.

    An encoder's layer is one without cross-attention.
    """

    weights: dict[str, PackedWeight]
    norms: dict[str, tuple[Numbers, Numbers]]


@dataclass(frozen=True)
class Stack:
    """The layers of an encoder or a decoder; gain and bias of the norms before the first sub-layer, where there are.

    These are that of the embeddings, and with pre-norm the first sub-layer's own.
    """

    layers: list[Layer]
    first_norm: tuple[Numbers, ...]
    embedding_norm: tuple[Numbers, ...]


class PackedModel:
    """A model to translate with.

    fp32: everything in float. int8, bf16: products in that, norms, embeddings, keys and values in bf16, the rest in
    float. Large embeddings are in int8: see SHARED_SIZE.
    """

    training, device_name = False, "cpu"

    def __init__(
        self,
        arch: Architecture,
        vocab_size: int,
        src_vocab_size: int | None,
        weights: PackedWeights,
        *,
        precision: DecodingPrecision,
    ):
        self.arch, self.vocab_size, self.precision = arch, vocab_size, precision
        self.src_vocab_size = src_vocab_size or vocab_size
        # The largest matrices first, when nothing else is there yet.
        self.output, self.src_embedding, self.tgt_embedding = weights.ends(share=arch.share)
        self._learned: dict[Side, Numbers] = {}
        if arch.positions == "learned":
            sides: tuple[Side, Side] = ("src", "tgt")
            self._learned = {side: weights.table(f"{side}_positions.weight") for side in sides}
        self._sinusoids = np.empty((0, arch.d_model), self.dtype)  # grows on demand
        self.encoder, _ = _stack("encoder", arch, weights)
        self.decoder, self.memories = _stack("decoder", arch, weights)
        give_back_freed_memory()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of embeddings (Table aside), norms, keys and values: float, or 16 bits for bf16."""
        return np.dtype(np.float32 if self.precision == "fp32" else np.uint16)

    @property
    def kv_width(self) -> int:
        """The width of all heads' keys and values together."""
        return self.arch.n_heads * (self.arch.key_width + self.arch.value_width)

    def position_table(self, side: Side, n_positions: int) -> Numbers:
        """(position, d_model): the encodings of at least the first `n_positions` positions. Sinusoids are cached.

        HeedError if there are more positions than learned ones.
        """
        if self.arch.positions == "learned":
            if n_positions > self.arch.max_positions:
                raise HeedError(
                    f"a sequence of {n_positions} positions, but max_positions={self.arch.max_positions} were learned."
                )
            return self._learned[side]
        table = self._sinusoids
        if len(table) < n_positions:
            n_rows, first = max(256, 2 ** math.ceil(math.log2(n_positions))), self.arch.first_position
            table = np.ascontiguousarray(sinusoid(first + n_rows, self.arch.d_model, self.arch.positions)[first:])
            self._sinusoids = table = table if self.dtype == np.float32 else to_bf16(table)
        return table


class Packer:
    """Packs the weights of a network as they are asked for; each is freed when it is packed."""

    def __init__(self, take: Take, precision: DecodingPrecision, *, activation: Activation):
        """take: gives up each weight once. HeedError where the processor cannot compute in this precision, and for
        bf16 where both others are faster."""
        if precision == "int8" and not has_int8():
            raise HeedError(NO_INT8)
        if precision == "bf16" and not has_tiles():
            raise HeedError(NO_BF16)
        self._take, self._precision, self._activation = take, precision, activation
        self._pack = {"fp32": fp32_weight, "bf16": bf16_weight, "int8": int8_weight}[precision]

    def table(self, name: str) -> Numbers:
        return self._stored(self._rows(name))

    def matrix(self, name: str) -> PackedWeight:
        return self._pack(self._rows(f"{name}.weight"), self._bias(name))

    def pair(self, first: str, second: str) -> tuple[PackedWeight, PackedWeight]:
        if self._precision != "int8":
            return self.matrix(first), self.matrix(second)
        numbers, bias = self._rows(f"{first}.weight")[:], self._bias(first)
        second_numbers, second_bias = self._rows(f"{second}.weight")[:], self._bias(second)
        feed_forward = "feed_forward" in first
        if not feed_forward or self._activation == "relu":
            numbers, bias, second_numbers = move_outliers(numbers, bias, second_numbers)
        by_relu = feed_forward and self._activation == "relu"
        return int8_weight(numbers, bias), int8_weight(second_numbers, second_bias, by_relu=by_relu)

    def ends(self, *, share: Sharing) -> tuple[PackedWeight, Table, Table]:
        src = self._rows("src_embedding.weight")
        tgt = src if share == "all" else self._rows("tgt_embedding.weight")
        factor = self._rows("output.weight") if share == "none" else tgt
        output = self._pack(factor, self._bias("output"))
        one = self._precision == "int8" and math.prod(factor.shape) >= SHARED_SIZE
        src_table = output if one and src is factor else self._stored(src)
        if tgt is src:
            return output, src_table, src_table
        return output, src_table, output if one and tgt is factor else self._stored(tgt)

    def _rows(self, name: str) -> Rows:
        weight = self._take(name)
        assert weight is not None, name
        return weight

    def _bias(self, name: str) -> Floats32 | None:
        bias = self._take(f"{name}.bias")
        return None if bias is None else bias[:]

    def _stored(self, x: Rows) -> Numbers:
        """A copy in the type in which the kernels read what is no factor of a product."""
        return np.array(x[:], np.float32) if self._precision == "fp32" else to_bf16(x)


def _stack(
    stack: Literal["encoder", "decoder"], arch: Architecture, weights: PackedWeights
) -> tuple[Stack, list[PackedWeight]]:
    """The encoder, or the decoder with each layer's weight that makes keys and values of sources.

    With pre-norm the norm behind a sum is the next sub-layer's, or the stack's last: so one pass adds and normalises,
    as with post-norm.
    """
    layers: list[dict[str, PackedWeight]] = []
    memories: list[PackedWeight] = []
    for i in range(arch.encoder_layers if stack == "encoder" else arch.decoder_layers):
        layer, name = dict[str, PackedWeight](), f"{stack}.{i}"
        layer["qkv"], layer["self_out"] = weights.pair(f"{name}.self_attention.qkv", f"{name}.self_attention.out")
        if stack == "decoder":
            memory, layer["cross_out"] = weights.pair(f"{name}.cross_attention.kv", f"{name}.cross_attention.out")
            memories.append(memory)
        layer["inner"], layer["outer"] = weights.pair(f"{name}.feed_forward.inner", f"{name}.feed_forward.outer")
        if stack == "decoder":
            layer["query"] = weights.matrix(f"{name}.cross_attention.q")
        layers.append(layer)
    parts = ["self_attention", "feed_forward"]
    if stack == "decoder":
        parts.insert(1, "cross_attention")
    names = [f"{stack}.{i}.{part}_norm" for i in range(len(layers)) for part in parts]
    if arch.norm == "pre":
        names.append(f"{stack}_norm")
    norms = [_norm(name, weights) for name in names]
    first_norm = norms.pop(0) if arch.norm == "pre" else ()
    fields = [part.removesuffix("_attention") for part in parts]
    behind = [norms[i : i + len(parts)] for i in range(0, len(norms), len(parts))]
    of_layers = [Layer(of, dict(zip(fields, some, strict=True))) for of, some in zip(layers, behind, strict=True)]
    embedding_norm: tuple[Numbers, ...] = ()
    if arch.embedding_norm:
        embedding_norm = _norm("src_embedding_norm" if stack == "encoder" else "tgt_embedding_norm", weights)
    return Stack(of_layers, first_norm, embedding_norm), memories


def _norm(name: str, weights: PackedWeights) -> tuple[Numbers, Numbers]:
    return weights.table(f"{name}.weight"), weights.table(f"{name}.bias")
