"""A text of a .docx ↔ items (ECMA-376, part 1: WordprocessingML).

A run of the commonest format of a text is plain, any other one is an element that its words take along. A sentence ends
where Word shows an end: at a paragraph's end, a line break, a tab. What no words are written in keeps its bytes.
"""

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from heed.apps.documents.formats.html import spelled_words
from heed.apps.documents.formats.html_tokens import CDATA
from heed.apps.documents.formats.office_runs import FormatEdge, Found, with_formats
from heed.apps.documents.formats.plain_text import COLUMNS
from heed.apps.documents.formats.texts import Edit, Edits, Span, flat
from heed.apps.documents.formats.xml_tokens import XMLDocument, XMLToken, write_xml
from heed.apps.documents.text.halves import Half, divided, rejoined
from heed.apps.documents.text.items import EVERY_LINE, Item, Tag, paired, with_read
from heed.apps.documents.text.sentences import needs_translation
from heed.errors import HeedError

MAX_COPIED = 2**20  # characters of formats that are copied, besides four times those of the document
MAX_FIELDS = 8  # fields within each other; the words of deeper ones stay as they are
MAX_REFERENCE = 200  # characters of a reference or a citation that the model reads
MAX_NUMBER = 20  # characters of a field's number, such as a page's, that the model reads
MAX_SPLIT = 6  # holders within each other that an end closes and opens again
WORD = frozenset(
    ("http://schemas.openxmlformats.org/wordprocessingml/2006/main", "http://purl.oclc.org/ooxml/wordprocessingml/main")
)
_JOINT = -2  # in place of a run: the text continues in another paragraph
# What may be within a paragraph and holds runs. What is not here stands between words.
_HOLDERS = frozenset("hyperlink smartTag ins moveTo sdt customXml dir bdo fldSimple".split())
_PROPERTIES = frozenset("pPr sdtPr sdtEndPr customXmlPr smartTagPr".split())  # of what holds runs
# What ends a sentence, in a run and outside of it. The marks of notes and comments stay before their first word.
_ENDS = frozenset(
    "br cr tab ptab footnoteRef endnoteRef annotationRef separator continuationSeparator oMathPara".split()
)
_PARTS_OF_FIELDS = frozenset(("fldChar", "instrText"))
_HYPHENS = {"noBreakHyphen": "-", "softHyphen": ""}  # part of a word
_OF_SPELLING = frozenset(("lang", "noProof"))  # properties of a run that are not of how it looks
_CODE = re.compile(
    r"(?:html|source|inline)?[ _-]?(?:code|verbatim|preformatted|keyboard|sample|typewriter|macro)"
    r"[ _-]?(?:char|text|block|inline)?",
    re.IGNORECASE,
)
_NAME = re.compile(r"<([^\s/>]*?)r(?=[\s/>])")  # of a run, with its prefix
_RANGE = re.compile(r"(?P<kind>.*?)(?:Range)?(?P<end>Start|End)")  # marks that begin and end one
_BEFORE_NOTE = (".", "!", "?", ",", ";", ":", ")", '"', "”")  # before the number of a note
_WORD_WITH_HYPHENS = re.compile(r"[\w-]+")

Piece = tuple[int, int]  # the places of a run and of an element in it; −1 and an element that is in no run


Parts = list["str | Span | DocxText"]


@dataclass(eq=False)
class Markup:
    """What a tag stands for. mark: of a range: its key, and whether it begins there. joint: between two paragraphs.

    closing: of what opens a holder, which closes it. height: of holders with an end within each other, down from it.
    """

    parts: Parts
    mark: tuple[str, bool] | None = None
    joint: bool = False
    closing: "Markup | None" = None
    height: int = 0


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

    def around(self, text: str) -> Parts:
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
                if run != _JOINT and inner >= 0:
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

    def resolved(self, parts: "Iterable[str | Span | DocxText]", edits: Edits) -> str:
        """The parts as text. HeedError once all are far longer than the document, by copies of runs."""
        texts: list[str] = []
        for part in parts:
            if isinstance(part, Span):
                texts.append(edits.changed(part))
            else:
                texts.append(part if isinstance(part, str) else part.written)
            self._left -= len(texts[-1])
            if self._left < 0:
                raise HeedError(f"{self._name}: its runs have too many properties.")
        return "".join(texts)


