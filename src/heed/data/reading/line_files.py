"""Files with a row a line: text, which may have tabs between its columns."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from heed.config import shown
from heed.data.reading.lines import LineFault, is_tagged, lines_of_pieces, of_text, plain_pieces, text_of
from heed.data.reading.rows import BATCH_BYTES, BATCH_ROWS, Contents, Rows
from heed.errors import HeedError
from heed.leases.packages import needed
from heed.leases.plan import Range
from heed.leases.storage import HashingFile, is_url, open_file, packing_of, unpacked


class LineReader:
    """Reads lines of a file. A packed one stays open, so that later lines are read from where the last were.

    A subclass whose rows may have several lines, or are made of other content, sets `_rows_are_lines` to False.
    """

    _rows_are_lines = True

    def __init__(self, name: str, *, as_table: Any = None, columns: Sequence[str] = ()):
        """as_table: Arrow's schema if Parquet is written."""
        self._name, self._schema, self._columns = name, as_table, columns
        self._file: Any = None
        self._lines: Iterator[bytes | None] = iter(())
        self._row = 0
        # An offset in the file is none in its text.
        self._from_start = bool(packing_of(name)) or is_tagged(name) or not self._rows_are_lines

    def lines(self, rows: Range, *, side: int = 0, ends: bool = False) -> Iterator[bytes | None]:
        """The lines of these rows, None in place of one that is too long. HeedError if there are fewer, unless `ends`.

        side: which of the source's files this is.
        """
        if self._file is None or rows.first < self._row or not self._from_start:
            self.close()
            self._file = open_file(self._name)
            self._row = 0
            if not self._from_start:
                self._file.seek(rows.offsets[side])
                self._row = rows.first
            self._lines = self.split(unpacked(self._file, self._name))
        for _ in islice(self._lines, rows.first - self._row):
            self._row += 1
        for line in islice(self._lines, rows.rows):
            self._row += 1
            yield line
        if self._row < rows.first + rows.rows and not ends:
            raise HeedError(f"{self._name}: ends at row {self._row:,}; it was longer when it was planned.")

    def read(self, rows: Range) -> Iterator[Rows]:
        """Rows in batches. HeedError if there are fewer."""
        batch: list[bytes | None] = []
        n_bytes, first = 0, rows.first
        for line in self.lines(rows):
            batch.append(line)
            n_bytes += len(line or b"")
            if len(batch) == BATCH_ROWS or n_bytes >= BATCH_BYTES:
                yield self._rows(batch, first)
                batch, n_bytes, first = [], 0, first + len(batch)
        if batch:
            yield self._rows(batch, first)

    def _rows(self, lines: list[bytes | None], first: int) -> Rows:
        rows = Rows(self._name, first, [], [])
        for place, line in enumerate(lines):
            try:
                row = self.row(line)
                rows.skipped |= set() if row else {place}
            except LineFault as fault:
                row, rows.faults[place] = None, str(fault)
            content, texts = row or ({}, ("",) * len(self._columns))
            rows.content.append(content)
            rows.texts.append(tuple(texts))
        if self._schema is not None:
            rows.content = self._table(rows)
        return rows

    def row(self, line: bytes | None) -> tuple[dict[str, Any], Sequence[str]] | None:
        """A line's content and the texts of its columns that are read; None if it is blank. LineFault if bad."""
        text = text_of(line)
        cells = [text] if len(self._columns) == 1 else [cell.removesuffix("\r") for cell in text.split("\t")]
        if len(cells) < len(self._columns):
            raise LineFault(f"has {len(cells) - 1} tabs; expected a text, a tab and its translation")
        return dict(zip(self._columns, cells, strict=False)), cells[: len(self._columns)]

    def _table(self, rows: Rows) -> Any:
        """The rows as Arrow's table; those that do not fit become faults."""
        arrow = needed("pyarrow", "Parquet is written with")
        names = set(self._schema.names)
        for place, record in enumerate(rows.content):
            if (others := set(record) - names) and place not in rows.faults:
                rows.faults[place] = f"has the column {shown(min(others))}, which the first rows lack"
        try:
            return arrow.Table.from_pylist(rows.content, schema=self._schema)
        except (arrow.ArrowException, TypeError, OverflowError, ValueError):
            pass
        for place, record in enumerate(rows.content):
            try:
                arrow.Table.from_pylist([record], schema=self._schema)
            except (arrow.ArrowException, TypeError, OverflowError, ValueError):
                rows.faults.setdefault(place, "does not fit the types of the first rows")
                rows.content[place] = {}
        return arrow.Table.from_pylist(rows.content, schema=self._schema)

    def split(self, pieces: Iterable[bytes]) -> Iterator[bytes | None]:
        """The lines of a content in pieces, None in place of one that is too long."""
        return lines_of_pieces(plain_pieces(pieces, self._name))

    def count(self, pieces: Iterable[bytes], *, every: int, before: int) -> tuple[int, dict[int, int]]:
        """The number of rows, and the byte that each begins at which is the first of the file or of a part."""
        if self._rows_are_lines:
            return _count_lines(plain_pieces(pieces, self._name), every=every, before=before)
        rows, offset, offsets = 0, 0, dict[int, int]()
        for row in self.split(pieces):
            if rows == 0 or (before + rows) % every == 0:
                offsets[rows] = offset
            rows, offset = rows + 1, offset + len(row or b"") + 1
        return rows, offsets

    def names(self) -> list[str]:
        """The names of its columns, by its first rows; none of text."""
        return []

    def check(self) -> None:
        """HeedError if the first lines show that a column is missing."""

    def examine(self, *, every: int, before: int) -> Contents:
        """The number of rows, the hash of all, and where every part of `every` rows begins, if `before` came before."""
        with open_file(self._name) as file:
            hashing = HashingFile(file)
            pieces = of_text(unpacked(hashing, self._name), self._name)
            if first := next(pieces, b""):  # it is text
                self.check()
            rows, offsets = self.count(filter(None, chain([first], pieces)), every=every, before=before)
            return rows, None if is_url(self._name) else hashing.hexdigest(), offsets

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _count_lines(pieces: Iterable[bytes], *, every: int, before: int) -> tuple[int, dict[int, int]]:
    """Their number, and the byte that each row begins at which is the first of the file or of a part."""
    rows, offset, offsets, ends_open = 0, 0, {0: 0}, False
    for piece in pieces:
        n = piece.count(b"\n")
        first = rows  # the number of the row that goes on or begins with this piece
        ends: Any = None  # of lines, found all at once: a piece may hold nothing else
        while (next_part := (before + first) // every * every + every - before) <= rows + n:
            ends = np.flatnonzero(np.frombuffer(piece, np.uint8) == ord("\n")) if ends is None else ends
            first = next_part
            offsets[first] = offset + int(ends[first - rows - 1]) + 1
        rows += n
        offset += len(piece)
        ends_open = not piece.endswith(b"\n")
    return rows + ends_open, offsets
