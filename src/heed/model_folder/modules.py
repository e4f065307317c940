"""PyTorch's modules into model folders, and their weights as tensors."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heed.model.cost import Rows, weight_shapes
from heed.model.transformer import Transformer
from heed.model_folder.card import ModelCard, ModelConfig, write_config
from heed.model_folder.folder import ModelFolder
from heed.model_folder.network import first_names
from heed.model_folder.weights import LazyRows, StoredWeights, compare_shapes, finite_rows, row_blocks
from heed.runtime.files import whole_folder
from heed.runtime.manifest import seal
from heed.text.tokenizer_kinds import AnyTokenizer


def save_model(folder: Path, model: Transformer, tokenizer: AnyTokenizer, card: ModelCard) -> None:
    """Writes the folder, whole or not at all."""
    with whole_folder(folder) as temporary:
        write_model(temporary, model, tokenizer, card)
        seal(temporary)


def copy_model(out: Path, folder: ModelFolder) -> None:
    """Writes a folder of these weights, whole or not at all; memory holds a part of one weight at a time."""
    names = weight_shapes(folder.config.arch, folder.config.vocab_size, folder.config.src_vocab_size)
    weights = {name: weight for name in names if (weight := folder.take(name)) is not None}
    with whole_folder(out) as temporary:
        write_config(temporary, folder.config)
        folder.tokenizer.save(temporary / "tokenizer.json")
        write_weights(temporary / "model.safetensors", weights)
        seal(temporary)


def write_model(folder: Path, model: Transformer, tokenizer: AnyTokenizer, card: ModelCard) -> None:
    """Writes the files into an existing folder, to be sealed: checkpoints add theirs first."""
    src_vocab_size = None if model.src_vocab_size == model.vocab_size else model.src_vocab_size
    write_config(folder, ModelConfig(model.arch, model.vocab_size, card, src_vocab_size))
    tokenizer.save(folder / "tokenizer.json")
    write_weights(folder / "model.safetensors", shared_weights(model))


def shared_weights(model: Transformer) -> dict[str, Tensor]:
    """The state of a model with each shared matrix once, under its first name, in fp32 on the CPU."""
    state, names = model.state_dict(), set(first_names(model).values())
    return {name: state[name].to("cpu", torch.float32).contiguous() for name in state if name in names}


def load_weights(model: Transformer, weights: dict[str, Tensor], *, where: Path) -> None:
    """Fills the model. HeedError names a weight that is missing, left over, or of another shape."""
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    compare_shapes(weight_shapes(model.arch, model.vocab_size, model.src_vocab_size), shapes, where=where)
    model.load_state_dict(weights, strict=False)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. HeedError if it is missing, cut short or of another kind."""
    weights = StoredWeights(path)
    arrays = {name: weights.raw(name) for name in weights.shapes}
    tensors = {name: torch.from_numpy(numbers) for name, (numbers, _) in arrays.items()}
    return {name: tensor.view(torch.bfloat16) if arrays[name][1] else tensor for name, tensor in tensors.items()}


def write_weights(path: Path, weights: Mapping[str, Rows | Tensor]) -> None:
    """Writes a safetensors file in fp32, some rows at a time: the bytes of the library, which takes all at once."""
    entries, end = {}, 0
    for name in sorted(weights):
        shape = tuple(weights[name].shape)
        begin, end = end, end + 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": (begin, end)}
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in entries:
            weight = rows_of(weights[name])
            for rows in row_blocks(weight.shape):
                file.write(np.ascontiguousarray(weight[rows], "<f4").data)


def rows_of(x: Rows | Tensor) -> Rows:
    """A tensor as a weight in fp32; its rows are copied when they are read, and only if they are of another type."""
    if not isinstance(x, Tensor):
        return x
    return LazyRows(tuple(x.shape), lambda rows: (x[rows] if x.dim() else x).float().numpy())


def folder_of(
    config: ModelConfig, weights: Mapping[str, Rows | Tensor], tokenizer: AnyTokenizer, *, where: Path
) -> ModelFolder:
    """The folder of these weights. HeedError if they are not those that config asks for, or once one that is read is
    not finite."""
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    compare_shapes(weight_shapes(config.arch, config.vocab_size, config.src_vocab_size), shapes, where=where)
    checked = {name: finite_rows(name, rows_of(weight), where=where) for name, weight in weights.items()}
    return ModelFolder(config, tokenizer, checked.get)
