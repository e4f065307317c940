"""XML whose elements hold texts with inline elements, as OpenDocument's do, ↔ items.

A text within another one, such as a note's, is translated as one of its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from heed.apps.documents.formats.texts import Span, Text
from heed.apps.documents.formats.xml_tokens import XMLDocument, XMLToken, words_of, write_xml
from heed.apps.documents.text.items import Item, Tag

MAX_KEPT = 40  # characters of a field that the model reads with its sentence


@dataclass(frozen=True)
class XMLRules:
    """Which elements, by local name, hold texts, are within a sentence, end it or are white space.

    is_apart: whether an element divides a text, of which it holds a part. is_kept: whether it stays with all in it.
    Others within a text stand between its words; texts in them are translated as texts of their own.
    """

    texts: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()
    is_inline: Callable[[XMLToken], bool] = lambda token: False
    is_apart: Callable[[XMLToken], bool] = lambda token: False
    is_kept: Callable[[XMLToken], bool] = lambda token: False
    spaces: frozenset[str] = frozenset()  # that stand for white space


def texts_of(document: XMLDocument, rules: XMLRules) -> Iterator[Text]:
    """The texts of a document in its order; those within another one come behind it."""
    reader, place = TextReader(document, rules), 0
    while place < len(document.tokens):
        token = document.tokens[place]
        if token.kind == "open" and rules.is_kept(token):
            place = token.end
        elif token.kind == "open" and token.local in rules.texts and place + 1 < token.end:
            yield Text(
                start=document.at(place + 1),
                end=document.at(token.end),
                items=reader.text(place + 1, token.end),
                write=write_xml,
            )
        place += 1


@dataclass(frozen=True)
class TextReader:
    """Reads parts of a document."""

    document: XMLDocument
    rules: XMLRules

    def text(self, first: int, stop: int) -> list[Item]:
        """The items of a text."""
        tokens, rules = self.document.tokens, self.rules
        items: list[Item] = []
        place = first
        while place < stop:
            token = tokens[place]
            if token.kind == "open" and rules.is_apart(token):
                own = self.text(place + 1, token.end)
                items += [Tag("cut", token.markup), *own, Tag("cut", tokens[token.end].markup)]
                place = token.end
            elif token.kind == "open" and rules.is_inline(token) and place + 1 < token.end:
                items.append(Tag("open", token.markup, token.local))
            elif token.kind == "open":
                items.append(self.thing(place))
                place = token.end
            elif token.kind == "close":
                items.append(Tag("close", token.markup, token.local))
            else:
                items += words_of(token)
            place += 1
        return items

    def thing(self, place: int) -> Tag:
        """An element that stands between words; there may be texts in it."""
        tokens, rules = self.document.tokens, self.rules
        token = tokens[place]
        raw = self.document.raw(place, token.end + 1)
        if token.local in rules.ends:
            return Tag("cut", raw)
        if token.local in rules.spaces:  # several align columns, which are texts of their own
            return Tag("cut" if any(int(n) > 1 for n in token.attributes.values() if n.isdecimal()) else "atom", raw)
        within = tokens[place : token.end]
        if rules.is_kept(token):
            return Tag("atom", raw, token.local)
        if not any(one.kind == "open" and one.local in rules.texts for one in within):
            shown = "".join(one.markup for one in within if one.kind == "text")
            return Tag("atom", raw, token.local, shown if len(shown) <= MAX_KEPT else "")
        return Tag("atom", Span(self.document.at(place), self.document.at(token.end + 1)), token.local)
