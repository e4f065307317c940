"""PyTorch's modules into model folders, and their weights as tensors."""

import stat
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from heed.model.cost import weight_shapes
from heed.model.transformer import Transformer
from heed.model_folder.card import ModelCard, ModelConfig, write_config
from heed.model_folder.folder import ModelFolder
from heed.model_folder.network import first_names
from heed.model_folder.weights import StoredWeights, check_finite, compare_shapes
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


def write_weights(path: Path, tensors: dict[str, Tensor]) -> None:
    """Writes a safetensors file; a full disk is an OSError, as with any file."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        path.unlink(missing_ok=True)
        raise OSError(0, str(error)) from error
    if path.stat().st_mode != mode:  # safetensors lets nobody but the owner read its files, whatever the umask says
        path.chmod(stat.S_IMODE(mode))


def folder_of(config: ModelConfig, weights: dict[str, Tensor], tokenizer: AnyTokenizer, *, where: Path) -> ModelFolder:
    """The folder of weights in memory. HeedError if they are not those that config asks for."""
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    compare_shapes(weight_shapes(config.arch, config.vocab_size, config.src_vocab_size), shapes, where=where)
    for name, tensor in weights.items():
        check_finite(name, tensor.float().numpy(), where=where)
    return ModelFolder(config, tokenizer, lambda name: weights[name].float().numpy() if name in weights else None)
