"""Texts of Office that are runs, each of a format (PowerPoint's paragraphs, Excel's strings) ↔ items.

The commonest format is plain text, any other is an element that its words take along. A text whose words stay keeps its
bytes.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from heed.apps.documents.formats.texts import Text
from heed.apps.documents.formats.xml_tokens import XMLDocument, XMLToken, words_of, write_xml
from heed.apps.documents.text.items import Item, Tag

# What of a run's properties is of spelling, not of how it looks.
_OF_SPELLING = re.compile(r"""\s(?:lang|altLang|dirty|err|smtClean|noProof|bmk)\s*=\s*(?:"[^"]*"|'[^']*')""")


_FIXED = frozenset(("pPr", "endParaRPr"))  # stays before or behind the runs
_ENDS = frozenset(("br", "tab"))  # ends a sentence
_WORDS = frozenset(("t", "v"))  # holds the words of a run, or those of a cell
_READING = frozenset(("rPh", "phoneticPr"))  # of the source's words alone


class FormatEdge(NamedTuple):
    """Where words of a format begin or end."""

    key: str
    begins: bool


Node = tuple[str | None, Item]  # words and the format that they are in; None and a tag that is in none


def with_formats(nodes: Iterable[Node], plain: str) -> list[Item]:
    """The items, in which words in another format than the plain one are elements; things between them stay within."""
    items: list[Item] = []
    waiting: list[Item] = []  # things behind the last word of a format, which are in it if it goes on
    current = plain

    def end_format() -> None:
        nonlocal current
        if current != plain:
            items.append(Tag("close", FormatEdge(current, False), current))
            current = plain
        items.extend(waiting)
        waiting.clear()

    for key, item in nodes:
        if key is None and isinstance(item, Tag) and item.kind == "atom":
            waiting.append(item)
            continue
        if key is None or key != current:
            end_format()
        items += waiting
        waiting.clear()
        if key is not None and key != current:
            current = key
            items.append(Tag("open", FormatEdge(key, True), key))
        items.append(item)
    end_format()
    return items


@dataclass
class Runs:
    """A text: its items, and what is needed to write them.

    start, end: the places of its element's tags. before, behind: what stands in it around the runs. formats: the markup
    around the words of a run, by format. plain: the format of most words.
    """

    start: int
    end: int
    items: list[Item] = field(default_factory=list)
    formats: dict[str, tuple[str, str]] = field(default_factory=dict)
    plain: str = ""
    before: str = ""
    behind: str = ""

    def text(self, document: XMLDocument, write: Callable[[list[Item]], str]) -> Text:
        """The text of the document, as `write` writes it."""
        start, end = document.at(self.start + 1), document.at(self.end)
        return Text(start=start, end=end, items=self.items, write=write, raw=document.content(self.start))

    def write(self, items: list[Item], *, keeps_spaces: bool = False) -> str:
        """The content of its element with these items. keeps_spaces: the element of words says that spaces count."""
        parts: list[str] = []
        words: list[Item] = []
        current = self.plain

        def end_run() -> None:
            if text := write_xml(words):
                opening, closing = self.formats[current]
                if keeps_spaces and text != text.strip() and "xml:space" not in opening:
                    opening = f'{opening[:-1]} xml:space="preserve">'
                parts.append(f"{opening}{text}{closing}")
            words.clear()

        for item in items:
            if isinstance(item, Tag) and isinstance(item.markup, FormatEdge):
                end_run()
                current = item.markup.key if item.markup.begins else self.plain
            elif isinstance(item, Tag) and item.markup.startswith("<") and item.kind != "spelling":
                end_run()
                parts.append(item.markup)
            else:
                words.append(item)
        end_run()
        return f"{self.before}{''.join(parts)}{self.behind}"


def read_runs(document: XMLDocument, start: int, *, words: Callable[[XMLToken], list[Item]] = words_of) -> Runs | None:
    """The text of the element whose tag is at `start`; None if it has no runs. words: the items of a text within it."""
    tokens, end = document.tokens, document.tokens[start].end
    runs = Runs(start, end)
    nodes: list[Node] = []
    weights = Counter[str]()
    place = start + 1
    while place < end:
        token = tokens[place]
        if token.kind != "open":
            place += 1
            continue
        raw = document.raw(place, token.end + 1)
        if token.local == "r" or token.local in _WORDS:
            opening, own, closing = _run(document, place, words)
            key = _OF_SPELLING.sub("", opening)
            runs.formats.setdefault(key, (opening, closing))
            weights[key] += sum(len(item) for item in own if isinstance(item, str))
            nodes += [(key, item) for item in own]
        elif token.local in _FIXED:
            if nodes:
                runs.behind += raw
            else:
                runs.before += raw
        elif token.local not in _READING:
            nodes.append((None, Tag("cut" if token.local in _ENDS else "atom", raw)))
        place = token.end + 1
    if not weights:
        return None
    runs.plain = max(weights, key=lambda key: weights[key])
    runs.items = with_formats(nodes, runs.plain)
    return runs


def _run(document: XMLDocument, place: int, words: Callable[[XMLToken], list[Item]]) -> tuple[str, list[Item], str]:
    """The markup before the words of a run, the words, and the markup behind them."""
    tokens, end = document.tokens, document.tokens[place].end
    first = place
    if tokens[place].local not in _WORDS:
        first = next((i for i in range(place + 1, end) if tokens[i].kind == "open" and tokens[i].local == "t"), -1)
    if first < 0:  # a run without words
        return document.raw(place, end + 1), [], ""
    stop = tokens[first].end
    opening, closing = document.raw(place, first + 1), document.raw(stop, end + 1)
    if opening.endswith("/>"):
        name = re.match(r"<([^\s/>]+)", tokens[first].markup)
        assert name
        opening, closing = f"{opening[:-2]}>", f"</{name[1]}>{document.raw(first + 2, end + 1)}"
    return opening, [item for token in tokens[first + 1 : stop] for item in words(token)], closing
