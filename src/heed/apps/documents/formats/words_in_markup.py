"""Words that stand in a document's markup, such as a picture's description: they are texts of their own.

A reader puts a mark in their place and the words behind all else; a writer puts the translated words in the marks'
places.
"""

import hashlib
import re
from collections.abc import Callable

from heed.apps.documents.text.items import Item, Tag


class _Beginning(str):
    """A mark, which begins its words. source: what stands in its place; style: the attribute's quote or the like."""

    source: str
    style: str


class WordsInMarkup:
    """The words of a document, as a reader finds them."""

    def __init__(self, document: str):
        # Nobody can write a document that holds its own digest, so that a mark is found where it was put.
        self._name = "heed" + hashlib.blake2b(document.encode(errors="replace"), digest_size=12).hexdigest()
        self._n_marks = 0
        self.items: list[Item] = []

    def mark(self, words: list[Item], source: str, style: str = "") -> str:
        """What goes in the place of `source`, whose words these are."""
        self._n_marks += 1
        mark = _Beginning(f"{self._name}x{self._n_marks}x")
        mark.source, mark.style = source, style
        self.items += [Tag("cut", mark), *words]
        return mark


def divide_words(items: list[Item], *, of_attributes: bool = False) -> tuple[list[Item], list[Item]]:
    """The items of a document, and those of the words in its markup, or in attributes only."""
    parts: tuple[list[Item], list[Item]] = ([], [])
    is_within = False
    for item in items:
        if (beginning := _beginning(item)) is not None:
            is_within = bool(beginning.style) or not of_attributes
        parts[is_within].append(item)
    return parts


def with_words(document: str, words: list[Item], write: Callable[[list[Item], str, str], str]) -> str:
    """The document with its words in the marks' places. write: of the words, the style and the source."""
    written: dict[str, str] = {}
    last = len(words)
    for place in range(len(words) - 1, -1, -1):
        if (beginning := _beginning(words[place])) is not None:
            written[beginning] = write(words[place + 1 : last], beginning.style, beginning.source)
            last = place
    if not written:
        return document
    marks = re.compile(next(iter(written)).split("x")[0] + r"x\d+x")

    # The words of HTML within Markdown hold marks themselves.
    def fill(text: str) -> str:
        return marks.sub(lambda match: fill(written[match[0]]), text)

    return fill(document)


def _beginning(item: Item) -> _Beginning | None:
    return item.markup if isinstance(item, Tag) and isinstance(item.markup, _Beginning) else None
