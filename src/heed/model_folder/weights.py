"""model.safetensors, and the model that its tensors make.

No memory of the model's size is taken before the shapes in config.json agree with those in the file.
"""

import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heed.config import cut
from heed.errors import HeedError
from heed.model.cost import n_parameters, weight_shapes
from heed.model.networks import network_of
from heed.model.transformer import Transformer
from heed.model_folder.card import ModelConfig
from heed.runtime.json_files import MAX_JSON_BYTES
from heed.runtime.reading import regular_file


def shared_weights(model: Transformer) -> dict[str, Tensor]:
    """The state of a model with each shared matrix once, under its first name, in fp32 on the CPU."""
    state, first_names = model.state_dict(), set(_first_names(model).values())
    return {name: state[name].to("cpu", torch.float32).contiguous() for name in state if name in first_names}


def _first_names(model: Transformer) -> dict[str, str]:
    """For each name in the model's state the first name of the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in model.state_dict(keep_vars=True).items()}


def load_weights(model: Transformer, weights: dict[str, Tensor], *, where: Path) -> None:
    """Fills the model. HeedError names a weight that is missing, left over, or of another shape."""
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    _compare_shapes(weight_shapes(model.arch, model.vocab_size, model.src_vocab_size), found, where=where)
    model.load_state_dict(weights, strict=False)


def _compare_shapes(expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]], *, where: Path) -> None:
    for name in sorted(expected.keys() ^ found.keys()):
        state = "missing" if name in expected else "not part of the architecture in config.json"
        raise HeedError(f"{where}: weight {cut(name)} is {state}.")
    for name, shape in found.items():
        if shape != expected[name]:
            raise HeedError(f"{where}: weight {name} has shape {shape}; config.json asks for {expected[name]}.")


# What weights may be stored as. A safetensors file is the length of its header in 8 bytes, the header in JSON, and the
# tensors, consecutively. It is read, not mapped into memory, where another process that cuts it would end this
# one by a signal; each tensor enters memory once.
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


class _Stored(NamedTuple):
    """How a tensor is stored in a file, and where in it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. HeedError if it is missing, cut short or of another kind."""
    with _weights_file(path) as file:
        return {name: _read(file, stored) for name, stored in _contents(file).items()}


@contextmanager
def _weights_file(path: Path) -> Iterator[BinaryIO]:
    try:
        with regular_file(path) as file:
            yield file
    except FileNotFoundError:
        raise HeedError(
            f"{path}: missing; a model folder holds config.json, tokenizer.json, model.safetensors."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise HeedError(f"{path}: damaged or not a safetensors file ({error}).") from None


def _contents(file: BinaryIO) -> dict[str, _Stored]:
    """The tensors by name, none of which is read. ValueError unless they fill the file behind its header exactly."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if length > min(size - 8, MAX_JSON_BYTES):
        raise ValueError(f"a header of {length:,} bytes")
    header = json.loads(file.read(length).decode("utf-8"))
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
        raise ValueError("its header does not list tensors")
    header.pop("__metadata__", None)
    found = {name: _stored(name, entry, file, behind=8 + length) for name, entry in header.items()}
    end = 8 + length
    for stored in sorted(found.values(), key=lambda stored: (stored.start, stored.end)):
        if stored.start != end:
            raise ValueError("its tensors overlap or leave gaps")
        end = stored.end
    if end != size:
        raise ValueError(f"{size:,} bytes; its header speaks of {end:,}")
    return found


def _stored(name: str, entry: dict[str, Any], file: BinaryIO, *, behind: int) -> _Stored:
    values: list[Any] = [entry.get(key) for key in ("dtype", "shape", "data_offsets")]
    dtype, shape, place = values
    if not isinstance(dtype, str):
        raise ValueError(f"tensor {cut(name)} has no type")
    if dtype not in _DTYPES:
        raise HeedError(
            f"{file.name}: tensor {cut(name)} is of type {cut(dtype)}; expected {', '.join(_DTYPES)}: take the "
            "model as it was before it was quantised."
        )
    # The bound on dimensions keeps the product from growing without end.
    if not (_counts(shape) and len(shape) <= 8 and _counts(place) and len(place) == 2):
        raise ValueError(f"tensor {cut(name)} has no good shape or place")
    start, end = place
    if math.prod(filter(None, shape)) >= 2**63:  # torch multiplies them also where one is 0
        raise ValueError(f"tensor {cut(name)} has no good shape")
    if math.prod(shape) * _DTYPES[dtype].itemsize != end - start:
        raise ValueError(f"tensor {cut(name)} does not have as many bytes as its shape asks for")
    return _Stored(_DTYPES[dtype], tuple(shape), behind + start, behind + end)


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _read(file: BinaryIO, stored: _Stored) -> Tensor:
    buffer = torch.empty(stored.end - stored.start, dtype=torch.uint8)
    file.seek(stored.start)
    if file.readinto(buffer.numpy()) < len(buffer):  # type: ignore[attr-defined]  # a BufferedReader's
        raise ValueError("cut while it was read")
    return buffer.view(stored.dtype).view(stored.shape)


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


def check_weights(path: Path, config: ModelConfig) -> dict[str, Tensor]:
    """The weights that config asks for, in fp32. HeedError if the file holds others, or numbers that are not finite."""
    network = config.arch, config.vocab_size, config.src_vocab_size
    n_weights = n_parameters(*network)
    if n_weights > path.stat().st_size:
        raise HeedError(f"{path}: smaller than the {n_weights:,} weights that config.json asks for.")
    weights: dict[str, Tensor] = {}
    with _weights_file(path) as file:
        contents = _contents(file)
        shapes = {name: stored.shape for name, stored in contents.items()}
        _compare_shapes(weight_shapes(*network), shapes, where=path)
        for name, stored in contents.items():
            weights[name] = _read(file, stored).float()
            _check_finite(name, weights[name], where=path)
    return weights


def model_of(config: ModelConfig, weights: dict[str, Tensor], *, where: Path) -> Transformer:
    """The model of these weights, in evaluation mode. HeedError if they are not those that config asks for."""
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    _compare_shapes(weight_shapes(config.arch, config.vocab_size, config.src_vocab_size), found, where=where)
    for name, tensor in weights.items():
        _check_finite(name, tensor, where=where)
    return model_of_weights(config, weights).eval()


def _check_finite(name: str, tensor: Tensor, *, where: Path) -> None:
    if not torch.stack(torch.aminmax(tensor)).isfinite().all():  # which spare a copy of its size
        raise HeedError(f"{where}: {name} holds numbers that are not finite; take an earlier checkpoint.")


class _NothingDrawn(TorchFunctionMode):
    """Leaves out the drawing of first weights: on the meta device it would import 70 MB of PyTorch, for nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def model_of_weights(config: ModelConfig, weights: dict[str, Tensor]) -> Transformer:
    """The model whose weights are these tensors; they are not copied."""
    network = network_of(config.arch)
    if network is Transformer:
        with torch.device("meta"), _NothingDrawn():
            model = Transformer(config.arch, config.vocab_size, config.src_vocab_size)
    else:  # which may hold tensors of its own that are no weights
        model = network(config.arch, config.vocab_size, config.src_vocab_size)
    parameters = {name: nn.Parameter(tensor) for name, tensor in weights.items()}
    state = {name: parameters[first] for name, first in _first_names(model).items()}
    model.load_state_dict(state, assign=True)
    return model
