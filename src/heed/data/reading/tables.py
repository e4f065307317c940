"""Tables: .csv, whose cells may be quoted, and .tsv, whose cells end at a tab. The first row may name the columns.

A .tsv whose first rows have quotation marks doubled within quoted cells, as spreadsheets write it, is read as .csv.
"""

import csv
import re
from codecs import BOM_UTF8
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import cached_property
from io import StringIO
from itertools import chain, islice, product
from typing import Any, NamedTuple

from heed.data.reading.line_files import LineReader
from heed.data.reading.lines import LineFault, lines_of_pieces, text_of
from heed.data.reading.rows import NESTED, Rows, find_column, is_code, language_named, refuse_missing
from heed.errors import HeedError
from heed.leases.storage import open_file, unpacked, unpacked_name
from heed.runtime.progress import counted

SAMPLE_ROWS = 50  # by which delimiters, heads and columns without text are told
# Two of these in a first row are the names of columns.
HEAD = frozenset("id index source target src tgt text translation sentence score url lang label".split())
NOT_TEXT = re.compile(r"[^\s:]+://\S*|[!-/:-~]*[0-9][!-~]*")  # numbers, identifiers, addresses
END: Any = object()
SEPARATOR = re.compile(r'"?sep=(.)"?\r?', re.IGNORECASE)  # a first line by which Excel says what stands between cells
QUOTED = re.compile(r'"(?:[^"]|"")*"')


class _Dialect(NamedTuple):
    delimiter: str = "\t"
    escape: str | None = None  # what stands before a quotation mark within quoted text, if none is doubled


class _Layout(NamedTuple):
    names: list[str]  # of the columns; none without a head
    places: list[int]  # of the columns that are read
    width: int  # the columns of most rows
    head: int = 0  # the row of the names, behind blank and bad ones


class TableReader(LineReader):
    """Reads .csv and .tsv. A column is named as in the head, or by its number, from 1; else the first ones are read."""

    def __init__(self, name: str, *, as_table: Any = None, columns: Sequence[str] = ()):
        self._name = name
        self._is_csv = unpacked_name(name).lower().endswith(".csv") or self._has_quoted_cells()
        self._rows_are_lines = not self._is_csv
        super().__init__(name, as_table=as_table, columns=columns)

    def names(self) -> list[str]:
        """The names of its columns; none without a head. HeedError if a column that is read is not there."""
        return self._layout.names

    def _has_quoted_cells(self) -> bool:
        cells = [cell.rstrip("\r") for line in self._sample for cell in line.split("\t") if cell.startswith('"')]
        return all(map(QUOTED.fullmatch, cells)) and any('""' in cell[1:-1] for cell in cells)

    @cached_property
    def _sample(self) -> list[str]:
        """The first lines, each character a byte: delimiters and quotation marks are ASCII."""
        lines = islice(self._beginning(lines_of_pieces), SAMPLE_ROWS)
        return [(line or b"").removeprefix(BOM_UTF8).decode("latin-1") for line in lines]

    @property
    def _separator(self) -> str:
        match = SEPARATOR.fullmatch(self._sample[0]) if self._is_csv and self._sample else None
        return match[1] if match else ""

    @cached_property
    def _dialect(self) -> _Dialect:
        """The one that gives most of the first rows the same number of columns."""
        if not self._is_csv:
            return _Dialect()
        if separator := self._separator:
            return _Dialect(separator)
        text = "".join(f"{line}\n" for line in self._sample)

        def fit(dialect: _Dialect) -> tuple[float, int]:
            widths, reader = Counter[int](), _csv_reader(StringIO(text, newline=""), dialect, strict=True)
            more = True
            while more:
                with suppress(csv.Error):
                    more = (row := next(reader, None)) is not None
                    widths[len(row or ())] += 1
            alike = max((n for width, n in widths.items() if width > 1), default=0)
            return alike / max(1, widths.total()), -text.count(f"{dialect.delimiter} ")  # as commas of prose have

        return max(map(_Dialect._make, product(",;\t|", (None, "\\"))), key=fit)

    @cached_property
    def _layout(self) -> _Layout:
        rows = list[list[str]]()
        for line in islice(self._beginning(self.split), SAMPLE_ROWS):
            rows.append([])
            with suppress(LineFault):
                rows[-1] = self._cells(line)
        head = next((number for number, row in enumerate(rows) if any(row)), 0)
        rows = rows[head:]
        ((width, _),) = Counter(map(len, filter(any, rows))).most_common(1) or [(0, 0)]
        names = [cell.strip() for cell in rows[0]] if rows else []
        folded = [name.casefold() for name in names]
        headings = [
            find_column(column, tuple(names)) or find_column(f"{NESTED}.{column}", tuple(names)) or ""
            for column in self._columns
        ]
        named, others = set(filter(language_named, names)), [name for name in names if not language_named(name)]
        if len(names) == len(headings) == 2 and len(others) == 1 and named.intersection(headings):
            # The name of a language beside one that is not known here: Englisch beside Deutsch.
            headings = [name or others[0] for name in headings]
        if all(headings):
            places = list(map(names.index, headings))
            for place, column in zip(places, self._columns, strict=True):
                names[place] = column
            return _Layout(names, places, len(names), head)
        # A language's code may be a word, such as "no": beside it only codes and the like make a head.
        codes = {code for name in self._columns for code in (name.lower(), name.upper())}
        has_codes = not codes.isdisjoint(names) and all(
            len(name) < 4 or is_code(name) or name in HEAD for name in names
        )
        has_names = len(set(filter(None, map(language_named, names)))) > 1
        has_head = sum(name in HEAD for name in folded) > 1 or has_codes or has_names or _is_head(rows)
        if all(map(str.isdecimal, self._columns)):
            if "0" in self._columns:
                raise HeedError(f"{self._name}: has no column 0; columns without names are counted from 1.")
            return _Layout(names if has_head else [], [int(number) - 1 for number in self._columns], width, head)
        if has_head:
            refuse_missing(self._name, [one for one, at in zip(self._columns, headings, strict=True) if not at], names)
        self._refuse_numbers(rows)
        return _Layout([], list(range(len(self._columns))), width)

    def _refuse_numbers(self, rows: list[list[str]]) -> None:
        """HeedError if it is not plain which columns of a table without a head are the texts."""
        n_read, without_text = len(self._columns), _without_text(rows)
        choose = "name the columns of the texts by their numbers, as in data.columns = ['2', '3'] or --column 2"
        if any(without_text[:n_read]) and not all(without_text):
            number = without_text.index(True) + 1
            raise HeedError(f"{self._name}: column {number} holds numbers or addresses, not text; {choose}.")
        if n_read == 1 < len(without_text):
            raise HeedError(
                f"{self._name}: has {len(without_text)} columns and no head with {self._columns[0]!r}; {choose}."
            )

    def _beginning(self, split: Any) -> Iterator[bytes | None]:
        with closing(open_file(self._name)) as file:
            yield from split(unpacked(file, self._name))

    def split(self, pieces: Iterable[bytes]) -> Iterator[bytes | None]:
        lines = lines_of_pieces(pieces)
        # Excel shows no row for the line that names the separator.
        return _records(islice(lines, bool(self._separator), None), self._dialect) if self._is_csv else lines

    def check(self) -> None:
        assert self._layout  # which refuses what cannot be read

    def _cells(self, line: bytes | None) -> list[str]:
        text, dialect = text_of(line), self._dialect
        if not self._is_csv or not ('"' in text or (dialect.escape and dialect.escape in text)):
            return [cell.removesuffix("\r") for cell in text.split(dialect.delimiter)]
        try:
            rows: list[list[str]] = list(_csv_reader(StringIO(f"{text}\nend", newline=""), dialect))
        except csv.Error as error:
            raise LineFault(f"not CSV ({error})") from None
        if rows[1:] != [["end"]]:
            raise LineFault("not CSV (a quotation mark has no partner)")
        return rows[0]

    def row(self, line: bytes | None) -> tuple[dict[str, Any], Sequence[str]] | None:
        cells, layout = self._cells(line), self._layout
        if cells in ([], [""]):
            return None
        if len(cells) <= (last := max(layout.places)):
            raise LineFault(f"has {counted(len(cells), 'column')}; expected {max(last + 1, layout.width)}")
        if self._is_csv and any(cells[layout.width :]):  # a delimiter in text that is not quoted
            raise LineFault(f"has {counted(len(cells), 'column')}; expected {layout.width}")
        texts = [cells[place] for place in layout.places]
        return dict(zip(layout.names or self._columns, cells if layout.names else texts, strict=False)), texts

    def _rows(self, lines: list[bytes | None], first: int) -> Rows:
        rows, place = super()._rows(lines, first), self._layout.head - first
        if self._layout.names and 0 <= place < len(lines):
            rows.skipped.add(place)
            rows.faults.pop(place, None)
        return rows


