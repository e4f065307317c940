"""A part of a .docx: its elements, and the runs of its texts (ECMA-376, part 1: WordprocessingML)."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from heed.apps.documents.formats.html import spelled_words
from heed.apps.documents.formats.html_tokens import CDATA
from heed.apps.documents.formats.texts import Edits, Span
from heed.apps.documents.formats.xml_tokens import XMLDocument, XMLToken
from heed.apps.documents.text.items import Item
from heed.errors import HeedError

MAX_COPIED = 2**20  # characters of formats that are copied, besides four times those of the document
WORD = frozenset(
    ("http://schemas.openxmlformats.org/wordprocessingml/2006/main", "http://purl.oclc.org/ooxml/wordprocessingml/main")
)
JOINT = -2  # in place of a run: the text continues in another paragraph
# What may be within a paragraph and holds runs. What is not here stands between words.
_HOLDERS = frozenset("hyperlink smartTag ins moveTo sdt customXml dir bdo fldSimple".split())
_PROPERTIES = frozenset("pPr sdtPr sdtEndPr customXmlPr smartTagPr".split())  # of what holds runs
# What ends a sentence, in a run and outside of it. The marks of notes and comments stay before their first word.
_ENDS = frozenset(
    "br cr tab ptab footnoteRef endnoteRef annotationRef separator continuationSeparator oMathPara".split()
)
_OF_SPELLING = frozenset(("lang", "noProof"))  # properties of a run that are not of how it looks
_CODE = re.compile(
    r"(?:html|source|inline)?[ _-]?(?:code|verbatim|preformatted|keyboard|sample|typewriter|macro)"
    r"[ _-]?(?:char|text|block|inline)?",
    re.IGNORECASE,
)
_NAME = re.compile(r"<([^\s/>]*?)r(?=[\s/>])")  # of a run, with its prefix

Piece = tuple[int, int]  # the places of a run and of an element in it; −1 and an element that is in no run


class Run(NamedTuple):
    """A run: its tag with its properties, its end tag; its format as a key; how many elements are in it."""

    opening: str
    closing: str
    prefix: str
    key: str
    n_children: int
    is_code: bool
    is_hidden: bool
    is_raised: bool

    def text(self, text: str) -> list[str]:
        """An element of text."""
        name = f"{self.prefix}t"
        return [f'<{name} xml:space="preserve">', text, f"</{name}>"]

    def around(self, text: str) -> list[str]:
        """A run of this format with a text."""
        return [self.opening, *self.text(text), self.closing]


def word(token: XMLToken) -> str:
    """The name of an opening tag of Word's, "" for others."""
    space, _, local = token.name.rpartition(" ")
    return local if token.kind == "open" and space in WORD else ""


