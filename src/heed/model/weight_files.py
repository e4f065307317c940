"""Safetensors files, some rows of a weight at a time; no PyTorch.

Such a file is the length of its header in 8 bytes, the header in JSON, and the tensors, consecutively. It is read, not
mapped into memory, where another process that cuts it would end this one by a signal; rows enter memory when they are
asked for.
"""

import json
import math
import os
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.config import cut, shown
from heed.errors import HeedError
from heed.model.cost import Rows
from heed.runtime.json_files import MAX_JSON_BYTES
from heed.runtime.reading import regular_file

DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # its bits: numpy has no such type
    "F64": np.dtype("<f8"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}
WEIGHT_TYPES = ("F32", "F16", "BF16", "F64")  # what a model's weights may be stored as
BLOCK = 1 << 22  # numbers of a weight that are read at a time: 16 MiB in fp32


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


class Stored(NamedTuple):
    """How a tensor is stored in a file, and where in it."""

    kind: str
    shape: tuple[int, ...]
    start: int
    end: int


class WeightFile:
    """The tensors of a file by name, in its order; the file stays open. metadata: what else its header says."""

    def __init__(self, path: Path, kinds: Collection[str] = WEIGHT_TYPES):
        """HeedError for a tensor of another kind than these; OSError and ValueError for a file that is damaged."""
        self._file = regular_file(path)
        weakref.finalize(self, self._file.close)
        self.tensors, self.metadata = _contents(self._file, kinds)

    def read(self, name: str, rows: slice = slice(None)) -> NDArray[Any]:
        """Rows of a tensor as they are stored. OSError and ValueError if they cannot be read."""
        stored = self.tensors[name]
        shape, start = stored.shape, stored.start
        if shape:
            first, end, _ = rows.indices(shape[0])
            start += first * ((stored.end - start) // max(1, shape[0]))
            shape = (end - first, *shape[1:])
        numbers = np.empty(shape, DTYPES[stored.kind])
        self._file.seek(start)
        if self._file.readinto(numbers.reshape(-1).view(np.uint8)) < numbers.nbytes:  # type: ignore[attr-defined]  # a BufferedReader's
            raise ValueError("cut while it was read")
        return numbers


def _contents(file: BinaryIO, kinds: Collection[str]) -> tuple[dict[str, Stored], dict[str, str]]:
    """The tensors by name, none of which is read. ValueError unless they fill the file behind its header exactly."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if length > min(size - 8, MAX_JSON_BYTES):
        raise ValueError(f"a header of {length:,} bytes")
    header = json.loads(file.read(length).decode("utf-8"))
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
        raise ValueError("its header does not list tensors")
    metadata = header.pop("__metadata__", {})
    contents = [(name, _stored(name, entry, file.name, kinds)) for name, entry in header.items()]
    contents.sort(key=lambda named: named[1][2:])
    end = 0
    for _, stored in contents:
        if stored.start != end:
            raise ValueError("its tensors overlap or leave gaps")
        end = stored.end
    behind = 8 + length
    if behind + end != size:
        raise ValueError(f"{size:,} bytes; its header speaks of {behind + end:,}")
    moved = {name: stored._replace(start=behind + stored.start, end=behind + stored.end) for name, stored in contents}
    return moved, metadata


def _stored(name: str, entry: dict[str, Any], path: str, kinds: Collection[str]) -> Stored:
    """How a header describes a tensor, which begins at place 0 behind it."""
    values: list[Any] = [entry.get(key) for key in ("dtype", "shape", "data_offsets")]
    kind, shape, place = values
    if not isinstance(kind, str):
        raise ValueError(f"tensor {cut(name)} has no type")
    if kind not in kinds:
        raise HeedError(
            f"{path}: tensor {shown(name)} is of type {shown(kind)}; expected {', '.join(kinds)}: take the model as it "
            "was before it was quantised."
        )
    # The bound on dimensions keeps the product from growing without end.
    if not (_counts(shape) and len(shape) <= 8 and _counts(place) and len(place) == 2):
        raise ValueError(f"tensor {cut(name)} has no good shape or place")
    start, end = place
    if math.prod(filter(None, shape)) >= 2**63:  # torch multiplies them also where one is 0
        raise ValueError(f"tensor {cut(name)} has no good shape")
    if math.prod(shape) * DTYPES[kind].itemsize != end - start:
        raise ValueError(f"tensor {cut(name)} does not have as many bytes as its shape asks for")
    return Stored(kind, tuple(shape), start, end)


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def write_weights(path: Path, weights: Mapping[str, Rows]) -> None:
    """Writes weights in fp32, some rows at a time: the bytes of the library, which takes all at once."""
    in_order = {name: weights[name] for name in sorted(weights)}
    write_tensors(path, in_order, dict.fromkeys(in_order, "F32"))


def write_tensors(
    path: Path, tensors: Mapping[str, Rows | NDArray[Any]], kinds: Mapping[str, str], **metadata: str
) -> None:
    """Writes these tensors, in this order and each as its kind says."""
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + DTYPES[kinds[name]].itemsize * math.prod(tensor.shape)
        entries[name] = {"dtype": kinds[name], "shape": tensor.shape, "data_offsets": (begin, end)}
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name, tensor in tensors.items():
            for rows in row_blocks(tensor.shape):
                file.write(np.ascontiguousarray(tensor[rows], DTYPES[kinds[name]]).data)
