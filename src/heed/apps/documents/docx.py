"""Word's .docx: the paragraphs of text, headers, footers, notes and comments are translated; all else keeps its bytes.

A run of the commonest format of a paragraph is plain text, any other run is an element that its words take along. A
sentence ends where Word shows an end: at a paragraph's end, a line break, a tab.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from heed.apps.documents.docx_package import MAX_UNPACKED, WORD, read_package
from heed.apps.documents.items import MAX_DEPTH, Item, Tag
from heed.apps.documents.sentences import Splitter, needs_translation
from heed.apps.documents.translation import Asking, translating_items
from heed.errors import HeedError

MAX_COPIED = 2**20  # bytes of formats that are copied, besides four times those of the text
MAX_FIELDS = 8  # fields within each other; the words of deeper ones stay as they are
MAX_NUMBER = 20  # characters of a field's number, such as a page's, that the model reads
MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
SPACE = "{http://www.w3.org/XML/1998/namespace}space"
ALTERNATIVES = "{http://schemas.openxmlformats.org/markup-compatibility/2006}AlternateContent"


def _word(names: str) -> frozenset[str]:
    return frozenset(WORD + name for name in names.split())


# What may be within a paragraph and holds runs. What is not here stands between words.
_HOLDERS = _word("hyperlink smartTag ins moveTo sdt customXml dir bdo fldSimple")
_BLOCKS = _word("p tbl sdt sectPr")
_PROPERTIES = _word("pPr sdtPr sdtEndPr customXmlPr smartTagPr")  # of what holds runs
# What ends a sentence, in a run and outside of it. The marks of notes and comments stay before their first word.
_ENDS = _word("br cr tab ptab footnoteRef endnoteRef annotationRef separator continuationSeparator") | {
    MATH + "oMathPara"
}
_PARTS_OF_FIELDS = _word("fldChar instrText")
_HYPHENS = {WORD + "noBreakHyphen": "-", WORD + "softHyphen": ""}  # part of a word
# Marks that begin and end a range, by the name of what they mark.
_RANGE = re.compile(r"(?P<kind>.*?)(?:Range)?(?P<end>Start|End)")
_WORD_WITH_HYPHENS = re.compile(r"[\w-]+")


def translating_docx(content: bytes, *, split: Splitter, name: str, max_xml: int = MAX_UNPACKED) -> Asking[bytes]:
    """The document in the other language. HeedError, which calls it `name`, if it is damaged, too large or hostile.

    max_xml: bytes of the parts with text, which take many times as much memory.
    """
    package = read_package(content, name=name, max_xml=max_xml)
    copier = _Copier(package.n_xml, name)
    texts: list[_Text] = []
    items: list[Item] = []
    changed: set[str] = set()
    # All at once, which a search translates faster than one after the other.
    for part, root in package.parts.items():
        for text in _texts(root, copier):
            changed.add(part)
            texts.append(text)
            items += [*text.items, Tag("cut", text)]
    own: list[Item] = []
    for item in (yield from translating_items(items, split=split)):
        if isinstance(item, Tag) and isinstance(item.markup, _Text):
            item.markup.translated = own
            own = []
        else:
            own.append(item)
    for text in reversed(texts):  # those within others first
        text.write()
    return package.written(changed)


def _texts(root: Any, copier: "_Copier") -> Iterator["_Text"]:
    """The paragraphs of a part that have words, each followed by the texts within it, such as a field's."""
    done: set[Any] = set()
    for paragraph in list(root.iter(WORD + "p")):
        if paragraph in done:
            continue
        cap, first = None, paragraph
        if _is_dropped_cap(paragraph) and (following := _next(paragraph)) is not None and _is_text_first(following):
            # The words are those of the paragraph behind it, and its first letter goes back into this one.
            cap, first = paragraph, following
            done.add(first)
        joined, last = [], first
        while _is_end_deleted(last) and (following := _next(last)) is not None and _string_of(following).strip():
            joined.append(following)
            last = following
        done.update(joined)
        waiting = deque([_Text(first, copier, cap=cap, joined=joined)])
        while waiting:
            text = waiting.popleft()
            if text.has_words:
                text.read()
                yield text
                waiting.extend(text.within)


