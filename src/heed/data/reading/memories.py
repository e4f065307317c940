"""Translation memories (.tmx), read as JSON Lines.

A unit becomes an object with a text for each language, by the whole code and by that of the language alone:
{"en-us": …, "en": …, "de": …}. Of a segment the words are read, not the codes of another program's format.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from xml.parsers import expat

from heed.data.reading.json_lines import JsonReader
from heed.data.reading.lines import elements

_CODES = ("bpt", "ept", "ph", "it", "ut", "sub")  # elements of a segment that hold no words of its sentence


class MemoryReader(JsonReader):
    """Reads the units of a .tmx that have all languages that are read; the others are no rows."""

    _rows_are_lines = False

    def __init__(self, name: str, *, as_table: Any = None, columns: Sequence[str] = ()):
        super().__init__(name, as_table=as_table, columns=[column.replace("_", "-").lower() for column in columns])

    def split(self, pieces: Iterable[bytes]) -> Iterator[bytes | None]:
        for unit in elements(pieces, "tu", self._name):
            yield json.dumps(_texts(unit)).encode()

    def row(self, line: bytes | None) -> tuple[dict[str, Any], Sequence[str]] | None:
        record = json.loads(line or b"{}")
        return super().row(line) if all(record.get(column) for column in self._columns) else None


def _texts(unit: bytes) -> dict[str, str]:
    """The text of each language of a unit; of one that cannot be read none."""
    texts: dict[str, str] = {}
    language, skipped, words = "", 0, list[str]()
    parser = expat.ParserCreate("utf-8")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal language, skipped
        if tag == "tuv":
            language = attributes.get("xml:lang", attributes.get("lang", "")).replace("_", "-").lower()
        elif tag == "seg":
            words.clear()
        skipped += tag in _CODES

    def end(tag: str) -> None:
        nonlocal skipped
        skipped -= tag in _CODES
        if tag == "seg" and (text := " ".join("".join(words).split())):
            texts.setdefault(language, text)
            texts.setdefault(language.partition("-")[0], text)

    def text(data: str) -> None:
        if not skipped:
            words.append(data)

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    try:
        parser.Parse(unit, True)
    except expat.ExpatError:
        return {}
    return texts
