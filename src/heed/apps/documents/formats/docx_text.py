"""A text of a .docx ↔ items (ECMA-376, part 1: WordprocessingML).

A run of the commonest format of a text is plain, any other one is an element that its words take along. A sentence ends
where Word shows an end: at a paragraph's end, a line break, a tab. What no words are written in keeps its bytes.
"""

import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from heed.apps.documents.formats.docx_part import JOINT, Part, Piece, Run
from heed.apps.documents.formats.office_runs import FormatEdge, Node, with_formats
from heed.apps.documents.formats.plain_text import COLUMNS
from heed.apps.documents.formats.texts import Edit, Edits, Span, flat
from heed.apps.documents.formats.xml_tokens import write_xml
from heed.apps.documents.text.halves import Half, divided, rejoined
from heed.apps.documents.text.items import EVERY_LINE, Item, Tag, paired, with_read
from heed.apps.documents.text.sentences import needs_translation

MAX_FIELDS = 8  # fields within each other; the words of deeper ones stay as they are
MAX_REFERENCE = 200  # characters of a reference or a citation that the model reads
MAX_NUMBER = 20  # characters of a field's number, such as a page's, that the model reads
MAX_SPLIT = 6  # holders within each other that an end closes and opens again
_PARTS_OF_FIELDS = frozenset(("fldChar", "instrText"))
_HYPHENS = {"noBreakHyphen": "-", "softHyphen": ""}  # part of a word
_RANGE = re.compile(r"(?P<kind>.*?)(?:Range)?(?P<end>Start|End)")  # marks that begin and end one
_BEFORE_NOTE = (".", "!", "?", ",", ";", ":", ")", '"', "”")  # before the number of a note
_WORD_WITH_HYPHENS = re.compile(r"[\w-]+")

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


def _thing(parts: Parts, *, is_end: bool = False, shown: str = "") -> Node:
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
            pieces += [(JOINT, paragraph), *part.pieces(paragraph)]
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
        nodes = self._nodes(self._pieces, self._depth)
        self._find_hyphens(nodes)
        if self._cap >= 0:
            place, key, first = next(
                (i, key, item) for i, (key, item) in enumerate(nodes) if isinstance(item, str) and item
            )
            self._cap_is_joined = first[:1].isalnum()
            nodes[place] = (key, self._part.words(self._cap) + first)
        weights = Counter[str]()
        for key, item in nodes:
            if key is not None and isinstance(item, str):
                weights[key] += len(item)
        self._plain = max(weights, key=lambda key: weights[key]) if weights else ""
        items = divided(with_formats(nodes, self._plain), _is_end, _half)
        self.items = paired(items, _mark)

    def _nodes(self, pieces: Sequence[Piece], depth: int) -> list[Node]:
        """Words with their formats, things, and tags of holders."""
        ends = self._ends_of_fields(pieces)
        nodes: list[Node] = []
        place = 0
        while place < len(pieces):
            if place in ends:
                separator, end = ends[place]
                nodes += self._field(pieces[place : end + 1], separator - place, depth)
                place = end + 1
                continue
            run, child = pieces[place]
            if run == JOINT:
                nodes.append((None, Tag("break", self._joint(child), EVERY_LINE)))
            elif run >= 0:
                nodes += self._in_run(run, child, nodes, depth)
            else:
                nodes += self._outside_runs(child, depth)
            place += 1
        return nodes

    def _joint(self, paragraph: int) -> Markup:
        """From the end of the text of one paragraph to the beginning of the next one's."""
        document = self._part.document
        before = paragraph
        while document.tokens[before].kind != "close" or document.tokens[before].local != "p":
            before -= 1
        return Markup([Span(document.at(before), self._part.content_start(paragraph))], joint=True)

    def _in_run(self, run: int, child: int, before: list[Node], depth: int) -> list[Node]:
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
            items = with_read(part.items(child), COLUMNS, lambda gap: Tag("cut", Markup([*own.around(gap[0])]), "end"))
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

    def _outside_runs(self, child: int, depth: int) -> list[Node]:
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
    ) -> list[Node]:
        """An element that goes where its words go; a thing if it has none. whole: all of it as it is.

        can_split: it may be there twice. Controls and ruby may not: an end within one ends all sentences that touch it.
        So it does in what holds too many others, or each end would cost as much as all that it is in.
        """
        nodes = self._nodes(pieces, depth)
        tags = [item for _, item in nodes if isinstance(item, Tag)]
        has_end = any(map(_is_end, tags))
        if not any(isinstance(item, str) and item for _, item in nodes):
            inner = [part for tag in tags if isinstance(tag.markup, Markup) for part in tag.markup.parts]
            has_texts = any(isinstance(part, DocxText) for part in inner)
            return [_thing([*head, *inner, *tail] if has_texts else whole, is_end=has_end)]
        height = has_end + max((tag.markup.height for tag in tags if tag.kind == "open"), default=0)
        stays_open = any(tag.kind == "cut" and tag.name == "holder" for tag in tags)
        is_cut = has_end and (not can_split or stays_open or height > MAX_SPLIT)
        opening = Markup(head, closing=Markup(tail), height=height)
        first = Tag("cut" if is_cut else "open", opening, "holder")
        return [(None, first), *nodes, (None, Tag("cut" if is_cut else "close", opening.closing, "holder"))]

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
            if run == JOINT:
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

    def _field(self, pieces: Sequence[Piece], separator: int, depth: int) -> list[Node]:
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
    ) -> Node:
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

    def _find_hyphens(self, nodes: list[Node]) -> None:
        """Remembers the words with such hyphens, so that a word that stays keeps them."""
        texts: list[str] = []
        marks: deque[tuple[int, str]] = deque()
        length = 0
        for _, item in nodes:
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
        texts = (part.written if isinstance(part, DocxText) else part for part in parts)
        self.written = self._part.resolved(texts, edits)
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


def _is_note(text: str, before: list[Node]) -> bool:
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