def _thing(parts: Parts, *, is_end: bool = False, shown: str = "") -> Found:
    """A thing between words, which ends the sentence if `is_end`. shown: the words that the model reads for it."""
    return (None, Tag("cut", Markup(parts), "end") if is_end else Tag("atom", Markup(parts), text=shown))


def _is_end(tag: Tag) -> bool:
    return tag.name == "end"


class DocxText:
    """Words that are one text: a paragraph, or what a field in it shows. Read into items, and written from them.

    span: where it stands; None for pieces of the text around it. within: the texts in it, once it is read.
    """

    def __init__(self, part: Part, pieces: list[Piece], *, span: Span | None = None, depth: int = 0, cap: int = -1):
        """cap: the paragraph before it whose large letter is its first one. depth: fields that it is in."""
        self._part, self._pieces, self.span, self._depth, self._cap = part, pieces, span, depth, cap
        # The words of alternatives are texts within this one.
        others = (
            part.document.raw(child, part.stop(child)) for run, child in pieces if self._has_alternatives(run, child)
        )
        every = [part.words_of(pieces), *(re.sub(r"<[^<>]*+>", "", other) for other in others)]
        self.has_words = needs_translation(" ".join(every))
        self.items: list[Item] = []
        self.within: list[DocxText] = []
        self.written = ""
        self._formats: dict[str, Run] = {}
        self._plain = ""
        self._hyphens: dict[str, deque[list[tuple[int, str]]]] = {}
        self._cap_is_joined = False  # its letter and the first ones of the text are one word

    @classmethod
    def of_paragraphs(cls, part: Part, paragraphs: Sequence[int], *, cap: int = -1) -> "DocxText":
        """One text that continues through several paragraphs."""
        pieces = list(part.pieces(paragraphs[0]))
        for paragraph in paragraphs[1:]:
            pieces += [(_JOINT, paragraph), *part.pieces(paragraph)]
        document = part.document
        end = document.at(document.tokens[paragraphs[-1]].end)
        return cls(part, pieces, span=Span(part.content_start(paragraphs[0]), end), cap=cap)

    @classmethod
    def of_content(cls, part: Part, element: int, *, depth: int) -> "DocxText":
        """The text that is all of an element."""
        end = part.document.at(part.document.tokens[element].end)
        span = Span(part.content_start(element), end)
        return cls(part, list(part.pieces(element)), span=span, depth=depth)

    # Reading

    def read(self) -> None:
        """Sets its items, and the texts within it."""
        found = self._nodes(self._pieces, self._depth)
        self._find_hyphens(found)
        if self._cap >= 0:
            place, key, first = next(
                (i, key, item) for i, (key, item) in enumerate(found) if isinstance(item, str) and item
            )
            self._cap_is_joined = first[:1].isalnum()
            found[place] = (key, self._part.words(self._cap) + first)
        weights = Counter[str]()
        for key, item in found:
            if key is not None and isinstance(item, str):
                weights[key] += len(item)
        self._plain = max(weights, key=lambda key: weights[key]) if weights else ""
        items = divided(with_formats(found, self._plain), _is_end, _half)
        self.items = paired(items, _mark)

    def _nodes(self, pieces: Sequence[Piece], depth: int) -> list[Found]:
        """Words with their formats, things, and tags of holders."""
        ends = self._ends_of_fields(pieces)
        found: list[Found] = []
        place = 0
        while place < len(pieces):
            if place in ends:
                separator, end = ends[place]
                found += self._field(pieces[place : end + 1], separator - place, depth)
                place = end + 1
                continue
            run, child = pieces[place]
            if run == _JOINT:
                found.append((None, Tag("break", self._joint(child), EVERY_LINE)))
            elif run >= 0:
                found += self._in_run(run, child, found, depth)
            else:
                found += self._outside_runs(child, depth)
            place += 1
        return found

    def _joint(self, paragraph: int) -> Markup:
        """From the end of the text of one paragraph to the beginning of the next one's."""
        document = self._part.document
        before = paragraph
        while document.tokens[before].kind != "close" or document.tokens[before].local != "p":
            before -= 1
        return Markup([Span(document.at(before), self._part.content_start(paragraph))], joint=True)

    def _in_run(self, run: int, child: int, before: list[Found], depth: int) -> list[Found]:
        part, own, name = self._part, self._part.run(run), self._part.names[child]
        as_it_is = self._runs([(run, child)])
        if name == "t":
            string = part.string(child)
            if not part.is_word(run, child):
                return [_thing(as_it_is, shown=string if own.is_code else "")]
            if own.is_raised and _is_note(string, before):
                return [_thing(as_it_is)]
            # Runs of spaces align columns, which are texts of their own.
            self._formats.setdefault(own.key, own)
            items = with_read(part.items(child), COLUMNS, lambda gap: Tag("cut", Markup(own.around(gap[0])), "end"))
            return [(None if isinstance(item, Tag) and item.kind == "cut" else own.key, item) for item in items]
        if name in _HYPHENS and not own.is_code and not own.is_hidden:
            self._formats.setdefault(own.key, own)
            return [(own.key, _Hyphen(_HYPHENS[name], part.document.raw(child, part.stop(child))))]
        if name == "ruby" and (base := part.container_of(child)) >= 0:
            inner, outer = self._around(child, base)
            head, tail = [own.opening, *inner], [*outer, own.closing]
            return self._holder(head, list(part.pieces(base)), tail, depth=depth, whole=as_it_is)
        # A part of a field that is not whole here, such as a table of contents, is an end too.
        return [_thing(as_it_is, is_end=part.is_end(run, child) or name in _PARTS_OF_FIELDS)]

    def _outside_runs(self, child: int, depth: int) -> list[Found]:
        part = self._part
        whole: Parts = [part.span(child)]
        if self._has_alternatives(-1, child) and depth < MAX_FIELDS:
            self.within += [DocxText.of_content(part, inner, depth=depth + 1) for inner in part.children(child)]
            return [_thing(whole)]
        container = part.container_of(child)
        if container < 0:
            # A checkbox stands before another choice, as a list's marker does.
            markup = Tag("atom", Markup(whole, mark=self._range_of(child)))
            return [_thing(whole, is_end=True)] if part.is_end(-1, child) else [(None, markup)]
        pieces = list(part.pieces(container))
        if part.names[child] == "fldSimple":
            code = part.value(child, "instr")
            if not self._is_read(code, pieces):
                result = DocxText.of_content(part, child, depth=depth + 1)
                return [self._result(code, pieces, result, whole=whole, depth=depth)]
        head, tail = self._around(child, container)
        return self._holder(head, pieces, tail, depth=depth, whole=whole, can_split=container == child)

    def _around(self, element: int, container: int) -> tuple[Parts, Parts]:
        """The markup of an element before and behind what its container holds."""
        document, part = self._part.document, self._part
        end = document.at(document.tokens[container].end)
        return [Span(document.at(element), part.content_start(container))], [Span(end, part.span(element).end)]

    def _holder(
        self,
        head: Parts,
        pieces: Sequence[Piece],
        tail: Parts,
        *,
        depth: int,
        whole: Parts,
        can_split: bool = False,
    ) -> list[Found]:
        """An element that goes where its words go; a thing if it has none. whole: all of it as it is.

        can_split: it may be there twice. Controls and ruby may not: an end within one ends all sentences that touch it.
        So it does in what holds too many others, or each end would cost as much as all that it is in.
        """
        found = self._nodes(pieces, depth)
        tags = [item for _, item in found if isinstance(item, Tag)]
        has_end = any(map(_is_end, tags))
        if not any(isinstance(item, str) and item for _, item in found):
            inner = [part for tag in tags if isinstance(tag.markup, Markup) for part in tag.markup.parts]
            has_texts = any(isinstance(part, DocxText) for part in inner)
            return [_thing([*head, *inner, *tail] if has_texts else whole, is_end=has_end)]
        height = has_end + max((tag.markup.height for tag in tags if tag.kind == "open"), default=0)
        stays_open = any(tag.kind == "cut" and tag.name == "holder" for tag in tags)
        is_cut = has_end and (not can_split or stays_open or height > MAX_SPLIT)
        opening = Markup(head, closing=Markup(tail), height=height)
        first = Tag("cut" if is_cut else "open", opening, "holder")
        return [(None, first), *found, (None, Tag("cut" if is_cut else "close", opening.closing, "holder"))]

    def _runs(self, pieces: Sequence[Piece]) -> Parts:
        """The elements that pieces are in; of a run that has others too, one with these."""
        part = self._part
        parts: Parts = []
        for run, group in groupby(pieces, key=lambda piece: piece[0]):
            children = [part.span(child) for _, child in group]
            if run < 0:
                parts += children
            elif len(children) == part.run(run).n_children:
                parts.append(part.span(run))
            else:
                parts += [part.run(run).opening, *children, part.run(run).closing]
        return parts

    def _has_alternatives(self, run: int, child: int) -> bool:
        return run == -1 and self._part.document.tokens[child].local == "AlternateContent"

    def _range_of(self, child: int) -> tuple[str, bool] | None:
        """The range that a mark begins or ends, and whether it begins it."""
        match = _RANGE.fullmatch(self._part.names[child])
        return (f"{match['kind']} {self._part.value(child, 'id')}", match["end"] == "Start") if match else None

    # Fields

    def _ends_of_fields(self, pieces: Sequence[Piece]) -> dict[int, tuple[int, int]]:
        """Where each whole field begins, its separator (its begin if it has none) and its end."""
        ends: dict[int, tuple[int, int]] = {}
        begun: list[list[int]] = []
        for place, (run, child) in enumerate(pieces):
            if run == _JOINT:
                begun.clear()
            if run < 0 or self._part.names[child] != "fldChar":
                continue
            kind = self._part.value(child, "fldCharType")
            if kind == "begin":
                begun.append([place, place])
            elif kind == "separate" and begun:
                begun[-1][1] = place
            elif kind == "end" and begun:
                begin, separator = begun.pop()
                ends[begin] = (separator, place)
        return ends

    def _field(self, pieces: Sequence[Piece], separator: int, depth: int) -> list[Found]:
        """A complex field: its code, a separator (0: none), what it shows, its end."""
        part, whole = self._part, self._runs(pieces)
        head, shown, tail = pieces[: separator + 1], pieces[separator + 1 : -1], pieces[-1:]
        before = head if separator else pieces
        code = "".join(part.string(child) for _, child in before if part.names[child] == "instrText")
        if not separator:
            return [_thing(whole, is_end=code.split()[:1] == ["FORMCHECKBOX"])]
        around = self._runs(head), self._runs(tail)
        if self._is_read(code, shown) and depth < MAX_FIELDS:
            return self._holder(around[0], shown, around[1], depth=depth + 1, whole=whole, can_split=True)
        result = DocxText(part, list(shown), depth=depth + 1)
        with_result = [*around[0], result, *around[1]]
        return [self._result(code, shown, result, whole=whole, depth=depth, with_result=with_result)]

    def _is_read(self, code: str, shown: Sequence[Piece]) -> bool:
        """Whether what a field shows is read with the sentence around it: a link, or a short reference."""
        text = self._part.words_of(shown)
        return code.upper().split()[:1] == ["HYPERLINK"] or (
            code.split()[:1] in (["REF"], ["PAGEREF"], ["NOTEREF"], ["STYLEREF"])
            and len(text) <= MAX_REFERENCE
            and needs_translation(text)
        )

    def _result(
        self,
        code: str,
        shown: Sequence[Piece],
        result: "DocxText",
        *,
        whole: Parts,
        depth: int,
        with_result: Parts | None = None,
    ) -> Found:
        """A field. Its result is translated separately: Word computes it again, as another text or part of one.

        A citation stays as it is, and the model reads it with its sentence, as it does a short number.
        """
        text = self._part.words_of(shown)
        has_end = any(self._part.is_end(*piece) for piece in self._part.all_pieces(shown))
        is_kept = _is_citation(code) and len(text) <= MAX_REFERENCE and not has_end
        if needs_translation(text) and depth < MAX_FIELDS and not is_kept:
            self.within.append(result)
            return _thing(with_result or whole, is_end=has_end)
        is_number = len(text) <= MAX_NUMBER and not has_end and not needs_translation(text)
        return _thing(whole, is_end=has_end, shown=text.strip() if is_number or is_kept else "")

    # Hyphens of Word's own

    def _find_hyphens(self, found: list[Found]) -> None:
        """Remembers the words with such hyphens, so that a word that stays keeps them."""
        texts: list[str] = []
        marks: deque[tuple[int, str]] = deque()
        length = 0
        for _, item in found:
            if isinstance(item, _Hyphen):
                marks.append((length, item.markup))
            is_gap = isinstance(item, Tag) and item.kind in ("cut", "break")
            texts.append(
                item if isinstance(item, str) else "\n" if is_gap else item.text if item.kind == "spelling" else ""
            )
            length += len(texts[-1])
        if not marks:
            return
        for match in _WORD_WITH_HYPHENS.finditer("".join(texts)):
            own = []
            while marks and marks[0][0] < match.end():
                place, markup = marks.popleft()
                own += [(place - match.start(), markup)] if place >= match.start() else []
            if own:
                self._hyphens.setdefault(match[0].casefold(), deque()).append(own)

    def _with_hyphens(self, text: str) -> Iterator[str | Tag]:
        """The text, and the hyphens in the words that had them."""
        last = 0
        for match in _WORD_WITH_HYPHENS.finditer(text) if self._hyphens else ():
            own = self._hyphens.get(match[0].casefold())
            for place, markup in own.popleft() if own else ():
                place += match.start()
                yield text[last:place]
                yield Tag("atom", markup)
                last = place + text.startswith("-", place) * ("noBreakHyphen" in markup)
        yield text[last:]

    # Writing

    def put(self, items: list[Item], edits: Edits) -> None:
        """Puts these items in its place, with what has changed within them."""
        # What a field in it shows is written with it.
        if flat(items) == flat(self.items) and all(text.span is not None for text in self.within):
            parts = [self.span] if self.span is not None else self._runs(self._pieces)
        else:
            parts = self._parts(self._give_back_cap(items, edits) if self._cap >= 0 else items)
        self.written = self._part.resolved(parts, edits)
        if self.span is not None:
            edits.add(Edit(*self.span, self.written))

    def _parts(self, items: list[Item]) -> Parts:
        """The parts of its content with these items."""
        parts: Parts = []
        words: list[Item] = []
        current = self._plain
        opened: list[Markup] = []  # holders that have begun

        def end_run() -> None:
            if words:
                parts.extend(self._run(self._formats[current], words))
                words.clear()

        for item in _in_order(rejoined(items, _is_end)):
            markup = item.markup if isinstance(item, Tag) else None
            if isinstance(markup, FormatEdge):
                end_run()
                current = markup.key if markup.begins else self._plain
            elif isinstance(markup, Markup):
                end_run()
                if markup.joint:  # holders that are open are opened again in the new paragraph
                    parts += [part for holder in reversed(opened) if holder.closing for part in holder.closing.parts]
                parts += markup.parts
                if markup.joint:
                    parts += [part for holder in opened for part in holder.parts]
                elif markup.closing:
                    opened.append(markup)
                elif opened and markup is opened[-1].closing:
                    opened.pop()
            else:
                words.append(item)
        end_run()
        return parts

    def _run(self, run: Run, words: list[Item]) -> list[str]:
        """A run with these words."""
        parts: list[str] = []
        text: list[Item] = []

        def end_text() -> None:
            if written := write_xml(text):
                parts.extend(run.text(written))
            text.clear()

        for item in words:
            for piece in self._with_hyphens(item) if isinstance(item, str) else (item,):
                if isinstance(piece, Tag) and piece.kind == "atom":
                    end_text()
                    parts.append(piece.markup)
                else:
                    text.append(piece)
        end_text()
        return [run.opening, *parts, run.closing] if parts else []

    def _give_back_cap(self, items: list[Item], edits: Edits) -> list[Item]:
        """The items without the first letter, which goes into the paragraph of the large one."""
        part = self._part
        before = part.words(self._cap).strip()
        # As many letters as there were, or a word if there was one; with the punctuation before them.
        n_letters = str(len(before)) if len(before) == 1 or self._cap_is_joined else ""
        letters = re.compile(rf"\W*+\w{{1,{n_letters}}}")
        left = list(items)
        taken = ""
        for place, item in enumerate(items):
            if isinstance(item, str):
                match = letters.match(item)
                taken += match[0] if match else item
                left[place] = item[match.end() :] if match else ""
                if match:
                    break
        texts = [child for run, child in part.all_pieces(part.pieces(self._cap)) if part.is_word(run, child)]
        for number, child in enumerate(texts):
            span = Span(part.document.at(child + 1), part.document.at(part.document.tokens[child].end))
            edits.add(Edit(*span, "" if number else write_xml([taken.strip()])))
        return [item for item in left if item != ""]


