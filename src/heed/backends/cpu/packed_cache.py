"""Packed weights in the user's cache folder, so that a model's second start packs nothing.

They never lie in the model's folder, which may be a stranger's. A file's name is a hash of all that decides its
content; the file appears whole or not at all, is checked as it is read, and may be removed at any time.
"""

import hashlib
import logging
import os
import shutil
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from heed.backends.cpu import packed_model
from heed.backends.cpu import packed_weights as weights_module
from heed.backends.cpu.build import largest_int8_weight
from heed.backends.cpu.packed_model import PackedModel, PackedWeights, Packer, Table
from heed.backends.cpu.packed_weights import Numbers, PackedWeight
from heed.errors import HeedError
from heed.model.architecture import Sharing
from heed.model.weight_files import DTYPES, WeightFile, write_tensors
from heed.runtime.device import cache_folder
from heed.runtime.files import remove_unfinished, whole_file
from heed.runtime.instruction_sets import chosen_set
from heed.runtime.locks import locked

log = logging.getLogger(__name__)
LEAST_WEIGHTS = 4_000_000  # of a model that is kept: a smaller one is packed within 50 ms
MOST_BYTES = 4 << 30  # of all files; the ones that were not used for the longest time go first
KINDS = {DTYPES[kind]: kind for kind in ("F32", "U16", "I8", "I32", "I64")}  # of arrays, as safetensors calls them
# What a missing or damaged file raises, a model's own HeedError for a tensor of another type too.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, MemoryError, RecursionError, HeedError)


def packed_once(make: Callable[[PackedWeights], PackedModel], packer: Packer, description: str) -> PackedModel:
    """The model that `make` builds from kept weights, if there are any, else from the packer's, which are then kept.

    description: what decides the packed weights, but for this machine and this version of Heed.
    """
    try:
        path = cache_folder() / "packed" / f"{_key(description)}.safetensors"
    except OSError:
        return make(packer)
    with suppress(*UNREADABLE):
        model = make(_KeptWeights(_read(path)))
        with suppress(OSError):  # a cache that can only be read
            os.utime(path)
        return model
    weights = _KeptWeights({}, packer)
    model = make(weights)
    try:
        _keep(path, weights.arrays)
    except (OSError, HeedError) as error:
        log.info("Packed weights are not kept for the next start: %s", error)
    return model


def packed_files() -> list[Path]:
    """All files of packed weights, the ones that were used last at the end. OSError if there is no cache folder."""
    return sorted((cache_folder() / "packed").glob("*.safetensors"), key=lambda path: path.stat().st_mtime)


def _key(description: str) -> str:
    """32 digits that differ wherever the packed weights may: on another instruction set, or after a change of Heed."""
    sources = [Path(str(module.__file__)).read_bytes() for module in (packed_model, weights_module)]
    machine = f"{chosen_set().name} {largest_int8_weight()}"
    return hashlib.sha256(b"\0".join([description.encode(), machine.encode(), *sources])).hexdigest()[:32]


def _keep(path: Path, arrays: dict[str, Numbers]) -> None:
    n_bytes = sum(array.nbytes for array in arrays.values())
    with locked(path.parent):
        if n_bytes > min(MOST_BYTES, shutil.disk_usage(path.parent).free // 4):
            return
        remove_unfinished(path.parent)
        kinds = {name: KINDS[array.dtype] for name, array in arrays.items()}
        with whole_file(path) as temporary:
            write_tensors(temporary, arrays, kinds, crc32=f"{_checksum(arrays):08x}")
        total = 0
        for kept in reversed(packed_files()):
            total += kept.stat().st_size
            if total > MOST_BYTES:
                kept.unlink()


def _read(path: Path) -> dict[str, Numbers]:
    """The arrays of a file, each read to where it stays. One of UNREADABLE if they are not those that were kept."""
    file = WeightFile(path, KINDS.values())
    arrays = {name: file.read(name) for name in file.tensors}
    if file.metadata["crc32"] != f"{_checksum(arrays):08x}":
        raise ValueError("damaged")
    return arrays


def _checksum(arrays: dict[str, Numbers]) -> int:
    checksum = 0
    for array in arrays.values():
        checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
    return checksum


class _KeptWeights:
    """The weights of a packer, which `arrays` then holds as a file keeps them; without one, those in `arrays`."""

    def __init__(self, arrays: dict[str, Numbers], packer: Packer | None = None):
        self.arrays, self._packer = arrays, packer

    def table(self, name: str) -> Numbers:
        if self._packer is not None and name not in self.arrays:
            self.arrays[name] = self._packer.table(name)
        return self.arrays[name]

    def matrix(self, name: str) -> PackedWeight:
        return self._kept(name, self._packer.matrix(name) if self._packer else None)

    def pair(self, first: str, second: str) -> tuple[PackedWeight, PackedWeight]:
        packed = self._packer.pair(first, second) if self._packer else (None, None)
        return self._kept(first, packed[0]), self._kept(second, packed[1])

    def ends(self, *, share: Sharing) -> tuple[PackedWeight, Table, Table]:
        packed = self._packer.ends(share=share) if self._packer else (None, None, None)
        output = self._kept("output", packed[0])
        tables: list[Table] = []
        for side, table in zip(("src", "tgt")[: 1 if share == "all" else 2], packed[1:], strict=False):
            name = f"{side}_embedding.weight"
            if table is not None and not isinstance(table, PackedWeight):
                self.arrays[name] = table
            tables.append(self.arrays.get(name, output))
        return output, tables[0], tables[-1]

    def _kept(self, name: str, weight: PackedWeight | None) -> PackedWeight:
        if weight is not None:
            sizes = np.array([weight.d_in, weight.d_out])
            self.arrays |= {f"{name}/{field}": array for field, array in (weight.arrays | {"sizes": sizes}).items()}
            return weight
        names = (f"{name}/{field}" for field in ("panels", "bias", "steps", "offsets"))
        fields = {whole.rpartition("/")[2]: self.arrays[whole] for whole in names if whole in self.arrays}
        d_in, d_out = self.arrays[f"{name}/sizes"]
        return PackedWeight(int(d_in), int(d_out), **fields)