class _Copier:
    """Makes runs in the format of others. HeedError once the copies would take far more than the document."""

    def __init__(self, n_bytes: int, name: str):
        """n_bytes: of the document's text."""
        self._left, self._name = MAX_COPIED + 4 * n_bytes, name

    def run_with(self, run: Any, children: Sequence[Any]) -> Any:
        """A run of the same format with other content."""
        properties = run.find(WORD + "rPr")
        self._pay(run, [] if properties is None else [properties])
        copy = _emptied(run)
        if properties is not None:
            copy.append(deepcopy(properties))
        copy.extend(children)
        return copy

    def copy(self, element: Any, children: Sequence[Any]) -> Any:
        """The element once more, with copies of these of its children."""
        self._pay(element, children)
        copy = _emptied(element)
        copy.extend(deepcopy(child) for child in children)
        return copy

    def _pay(self, element: Any, children: Sequence[Any]) -> None:
        from lxml import etree

        self._left -= sum(len(key) + len(value) for key, value in element.attrib.items())
        # Without the namespaces of the document, which are written once.
        self._left -= sum(len(etree.tostring(child, method="c14n", exclusive=True)) for child in children)
        if self._left < 0:
            raise HeedError(f"{self._name}: its runs have too many properties.")


def _emptied(element: Any) -> Any:
    return element.makeelement(element.tag, dict(element.attrib), nsmap={element.prefix: WORD[1:-1]})


# What a text consists of, in the order of the document.


@dataclass(eq=False)
class _Words:
    """Words in the format of a run."""

    run: Any
    text: str


@dataclass(eq=False)
class _Thing:
    """What stands between words, or ends the sentence if `is_end`.

    parts: its elements; a `_Text` stands for its own, once it is translated. number: the words that it shows, if they
    are the same in any language. path: what it is in.
    """

    parts: list[Any]
    is_end: bool = False
    number: str = ""
    path: tuple["_Holder", ...] = ()
    joint: "_Joint | None" = None  # it stands for the end of a paragraph within a text


@dataclass(eq=False)
class _Holder:
    """What its words take along: an element that holds runs, or a link that is a field, from its code to its end.

    The content goes between head and tail, or, if there is a container, into this: an element that is the head or in
    it.
    """

    head: list[Any]
    content: list["_Node"]
    container: Any = None
    tail: list[Any] = field(default_factory=list)
    is_written: bool = False
    has_end: bool = field(init=False)
    stays_open: bool = field(init=False)  # where it holds an end, and cannot be closed there and opened again

    def __post_init__(self) -> None:
        inner = [node for node in self.content if isinstance(node, _Holder)]
        self.has_end = any(i.has_end for i in inner) or any(isinstance(n, _Thing) and n.is_end for n in self.content)
        # Controls and ruby are not written twice: an end within one ends all sentences that touch it.
        can_split = self.container is None or self.container is self.head[0]
        self.stays_open = self.has_end and (not can_split or any(i.stays_open for i in inner))

    def around(self, content: list[Any], copier: "_Copier") -> list[Any]:
        """Its elements with this content; from the second time on copies of them."""
        again, self.is_written = self.is_written, True
        if self.container is None:
            if again:
                return [
                    *(copier.copy(element, element) for element in self.head),
                    *content,
                    *(copier.copy(element, element) for element in self.tail),
                ]
            return [*self.head, *content, *self.tail]
        if again:
            copy = copier.copy(self.container, [child for child in self.container if child.tag in _PROPERTIES])
            copy.extend(content)
            return [copy]
        _set_children(self.container, content)
        return self.head


@dataclass(eq=False)
class _Hyphen(_Words):
    """A hyphen of Word's own, which is part of a word."""

    tag: str


@dataclass(eq=False)
class _Joint:
    """Where a text goes on in another paragraph, like an element that has no tag."""

    paragraph: Any
    tag: str = ""


