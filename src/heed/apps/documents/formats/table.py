"""Tables of text (.csv, .tsv): cells of some columns are translated; delimiters, quoting and all other cells stay."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from heed.apps.documents.formats.charsets import decode
from heed.apps.documents.formats.texts import Edit, edited, strings_job
from heed.apps.documents.text.sentences import needs_translation
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError

_DELIMITERS = ",;\t|"
_LIKE_NAME = re.compile(r"[^\W\d][\w.-]*+")


class _Cell(NamedTuple):
    """A cell: where it stands, its row and column from 0 on, its text, and whether quotes are around it."""

    start: int
    end: int
    row: int
    column: int
    text: str
    is_quoted: bool


def table_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The table with the cells of `options.columns`, or of all columns, in the other language."""
    text, mark, _ = decode(content, name=name)
    delimiter = _delimiter(text)
    cells = list(_cells(text, delimiter))
    header, n_rows = [cell.text for cell in cells if cell.row == 0], cells[-1].row + 1 if cells else 0
    columns, first = _columns(header, n_rows, options.columns, name)
    asked = [
        cell
        for cell in cells
        if cell.row >= first and (columns is None or cell.column in columns) and needs_translation(cell.text)
    ]
    translations = yield from strings_job([cell.text for cell in asked], options)
    edits = [
        Edit(cell.start, cell.end, _written(words, cell, delimiter))
        for cell, words in zip(asked, translations, strict=True)
        if words != cell.text
    ]
    return ("\ufeff" * bool(mark) + edited(text, edits)).encode(errors="replace")


def _columns(header: Sequence[str], n_rows: int, asked: Sequence[str], name: str) -> tuple[set[int] | None, int]:
    """The columns by number from 0 on, None for all, and the first row that is translated: names stay."""
    if not asked:  # names of columns are words without blanks, each once, above other rows
        is_head = n_rows > 1 < len(header) == len(set(header)) and all(map(_LIKE_NAME.fullmatch, header))
        return None, int(is_head)
    columns: set[int] = set()
    is_named = any(column in header for column in asked)
    for column in asked:
        if column in header:
            columns.update(i for i, own in enumerate(header) if own == column)
        elif column.isdecimal() and 0 < int(column) <= len(header):
            columns.add(int(column) - 1)
        else:
            names = ", ".join(header)[:200]
            raise HeedError(f"{name}: --columns {column}: the first line has {len(header)} columns: {names}.")
    return columns, int(is_named)


def _delimiter(text: str) -> str:
    """The sign that stands most often in the first line outside of quotes; a tab before others, a comma without any."""
    line = re.sub(r'"[^"]*+"', "", text[:10_000]).partition("\n")[0]
    counts = Counter(sign for sign in line if sign in _DELIMITERS)
    return "\t" if counts["\t"] else max(_DELIMITERS, key=lambda sign: counts[sign])


def _cells(text: str, delimiter: str) -> Iterator[_Cell]:
    # A quote that nothing closes before a delimiter or a line's end is a sign of the text.
    quoted = re.compile(rf'"((?:[^"]|"")*+)"(?=[{delimiter}\r\n]|\Z)')
    plain = re.compile(rf"[^{delimiter}\r\n]*+")
    end_of_row = re.compile(r"\r\n|\r|\n")
    last_quote = text.rfind('"')
    place = row = column = 0
    while place < len(text):
        in_quotes = quoted.match(text, place) if place < last_quote else None
        cell = in_quotes or plain.match(text, place)
        assert cell
        words = cell[1].replace('""', '"') if in_quotes else cell[0]
        yield _Cell(place, cell.end(), row, column, words, in_quotes is not None)
        place = cell.end()
        if end := end_of_row.match(text, place):
            place, row, column = end.end(), row + 1, 0
        else:
            place, column = place + 1, column + 1


def _written(words: str, cell: _Cell, delimiter: str) -> str:
    if cell.is_quoted or delimiter in words or words[:1] == '"' or "\n" in words or "\r" in words:
        doubled = words.replace('"', '""')
        return f'"{doubled}"'
    return words