class _Hyphen(str):
    """A hyphen of Word's own, which is part of a word; markup: its element."""

    markup: str

    def __new__(cls, text: str, markup: str) -> "_Hyphen":
        hyphen = super().__new__(cls, text)
        hyphen.markup = markup
        return hyphen


def _half(tag: Tag) -> Half:
    return Half(tag.markup.closing, tag.markup)


def _mark(tag: Tag) -> tuple[str, bool] | None:
    return tag.markup.mark if isinstance(tag.markup, Markup) else None


def _in_order(items: list[Item]) -> list[Item]:
    """The items, where no mark that ends a range stands before the one that begins it."""
    ordered = list(items)
    ends: dict[str, int] = {}
    for place, item in enumerate(items):
        if isinstance(item, Tag) and (mark := _mark(item)):
            key, is_start = mark
            if not is_start:
                ends[key] = place
            elif key in ends:
                end = ends.pop(key)
                ordered[end], ordered[place] = ordered[place], ordered[end]
    return ordered


def _is_note(text: str, before: list[Found]) -> bool:
    """Whether raised signs behind these are the number of a note, not an exponent."""
    last = before[-1][1] if before else None
    number = text.strip("[]()")
    return (
        isinstance(last, str) and last[-1:] in _BEFORE_NOTE and len(number) < 5 and (number.isalnum() or number == "*")
    )


def _is_citation(code: str) -> bool:
    """Whether a field names other works, as Word, EndNote, Zotero and Mendeley write it."""
    words = code.split()[:2]
    return words[:1] == ["CITATION"] or (
        words[:1] == ["ADDIN"] and words[1:] in (["EN.CITE"], ["ZOTERO_ITEM"], ["CSL_CITATION"], ["Mendeley"])
    )