_Node = _Words | _Thing | _Holder
_Piece = tuple[Any, Any]  # a run and an element in it; None and an element that is in no run


class _Text:
    """Words that are one text: a paragraph, or what a field in it shows. Read into items, and written from them."""

    def __init__(self, container: Any, copier: _Copier, *, pieces: list[_Piece] | None = None, depth: int = 0,
                 cap: Any = None, joined: Sequence[Any] = ()):  # fmt: skip
        """container: the element of the text; None for `pieces` of the text around it. cap: the paragraph before it
        whose large letter is its first one. joined: the paragraphs behind it that go on with its text. depth: fields
        that it is in.
        """
        self._container, self._copier, self._depth, self._cap = container, copier, depth, cap
        self._joined = joined
        self._pieces = list(_pieces(container)) if pieces is None else pieces
        for paragraph in joined:
            self._pieces += [(None, _Joint(paragraph)), *_pieces(paragraph)]
        words = [(run, child) for run, child in _all_pieces(self._pieces) if _is_word(run, child)]
        # The words of alternatives are texts within this one.
        others = ("".join(child.itertext()) for run, child in self._pieces if run is None and child.tag == ALTERNATIVES)
        self.has_words = needs_translation(" ".join([*(_string(child) for _, child in words), *others]))
        self._formats: dict[Any, bytes] = {}
        weights = Counter[bytes]()
        for run, child in words:
            weights[self._format(run)] += len(_string(child))
        self._plain = max(weights, key=lambda key: weights[key]) if weights else b""
        self._model = next((run for run, _ in words if self._format(run) == self._plain), None)
        self._hyphens: dict[str, list[list[tuple[int, str]]]] = {}
        self.items: list[Item] = []
        self.translated: list[Item] = []
        self.within: list[_Text] = []
        self.elements: list[Any] = []  # what it was written as
        self._cap_is_joined = False  # its letter and the first ones of the text are one word

    def _format(self, run: Any) -> bytes:
        if run not in self._formats:
            self._formats[run] = _format(run)
        return self._formats[run]

    def read(self) -> None:
        """Sets its items, which are taken out of the document, and the texts within it."""
        nodes = self._nodes(self._pieces, self._depth)
        self._find_hyphens(nodes)
        if self._cap is not None:
            first = next(node for node in nodes if isinstance(node, _Words) and node.text)
            self._cap_is_joined = first.text[:1].isalnum()
            first.text = _string_of(self._cap) + first.text
        writer = _ItemWriter(self._format, self._plain)
        writer.add(nodes, ())
        self.items = _with_ranges(writer.finished())

    # Reading

    def _nodes(self, pieces: list[_Piece], depth: int) -> list[_Node]:
        ends = _ends_of_fields(pieces)
        nodes: list[_Node] = []
        place = 0
        while place < len(pieces):
            run, child = pieces[place]
            if place in ends:
                separator, end = ends[place]
                nodes.append(self._field(pieces[place : end + 1], separator - place, depth))
                place = end + 1
                continue
            joint = _Thing([], joint=child) if isinstance(child, _Joint) else None
            nodes.append(joint or self._node(run, child, depth))
            place += 1
        return nodes

    def _node(self, run: Any, child: Any, depth: int) -> _Node:
        if run is not None:
            if child.tag == WORD + "t":
                return _Words(run, _string(child))
            if child.tag in _HYPHENS:
                return _Hyphen(run, _HYPHENS[child.tag], child.tag)
            if (base := _container(child)) is not None:  # ruby's
                return self._holder(self._runs([(run, child)]), list(_pieces(base)), base, depth)
            # A part of a field that is not whole here, such as a table of contents, is an end too.
            return _Thing(self._runs([(run, child)]), _is_end(run, child) or child.tag in _PARTS_OF_FIELDS)
        if child.tag == ALTERNATIVES and depth < MAX_FIELDS:
            for alternative in child:
                self.within.append(_Text(alternative, self._copier, depth=depth + 1))
            return _Thing([child])
        if child.tag not in _HOLDERS:
            return _Thing([child], _is_end(run, child))
        if _is_checkbox(child):
            return _Thing([child], is_end=True)  # it stands before another choice, as the sign of a list does
        container = _container(child)
        if container is None:
            return _Thing([child])
        pieces = list(_pieces(container))
        if child.tag == WORD + "fldSimple" and not _is_link(child.get(WORD + "instr", "")):
            return self._result([child], pieces, child, depth)
        return self._holder([child], pieces, container, depth)

    def _holder(self, head: list[Any], pieces: list[_Piece], container: Any, depth: int,
                tail: Sequence[Any] = ()) -> _Node:  # fmt: skip
        """What holds no words is a thing between them."""
        every = list(_all_pieces(pieces))
        if any(_is_word(*piece) for piece in every):
            return _Holder(head, self._nodes(pieces, depth), container, list(tail))
        content = [] if container is not None else self._runs(pieces)
        return _Thing([*head, *content, *tail], any(_is_end(*piece) for piece in every) or _has_part_of_field(every))

    def _field(self, pieces: list[_Piece], separator: int, depth: int) -> _Node:
        """A complex field: its code, a separator (0: none), what it shows, its end."""
        if not separator:
            code = _code(pieces)
            return _Thing(self._runs(pieces), is_end=code.split()[:1] == ["FORMCHECKBOX"])
        head, shown, tail = pieces[: separator + 1], pieces[separator + 1 : -1], pieces[-1:]
        if _is_link(_code(head)) and depth < MAX_FIELDS:
            return self._holder(self._runs(head), shown, None, depth + 1, self._runs(tail))
        return self._result(self._runs(head), shown, None, depth, self._runs(tail))

    def _result(self, head: list[Any], shown: list[_Piece], container: Any, depth: int,
                tail: Sequence[Any] = ()) -> _Thing:  # fmt: skip
        """What a field shows is a text of its own: Word computes it again, as another text or part of one."""
        every = list(_all_pieces(shown))
        text = "".join(_string(child) for run, child in every if _is_word(run, child))
        is_end = any(_is_end(*piece) for piece in every)
        if needs_translation(text) and depth < MAX_FIELDS:
            self.within.append(_Text(container, self._copier, pieces=shown, depth=depth + 1))
            return _Thing([*head, *([self.within[-1]] if container is None else []), *tail], is_end)
        number = text.strip() if len(text) <= MAX_NUMBER and not is_end and not needs_translation(text) else ""
        return _Thing([*head, *([] if container is not None else self._runs(shown)), *tail], is_end, number)

    def _runs(self, pieces: list[_Piece]) -> list[Any]:
        """The elements that pieces are in; of a run that has others too, one with these."""
        elements: list[Any] = []
        for run, group in groupby(pieces, key=lambda piece: piece[0]):
            children = [child for _, child in group]
            if run is None:
                elements += children
            elif len(children) == sum(child.tag != WORD + "rPr" for child in run):
                elements.append(run)
            else:
                elements.append(self._copier.run_with(run, children))
        return elements

    def _find_hyphens(self, nodes: list[_Node]) -> None:
        """Remembers the words with hyphens of Word's own, so that a word that stays keeps them."""
        text, marks = [], []
        length = 0
        for node in _flat(nodes):
            if isinstance(node, _Hyphen):
                marks.append((length, node.tag))
            text.append(node.text if isinstance(node, _Words) else "\n" if node.is_end or node.joint else "")
            length += len(text[-1])
        if not marks:
            return
        for match in _WORD_WITH_HYPHENS.finditer("".join(text)):
            own = [(place - match.start(), tag) for place, tag in marks if match.start() <= place < match.end()]
            if own:
                self._hyphens.setdefault(match[0].casefold(), []).append(own)

    # Writing

    def write(self) -> None:
        """Puts the translated items in the place of its content."""
        tree = _Tree(self._model, self._run)
        for item in _in_order(self.translated):
            tree.add(item)
        paragraphs = tree.finished(self._copier)
        self.elements = paragraphs[None]
        if self._container is not None:
            _set_children(self._container, self.elements)
        for paragraph in self._joined:
            _set_children(paragraph, paragraphs.get(paragraph, []))
        if self._cap is not None:
            self._give_back_cap()

    def _run(self, model: Any, text: str) -> Any:
        """A run in the format of another with this text."""
        last, children = 0, []
        for match in _WORD_WITH_HYPHENS.finditer(text) if self._hyphens else ():
            own = self._hyphens.get(match[0].casefold())
            for place, tag in own.pop(0) if own else ():
                place += match.start()
                children += [_text_element(model, text[last:place]), model.makeelement(tag)]
                last = place + len(_HYPHENS[tag])
        children.append(_text_element(model, text[last:]))
        return self._copier.run_with(model, [child for child in children if child.tag in _HYPHENS or child.text])

    def _give_back_cap(self) -> None:
        """The first letter goes into the paragraph of the large one."""
        before = _string_of(self._cap).strip()
        # As many letters as there were, or a word if there was one; with the signs before them.
        n_letters = str(len(before)) if len(before) == 1 or self._cap_is_joined else ""
        letters = re.compile(rf"\s*\W*\w{{1,{n_letters}}}")
        taken = ""
        for element in self._container.iter(WORD + "t"):
            text = _string(element)
            match = letters.match(text)
            taken += match[0] if match else text
            element.text = text[match.end() :] if match else ""
            if match:
                break
        places = [child for run, child in _all_pieces(_pieces(self._cap)) if _is_word(run, child)]
        for i, element in enumerate(places):
            element.text = taken.strip() if i == 0 else ""


