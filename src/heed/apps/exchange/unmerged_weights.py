"""A network's weights under the names that other formats have in common: one matrix for each of Q, K and V.

A part is named as in Heed's model folder, such as "decoder.0.cross_attention.q.weight", but for the merged matrices,
which are cut. Matrices are (out, in). The embeddings and the output projection stand once if they share a matrix.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.config import cut, shown
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.cost import Rows, weight_shapes
from heed.model.coverage import Answer, Coverage
from heed.model.weight_files import LazyRows
from heed.model_folder import ModelConfig, ModelFolder

Array = NDArray[np.float32]
Parts = dict[str, Rows]
BARRED = -1e4  # a logit whose probability is 0, within the range of fp16
MERGED = {"qkv": ("q", "k", "v"), "kv": ("k", "v")}


def _widths(arch: Architecture) -> dict[str, int]:
    keys, values = arch.n_heads * arch.key_width, arch.n_heads * arch.value_width
    return {"q": keys, "k": keys, "v": values}


# Settings of the network that every other program has with any value (True), and values that none has.
IN_ALL_FORMATS: dict[str, Mapping[Any, Answer] | bool] = {
    **dict.fromkeys(("n_layers", "n_encoder_layers", "n_decoder_layers", "d_model", "d_ff", "n_heads"), True),
    **dict.fromkeys(("d_k", "d_v", "dropout", "attention_dropout", "word_dropout", "max_positions"), True),
    "network": {None: True, ...: False},
    "radius": {None: True, ...: "a radius"},
    "first_position": {0: True, ...: "positions that begin later than at 0"},
    "embedding_norm": {False: True, True: "a norm of embeddings"},
    "attention_bias": {False: True, True: True},
    "output_bias": {False: True, True: True},
    "share": {"all": True, "tgt": True, "none": True},
}


def missing_part(arch: Architecture, coverage: Coverage) -> str | None:
    """The part of this network that a program lacks, or None, where widths of heads must divide the model's."""
    if (missing := coverage.missing_setting(arch)) is not None:
        return missing
    for name, width in (("d_k", arch.key_width), ("d_v", arch.value_width)):
        if width * arch.n_heads != arch.d_model:
            return f"{name} · n_heads = {width * arch.n_heads}, not d_model"
    return None


def check_covered(missing: str | None, *, program: str) -> None:
    """HeedError for what a program does not have."""
    if missing is not None:
        raise HeedError(f"this model has {missing}, which {program} cannot express.")


def parts_of(folder: ModelFolder) -> Parts:
    """The weights of a model."""
    config, parts = folder.config, Parts()
    widths = _widths(config.arch)
    for name in weight_shapes(config.arch, config.vocab_size, config.src_vocab_size):
        weight = folder.take(name)
        assert weight is not None, name
        *where, matrix, kind = name.split(".")
        if matrix not in MERGED:
            parts[name] = weight
            continue
        begin = 0
        for part in MERGED[matrix]:
            parts[".".join([*where, part, kind])] = _cut(weight, begin, begin + widths[part])
            begin += widths[part]
    return parts


def _cut(weight: Rows, begin: int, end: int) -> Rows:
    shape = (end - begin, *weight.shape[1:])
    return LazyRows(shape, lambda rows: weight[slice(begin, end)][rows])


def check_parts(parts: Mapping[str, Rows], config: ModelConfig, *, where: Path) -> None:
    """HeedError names a part that is missing, left over, or of another shape than these settings ask for."""
    expected: dict[str, tuple[int, ...]] = {}
    widths = _widths(config.arch)
    for name, shape in weight_shapes(config.arch, config.vocab_size, config.src_vocab_size).items():
        *prefix, matrix, kind = name.split(".")
        cuts = {part: (widths[part], *shape[1:]) for part in MERGED.get(matrix, ())} or {matrix: shape}
        expected |= {".".join([*prefix, part, kind]): cut_shape for part, cut_shape in cuts.items()}
    for name in sorted(expected.keys() ^ parts.keys()):
        state = "missing" if name in expected else "one too many"
        raise HeedError(f"{where}: weight {cut(name)} is {state}, by the model's settings.")
    for name, shape in expected.items():
        if (actual := tuple(parts[name].shape)) != shape:
            raise HeedError(
                f"{where}: weight {name} has shape {actual}; the model's settings and vocabulary ask for {shape}."
            )


def merge_parts(parts: Mapping[str, Rows]) -> Parts:
    """The weights as a model folder holds them."""
    weights = Parts()
    for name, weight in parts.items():
        *where, part, kind = name.split(".")
        if part not in ("q", "k", "v") or (part == "q" and where[-1] == "cross_attention"):
            weights[name] = weight
            continue
        matrix = "kv" if where[-1] == "cross_attention" else "qkv"
        if part == MERGED[matrix][0]:
            siblings = [parts[".".join([*where, other, kind])] for other in MERGED[matrix]]
            weights[".".join([*where, matrix, kind])] = _stacked(siblings)
    return weights


def _stacked(weights: Sequence[Rows]) -> Rows:
    shape = (sum(weight.shape[0] for weight in weights), *weights[0].shape[1:])
    return LazyRows(shape, lambda rows: np.concatenate([weight[:] for weight in weights])[rows])


def halves(d_model: int) -> NDArray[np.int64]:
    """(d_model): the order of channels that puts the sines of interleaving positions before their cosines."""
    return np.concatenate([np.arange(0, d_model, 2), np.arange(1, d_model, 2)])


def interleaving(d_model: int) -> NDArray[np.int64]:
    """The inverse of `halves`."""
    return np.argsort(halves(d_model))


def reorder_channels(parts: Mapping[str, Rows], order: NDArray[np.int64]) -> Parts:
    """The parts of the same network with the channels between its sub-layers in another order, (d_model).

    Everything that reads them has its inputs reordered, everything that writes them its outputs.
    """
    return {name: _reordered(name, weight, order) for name, weight in parts.items()}


def _reordered(name: str, weight: Rows, order: NDArray[np.int64]) -> Rows:
    part, kind = name.split(".")[-2:]
    if part.endswith("norm") or part in ("out", "outer"):
        return LazyRows(weight.shape, lambda rows: weight[:][order[rows]])
    if kind == "bias":  # of what reads them
        return weight
    return LazyRows(weight.shape, lambda rows: weight[rows][:, order])


def with_symbols_barred(folder: ModelFolder) -> ModelFolder:
    """The model with logits for pad and bos that no search follows, for programs that would write them; Heed does not.

    A model without biases of the logits stays as it is: it has learned not to write them.
    """
    special, bias = folder.tokenizer.special, folder.take("output.bias")
    barred = sorted({special.pad, special.bos} - {special.eos})
    if bias is None or not barred:
        return folder
    bias = bias[:].copy()
    bias[barred] = BARRED
    return replace(folder, take=lambda name: bias if name == "output.bias" else folder.take(name))


def not_neutral(settings: Mapping[str, Any], table: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The settings of the table with a value that changes translations: neither None nor one of those listed."""
    return {name: settings[name] for name, neutral in table.items() if settings.get(name) not in (None, *neutral)}


def listed(settings: Mapping[str, Any]) -> str:
    """Names and values for a message."""
    return ", ".join(f"{name} ({shown(value)})" for name, value in settings.items())
