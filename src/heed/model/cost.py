"""The weights of a network: their names, shapes and how they are read; and what they cost by formula: parameters, the
last column of Table 3, and floating-point operations, the FLOPs of Table 2."""

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from heed.model.architecture import Architecture


@runtime_checkable
class Rows(Protocol):
    """A weight in fp32, of which some rows are read at a time: an array, or what a file holds."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: slice, /) -> NDArray[np.float32]: ...


Take = Callable[[str], Rows | None]  # a weight by its name in a model's state; None if there is none

# m and v: a product and a sum of products each, v one product more; both corrections; root, sum, quotient, difference.
ADAM_FLOPS = 13


def parameters_by_part(arch: Architecture, vocab_size: int, src_vocab_size: int | None = None) -> dict[str, int]:
    """Trained numbers, by part of the network; shared matrices are counted once, in the embeddings.

    vocab_size: the target's; src_vocab_size: the source's, if it differs.
    """
    parts = dict.fromkeys(("embeddings and softmax", "positions", "encoder", "decoder"), 0)
    for name, shape in weight_shapes(arch, vocab_size, src_vocab_size).items():
        first = name.split(".")[0]
        if first.endswith("_positions"):
            part = "positions"
        elif first.startswith(("encoder", "decoder")):
            part = first[: len("encoder")]
        else:
            part = "embeddings and softmax"
        parts[part] += math.prod(shape)
    return parts


def weight_shapes(arch: Architecture, vocab_size: int, src_vocab_size: int | None = None) -> dict[str, tuple[int, ...]]:
    """The shape of every weight by its name in a model's state, of a shared matrix under its first name."""
    if arch.network is not None:
        from heed.model.networks import own_weight_shapes  # PyTorch's modules

        return own_weight_shapes(arch, vocab_size, src_vocab_size)
    # Tables at both ends; a shared one has the name that comes first.
    d, keys, values = arch.d_model, arch.n_heads * arch.key_width, arch.n_heads * arch.value_width
    tgt_tables = ["tgt_embedding", "output"][: {"all": 0, "tgt": 1, "none": 2}[arch.share]]
    shapes: dict[str, tuple[int, ...]] = {"src_embedding.weight": (src_vocab_size or vocab_size, d)}
    shapes |= {f"{table}.weight": (vocab_size, d) for table in tgt_tables}
    if arch.output_bias:
        shapes["output.bias"] = (vocab_size,)
    if arch.positions == "learned":
        shapes |= {f"{side}_positions.weight": (arch.max_positions, d) for side in ("src", "tgt")}
    if arch.embedding_norm:
        shapes |= {f"{side}_embedding_norm.{vector}": (d,) for side in ("src", "tgt") for vector in ("weight", "bias")}
    # One layer: queries, keys and values of self-attention are one matrix.
    self_attention: dict[str, tuple[int, ...]] = {
        "self_attention.qkv.weight": (2 * keys + values, d),
        "self_attention.out.weight": (d, values),
    }
    cross_attention: dict[str, tuple[int, ...]] = {
        "cross_attention.q.weight": (keys, d),
        "cross_attention.kv.weight": (keys + values, d),
        "cross_attention.out.weight": (d, values),
    }
    if arch.attention_bias:
        for projections in (self_attention, cross_attention):
            projections |= {name.replace("weight", "bias"): shape[:1] for name, shape in projections.items()}
    feed_forward = {
        "feed_forward.inner.weight": (arch.d_ff, d),
        "feed_forward.inner.bias": (arch.d_ff,),
        "feed_forward.outer.weight": (d, arch.d_ff),
        "feed_forward.outer.bias": (d,),
    }
    norms = {
        f"{part}_norm.{vector}": (d,)
        for part in ("self_attention", "cross_attention", "feed_forward")
        for vector in ("weight", "bias")
    }
    # An encoder layer is a decoder layer without cross-attention.
    decoder_layer = self_attention | cross_attention | feed_forward | norms
    encoder_layer = {name: shape for name, shape in decoder_layer.items() if not name.startswith("cross_attention")}
    stacks = (("encoder", arch.encoder_layers, encoder_layer), ("decoder", arch.decoder_layers, decoder_layer))
    for stack, n_layers, layer in stacks:
        for i in range(n_layers):
            shapes |= {f"{stack}.{i}.{name}": shape for name, shape in layer.items()}
        if arch.norm == "pre":
            shapes |= {f"{stack}_norm.{vector}": (d,) for vector in ("weight", "bias")}
    return shapes