class _ItemWriter:
    """Nodes → items: at an end within a format or a link, this is closed, and opened again behind the end."""

    def __init__(self, format_of: Callable[[Any], bytes], plain: bytes):
        self._format_of, self._plain = format_of, plain
        self._items: list[Item] = []
        self._open: list[_Holder] = []
        self._run: Any = None  # whose format is open
        self._waiting: list[Tag] = []  # things behind the last word of a format, which are in it if it goes on

    def add(self, nodes: list[_Node], path: tuple[_Holder, ...]) -> None:
        """path: what the nodes are in."""
        for node in nodes:
            if isinstance(node, _Words):
                if not node.text:
                    continue
                self._begin(path)
                is_plain = (format := self._format_of(node.run)) == self._plain
                if self._run is not None and (is_plain or self._format_of(self._run) != format):
                    self._end_format()
                self._flush()
                if self._run is None and not is_plain:
                    self._run = node.run
                    self._items.append(Tag("open", node.run, "run"))
                self._items.append(node.text)
            elif isinstance(node, _Thing):
                node.path = path
                if node.joint:
                    self._end(0)
                    self._items.append(Tag("break", node))
                    continue
                if not node.is_end:
                    self._begin(path)
                    self._waiting.append(Tag("atom", node, text=node.number))
                    continue
                self._end(sum(holder.stays_open for holder in path))
                self._items.append(Tag("cut", node))
            else:
                within = (*path, node)
                if node.stays_open:
                    self._begin(path)
                    self._end(len(path))
                    self._items.append(Tag("cut", node, "holder"))
                    self._open.append(node)
                self.add(node.content, within)
                if node.stays_open:
                    self._end(len(within))
                    self._items.append(Tag("cut", node, "holder"))
                    self._open.pop()
                elif self._open == list(within):
                    self._end(len(path))

    def finished(self) -> list[Item]:
        """All items."""
        self._end(0)
        return self._items

    def _begin(self, path: tuple[_Holder, ...]) -> None:
        """Opens what of a path is not open."""
        for holder in path[len(self._open) :]:
            self._end_format()
            self._flush()
            self._open.append(holder)
            self._items.append(Tag("open", holder, "holder"))

    def _end(self, depth: int) -> None:
        """Closes all but this many holders."""
        self._end_format()
        self._flush()
        while len(self._open) > depth:
            self._items.append(Tag("close", self._open.pop(), "holder"))

    def _end_format(self) -> None:
        if self._run is not None:
            self._items.append(Tag("close", self._run, "run"))
            self._run = None

    def _flush(self) -> None:
        self._items += self._waiting
        self._waiting = []


