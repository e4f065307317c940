"""Excel's .xlsx: the texts of cells, notes and drawings; formulas, numbers, names and what they refer to stay.

A text that a formula, a filter, a list of choices or the header of a table compares with stays as well: in another
language it would no longer be found.
"""

import re
from collections.abc import Iterator
from functools import partial
from html import unescape

from heed.apps.documents.formats.office_parts import drawn_texts, parts_of_types
from heed.apps.documents.formats.office_runs import Runs, read_runs
from heed.apps.documents.formats.packages import check_length, read_files, write_files
from heed.apps.documents.formats.texts import Text
from heed.apps.documents.formats.xml_tokens import XMLDocument, XMLToken, parts_job, read_parts, words_of
from heed.apps.documents.text.items import Item, Tag, with_read
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError

_STRINGS = frozenset(("si", "is", "text"))  # elements that hold a cell's text, or a note's
_SHEETS, _COMPARED = ("worksheet+xml",), ("table+xml", "pivotCacheDefinition+xml", "main+xml")
# A cell with words of its own: some programs write a formula's result, t="str", without a formula.
_OWN_WORDS = re.compile(
    rb"""<(?:\w{1,20}:)?c(?=\s)[^<>]*?\st=["'](?:inlineStr|str["'][^<>]*+>\s*+<(?:\w{1,20}:)?v[\s>])"""
)
# A text in a formula, and the names and values that others refer to.
_FORMULA = re.compile(rb"<(?:\w{1,20}:)?(?:f|formula[12]?|definedName)(?:\s[^<>]*+)?>([^<]*+)<")
_NAMING = re.compile(rb"<(?:\w{1,20}:)?(?:tableColumn|cacheField|filter|customFilter)(\s[^<>]*+)>")
_NAME = re.compile(rb'\s(?:name|val)="([^"]*+)"')
# A character that Excel writes so, and the beginning of a text that only looks like one.
_CHARACTER = re.compile(r"_x([0-9A-Fa-f]{4})_")
_LIKE_CHARACTER = re.compile(r"_(?=x[0-9A-Fa-f]{4}_)")
# Formulas of several cells in a sheet above which each result may be one of theirs: a cell is looked up in all of them.
MANY_RANGES = 32
_CELL = re.compile(r"([A-Z]{1,3})([0-9]{1,7})")
_PIECES = re.compile(r"_x[0-9A-Fa-f]{4}_|\r?\n")


def xlsx_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The workbook in the other language. HeedError, which calls it `name`, if it is damaged or hostile."""
    files = read_files(content, name=name, kind=".xlsx")
    by_name = {entry.filename: data for entry, data in files}
    sheets = parts_of_types(files, _SHEETS, name)
    if not sheets:
        raise HeedError(f"{name}: no .xlsx document: it holds no worksheet.")
    compared = _compared([by_name[part] for part in (*sheets, *parts_of_types(files, _COMPARED, name))])

    drawings = parts_of_types(files, ("drawing+xml",), name)
    strings = parts_of_types(files, ("sharedStrings+xml", "comments+xml"), name)
    strings += [part for part in sheets if _OWN_WORDS.search(by_name[part])]
    check_length(files, {*strings, *drawings, *sheets}, max_text, name)
    texts = {
        part: (document, list(drawn_texts(document, options) if part in drawings else _cells(document, compared)))
        for part, document in read_parts(files, {*strings, *drawings}, name).items()
    }
    return write_files(files, (yield from parts_job(texts, options)))


def _compared(parts: list[bytes]) -> set[str]:
    """The texts, in small letters, that formulas, filters and tables look for."""
    texts: set[str] = set()
    for part in parts:
        for match in _FORMULA.finditer(part):
            if b'"' in match[1] or b"&quot;" in match[1]:
                texts |= compared_in(unescape(match[1].decode(errors="replace")))
        for tag in _NAMING.finditer(part):
            for name in _NAME.findall(tag[1]):
                plain = _CHARACTER.sub(lambda match: chr(int(match[1], 16)), unescape(name.decode(errors="replace")))
                texts.add(plain.lower())
    return texts - {""}


def compared_in(formula: str) -> set[str]:
    """The texts in quotes, in small letters, and the parts of lists in them."""
    texts = [text.replace("\0", '"') for text in formula.lower().replace('""', "\0").split('"')[1::2]]
    return {part.strip() for text in texts for part in (text, *text.split(","))}


def _cells(document: XMLDocument, compared: set[str]) -> Iterator[Text]:
    tokens = document.tokens

    # A formula of several cells, or of what-if tables, stands in the first one: the others only hold its results.
    formulas = [one.attributes for one in tokens if one.local == "f" and one.attributes.get("t") != "shared"]
    spills = [cells for formula in formulas if len(cells := _cells_of(formula.get("ref", ""))) == 2]

    def is_spilled(cell: str) -> bool:
        if not (places := _cells_of(cell)) or len(spills) > MANY_RANGES:
            return bool(spills)
        column, row = places[0]
        return any(a <= column <= b and first <= row <= last for (a, first), (b, last) in spills)

    def has_own_words(place: int) -> bool:
        """Whether it is a text, or a cell that holds words without a formula."""
        token = tokens[place]
        if token.kind != "open" or token.local != "c":
            return token.kind == "open" and token.local in _STRINGS
        is_result = any(one.local == "f" for one in tokens[place + 1 : token.end])
        return token.attributes.get("t") == "str" and not (is_result or is_spilled(token.attributes.get("r", "")))

    for place, token in enumerate(tokens):
        if has_own_words(place) and (runs := read_runs(document, place, words=_words)):
            text = "".join(
                item if isinstance(item, str) else item.text or item.markup
                for item in runs.items
                if not isinstance(item, Tag) or isinstance(item.markup, str)
            )
            if text.strip().lower() not in compared:
                yield runs.text(document, partial(_write, runs=runs, keeps_spaces=token.local != "c"))


def _write(items: list[Item], *, runs: Runs, keeps_spaces: bool) -> str:
    own = [_LIKE_CHARACTER.sub("_x005F_", item) if isinstance(item, str) else item for item in items]
    return runs.write(own, keeps_spaces=keeps_spaces)


def _cells_of(reference: str) -> list[tuple[str, str]]:
    """Column and row of the cells that a reference such as B2:AC9 names, as texts in the order of their numbers."""
    return [(column.rjust(3), row.rjust(7)) for column, row in _CELL.findall(reference)]


def _words(token: XMLToken) -> list[Item]:
    """A text in which line ends count, and characters are written as Excel does."""

    def read(piece: re.Match[str]) -> Item:
        return Tag("spelling", piece[0], text="_") if piece[0] == "_x005F_" else Tag("cut", piece[0])

    return with_read(words_of(token), _PIECES, read)
