"""Tables: .csv, whose cells may be quoted, and .tsv, whose cells end at a tab. The first row may name the columns."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from io import StringIO
from itertools import islice
from typing import Any, NamedTuple

from heed.data.reading.line_files import LineReader, is_packed
from heed.data.reading.lines import LineFault, lines_of_pieces, text_of
from heed.data.reading.rows import NESTED, Rows, check_columns
from heed.errors import HeedError
from heed.leases.storage import open_file, unpacked, unpacked_name

SAMPLE_ROWS = 50  # by which columns of numbers are told
# Two of these in a first row are the names of columns.
HEAD = frozenset("id index source target src tgt text translation sentence score url lang label".split())


class _Layout(NamedTuple):
    names: list[str]  # of the columns; none without a head
    places: list[int]  # of the columns that are read


class TableReader(LineReader):
    """Reads .csv and .tsv. A column is named as in the head, or by its number, from 1; else the first ones are read."""

    def __init__(self, name: str, *, as_table: Any = None, columns: Sequence[str] = ()):
        super().__init__(name, as_table=as_table, columns=columns)
        self._is_csv = unpacked_name(name).lower().endswith(".csv")
        self._from_start = self._is_csv or is_packed(name)  # a cell may hold line ends

    def names(self) -> list[str]:
        """The names of its columns; none without a head. HeedError if a column that is read is not there."""
        return self._layout.names

    @cached_property
    def _delimiter(self) -> str:
        first = next(self._beginning(lines_of_pieces), None) or b""
        return max(",;\t", key=first.decode("latin-1").count) if self._is_csv else "\t"

    @cached_property
    def _layout(self) -> _Layout:
        rows = []
        for line in islice(self._beginning(self.split), SAMPLE_ROWS):
            try:
                rows.append(self._cells(line))
            except LineFault:
                rows.append([])
        names = [cell.strip() for cell in rows[0]] if rows else []
        folded, wanted = [name.casefold() for name in names], [column.casefold() for column in self._columns]
        headings = [next((one for one in (name, f"{NESTED}.{name}") if one in folded), None) for name in wanted]
        if None not in headings:
            places = [folded.index(name) for name in headings if name is not None]
            for place, column in zip(places, self._columns, strict=True):
                names[place] = column
            return _Layout(names, places)
        if all(map(str.isdecimal, wanted)) and "0" not in wanted:
            return _Layout([], [int(number) - 1 for number in wanted])
        if sum(name in HEAD or name in wanted for name in folded) > 1:
            check_columns(self._name, self._columns, names)
        self._refuse_numbers(rows)
        return _Layout([], list(range(len(wanted))))

    def _refuse_numbers(self, rows: list[list[str]]) -> None:
        """HeedError if it is not plain which columns of a table without a head are the texts."""
        width, n_read = max(map(len, rows), default=0), len(self._columns)
        numbers = [_are_numbers([row[place] for row in rows if len(row) > place]) for place in range(width)]
        choose = "name the columns of the texts by their numbers, as in data.columns = ['2', '3'] or --column 2"
        if any(numbers[:n_read]) and not all(numbers):
            raise HeedError(f"{self._name}: column {numbers.index(True) + 1} holds numbers, not text; {choose}.")
        if n_read == 1 < width:
            raise HeedError(f"{self._name}: has {width} columns and no head with {self._columns[0]!r}; {choose}.")

    def _beginning(self, split: Any) -> Iterator[bytes | None]:
        with closing(open_file(self._name)) as file:
            yield from split(unpacked(file, self._name))

    def split(self, pieces: Iterable[bytes]) -> Iterator[bytes | None]:
        lines = lines_of_pieces(pieces)
        return _records(lines, self._delimiter) if self._is_csv else lines

    def count(self, pieces: Iterable[bytes], *, every: int, before: int) -> tuple[int, dict[int, int]]:
        if not self._is_csv:
            return super().count(pieces, every=every, before=before)
        rows, offset, offsets = 0, 0, dict[int, int]()
        for record in self.split(pieces):
            if rows == 0 or (before + rows) % every == 0:
                offsets[rows] = offset
            rows, offset = rows + 1, offset + len(record or b"") + 1
        return rows, offsets

    def check(self) -> None:
        assert self._layout  # which refuses what cannot be read

    def _cells(self, line: bytes | None) -> list[str]:
        text = text_of(line)
        if not self._is_csv:
            return [cell.removesuffix("\r") for cell in text.split("\t")]
        try:
            return next(csv.reader(StringIO(text, newline=""), delimiter=self._delimiter), [])
        except csv.Error as error:
            raise LineFault(f"not CSV ({error})") from None

    def row(self, line: bytes | None) -> tuple[dict[str, Any], Sequence[str]] | None:
        cells, layout = self._cells(line), self._layout
        if cells in ([], [""]):
            return None
        if len(cells) <= max(layout.places):
            raise LineFault(f"has {len(cells)} columns; expected {max(layout.places) + 1}")
        texts = [cells[place] for place in layout.places]
        return dict(zip(layout.names or self._columns, cells if layout.names else texts, strict=False)), texts

    def _rows(self, lines: list[bytes | None], first: int) -> Rows:
        rows = super()._rows(lines, first)
        if first == 0 and self._layout.names:
            rows.skipped.add(0)
            rows.faults.pop(0, None)
        return rows


def _records(lines: Iterator[bytes | None], delimiter: str) -> Iterator[bytes | None]:
    """The lines of each row together; None in place of a row with one that is too long."""
    taken: list[bytes | None] = []

    def taking() -> Iterator[str]:
        for line in lines:
            taken.append(line)
            yield (line or b"").decode("latin-1") + "\n"  # whatever the bytes: quotes and delimiters are ASCII

    rows = csv.reader(taking(), delimiter=delimiter)
    more = True
    while more:
        try:
            more = next(rows, None) is not None
        except csv.Error:  # said when the row is read
            more = True
        if taken:
            good = [line for line in taken if line is not None]
            yield b"\n".join(good) if len(good) == len(taken) else None
            taken.clear()


def _are_numbers(cells: list[str]) -> bool:
    try:
        return bool([float(cell.replace(",", ".")) for cell in cells if cell.strip()])
    except ValueError:
        return False