def _with_ranges(items: list[Item]) -> list[Item]:
    """The items, where the marks of a range, such as a bookmark's, are an element if they are nested as one."""
    found = list(items)
    opened: list[tuple[Tag, int, tuple[str, str] | None]] = []  # opening tags, their places; a range's key
    for place, item in enumerate(found):
        if isinstance(item, str):
            continue
        if item.kind == "cut":
            opened.clear()
        elif item.kind == "open":
            opened.append((item, place, None))
        elif item.kind == "close":
            while opened and opened.pop()[2] is not None:
                pass
        elif mark := _mark(item):
            key, is_start = mark
            if is_start:
                opened.append((item, place, key))
                continue
            n = len(opened)
            while n > max(0, len(opened) - MAX_DEPTH) and opened[n - 1][2] not in (None, key):
                n -= 1
            if n and opened[n - 1][2] == key:
                start, before, _ = opened[n - 1]
                del opened[n - 1 :]
                found[before] = Tag("open", start.markup, "range")
                found[place] = Tag("close", item.markup, "range")
    return found


def _mark(item: Item) -> tuple[tuple[str, str], bool] | None:
    """What range a thing begins or ends, and whether it begins it."""
    if not isinstance(item, Tag) or not isinstance(item.markup, _Thing) or len(item.markup.parts) != 1:
        return None
    element = item.markup.parts[0]
    if not isinstance(element.tag, str) or (match := _RANGE.fullmatch(element.tag.removeprefix(WORD))) is None:
        return None
    return (match["kind"], element.get(WORD + "id", "")), match["end"] == "Start"


