"""A corpus of id pairs on disk: the ids are read from there as they are asked for.

They are not memory-mapped: a process that touches a mapped page of a file that somebody has cut short is killed
(SIGBUS), where a read can say what happened.
"""

import hashlib
import os
import shutil
import weakref
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.config import cut, shown
from heed.errors import HeedError
from heed.runtime.files import whole_folder
from heed.runtime.json_files import read_json, write_json
from heed.runtime.manifest import check, manifest, seal

SIDES = ("src", "tgt")
ID_FILES = tuple(f"{side}.{kind}" for side in SIDES for kind in ("bin", "offsets.npy"))
STORE_FILES = ("corpus.json", "lines.npy", *ID_FILES)
CHUNK_PAIRS = 4096  # written at a time
CHUNK_NUMBERS = 2**22  # checked at a time
ID_TYPES = ("uint16", "uint32")
Texts = Sequence[Sequence[Any]]  # a name of a file and its number of lines, of each


class CorpusPart(NamedTuple):
    """A part of a mix: its rows, the shards that have them, and the ids of all its pairs' longer sides."""

    rows: range
    shards: range
    n_longer: int


class ParallelCorpus:
    """corpus[i] -> (src_ids, tgt_ids), without special symbols; `lengths` of each side; a `fingerprint` of all ids.

    In memory are 20 bytes a pair: where each sentence begins, and its line.

    All that reading relies on is checked first, every id among it: one beyond the vocabulary would have a kernel read
    and write beyond its tables.
    """

    n_shards, shard_of_longest, max_open = 1, 0, 1

    def __init__(self, folder: Path, *, vocab_size: int, src_vocab_size: int | None = None, verify: bool = True):
        """vocab_size: of targets; src_vocab_size: of sources, if it differs.

        verify: whether hashes and ids are checked, for which all is read; not needed for files that have not been
        written to since they were (`stamps`). Then lines are read when they are asked for.
        """
        self.folder = folder
        try:
            self._stamps = self.stamps(folder)
            if verify:
                check(folder, STORE_FILES)
            recorded = read_json(folder / "corpus.json")
            self._texts = _texts(recorded.pop("texts", []))
            if recorded.get("dtype") not in ID_TYPES:
                raise HeedError(
                    f"corpus.json: dtype is {shown(recorded.get('dtype'))}, expected {' or '.join(ID_TYPES)}."
                )
            dtype = np.dtype(recorded["dtype"])
            hashes = "".join(manifest(folder)[name]["sha256"] for name in ID_FILES)
            self.fingerprint = hashlib.sha256(hashes.encode()).hexdigest()
            self._ids, self._offsets = {}, {}
            for side, size in zip(SIDES, (src_vocab_size or vocab_size, vocab_size), strict=True):
                self._ids[side] = _Ids(folder / f"{side}.bin", dtype, size if verify else None)
                self._offsets[side] = _offsets(folder / f"{side}.offsets.npy", len(self._ids[side]))
            if len(self._offsets["tgt"]) != len(self._offsets["src"]):
                raise HeedError(f"{len(self._offsets['tgt']) - 1:,} targets, {len(self):,} sources.")
            if verify:
                self.lines  # noqa: B018  # reads and checks them
            sizes = {"dtype": dtype.name, "n_pairs": len(self)}
            sizes |= {f"n_{side}_tokens": len(self._ids[side]) for side in SIDES}
            if recorded != sizes:
                raise HeedError(f"corpus.json is {shown(recorded)}, expected {sizes}.")
        except (HeedError, OSError) as error:
            raise HeedError(f"{folder}: not a prepared corpus ({error}) Delete it to prepare it again.") from None

    def __len__(self) -> int:
        return len(self._offsets["src"]) - 1

    def __getitem__(self, row: int) -> tuple[NDArray[np.unsignedinteger], NDArray[np.unsignedinteger]]:
        src, tgt = (self.end_to_end(side, np.array([row]))[0] for side in SIDES)
        return src, tgt

    def end_to_end(self, side: str, rows: NDArray[Any]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        """The ids of these rows' sources ("src") or targets ("tgt"), one sentence behind the other; their lengths.

        HeedError if somebody has written to the files since they were opened.
        """
        begin, lengths = self._offsets[side][rows], self.lengths_of(side, rows)
        ids = self._ids[side].read(begin, lengths)
        if self._changed() or len(ids) != lengths.sum():
            raise HeedError(f"{self.folder}: was changed while it was in use; delete it to prepare it again.")
        return ids, lengths

    def lengths_of(self, side: str, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Number of ids of these rows' sources or targets."""
        lengths: NDArray[np.int64] = self._offsets[side][rows + 1] - self._offsets[side][rows]
        return lengths

    def lines_of(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The lines of these rows."""
        lines: NDArray[Any] = self.lines[rows]
        return lines

    def counts(self, side: str, *, vocab_size: int) -> NDArray[np.int64]:
        """How often each id occurs among the sources ("src") or targets ("tgt"), read from disk a piece at a time."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        n_ids = len(self._ids[side])
        for begin in range(0, n_ids, CHUNK_NUMBERS):
            some = self._ids[side].read(np.array([begin]), np.array([min(CHUNK_NUMBERS, n_ids - begin)]))
            counts += np.bincount(some, minlength=vocab_size)
        return counts

    @staticmethod
    def stamps(folder: Path) -> list[tuple[int, int]]:
        """Size and date of each file of a corpus."""
        states = [(folder / name).stat() for name in STORE_FILES]
        return [(state.st_size, state.st_mtime_ns) for state in states]

    def _changed(self) -> bool:
        try:
            return self.stamps(self.folder) != self._stamps
        except OSError:
            return False  # the folder has gone, but open files stay

    @cached_property
    def lines(self) -> NDArray[np.unsignedinteger]:
        """The line of each pair in its text files, counted from 1 through all of them."""
        lines = _array(self.folder / "lines.npy")
        if lines.shape != (len(self),) or lines.dtype.kind != "u":
            raise HeedError(f"lines.npy: {_describe(lines)}, expected unsigned integers, {len(self):,}.")
        return lines

    def place(self, line: int) -> tuple[str, int]:
        """The file in which one of `lines` stands, and its number there; without a file if that was not recorded."""
        return place_of_line(self._texts, line)

    def parts(self, n_files: Sequence[int]) -> list[CorpusPart]:
        """The parts of a mix. n_files: how many of its text files each part has, in their order."""
        ends = np.cumsum([0, *(n_lines for _, n_lines in self._texts)])
        bounds = np.searchsorted(self.lines, ends, side="right")[np.cumsum([0, *n_files])].tolist()
        longer = np.maximum(*self.lengths)
        return [CorpusPart(range(*of), range(1), int(longer[slice(*of)].sum())) for of in pairwise(bounds)]

    def shard(self, number: int) -> "ParallelCorpus":
        """Itself, its only shard."""
        return self

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each shard, and the number of all rows."""
        return np.array([0, len(self)])

    @cached_property
    def longest(self) -> tuple[int, int]:
        """The ids of its longest side, and the line of that pair."""
        longer = np.maximum(*self.lengths)
        row = int(longer.argmax())
        return int(longer[row]), int(self.lines[row])

    def length_counts(self) -> NDArray[np.int64]:
        """(pair of lengths, 4): a source's ids, its target's, how many pairs have these, the first one's line."""
        src, tgt = (lengths.astype(np.int64) for lengths in self.lengths)
        both, first, n = np.unique(src << 32 | tgt, return_index=True, return_counts=True)
        return np.stack([both >> 32, both & (2**32 - 1), n, self.lines[first].astype(np.int64)], axis=1)

    @property
    def lengths(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Number of ids of each source and of each target."""
        src, tgt = (np.diff(self._offsets[side]).astype(np.int32) for side in SIDES)
        return src, tgt


def place_of_line(texts: Texts, line: int) -> tuple[str, int]:
    """The file among `texts`, which are read one after another, that has this line, and the line's number there."""
    for name, n_lines in texts:
        if line <= n_lines:
            return name, line
        line -= n_lines
    return "", line


def _texts(recorded: Any) -> Texts:
    """HeedError unless it is a list of names, each with a number of lines."""
    entries: list[Any] = recorded if isinstance(recorded, list) else [recorded]
    for entry in entries:
        if not (isinstance(entry, list) and list(map(type, entry)) == [str, int] and entry[1] >= 0):
            raise HeedError(f"corpus.json: texts holds {shown(entry)}, expected a name and a number of lines.")
    return entries


class _Ids:
    """A file of ids, open. HeedError if one of them is not below `vocab_size`; None if all were found to be."""

    def __init__(self, path: Path, dtype: np.dtype, vocab_size: int | None):
        n_bytes = path.stat().st_size
        if n_bytes % dtype.itemsize:
            raise HeedError(f"{path.name}: {n_bytes:,} bytes are no whole number of {dtype} ids.")
        self._dtype, self._n = dtype, n_bytes // dtype.itemsize
        with path.open("rb") as file:
            while vocab_size is not None and len(ids := np.fromfile(file, dtype, CHUNK_NUMBERS)):
                if (largest := int(ids.max())) >= vocab_size:
                    raise HeedError(f"{path.name} has the id {largest:,}; the vocabulary has {vocab_size:,}.")
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return self._n

    def read(self, begin: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.unsignedinteger]:
        """The sentences that begin at these ids and have these lengths; fewer ids if the file was cut short."""
        size = self._dtype.itemsize
        places = zip((lengths * size).tolist(), (begin * size).tolist(), strict=True)
        data = b"".join([os.pread(self._file, n_bytes, at) for n_bytes, at in places])
        return np.frombuffer(data, self._dtype, len(data) // size)


def _offsets(path: Path, n_ids: int) -> NDArray[np.int64]:
    """Where each sentence begins among the ids, and where the last one ends. HeedError if they do not tile them."""
    offsets = _array(path)
    if offsets.dtype != np.int64 or offsets.ndim != 1 or not len(offsets):
        raise HeedError(f"{path.name}: {_describe(offsets)}, expected int64 in one dimension.")
    if offsets[0] != 0 or offsets[-1] != n_ids:
        raise HeedError(f"{path.name} goes from {offsets[0]:,} to {offsets[-1]:,}, expected 0 to {n_ids:,}.")
    for begin in range(0, len(offsets), CHUNK_NUMBERS):
        chunk = offsets[begin : begin + CHUNK_NUMBERS + 1]
        if (chunk[1:] < chunk[:-1]).any():
            raise HeedError(f"{path.name} runs backwards.")
    return offsets


def _array(path: Path) -> NDArray[Any]:
    """The array of an .npy file. Never unpickled."""
    try:
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except Exception:  # its header is read by Python's parser, which raises whatever suits it
        raise HeedError(f"{path.name}: damaged.") from None


def _describe(array: NDArray[Any]) -> str:
    return f"{cut(str(array.dtype))} of shape {array.shape}"


def write_corpus(
    folder: Path,
    pairs: Iterable[tuple[list[int], list[int]]],
    *,
    vocab_size: int,
    src_vocab_size: int | None = None,
    lines: Sequence[int] | None = None,
    texts: Texts = (),
) -> ParallelCorpus:
    """Writes pairs of ids as they come; the folder appears whole or not at all.

    lines: where each pair stood, counted through all `texts`; else they are counted. Both are complete when the pairs
    have come to an end.
    """
    dtype = np.dtype(np.uint16 if max(vocab_size, src_vocab_size or 0) <= 2**16 else np.uint32)
    with whole_folder(folder) as temporary:
        lengths = {side: array("i") for side in SIDES}  # 4 bytes a sentence: all that grows with the corpus
        with (temporary / "src.bin").open("wb") as src_file, (temporary / "tgt.bin").open("wb") as tgt_file:
            pairs = iter(pairs)
            while chunk := list(islice(pairs, CHUNK_PAIRS)):
                for i, (side, file) in enumerate(zip(SIDES, (src_file, tgt_file), strict=True)):
                    lengths[side].extend(len(pair[i]) for pair in chunk)
                    np.fromiter(chain.from_iterable(pair[i] for pair in chunk), dtype=dtype).tofile(file)
        offsets = {side: np.append(0, np.cumsum(of_side, dtype=np.int64)) for side, of_side in lengths.items()}
        numbers = np.arange(1, len(lengths["src"]) + 1) if lines is None else np.asarray(lines)
        _write_places(temporary, offsets, numbers, dtype=dtype, texts=texts)
    return ParallelCorpus(folder, vocab_size=vocab_size, src_vocab_size=src_vocab_size)


def join_shards(
    folder: Path, shards: Sequence[Path], texts: Texts, *, vocab_size: int, src_vocab_size: int | None = None
) -> ParallelCorpus:
    """The corpus of several whose pairs follow each other; the folder appears whole or not at all."""
    dtype = np.dtype(read_json(shards[0] / "corpus.json")["dtype"])
    with whole_folder(folder) as temporary:
        for side in SIDES:
            with (temporary / f"{side}.bin").open("wb") as out:
                for shard in shards:
                    with (shard / f"{side}.bin").open("rb") as file:
                        shutil.copyfileobj(file, out, CHUNK_NUMBERS)
        offsets = {side: [np.zeros(1, np.int64)] for side in SIDES}
        for shard in shards:
            for side, of_side in offsets.items():
                of_side.append(_array(shard / f"{side}.offsets.npy")[1:] + of_side[-1][-1:])
        lines = np.concatenate([_array(shard / "lines.npy") for shard in shards])
        whole = {side: np.concatenate(of) for side, of in offsets.items()}
        _write_places(temporary, whole, lines, dtype=dtype, texts=texts)
    return ParallelCorpus(folder, vocab_size=vocab_size, src_vocab_size=src_vocab_size)


def _write_places(
    folder: Path, offsets: Mapping[str, NDArray[np.int64]], lines: NDArray[Any], *, dtype: np.dtype, texts: Texts
) -> None:
    """Writes the files of a corpus other than its ids, its manifest last."""
    sizes: dict[str, Any] = {"dtype": dtype.name, "n_pairs": len(lines)}
    for side, of_side in offsets.items():
        np.save(folder / f"{side}.offsets.npy", of_side, allow_pickle=False)
        sizes[f"n_{side}_tokens"] = int(of_side[-1])
    smallest = np.uint32 if lines.max(initial=0) < 2**32 else np.uint64
    np.save(folder / "lines.npy", lines.astype(smallest), allow_pickle=False)
    write_json(folder / "corpus.json", sizes | ({"texts": list(texts)} if texts else {}))
    seal(folder)
