"""Pairs of lines: two files of text side by side, or one file that holds both sides."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from heed.config import shown
from heed.data.reading.columns import examine, holds_both_sides, reader_of, row_of
from heed.data.reading.line_files import LineReader
from heed.data.reading.lines import LineFault, read_lines, refuse_faulty, refuse_other_formats, text_of
from heed.data.reading.rows import Columns, Format, Rows
from heed.errors import HeedError
from heed.leases.plan import Examined, Range
from heed.runtime.files import whole_file
from heed.text.line_rules import is_blank

FilePair = tuple[Path, Path]
Pair = tuple[str, str]
Place = tuple[int, int]  # of a pair: its source and its row, both counted from 0
UNREADABLE = "that cannot be read"
# How lines of SGML, XML and HTML begin, which end in a tag as well, and those of catalogues of messages.
MARKUP = re.compile(r"\s*(?:</?[A-Za-z!?][^<>]*>|#[:,.|~] |msg(?:id|str|ctxt)\b)")
MARKUP_LINES, MIN_MARKUP = 1000, 5
OnFault = Callable[[Place, LineFault], None]


def source_of(files: FilePair) -> list[str]:
    """The names of a source's files: two of text, or one that holds both sides, which stands twice in a pair."""
    return [str(side) for side in (files[:1] if files[0] == files[1] and holds_both_sides(files[0]) else files)]


def examine_source(names: Sequence[str], columns: Sequence[str], *, every: int, before: int = 0) -> Examined:
    """A source's files and where every part of `every` pairs begins, if `before` pairs came before it.

    names: of `source_of`. HeedError if a file is damaged, lacks a column, or if the sides have different numbers of
    lines.
    """
    read = columns if len(names) == 1 else ()
    sides = [examine(name, read, every=every, before=before) for name in names]
    files = [file for side in sides for file in side.files]
    with closing(Sources([names], Columns(tuple(columns)))) as sources:
        pairs = sources.pairs([Range(0, 0, min(file.rows for file in files))])
        _refuse_markup(names, [pair for _, pair in islice(pairs, MARKUP_LINES) if not isinstance(pair, LineFault)])
    if files[0].rows != files[-1].rows:
        raise _unequal(names, files[0].rows, files[-1].rows)
    starts = {row: tuple(offset for side in sides for offset in side.offsets(row)) for row in sides[0].starts}
    return Examined(tuple(files), starts)


def _refuse_markup(names: Sequence[str], pairs: Sequence[Pair]) -> None:
    """HeedError if the lines of a side, by these first ones, are not sentences but the lines of another format."""
    for name, side in zip((names[0], names[-1]), zip(*pairs, strict=True), strict=False):
        lines = [line for line in side if not is_blank(line)]
        marked = [
            line for line in lines if MARKUP.match(line) and (line.lstrip()[0] != "<" or line.rstrip()[-1] == ">")
        ]
        if len(lines) >= MIN_MARKUP and 2 * len(marked) > len(lines):
            raise HeedError(
                f"{name}: is markup, such as {shown(marked[0])}, not a sentence a line; write its sentences as text, a "
                "line each, or as a table."
            )


class Sources:
    """Sources of rows or of pairs, of which one is open at a time.

    A packed file stays open: a later range of it is read from where the last one ended.
    """

    def __init__(self, sources: Sequence[Sequence[str]], columns: Columns, *, output: Format = "text"):
        """sources: the files of each, side by side. output: what the rows are written to, text for pairs."""
        self._sources, self._columns, self._output = sources, columns, output
        self._open: tuple[int, list[Any]] | None = None

    def read(self, ranges: Iterable[Range]) -> Iterator[Rows]:
        """Rows of sources that are one file."""
        for rows in ranges:
            yield from self._readers(rows.source)[0].read(rows)

    def pairs(self, ranges: Iterable[Range]) -> Iterator[tuple[Place, Pair | LineFault]]:
        """Each row's place and its pair, or what is wrong with it."""
        for rows in ranges:
            readers = self._readers(rows.source)
            pairs = _side_by_side(readers, rows) if len(readers) == 2 else _of_both_sides(readers[0].read(rows))
            for row, pair in enumerate(pairs, start=rows.first):
                if pair is not None:
                    yield (rows.source, row), pair

    def _readers(self, source: int) -> list[Any]:
        if self._open is None or self._open[0] != source:
            self.close()
            names = self._sources[source]
            both = [reader_of(names[0], self._columns, output=self._output)] if len(names) == 1 else None
            self._open = source, both or list(map(LineReader, names))
        return self._open[1]

    def close(self) -> None:
        """Closes the files that are open; the sources can be read again."""
        for reader in self._open[1] if self._open else ():
            reader.close()
        self._open = None


def _side_by_side(sides: Sequence[LineReader], rows: Range) -> Iterator[Pair | LineFault]:
    lines = (reader.lines(rows, side=side) for side, reader in enumerate(sides))
    for src, tgt in zip(*lines, strict=True):
        side = ""
        try:
            text, side = text_of(src), "target: "
            yield text, text_of(tgt)
        except LineFault as fault:
            yield LineFault(f"{side}{fault}", fault.hint)


def _of_both_sides(batches: Iterable[Rows]) -> Iterator[Pair | LineFault | None]:
    """The pair of each row, None for a row that is none, such as the head of a table."""
    for batch in batches:
        for place, texts in enumerate(batch.texts):
            if place in batch.faults:
                yield LineFault(batch.faults[place])
                continue
            # A line of text has no line ends within, nor at its end.
            src, tgt = (text.rstrip("\r\n").replace("\r\n", " ").replace("\n", " ") for text in texts)
            yield None if place in batch.skipped else (src, tgt)