def _in_order(items: list[Item]) -> list[Item]:
    """The items, where no mark that ends a range stands before the one that begins it."""
    found = list(items)
    ends: dict[tuple[str, str], int] = {}
    for place, item in enumerate(items):
        if mark := _mark(item):
            key, is_start = mark
            if not is_start:
                ends[key] = place
            elif key in ends:
                end = ends.pop(key)
                found[end], found[place] = found[place], found[end]
    return found


class _Tree:
    """Items → elements: what is closed at an end and opened behind it is written once if nothing stands between."""

    def __init__(self, model: Any, run: Callable[[Any, str], Any]):
        """model: the run of the plain format. run: one in a format with a text."""
        self._make_run = run
        self._formats = [model]
        self._levels = [_Level(None)]
        self._paragraphs: dict[Any, _Level] = {None: self._levels[0]}  # None: the first
        # Ends, and white space, that may belong into what is written next.
        self._waiting: list[_Thing] = []

    def add(self, item: Item) -> None:
        if isinstance(item, str):
            if item.isspace():
                self._waiting.append(_Thing([self._make_run(self._formats[-1], item)]))
            elif item:
                self._put(self._make_run(self._formats[-1], item))
        elif item.name == "run":
            if item.kind == "open" or (item.kind == "cut" and self._formats[-1] is not item.markup):
                self._formats.append(item.markup)
            else:
                self._formats.pop()
        elif item.name == "holder":
            if item.kind == "open" or (item.kind == "cut" and self._levels[-1].holder is not item.markup):
                self._enter(item.markup)
            else:
                self._flush()
                self._levels.pop()
        elif item.markup.joint:
            self._begin_paragraph(item.markup.joint.paragraph)
        elif item.kind == "cut":
            self._put_end(item.markup)
        else:
            self._put(*item.markup.parts)

    def finished(self, copier: _Copier) -> dict[Any, list[Any]]:
        """The elements of each paragraph."""
        self._flush()
        return {paragraph: level.elements(copier) for paragraph, level in self._paragraphs.items()}

    def _begin_paragraph(self, paragraph: Any) -> None:
        """What is open is opened again there."""
        self._flush()
        holders = [level.holder for level in self._levels[1:] if level.holder]
        self._levels = [_Level(None)]
        self._paragraphs[paragraph] = self._levels[0]
        for holder in holders:
            self._enter(holder)

    def _put(self, *parts: Any) -> None:
        self._flush()
        self._levels[-1].parts += parts

    def _flush(self) -> None:
        for thing in self._waiting:
            self._levels[-1].parts += thing.parts
        self._waiting = []

    def _enter(self, holder: _Holder) -> None:
        depth, parts = len(self._levels) - 1, self._levels[-1].parts
        last = parts[-1] if parts else None
        ends = [thing for thing in self._waiting if thing.is_end]
        are_within = all(thing.path[depth : depth + 1] == (holder,) for thing in ends)
        if not (are_within and isinstance(last, _Level) and last.holder is holder):
            n_outside = self._waiting.index(ends[0]) if ends and are_within else len(self._waiting)
            for thing in self._waiting[:n_outside]:
                parts += thing.parts
            del self._waiting[:n_outside]
            last = _Level(holder)
            parts.append(last)
        self._levels.append(last)

    def _put_end(self, thing: _Thing) -> None:
        """It stays in what it was in if this is the last that was written, or what is written next."""
        level = self._levels[-1]
        if thing.path[: len(self._levels) - 1] != tuple(level.holder for level in self._levels[1:]):
            self._put(*thing.parts)
            return
        for holder in thing.path[len(self._levels) - 1 :]:
            last = level.parts[-1] if level.parts else None
            is_behind_end = any(waiting.is_end for waiting in self._waiting)
            if is_behind_end or not (isinstance(last, _Level) and last.holder is holder):
                self._waiting.append(thing)
                return
            level = last
        for waiting in (*self._waiting, thing):
            level.parts += waiting.parts
        self._waiting = []


