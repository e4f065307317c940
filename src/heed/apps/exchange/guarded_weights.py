"""Pickles of strangers, by torch's reader of tensors alone."""

import io
import pickle
import pickletools
import re
import struct
import sys
import tempfile
import warnings
import weakref
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.apps.exchange.archives import MAX_EXPANSION, check_expansion
from heed.config import shown
from heed.errors import HeedError
from heed.model.cost import Rows
from heed.model.weight_files import LazyRows
from heed.model_folder import rows_of
from heed.runtime.reading import regular_file

ORDERED_DICT = "collections OrderedDict"
OBJECTS = re.compile(ORDERED_DICT + r"|torch\._utils _rebuild_(tensor_v2|parameter)|torch [A-Za-z0-9]+Storage")
N_PICKLES = 5  # before the numbers in a file of torch before version 1.6: magic number, version, system, tensors, names
CHECKING_TORCH = (2, 10)  # from which on it compares the size of a storage with what the archive holds
MAX_PICKLE_BYTES = 2**20
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def unpickled(path: Path) -> dict[str, Rows]:
    """A pickle of tensors, by torch's reader of these alone: one that names code is refused, none of it runs."""
    # Reading: first the pickles inside are checked opcode by opcode, then torch reads what may be read.
    try:
        copy = _Copy()
        with _open_packed(path, copy.file) as file:
            _check_pickles(file, path)
            places = _places(file) if _is_archive(file) else {}
            content = _tensors(file, "meta" if places else "cpu")
            if places and not all(_lies_in(places, tensor) for tensor in content.values()):
                content, places = _tensors(file, "cpu"), {}  # such as by a torch that does not say where they lie
    except HeedError:
        raise
    except pickle.UnpicklingError:
        raise HeedError(
            f"{path}: holds more than tensors, perhaps code; take the model as model.safetensors."
        ) from None
    except OSError as error:
        reason = error.strerror or error  # tempfile.gettempdir may be what fails
        raise HeedError(f"{path}: cannot be read, or copied into the folder that TMPDIR names ({reason}).") from None
    except Exception as error:  # whatever torch raises for a file that is cut or of another kind
        raise HeedError(f"{path}: damaged or not a file of weights ({type(error).__name__}).") from None
    # Whatever was read is checked as if a stranger had built the objects: names, kinds, sizes.
    if not content or not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()):
        raise HeedError(f"{path}: holds no tensors by name.")
    for name, tensor in content.items():
        # A pickle can describe a tensor that is larger than the file, or that has no numbers at all.
        if (
            tensor.layout != torch.strided
            or tensor.device.type != ("meta" if places else "cpu")
            or tensor.dtype not in FLOATS
            or tensor.is_neg()  # of which the file holds the numbers with another sign
        ):
            raise HeedError(f"{path}: {shown(name)} is not a float matrix; import the model before it was quantised.")
    # Several names of the same numbers count once in memory; but each is read, with all that lies between its numbers.
    sizes = {
        (_place(t), t.data_ptr(), t.storage_offset(), t.dtype, t.shape, t.stride()): t.numel() * t.element_size()
        for t in content.values()
    }
    n_read, size = sum(end - first for first, end in map(_span, content.values())), path.stat().st_size
    if sum(sizes.values()) > size or n_read > MAX_EXPANSION * size:
        raise HeedError(f"{path}: its tensors are larger than the file, or overlap too often.")
    return {name: _rows_in(copy, tensor) if places else rows_of(tensor.detach()) for name, tensor in content.items()}


def _tensors(file: BinaryIO, device: str) -> dict[Any, Any]:
    """What the file holds by name; on the meta device, only what is said of it, and where it lies."""
    file.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a pickle that torch did not write; it is refused, or checked later
        content = torch.load(file, map_location=device, weights_only=True)
    return dict(dict.items(content)) if isinstance(content, dict) else {}  # its own methods may have been replaced


def _places(file: BinaryIO) -> dict[int, int]:
    """Where the members of a copied archive begin, and their bytes; nothing if numbers are not in this byte order."""
    places = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.filename.endswith("/byteorder") and archive.read(info) != sys.byteorder.encode():
                return {}
            file.seek(info.header_offset + 26)  # in its own header, the lengths of the name and of what follows it
            places[info.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))] = info.file_size
    return places


def _place(tensor: Tensor) -> int:
    """Where in the archive the storage begins of a tensor on the meta device; -1 if torch did not say."""
    return getattr(tensor.untyped_storage(), "_checkpoint_offset", None) or -1