def _csv_reader(lines: Iterable[str], dialect: _Dialect, *, strict: bool = False) -> Any:
    return csv.reader(lines, delimiter=dialect.delimiter, escapechar=dialect.escape, strict=strict)


def _records(lines: Iterator[bytes | None], dialect: _Dialect) -> Iterator[bytes | None]:
    """The lines of each row together; None in place of a row with one that is too long.

    A quotation mark without a partner spoils its own line alone: those that seemed to belong to its cell are rows.
    """
    taken: list[bytes | None] = []
    given_back = deque[bytes | None]()

    def taking() -> Iterator[str]:
        while (line := given_back.popleft() if given_back else next(lines, END)) is not END:
            taken.append(line)
            yield (line or b"").removeprefix(BOM_UTF8).decode("latin-1") + "\n"

    texts = taking()
    while (text := next(texts, None)) is not None:
        try:
            if '"' in text:
                next(_csv_reader(chain([text], texts), dialect, strict=True))
        except csv.Error:
            given_back.extendleft(reversed(taken[1:]))
            del taken[1:]
            texts = taking()
        good = [line for line in taken if line is not None]
        yield b"\n".join(good) if len(good) == len(taken) else None
        taken.clear()


def _without_text(rows: list[list[str]]) -> list[bool]:
    """Whether each column has cells, none of which is text."""
    width = max(map(len, rows), default=0)
    columns = [[cell for row in rows if (cell := "".join(row[place : place + 1]).strip())] for place in range(width)]
    return [bool(cells) and all(map(NOT_TEXT.fullmatch, cells)) for cells in columns]


def _is_head(rows: list[list[str]]) -> bool:
    """Whether the first row names a column that has no text below."""
    pairs = zip(rows[0], _without_text(rows[:1]), _without_text(rows[1:]), strict=False) if len(rows) > 2 else ()
    return any(below and cell.strip() and not here for cell, here, below in pairs)