@dataclass(eq=False)
class _Level:
    """A holder's new content."""

    holder: _Holder | None
    parts: list[Any] = field(default_factory=list)

    def elements(self, copier: _Copier) -> list[Any]:
        content: list[Any] = []
        for part in self.parts:
            if isinstance(part, _Level):
                content += part.elements(copier)
            elif isinstance(part, _Text):
                content += part.elements
            else:
                content.append(part)
        return content if self.holder is None else self.holder.around(content, copier)


# The document's elements.


def _pieces(container: Any) -> Iterator[_Piece]:
    """What an element contains, run by run."""
    for child in container:
        if child.tag == WORD + "r":
            yield from ((child, inner) for inner in child if inner.tag != WORD + "rPr")
        elif child.tag not in _PROPERTIES:
            yield None, child


def _all_pieces(pieces: Iterable[_Piece]) -> Iterator[_Piece]:
    """Pieces and those within them that belong to the same text."""
    for run, child in pieces:
        inner = _container(child)
        if inner is None:
            yield run, child
        else:
            yield from _all_pieces(_pieces(inner))


def _container(element: Any) -> Any:
    """What of an element in a paragraph holds runs of its text: itself, or an element in it; None if nothing does."""
    if element.tag == WORD + "ruby":
        return element.find(WORD + "rubyBase")
    if element.tag == WORD + "sdt":
        return None if _is_checkbox(element) else element.find(WORD + "sdtContent")
    return element if element.tag in _HOLDERS else None


def _is_checkbox(element: Any) -> bool:
    return element.tag == WORD + "sdt" and element.find(WORD + "sdtPr/{*}checkbox") is not None


def _is_word(run: Any, child: Any) -> bool:
    return run is not None and child.tag == WORD + "t" and bool(_string(child))


def _is_end(run: Any, child: Any) -> bool:
    return child.tag in _ENDS or (run is None and _is_checkbox(child))


def _is_dropped_cap(paragraph: Any) -> bool:
    """Whether it holds nothing but the large first letter of the next one."""
    frame = paragraph.find(f"{WORD}pPr/{WORD}framePr")
    return frame is not None and frame.get(WORD + "dropCap", "none") != "none" and bool(_string_of(paragraph).strip())


