"""A corpus in shards: which pairs each one has, and the shards themselves, opened as they are read.

Memory does not grow with the corpus, but for some hundred bytes a shard.
"""

import hashlib
import json
import platform
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.corpus.shard import CorpusPart, ParallelCorpus, Texts, place_of_line
from heed.errors import HeedError
from heed.runtime.files import whole_file, whole_folder
from heed.runtime.json_files import MAX_LIST_BYTES, read_json, write_json
from heed.runtime.locks import NoLocks, locked
from heed.runtime.manifest import MANIFEST, check, manifest, seal, sha256_of

INDEX = "index"  # the folder of what is known of all shards; it comes last
INDEX_FILES = ("shards.json", "lengths.npy", "counts.npy")
VERIFIED = "verified"  # the folder of notes of the shards that a node has verified
VERIFIED_SECONDS = 3600.0  # how long another process of this node is awaited, which verifies a shard
MAX_OPEN = 5  # shards: those of a window, and one for the line of a pair of the window before


class ShardedCorpus:
    """The pairs of all shards, numbered through them in order.

    A shard's hashes and ids are checked when a node reads it for the first time, and again if its files were written to
    since.
    """

    def __init__(self, folder: Path, *, vocab_size: int, src_vocab_size: int | None = None):
        """HeedError if the shards are not those of the index, or there is none. The sizes are `ParallelCorpus`'s."""
        self.folder = folder
        self._sizes: dict[str, Any] = {"vocab_size": vocab_size, "src_vocab_size": src_vocab_size}
        try:
            check(folder / INDEX, INDEX_FILES)
            index = read_json(folder / INDEX / "shards.json", MAX_LIST_BYTES)
            self._names: list[str] = index["names"]
            self._manifests: list[str] = index["manifests"]
            self._longest: list[tuple[int, int]] = [(int(n), int(line)) for n, line in index["longest"]]
            self._texts: Texts = index["texts"]
            self._shards_of_parts: list[int] = index.get("parts", [len(self._names)])
            # Of each shard, the ids of all pairs' longer sides; only a mix asks for them.
            self._n_longer: list[int] = index.get("longer", [])
            sizes = np.array(index["pairs"], np.int64)
            if len({len(self._names), len(self._manifests), len(self._longest), len(sizes)}) != 1:
                raise HeedError("shards.json: lists of different lengths.")
            self.starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
            self._lengths, self._counts = (
                np.load(folder / INDEX / f"{name}.npy", allow_pickle=False) for name in ("lengths", "counts")
            )
        except (HeedError, OSError, KeyError, TypeError, ValueError) as error:
            raise HeedError(
                f"{folder}: not a corpus in shards ({error}) Delete {folder / INDEX} and run heed prepare again."
            ) from None
        self.fingerprint = hashlib.sha256("".join(self._manifests).encode()).hexdigest()
        self._open: OrderedDict[int, ParallelCorpus] = OrderedDict()
        self.max_open = MAX_OPEN

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def n_shards(self) -> int:
        """The number of shards, those without a pair among them."""
        return len(self._names)

    @property
    def longest(self) -> tuple[int, int]:
        """The ids of the longest side of all pairs, and the line of that pair."""
        return self._longest[self.shard_of_longest]

    @property
    def shard_of_longest(self) -> int:
        """The first shard that has the longest side."""
        return max(range(self.n_shards), key=lambda number: self._longest[number][0])

    def counts(self, side: str, *, vocab_size: int) -> NDArray[np.int64]:
        """How often each id occurs among the targets, counted when the shards were made."""
        assert side == "tgt", "sources are not counted"
        assert len(self._counts) == vocab_size
        counts: NDArray[np.int64] = self._counts.copy()
        return counts

    def length_counts(self) -> NDArray[np.int64]:
        """Implements `ParallelCorpus.length_counts`."""
        lengths: NDArray[np.int64] = self._lengths
        return lengths

    def place(self, line: int) -> tuple[str, int]:
        """The file in which a line of a pair stands, and its number there."""
        return place_of_line(self._texts, line)

    def lost(self) -> list[str]:
        """The names of the shards whose files are not all there with their sizes."""
        shards = zip(self._names, self._manifests, strict=True)
        return [name for name, sha256 in shards if not is_whole(self.folder / name, sha256)]

    def shard(self, number: int) -> ParallelCorpus:
        """A shard, verified if this node has not read it yet; the last ones that were asked for stay open."""
        if number in self._open:
            self._open.move_to_end(number)
        else:
            self._open[number] = self._opened(number)
            while len(self._open) > self.max_open:
                self._open.popitem(last=False)
        return self._open[number]

    def _opened(self, number: int) -> ParallelCorpus:
        """HeedError if it is not what the index says."""
        folder = self.folder / self._names[number]
        node = re.sub("[^A-Za-z0-9-]", "_", platform.node()) or "node"
        note = self.folder / VERIFIED / node / f"{self._names[number]}.json"
        with ExitStack() as stack:
            # One process of a node verifies a shard, and the others wait.
            with suppress(NoLocks):
                stack.enter_context(locked(note.parent, wait=VERIFIED_SECONDS))
            try:
                stamps = {"manifest": self._manifests[number], "files": list(map(list, ParallelCorpus.stamps(folder)))}
            except OSError as error:
                raise HeedError(f"{folder}: cannot be read ({error.strerror}); {self._mended(number)}") from None
            with suppress(HeedError):
                if note.exists() and read_json(note) == stamps:
                    return ParallelCorpus(folder, **self._sizes, verify=False)
            if not (folder / MANIFEST).exists() or sha256_of(folder / MANIFEST) != self._manifests[number]:
                raise HeedError(f"{folder}: not the shard that the index names; {self._mended(number)}")
            try:
                shard = ParallelCorpus(folder, **self._sizes)
            except HeedError as error:
                raise HeedError(f"{str(error).rstrip('.')}: {self._mended(number)}") from None
            if len(shard) != self.starts[number + 1] - self.starts[number]:
                raise HeedError(f"{folder}: another number of pairs than the index says; {self._mended(number)}")
            with whole_file(note) as temporary:
                write_json(temporary, stamps)
            return ParallelCorpus(folder, **self._sizes, verify=False)  # which holds less

    def _mended(self, number: int) -> str:
        return f"delete it and {self.folder / INDEX}, and run heed prepare again: only this shard is made again."

    def end_to_end(self, side: str, rows: NDArray[Any]) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
        """Implements `ParallelCorpus.end_to_end` for pairs numbered through all shards."""
        shards = self._shards_of(rows)
        parts = {}
        for number in np.unique(shards).tolist():
            parts[number] = self.shard(number).end_to_end(side, rows[shards == number] - self.starts[number])
        if len(parts) == 1:
            return next(iter(parts.values()))
        # Each shard's sentences go to the places that they have among all.
        lengths = np.empty(len(rows), np.int64)
        for number, (_, of_shard) in parts.items():
            lengths[shards == number] = of_shard
        begin = np.cumsum(lengths) - lengths
        ids = np.empty(lengths.sum(), np.result_type(*(of_shard.dtype for of_shard, _ in parts.values())))
        for number, (ids_of_shard, of_shard) in parts.items():
            within = np.arange(len(ids_of_shard)) - np.repeat(np.cumsum(of_shard) - of_shard, of_shard)
            ids[np.repeat(begin[shards == number], of_shard) + within] = ids_of_shard
        return ids, lengths

    def parts(self, n_files: Sequence[int]) -> list[CorpusPart]:
        """The parts of a mix, whose shards are known without `n_files`."""
        ends = np.cumsum([0, *self._shards_of_parts]).tolist()
        rows = self.starts.tolist()
        return [
            CorpusPart(range(rows[begin], rows[end]), range(begin, end), sum(self._n_longer[begin:end]))
            for begin, end in pairwise(ends)
        ]

    def lengths_of(self, side: str, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Implements `ParallelCorpus.lengths_of` for pairs numbered through all shards."""
        return self._of_shards(rows, lambda shard, own: shard.lengths_of(side, own))

    def lines_of(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """The lines of pairs, counted from 1 through all text files."""
        return self._of_shards(rows, ParallelCorpus.lines_of)

    def _of_shards(
        self, rows: NDArray[Any], ask: Callable[[ParallelCorpus, NDArray[Any]], NDArray[Any]]
    ) -> NDArray[np.int64]:
        """A number of each row. ask: gives those of a shard's own rows."""
        shards, values = self._shards_of(rows), np.empty(len(rows), np.int64)
        for number in np.unique(shards).tolist():
            here = shards == number
            values[here] = ask(self.shard(number), rows[here] - self.starts[number])
        return values

    def _shards_of(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        shards: NDArray[np.int64] = np.searchsorted(self.starts, rows, side="right") - 1
        return shards


TrainingCorpus = ParallelCorpus | ShardedCorpus


def is_whole(shard: Path, manifest_sha256: str) -> bool:
    """Whether a shard's manifest is this one, and its files are there with the sizes that it names."""
    try:
        if sha256_of(shard / MANIFEST) != manifest_sha256:
            return False
        return all((shard / name).stat().st_size == of["bytes"] for name, of in manifest(shard).items())
    except (HeedError, OSError):
        return False


def write_index(
    folder: Path, names: Sequence[str], records: Sequence[Mapping[str, Any]], *, texts: Texts, parts: Sequence[int]
) -> None:
    """Writes the index of the shards of these names. records: the sidecar of each. texts: of a plan."""
    lengths = np.empty((0, 4), np.int64)
    counts: Any = 0
    for name in names:
        lengths = _merged(lengths, _array(folder / f"{name}.lengths.npy"))
        counts = counts + _array(folder / f"{name}.counts.npy")
    content = {
        "names": list(names),
        "pairs": [one["kept"] for one in records],
        "longest": [one["longest"] for one in records],
        "manifests": [one["manifest"] for one in records],
        "texts": [list(text) for text in texts],
        "parts": list(parts),
        "longer": [one["longer"] for one in records],
    }
    with whole_folder(folder / INDEX) as temporary:
        # One line: 100,000 shards have as many entries in each list.
        (temporary / "shards.json").write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
        np.save(temporary / "lengths.npy", lengths, allow_pickle=False)
        np.save(temporary / "counts.npy", counts, allow_pickle=False)
        seal(temporary)


def _array(path: Path) -> NDArray[np.int64]:
    try:
        array: NDArray[np.int64] = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise HeedError(f"{path}: cannot be read ({error}); delete its shard and run heed prepare again.") from None
    return array


def _merged(lengths: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
    """Both in one, of `ParallelCorpus.length_counts`."""
    both = np.concatenate([lengths, more])
    both = both[np.lexsort((both[:, 3], both[:, 1], both[:, 0]))]
    if not len(both):
        return both
    first = np.flatnonzero(np.concatenate([[True], (both[1:, :2] != both[:-1, :2]).any(axis=1)]))
    merged = both[first]
    merged[:, 2] = np.add.reduceat(both[:, 2], first)
    return merged
