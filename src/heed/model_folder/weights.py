"""model.safetensors: the weights that config.json asks for, in fp32 and finite.

No memory of the model's size is taken before the shapes in config.json agree with those in the file.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.config import cut
from heed.errors import HeedError
from heed.model.cost import Rows, n_parameters, weight_shapes
from heed.model.weight_files import LazyRows, WeightFile
from heed.model_folder.card import ModelConfig


class StoredWeights:
    """The weights in a safetensors file, which stays open; rows are read when they are asked for, so that memory never
    holds all weights."""

    def __init__(self, path: Path):
        """HeedError if the file is missing, cut short or of another kind."""
        self.path = path
        with file_errors(path):
            self._file = WeightFile(path)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight by its name."""
        return {name: stored.shape for name, stored in self._file.tensors.items()}

    def raw(self, name: str, rows: slice = slice(None)) -> tuple[NDArray[Any], bool]:
        """Rows of a weight as they are stored, and whether that is in bf16, of which the array has the bits."""
        with file_errors(self.path):
            return self._file.read(name, rows), self._file.tensors[name].kind == "BF16"

    def rows(self, name: str) -> LazyRows:
        """A weight in fp32."""
        return LazyRows(self._file.tensors[name].shape, functools.partial(self._in_fp32, name))

    def take(self, name: str) -> LazyRows | None:
        """A weight in fp32, None if the file has no such weight. Reading checks that its numbers are finite."""
        return finite_rows(name, self.rows(name), where=self.path) if name in self._file.tensors else None

    def _in_fp32(self, name: str, rows: slice) -> NDArray[np.float32]:
        numbers, is_bf16 = self.raw(name, rows)
        if is_bf16:
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(over="ignore"):
            return numbers.astype(np.float32, copy=False)


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
