"""model.safetensors, a weight at a time.

No memory of the model's size is taken before the shapes in config.json agree with those in the file.
"""

import functools
import json
import math
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.config import cut
from heed.errors import HeedError
from heed.model.cost import Rows, n_parameters, weight_shapes
from heed.model_folder.card import ModelConfig
from heed.runtime.json_files import MAX_JSON_BYTES
from heed.runtime.reading import regular_file

# What weights may be stored as. A safetensors file is the length of its header in 8 bytes, the header in JSON, and the
# tensors, consecutively. It is read, not mapped into memory, where another process that cuts it would end this
# one by a signal; rows enter memory when they are asked for.
_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(np.uint16),  # its bits: numpy has no such type
    "F64": np.dtype(np.float64),
}


BLOCK = 1 << 22  # numbers of a weight that are read at a time: 16 MiB in fp32


class _Stored(NamedTuple):
    """How a tensor is stored in a file, and where in it."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    end: int


class StoredWeights:
    """The weights in a safetensors file, which stays open; rows are read when they are asked for, so that memory never
    holds all weights."""

    def __init__(self, path: Path):
        """HeedError if the file is missing, cut short or of another kind."""
        self.path = path
        with self._errors():
            self._file = regular_file(path)
            weakref.finalize(self, self._file.close)
            self._contents = _contents(self._file)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight by its name."""
        return {name: stored.shape for name, stored in self._contents.items()}

    def raw(self, name: str, rows: slice = slice(None)) -> tuple[NDArray[Any], bool]:
        """Rows of a weight as they are stored, and whether that is in bf16, of which the array has the bits."""
        stored = self._contents[name]
        with self._errors():
            return _read(self._file, stored, rows), stored.dtype == _DTYPES["BF16"]

    def rows(self, name: str) -> "LazyRows":
        """A weight in fp32."""
        return LazyRows(self._contents[name].shape, functools.partial(self._in_fp32, name))

    def take(self, name: str) -> "LazyRows | None":
        """A weight in fp32, None if the file has no such weight. Reading checks that its numbers are finite."""
        return finite_rows(name, self.rows(name), where=self.path) if name in self._contents else None

    def _in_fp32(self, name: str, rows: slice) -> NDArray[np.float32]:
        numbers, is_bf16 = self.raw(name, rows)
        if is_bf16:
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(over="ignore"):
            return numbers.astype(np.float32, copy=False)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with file_errors(self.path):
            yield


@dataclass(frozen=True)
class LazyRows:
    """A weight whose rows are read, or computed, when they are asked for."""

    shape: tuple[int, ...]
    read: Callable[[slice], NDArray[np.float32]]

    def __getitem__(self, rows: slice) -> NDArray[np.float32]:
        return self.read(rows)


def row_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """The rows of a weight in blocks of BLOCK numbers, or of a row where it is longer; no rows without numbers."""
    n_rows = max(1, BLOCK // max(1, math.prod(shape[1:])))
    for first in range(0, math.prod(shape[:1]) if math.prod(shape) else 0, n_rows):
        yield slice(first, first + n_rows)


def finite_rows(name: str, weight: Rows, *, where: Path) -> LazyRows:
    """The weight, of which reading raises HeedError for numbers that are not finite."""

    def read(rows: slice) -> NDArray[np.float32]:
        x = weight[rows]
        if x.size and not (np.isfinite(x.min()) and np.isfinite(x.max())):  # which spare a copy of its size
            raise HeedError(f"{where}: {name} holds numbers that are not finite; take an earlier checkpoint.")
        return x

    return LazyRows(weight.shape, read)


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """HeedError for what a file of weights that is missing or damaged raises."""
    try:
        yield
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
    contents = {name: _stored(name, entry, file, behind=8 + length) for name, entry in header.items()}
    end = 8 + length
    for stored in sorted(contents.values(), key=lambda stored: (stored.start, stored.end)):
        if stored.start != end:
            raise ValueError("its tensors overlap or leave gaps")
        end = stored.end
    if end != size:
        raise ValueError(f"{size:,} bytes; its header speaks of {end:,}")
    return contents


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


def _read(file: BinaryIO, stored: _Stored, rows: slice) -> NDArray[Any]:
    shape, start = stored.shape, stored.start
    if shape:
        first, end, _ = rows.indices(shape[0])
        start += first * ((stored.end - start) // max(1, shape[0]))
        shape = (end - first, *shape[1:])
    numbers = np.empty(shape, stored.dtype)
    file.seek(start)
    if file.readinto(numbers.reshape(-1).view(np.uint8)) < numbers.nbytes:  # type: ignore[attr-defined]  # a BufferedReader's
        raise ValueError("cut while it was read")
    return numbers


def check_weights(path: Path, config: ModelConfig) -> StoredWeights:
    """The weights that config asks for. HeedError if the file holds others."""
    network = config.arch, config.vocab_size, config.src_vocab_size
    n_weights = n_parameters(*network)
    if n_weights > path.stat().st_size:
        raise HeedError(f"{path}: smaller than the {n_weights:,} weights that config.json asks for.")
    weights = StoredWeights(path)
    compare_shapes(weight_shapes(*network), weights.shapes, where=path)
    return weights


def compare_shapes(expected: dict[str, tuple[int, ...]], actual: dict[str, tuple[int, ...]], *, where: Path) -> None:
    """HeedError names a weight that is missing, left over, or of another shape."""
    for name in sorted(expected.keys() ^ actual.keys()):
        state = "missing" if name in expected else "not part of the architecture in config.json"
        raise HeedError(f"{where}: weight {cut(name)} is {state}.")
    for name, shape in actual.items():
        if shape != expected[name]:
            raise HeedError(f"{where}: weight {name} has shape {shape}; config.json asks for {expected[name]}.")
