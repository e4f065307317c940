"""Pairs of lines from ranges of training files: two of text side by side, or one that holds both sides."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from heed.data.reading.columns import Columns, Range, Sources, examine, lines_of_pieces
from heed.data.reading.files import holds_both_sides
from heed.data.reading.lines import MAX_LINE_BYTES, FilePair, decode_line
from heed.errors import HeedError
from heed.leases.inputs import Input
from heed.leases.storage import facts, open_file, unpacked

Pair = tuple[str, str]
UNREADABLE = "that cannot be read"


class PairRange(NamedTuple):
    """Rows of one source. offsets: the bytes that the first of them begins at, in each file's unpacked content."""

    source: int
    first: int
    rows: int
    offsets: tuple[int, ...]


class ExaminedSource(NamedTuple):
    """A source, read to its end. starts: the offsets of each row at which a shard or the source begins."""

    files: tuple[Input, ...]
    starts: dict[int, tuple[int, ...]]

    @property
    def rows(self) -> int:
        """Of pairs."""
        return self.files[0].rows


def examine_source(names: Sequence[str], columns: Sequence[str], *, every: int, before: int) -> ExaminedSource:
    """A source's files and where every shard of `every` pairs begins, if `before` pairs came before it.

    names: of one file that holds both sides, or of two. HeedError if one is damaged, lacks a column, or if the sides
    have different numbers of lines.
    """
    files, offsets = [], []
    for name in names:
        found = facts(name)
        if found is None:
            raise HeedError(f"{name}: no such file.")
        try:
            examined = examine(name, columns if len(names) == 1 else (), every=every, before=before)
        except OSError as error:
            raise HeedError(f"{name}: cannot be read ({error.strerror or error}).") from None
        files.append(Input(name, found.n_bytes, examined.digest or found.version, found.version, examined.rows))
        offsets.append(examined.offsets)
    if files[0].rows != files[-1].rows:
        raise HeedError(
            f"{names[0]} has {files[0].rows:,} lines, {names[-1]} {files[-1].rows:,}: both sides of a corpus must have "
            "the same number."
        )
    return ExaminedSource(tuple(files), {row: tuple(of.get(row, 0) for of in offsets) for row in offsets[0] or {0: 0}})


def count_source(files: FilePair, columns: Sequence[str]) -> int:
    """Number of pairs of training files, which are read to their ends. HeedError as in `examine_source`."""
    both = files[0] == files[1] and holds_both_sides(files[0])
    names = [str(side) for side in (files[:1] if both else files)]
    return examine_source(names, columns, every=2**62, before=0).rows


class PairReader:
    """Reads ranges of sources. A packed file stays open: a later range of it is read from where the last one ended."""

    def __init__(self, sources: Sequence[Sequence[str]], columns: Sequence[str]):
        self._sources, self._columns = sources, tuple(columns)
        self._open: tuple[int, Any] | None = None

    def read(self, ranges: Sequence[PairRange]) -> Iterator[tuple[int, int, Pair | str]]:
        """(source, row counted from 0, its pair, or what is wrong with it)."""
        for rows in ranges:
            for row, pair in enumerate(self._reader(rows.source).read(rows), start=rows.first):
                yield rows.source, row, pair

    def _reader(self, source: int) -> Any:
        if self._open is None or self._open[0] != source:
            self.close()
            names = self._sources[source]
            self._open = source, _TwoFiles(names) if len(names) == 2 else _OneFile(names[0], self._columns)
        return self._open[1]

    def close(self) -> None:
        """Closes the file that is open; the reader can be used again."""
        if self._open is not None:
            self._open[1].close()
            self._open = None


class _OneFile:
    def __init__(self, name: str, columns: tuple[str, ...]):
        self._sources = Sources([name], Columns(columns), output="text")  # no other columns

    def read(self, rows: PairRange) -> Iterator[Pair | str]:
        for batch in self._sources.read([Range(0, rows.first, rows.rows, rows.offsets[0])]):
            for place, texts in enumerate(batch.texts):
                src, tgt = texts if place not in batch.faults else ("", "")
                if place in batch.faults:
                    yield batch.faults[place]
                elif "\n" in src or "\n" in tgt:  # a line of text has none either
                    yield src.replace("\n", " "), tgt.replace("\n", " ")
                else:
                    yield src, tgt

    def close(self) -> None:
        self._sources.close()


class _TwoFiles:
    def __init__(self, names: Sequence[str]):
        self._sides = [_OneSide(name) for name in names]

    def read(self, rows: PairRange) -> Iterator[Pair | str]:
        sides = [side.read(rows, offset) for side, offset in zip(self._sides, rows.offsets, strict=True)]
        for lines in zip(*sides, strict=True):
            try:
                src, tgt = map(_decoded, lines)
            except HeedError as error:
                yield str(error).partition(": ")[2].rstrip(".")
            else:
                yield src, tgt

    def close(self) -> None:
        for side in self._sides:
            side.close()


def _decoded(line: bytes | None) -> str:
    if line is None:
        raise HeedError(f"line: longer than {MAX_LINE_BYTES:,} bytes.")
    return decode_line(line, where="line")


class _OneSide:
    """Lines of one file of text."""

    def __init__(self, name: str):
        self._name, self._file, self._row = name, None, 0
        self._packed = name.endswith((".gz", ".zst"))
        self._lines: Iterator[bytes | None] = iter(())

    def read(self, rows: PairRange, offset: int) -> Iterator[bytes | None]:
        if self._file is None or rows.first < self._row or not self._packed:
            self.close()
            file: Any = open_file(self._name)
            self._file, self._row = file, 0
            if not self._packed:
                file.seek(offset)
                self._row = rows.first
            self._lines = lines_of_pieces(unpacked(file, self._name))
        for _ in islice(self._lines, rows.first - self._row):
            pass
        self._row = rows.first
        for line in islice(self._lines, rows.rows):
            self._row += 1
            yield line
        if self._row < rows.first + rows.rows:
            raise HeedError(f"{self._name}: ends at line {self._row:,}; it was longer when it was planned.")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
