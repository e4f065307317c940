"""Texts at places of a document: each is translated as a text of its own, and all other bytes of the document stay."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heed.apps.documents.formats.plain_text import read_text, write_text
from heed.apps.documents.text.items import Item, Tag, with_read
from heed.apps.documents.text.translation import DocumentOptions, TranslationJob, items_job


@dataclass(frozen=True, eq=False)
class _End:
    """The end of a text among those of its document."""


class Edit(NamedTuple):
    """What stands in a document from `start` to `end` afterwards."""

    start: int
    end: int
    text: str


def edited(document: str, edits: Iterable[Edit]) -> str:
    """The document with these edits, none of which overlap."""
    parts, last = [], 0
    for edit in sorted(edits):
        parts += [document[last : edit.start], edit.text]
        last = edit.end
    return "".join([*parts, document[last:]])


def texts_job(texts: Sequence[Sequence[Item]], options: DocumentOptions) -> TranslationJob[list[list[Item]]]:
    """The items of each text in the other language; all sentences are asked for at once."""
    marked = [item for text in texts for item in (*text, Tag("cut", _End()))]
    translated: list[list[Item]] = []
    own: list[Item] = []
    for item in (yield from items_job(marked, options)):
        if isinstance(item, Tag) and isinstance(item.markup, _End):
            translated.append(own)
            own = []
        else:
            own.append(item)
    return translated


def strings_job(
    strings: Sequence[str], options: DocumentOptions, *, patterns: Sequence[re.Pattern[str] | None] = ()
) -> TranslationJob[list[str]]:
    """Each string in the other language, read as plain text. patterns: of what stays in each, besides all atoms."""
    texts = [read_text(text) for text in strings]
    for place, pattern in enumerate(patterns):
        if pattern:
            texts[place] = with_read(texts[place], pattern, lambda match: Tag("atom", match[0], text=match[0]))
    return [write_text(text) for text in (yield from texts_job(texts, options))]