class TrainingText:
    """Training files, read to their ends as often as asked for."""

    def __init__(self, files: Sequence[FilePair], columns: Sequence[str], *, rows: Sequence[int] | None = None):
        """rows: the pairs of each, if they have been counted."""
        self._names, self._columns = [source_of(pair) for pair in files], Columns(tuple(columns))
        self.rows = list(rows or [examine_source(of, columns, every=2**62).rows for of in self._names])

    def pairs(self, n_files: int | None = None, *, on_fault: OnFault = lambda *_: None) -> Iterator[tuple[Place, Pair]]:
        """The pairs of the first `n_files`, or of all, that can be read. HeedError if too many of a file cannot.

        on_fault: is called with the place and the fault of each of those.
        """
        with closing(Sources(self._names, self._columns)) as sources:
            for rows in self._ranges(n_files):
                names, n_faults, first = self._names[rows.source], 0, ""
                for place, pair in sources.pairs([rows]):
                    if isinstance(pair, LineFault):
                        n_faults, first = n_faults + 1, first or f"{row_of(names[0], place[1] + 1)}: {pair}"
                        on_fault(place, pair)
                    else:
                        yield place, pair
                refuse_faulty(names, n_faults, rows.rows, first)

    def sources(self) -> Iterator[str]:
        """The source of each row; a blank one for a row that cannot be read."""
        with closing(Sources(self._names, self._columns)) as sources:
            for _, pair in sources.pairs(self._ranges(None)):
                yield "" if isinstance(pair, LineFault) else pair[0]

    def _ranges(self, n_files: int | None) -> list[Range]:
        return [Range(number, 0, n) for number, n in enumerate(self.rows[:n_files])]


def read_pairs(files: FilePair, columns: Sequence[str] = ()) -> Iterator[Pair]:
    """Lines of two files side by side, or the rows of one that holds both sides, each of which counts, as in dev sets.

    columns: of sources and targets in a file that holds both. HeedError for a line that cannot be read, if one file is
    longer, or if there is no line at all.
    """
    for side in files:
        refuse_other_formats(str(side))
    if len(source_of(files)) == 1:
        yield from _read_rows(files, columns)
        return
    n_src = n_tgt = 0
    for src, tgt in zip_longest(*map(read_lines, files)):
        n_src, n_tgt = n_src + (src is not None), n_tgt + (tgt is not None)
        if src is not None and tgt is not None:
            yield src, tgt
    if n_src != n_tgt:
        raise _unequal([str(side) for side in files], n_src, n_tgt)
    if n_src == 0:
        raise HeedError(f"{files[0]} and {files[1]} are empty: a corpus needs at least one pair of lines.")


def _read_rows(files: FilePair, columns: Sequence[str]) -> Iterator[Pair]:
    name, n_pairs = str(files[0]), 0

    def refuse(place: Place, fault: LineFault) -> None:
        raise HeedError(f"{name}, {row_of(name, place[1] + 1)}: {fault}.")

    for _, pair in TrainingText([files], columns).pairs(on_fault=refuse):
        n_pairs += 1
        yield pair
    if n_pairs == 0:
        raise HeedError(f"{name} is empty: a corpus needs at least one pair of lines.")


def write_pairs(files: FilePair, pairs: Iterable[Pair]) -> int:
    """Writes pairs as two files of text, whole or not at all; how many there are."""
    n_pairs = 0
    with ExitStack() as stack:
        temporary = [stack.enter_context(whole_file(side)) for side in files]
        src_file, tgt_file = (
            stack.enter_context(side.open("w", encoding="utf-8", errors="surrogatepass", newline=""))
            for side in temporary
        )
        for src, tgt in pairs:
            n_pairs += 1
            src_file.write(f"{src}\n")
            tgt_file.write(f"{tgt}\n")
    return n_pairs


def read_sides(files: FilePair, columns: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """All lines of each file. Errors as in `read_pairs`."""
    src_lines, tgt_lines = map(list, zip(*read_pairs(files, columns), strict=True))
    return src_lines, tgt_lines


def count_pairs(files: FilePair, columns: Sequence[str] = ()) -> int:
    """Number of pairs of lines, all of which are read. Errors as in `read_pairs`."""
    return sum(1 for _ in read_pairs(files, columns))


def readable_lines(path: Path) -> Iterator[str]:
    """The lines of a text to learn from, each that cannot be read as a blank one."""
    for line in _all_lines(str(path)):
        try:
            yield text_of(line)
        except LineFault:
            yield ""


def _unequal(names: Sequence[str], n_src: int, n_tgt: int) -> HeedError:
    """The error for sides of different numbers of lines, with a guess at the reason. Both are read again for that."""
    longer, n_both, hint = names[n_tgt > n_src], min(n_src, n_tgt), ""
    with suppress(OSError):  # a pipe cannot be read twice
        surplus = islice(_all_lines(longer), n_both, None)
        if all(line is not None and is_blank(line.decode(errors="replace")) for line in surplus):
            hint = f" (What {longer} has more is blank.)"
        for name in () if hint else names:
            numbered = enumerate(_all_lines(name), start=1)
            within = next((number for number, line in numbered if b"\r" in (line or b"").removesuffix(b"\r")), None)
            if within is not None:
                hint = (
                    f" ({name}, line {within:,} has a carriage return within, which some programs take for a line's "
                    "end.)"
                )
                break
    return HeedError(
        f"{names[0]} has {n_src:,} lines, {names[1]} {n_tgt:,}: both sides of a corpus must have the same number.{hint}"
    )


def _all_lines(name: str) -> Iterator[bytes | None]:
    with closing(LineReader(name)) as reader:
        yield from reader.lines(Range(0, 0, 2**62), ends=True)
