"""PyTorch's modules into model folders, and their weights as tensors."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from heed.model import weight_files
from heed.model.cost import Rows, weight_shapes
from heed.model.transformer import Transformer
from heed.model.weight_files import LazyRows
from heed.model_folder.card import ModelCard, ModelConfig, write_config
from heed.model_folder.network import first_names
from heed.model_folder.weights import StoredWeights, compare_shapes
from heed.runtime.files import whole_folder
from heed.runtime.manifest import seal
from heed.text.tokenizer_kinds import AnyTokenizer


def save_model(folder: Path, model: Transformer, tokenizer: AnyTokenizer, card: ModelCard) -> None:
    """Writes the folder, whole or not at all."""
    with whole_folder(folder) as temporary:
        write_model(temporary, model, tokenizer, card)
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
    """Writes a safetensors file in fp32, some rows at a time."""
    weight_files.write_weights(path, {name: rows_of(weight) for name, weight in weights.items()})


def rows_of(x: Rows | Tensor) -> Rows:
    """A tensor as a weight in fp32; its rows are copied when they are read, and only if they are of another type."""
    if not isinstance(x, Tensor):
        return x
    return LazyRows(tuple(x.shape), lambda rows: (x[rows] if x.dim() else x).float().numpy())