def _is_end_deleted(paragraph: Any) -> bool:
    """Whether its end is deleted or moved away, with changes tracked, so that Word joins it with the next one."""
    properties = paragraph.find(f"{WORD}pPr/{WORD}rPr")
    marks = () if properties is None else (WORD + "del", WORD + "moveFrom")
    return any(properties.find(mark) is not None for mark in marks) and bool(_string_of(paragraph).strip())


def _next(paragraph: Any) -> Any:
    """The paragraph behind it, if no table or other block is; marks such as a bookmark's may be between."""
    following = paragraph.getnext()
    while following is not None and following.tag not in _BLOCKS:
        following = following.getnext()
    return following if following is not None and following.tag == WORD + "p" else None


def _is_text_first(paragraph: Any) -> bool:
    """Whether its first words are in no holder, so that a letter may go before them."""
    first = next((child for run, child in _all_pieces(_pieces(paragraph)) if _is_word(run, child)), None)
    return first is not None and any(child is first for _, child in _pieces(paragraph))


def _ends_of_fields(pieces: list[_Piece]) -> dict[int, tuple[int, int]]:
    """Where each whole field begins, its separator (its begin if it has none) and its end."""
    found: dict[int, tuple[int, int]] = {}
    begun: list[list[int]] = []
    for place, (run, child) in enumerate(pieces):
        if isinstance(child, _Joint):
            begun.clear()
        if run is None or child.tag != WORD + "fldChar":
            continue
        kind = child.get(WORD + "fldCharType")
        if kind == "begin":
            begun.append([place, place])
        elif kind == "separate" and begun:
            begun[-1][1] = place
        elif kind == "end" and begun:
            begin, separator = begun.pop()
            found[begin] = (separator, place)
    return found


def _has_part_of_field(pieces: list[_Piece]) -> bool:
    """Whether there is a part of a field whose other parts are elsewhere."""
    depth = 0
    for run, child in pieces:
        if run is not None and child.tag == WORD + "fldChar":
            depth += {"begin": 1, "end": -1}.get(child.get(WORD + "fldCharType"), 0)
            if depth < 0:
                return True
        if (
            run is not None
            and child.tag in _PARTS_OF_FIELDS
            and depth == 0
            and child.get(WORD + "fldCharType") != "end"
        ):
            return True
    return depth != 0


def _code(pieces: list[_Piece]) -> str:
    return "".join(_string(child) for _, child in pieces if child.tag == WORD + "instrText")


def _is_link(code: str) -> bool:
    return code.upper().split()[:1] == ["HYPERLINK"]


def _flat(nodes: list[_Node]) -> Iterator[_Words | _Thing]:
    for node in nodes:
        if isinstance(node, _Holder):
            yield from _flat(node.content)
        else:
            yield node


def _set_children(element: Any, children: list[Any]) -> None:
    """Puts these in the place of all but its properties."""
    for child in list(element):
        if child.tag not in _PROPERTIES:
            element.remove(child)
    element.extend(children)


def _string(element: Any) -> str:
    """Its words, also those behind a comment."""
    return "".join(element.xpath("text()"))


def _string_of(paragraph: Any) -> str:
    return "".join(_string(child) for run, child in _all_pieces(_pieces(paragraph)) if _is_word(run, child))


def _format(run: Any) -> bytes:
    """A run's properties as bytes, by which formats are compared."""
    from lxml import etree

    properties = run.find(WORD + "rPr")
    if properties is None:
        return b""
    kept = deepcopy(properties)
    for child in list(kept):
        if child.tag in (WORD + "lang", WORD + "noProof"):  # of spelling, not of how it looks
            kept.remove(child)
    data: bytes = b"".join(etree.tostring(child) for child in kept)
    return data


def _text_element(run: Any, text: str) -> Any:
    element = run.makeelement(WORD + "t", {SPACE: "preserve"})
    element.text = "".join(c for c in text if c in "\t\n" or (c >= " " and c not in "\ufffe\uffff"))  # all that XML has
    return element