def n_parameters(arch: Architecture, vocab_size: int, src_vocab_size: int | None = None) -> int:
    """All trained numbers."""
    return sum(parameters_by_part(arch, vocab_size, src_vocab_size).values())


@dataclass(frozen=True)
class Workload:
    """The work of some passes: tokens, eos and bos included, and pairs of a query with a key, of all sentences."""

    n_src: int
    n_tgt: int
    src_src: int = 0  # in the encoder's self-attention: the sum of squared lengths
    tgt_tgt: int = 0  # in the decoder's, counted before the mask, as torch counts
    tgt_src: int = 0  # in cross attention

    def times(self, n: int) -> "Workload":
        """The work of n passes over the same sentences."""
        return Workload(*(n * count for count in astuple(self)))


def forward_flops(arch: Architecture, vocab_size: int, work: Workload) -> float:
    """Operations of one forward pass: 2 a weight and token that it meets, 2 a pair and column of queries and values."""
    d, h = arch.d_model, arch.n_heads
    key_value = h * d * (arch.key_width + arch.value_width)
    feed_forward = 2 * d * arch.d_ff
    n_encoder, n_decoder = arch.encoder_layers, arch.decoder_layers
    per_src = n_encoder * (2 * key_value + feed_forward) + n_decoder * key_value  # of cross attention: keys and values
    per_tgt = n_decoder * (3 * key_value + feed_forward) + vocab_size * d
    own_src, own_tgt = work.src_src, work.tgt_tgt
    if arch.radius is not None:  # blocks of `radius` queries meet three of keys, in the decoder two
        own_src, own_tgt = min(own_src, 3 * arch.radius * work.n_src), min(own_tgt, 2 * arch.radius * work.n_tgt)
    pairs = n_encoder * own_src + n_decoder * (own_tgt + work.tgt_src)
    return 2.0 * (per_src * work.n_src + per_tgt * work.n_tgt + h * (arch.key_width + arch.value_width) * pairs)


def training_flops(
    arch: Architecture, vocab_size: int, work: Workload, *, n_steps: int, src_vocab_size: int | None = None
) -> float:
    """Operations of training: forward, twice that backward, ADAM_FLOPS a parameter and step.

    What is not a matrix product (softmax, norms, dropout, the recomputation of a fused attention) is left out.
    """
    adam = ADAM_FLOPS * n_parameters(arch, vocab_size, src_vocab_size) * n_steps
    return 3 * forward_flops(arch, vocab_size, work) + adam


def matrix_products(
    arch: Architecture, vocab_size: int, *, n_src: int, n_tgt: int, chunk: int
) -> Iterator[tuple[int, int, int, float]]:
    """(rows, width in, width out, how many) of the forward products of weights in one pass, as the model runs them.

    The output projection comes `chunk` rows at a time. All together are `forward_flops` without pairs.
    """
    d, h = arch.d_model, arch.n_heads
    keys, values = h * arch.key_width, h * arch.value_width
    for n_rows, layers in ((n_src, arch.encoder_layers), (n_tgt, arch.decoder_layers)):
        yield n_rows, d, 2 * keys + values, layers
        yield n_rows, values, d, layers
        yield n_rows, d, arch.d_ff, layers
        yield n_rows, arch.d_ff, d, layers
    yield n_tgt, d, keys, arch.decoder_layers
    yield n_src, d, keys + values, arch.decoder_layers
    yield n_tgt, values, d, arch.decoder_layers
    yield chunk, d, vocab_size, n_tgt / chunk