class Part:
    """A part of the package and its elements."""

    def __init__(self, document: XMLDocument, name: str):
        self.document, self._name = document, name
        self.names = [word(token) for token in document.tokens]
        self._left = MAX_COPIED + 4 * len(document.text)
        self._runs: dict[int, Run] = {}

    def stop(self, place: int) -> int:
        """The place behind an element, or behind what is none."""
        token = self.document.tokens[place]
        return token.end + 1 if token.kind == "open" else place + 1

    def span(self, place: int) -> Span:
        return Span(self.document.at(place), self.document.at(self.stop(place)))

    def children(self, place: int) -> Iterator[int]:
        """The elements in an element, and comments and the like among them."""
        tokens = self.document.tokens
        inner = place + 1
        while place >= 0 and inner < tokens[place].end:
            if tokens[inner].kind in ("open", "other"):
                yield inner
            inner = self.stop(inner)

    def child(self, place: int, name: str) -> int:
        """The first child of a name, −1 if there is none or no element."""
        return next((inner for inner in self.children(place) if self.names[inner] == name), -1)

    def property(self, element: int, name: str) -> int:
        """The property of a paragraph or a run, −1 if it has none of this name."""
        return self.child(self.child(element, "pPr" if self.names[element] == "p" else "rPr"), name)

    def value(self, place: int, name: str = "val") -> str:
        """An attribute, "" if there is none."""
        attributes = self.document.tokens[place].attributes if place >= 0 else {}
        return next((value for key, value in attributes.items() if key.rpartition(" ")[2] == name), "")

    def is_code(self, element: int) -> bool:
        """Whether a run or a paragraph has a style for code, such as HTMLCode or VerbatimChar."""
        style = self.property(element, "pStyle" if self.names[element] == "p" else "rStyle")
        return _CODE.fullmatch(self.value(style)) is not None

    def run(self, place: int) -> Run:
        if place not in self._runs:
            document, properties = self.document, self.child(place, "rPr")
            tag = document.tokens[place].markup
            own = [inner for inner in self.children(properties) if self.names[inner] not in _OF_SPELLING]
            name = _NAME.match(tag)
            vanish = self.child(properties, "vanish")
            self._runs[place] = Run(
                opening=tag + (document.raw(properties, self.stop(properties)) if properties >= 0 else ""),
                closing=document.tokens[document.tokens[place].end].markup,
                prefix=name[1] if name else "",
                key="".join(document.raw(inner, self.stop(inner)) for inner in own),
                n_children=sum(self.names[inner] != "rPr" for inner in self.children(place)),
                is_code=self.is_code(place),
                is_hidden=vanish >= 0 and self.value(vanish) not in ("0", "false", "off"),
                is_raised=self.value(self.child(properties, "vertAlign")) == "superscript",
            )
        return self._runs[place]

    def content_start(self, place: int) -> int:
        """Where an element's content begins, behind its properties."""
        first = next(self.children(place), -1)
        is_properties = first >= 0 and self.names[first] in _PROPERTIES
        return self.document.at(self.stop(first) if is_properties else place + 1)

    def pieces(self, place: int) -> Iterator[Piece]:
        """The pieces of an element's content, run by run."""
        for child in self.children(place):
            if self.names[child] == "r":
                yield from ((child, inner) for inner in self.children(child) if self.names[inner] != "rPr")
            elif self.names[child] not in _PROPERTIES:
                yield -1, child

    def all_pieces(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Pieces and those within them that belong to the same text."""
        # No recursion: a generator within others would pass each piece through all of them.
        levels = [iter(pieces)]
        while levels:
            for run, child in levels[-1]:
                inner = self.container_of(child)
                if run != JOINT and inner >= 0:
                    levels.append(self.pieces(inner))
                    break
                yield run, child
            else:
                levels.pop()

    def container_of(self, place: int) -> int:
        """The element that holds runs of the paragraph's text: this one, or one within it; −1 if there is none."""
        name = self.names[place]
        if name == "ruby":
            return self.child(place, "rubyBase")
        if name == "sdt":
            return -1 if self.is_checkbox(place) else self.child(place, "sdtContent")
        return place if name in _HOLDERS else -1

    def is_checkbox(self, place: int) -> bool:
        if self.names[place] != "sdt":
            return False
        tokens = self.document.tokens
        return any(tokens[inner].local == "checkbox" for inner in self.children(self.child(place, "sdtPr")))

    def string(self, place: int) -> str:
        """The words of an element of text, also those behind a comment."""
        return "".join(item if isinstance(item, str) else item.text for item in self.items(place))

    def items(self, place: int) -> list[Item]:
        within = self.document.tokens[place + 1 : self.document.tokens[place].end]
        texts = (token for token in within if token.kind == "text")
        return [item for one in texts for item in ([one.markup] if one.name == CDATA else spelled_words(one.markup))]

    def is_word(self, run: int, child: int) -> bool:
        if run < 0 or self.names[child] != "t" or not self.string(child):
            return False
        return not (self.run(run).is_code or self.run(run).is_hidden)

    def is_end(self, run: int, child: int) -> bool:
        return self.document.tokens[child].local in _ENDS or (run == -1 and self.is_checkbox(child))

    def words_of(self, pieces: Iterable[Piece]) -> str:
        return "".join(self.string(child) for run, child in self.all_pieces(pieces) if self.is_word(run, child))

    def words(self, paragraph: int) -> str:
        return self.words_of(self.pieces(paragraph))

    def begins_with_words(self, paragraph: int) -> bool:
        """Whether its first words are in no holder, so that a letter may go before them."""
        first = next((piece for piece in self.all_pieces(self.pieces(paragraph)) if self.is_word(*piece)), None)
        return first is not None and first in self.pieces(paragraph)

    def resolved(self, parts: Iterable[str | Span], edits: Edits) -> str:
        """The parts as text. HeedError once all are far longer than the document, by copies of runs."""
        texts: list[str] = []
        for part in parts:
            texts.append(edits.changed(part) if isinstance(part, Span) else part)
            self._left -= len(texts[-1])
            if self._left < 0:
                raise HeedError(f"{self._name}: its runs have too many properties.")
        return "".join(texts)