def _span(tensor: Tensor) -> tuple[int, int]:
    """The byte of its storage with which its first number begins, and the one behind the last."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first, n_numbers = int(tensor.storage_offset()), last + 1 if tensor.numel() else 0
    return first * tensor.element_size(), (first + n_numbers) * tensor.element_size()


def _lies_in(places: dict[int, int], tensor: Any) -> bool:
    is_strided = isinstance(tensor, Tensor) and tensor.layout == torch.strided
    return is_strided and _span(tensor)[1] <= places.get(_place(tensor), -1)


class _Copy:
    """A temporary file that is closed with the last weight that lies in it."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115
        weakref.finalize(self, self.file.close)


def _rows_in(copy: _Copy, tensor: Tensor) -> Rows:
    """The weight that a tensor on the meta device describes."""

    def read(rows: slice) -> NDArray[np.float32]:
        some = tensor[rows] if tensor.dim() else tensor
        first, end = _span(some)
        copy.file.seek(_place(tensor) + first)
        numbers = bytearray(copy.file.read(end - first))
        if not numbers:
            return np.zeros(some.shape, np.float32)
        return torch.frombuffer(numbers, dtype=some.dtype).as_strided(some.shape, some.stride()).float().numpy()

    return LazyRows(tuple(tensor.shape), read)


@contextmanager
def _open_packed(path: Path, copy: BinaryIO) -> Iterator[BinaryIO]:
    """The file, or in `copy` an archive as zipfile reads it.

    torch's own reader may find other, larger files in the same archive than those that `check_expansion` has counted.
    What it keeps in files such as .format_version would let it compute places instead of looking them up.
    """
    with regular_file(path) as file:
        if not _is_archive(file):
            yield file
            return
        check_expansion(path)
        with zipfile.ZipFile(file) as archive, zipfile.ZipFile(copy, "w") as plain:
            for info in archive.infolist():
                if "/." in info.filename:
                    continue
                stored = zipfile.ZipInfo(info.filename)
                stored.file_size = left = info.file_size
                with archive.open(info) as member, plain.open(stored, "w") as target:
                    while block := member.read(min(left, 1 << 20)):
                        target.write(block)
                        left -= len(block)
        yield copy


def _is_archive(file: BinaryIO) -> bool:
    """Whether torch would read an archive, not the form that it wrote before version 1.6."""
    file.seek(0)
    start = file.read(4)
    file.seek(0)
    return start == b"PK\3\4"


def _check_pickles(file: BinaryIO, path: Path) -> None:
    """UnpicklingError if a pickle would take much more memory than the file, which torch's reader of tensors allows."""
    pickles: list[IO[bytes]] = [file] * N_PICKLES
    if _is_archive(file):  # which `_open_packed` wrote
        if tuple(map(int, torch.__version__.split(".")[:2])) < CHECKING_TORCH:
            raise HeedError(f"{path}: needs PyTorch 2.10 to be read safely; take the model as model.safetensors.")
        with zipfile.ZipFile(file) as archive:
            # torch looks in the folder of the first member, whatever the case of the letters.
            folder, _, _ = archive.namelist()[0].partition("/")
            if not all(name.startswith(f"{folder}/") for name in archive.namelist()):
                raise pickle.UnpicklingError
            pickles = [io.BytesIO(archive.read(f"{folder}/data.pkl"))]
    for source in pickles:
        _check_pickle(source)


def _check_pickle(source: IO[bytes]) -> None:
    """UnpicklingError if the pickle names anything but tensors, or makes an OrderedDict that is not empty at first.

    One that is made of another would be a copy, of which a few bytes could ask for any number.
    """
    of_class = set[Any]()  # the places of the memo that hold the class OrderedDict
    is_class = False
    awaited: list[str] = []  # what must follow the class: a call without arguments
    for opcode, argument, position in pickletools.genops(source):
        if (position or 0) > MAX_PICKLE_BYTES:
            raise pickle.UnpicklingError
        if opcode.name in ("BINPUT", "LONG_BINPUT"):
            (of_class.add if is_class else of_class.discard)(argument)
            continue
        if awaited and opcode.name != awaited.pop(0):
            raise pickle.UnpicklingError
        if opcode.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4", "PUT", "MEMOIZE"):
            raise pickle.UnpicklingError
        if opcode.name == "GLOBAL" and not OBJECTS.fullmatch(str(argument)):
            raise pickle.UnpicklingError
        is_class = (opcode.name == "GLOBAL" and argument == ORDERED_DICT) or (
            opcode.name in ("GET", "BINGET", "LONG_BINGET") and argument in of_class
        )
        if is_class:
            awaited = ["EMPTY_TUPLE", "REDUCE"]
