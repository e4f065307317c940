"""A text of a .docx → items, and translated items → elements."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from heed.apps.documents.formats.docx_elements import PROPERTIES, Copier, Joint, set_children
from heed.apps.documents.formats.docx_package import WORD
from heed.apps.documents.text.items import MAX_DEPTH, Item, Tag

MAX_SPLIT = 6  # holders within each other that an end closes and opens again

# Marks that begin and end a range, by the name of what they mark.
_RANGE = re.compile(r"(?P<kind>.*?)(?:Range)?(?P<end>Start|End)")


@dataclass(eq=False)
class Written:
    """The elements of a text within another one, which are known once it is translated."""

    elements: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class Words:
    """Words in the format of a run."""

    run: Any
    text: str


@dataclass(eq=False)
class Thing:
    """A thing between words, which ends the sentence if `is_end`.

    parts: its elements; a `Written` and a `Level` stand for theirs. number: the words that it shows, if they are the
    same in any language. holder: what it is in. joint: for what is the end of a paragraph within a text.
    """

    parts: list[Any]
    is_end: bool = False
    number: str = ""
    holder: "Holder | None" = None
    joint: Joint | None = None

    def holders_within(self, outer: "Holder | None") -> "list[Holder] | None":
        """The holders between `outer` and this thing, outermost first; None if it is not in `outer`."""
        holders: list[Holder] = []
        holder = self.holder
        while holder is not None and holder is not outer and holder.depth > (outer.depth if outer else 0):
            holders.append(holder)
            holder = holder.parent
        return holders[::-1] if holder is outer else None


@dataclass(eq=False)
class Holder:
    """An element that holds runs and goes where its words go; also a link that is a field, from its code to its end.

    The content goes between head and tail, or, if there is a container, into this: an element that is the head or in
    it. parent: the holder that it is in; depth: the number of holders down to this one.
    """

    head: list[Any]
    content: list["Node"]
    container: Any = None
    tail: list[Any] = field(default_factory=list)
    is_written: bool = False
    parent: "Holder | None" = None
    depth: int = 1
    has_end: bool = field(init=False)
    stays_open: bool = field(init=False)  # where it holds an end, and is not closed there and opened again
    n_kept_open: int = 0  # of the holders down to this one
    _height: int = field(init=False)  # holders with an end within each other, this one included

    def __post_init__(self) -> None:
        inner = [node for node in self.content if isinstance(node, Holder) and node.has_end]
        self.has_end = bool(inner) or any(isinstance(node, Thing) and node.is_end for node in self.content)
        self._height = 1 + max((i._height for i in inner), default=0)
        # Controls and ruby are not written twice: an end within one ends all sentences that touch it. So it does in
        # what holds too many others, or each end would cost as much as all that it is in.
        self._can_split = self.container is None or self.container is self.head[0]
        is_split = self._can_split and self._height <= MAX_SPLIT and not any(i.stays_open for i in inner)
        self.stays_open = self.has_end and not is_split

    def around(self, content: list[Any], copier: Copier) -> list[Any]:
        """Its elements with this content; from the second time on copies of them, or none if there may be but one."""
        again, self.is_written = self.is_written, True
        if again and not self._can_split:
            return content
        if self.container is None:
            if again:
                return [
                    *(copier.copy(element, element) for element in self.head),
                    *content,
                    *(copier.copy(element, element) for element in self.tail),
                ]
            return [*self.head, *content, *self.tail]
        if again:
            copy = copier.copy(self.container, [child for child in self.container if child.tag in PROPERTIES])
            copy.extend(content)
            return [copy]
        set_children(self.container, content)
        return self.head


@dataclass(eq=False)
class Hyphen(Words):
    """A hyphen of Word's own, which is part of a word."""

    tag: str


Node = Words | Thing | Holder


def flat(nodes: list[Node]) -> Iterator[Words | Thing]:
    """The nodes that are not holders, and those in holders."""
    levels = [iter(nodes)]
    while levels:
        for node in levels[-1]:
            if isinstance(node, Holder):
                levels.append(iter(node.content))
                break
            yield node
        else:
            levels.pop()


class ItemWriter:
    """Nodes → items: at an end within a format or a link, this is closed, and opened again behind the end."""

    def __init__(self, format_of: Callable[[Any], bytes], plain: bytes):
        self._format_of, self._plain = format_of, plain
        self._items: list[Item] = []
        self._open: list[Holder] = []
        self._run: Any = None  # whose format is open
        self._waiting: list[Tag] = []  # things behind the last word of a format, which are in it if it goes on

    def add(self, nodes: list[Node], parent: Holder | None) -> None:
        """parent: what the nodes are in."""
        # Tags are written as late as possible, with the next word: things and empty runs between two words of the same
        # format do not cut it in two.
        for node in nodes:
            if isinstance(node, Words):
                if not node.text:
                    continue
                self._begin(parent)
                is_plain = (format := self._format_of(node.run)) == self._plain
                if self._run is not None and (is_plain or self._format_of(self._run) != format):
                    self._end_format()
                self._flush()
                if self._run is None and not is_plain:
                    self._run = node.run
                    self._items.append(Tag("open", node.run, "run"))
                self._items.append(node.text)
            elif isinstance(node, Thing):
                node.holder = parent
                if node.joint:
                    self._end(0)
                    self._items.append(Tag("break", node))
                elif node.is_end:
                    self._end(parent.n_kept_open if parent else 0)
                    self._items.append(Tag("cut", node))
                else:
                    self._begin(parent)
                    self._waiting.append(Tag("atom", node, text=node.number))
            else:
                self._add_holder(node, parent)

    def _add_holder(self, holder: Holder, parent: Holder | None) -> None:
        holder.parent = parent
        holder.depth = 1 + (parent.depth if parent else 0)
        holder.n_kept_open = holder.stays_open + (parent.n_kept_open if parent else 0)
        if holder.stays_open:
            self._begin(parent)
            self._end(holder.depth - 1)
            self._items.append(Tag("cut", holder, "holder"))
            self._open.append(holder)
        self.add(holder.content, holder)
        if holder.stays_open:
            self._end(holder.depth)
            self._items.append(Tag("cut", holder, "holder"))
            self._open.pop()
        elif len(self._open) == holder.depth:
            self._end(holder.depth - 1)

    def finish(self) -> list[Item]:
        """All items."""
        self._end(0)
        return self._items

    def _begin(self, innermost: Holder | None) -> None:
        """Opens this holder and those around it, as far as they are not open."""
        closed: list[Holder] = []
        while innermost and innermost.depth > len(self._open):
            closed.append(innermost)
            innermost = innermost.parent
        for holder in reversed(closed):
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


def with_ranges(items: list[Item]) -> list[Item]:
    """The items, where the marks of a range, such as a bookmark's, are an element if they are nested as one."""
    # A pair of marks is an element only if nothing else begins within it and ends outside of it: other tags that end
    # discard the ranges begun within, and so does a cut. All marks that are left stay things.
    with_tags = list(items)
    opened: list[tuple[Tag, int, tuple[str, str] | None]] = []  # opening tags, their places; a range's key
    for place, item in enumerate(with_tags):
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

            # Ranges that overlap with this one stay marks. MAX_DEPTH bounds the time for a hostile document.
            n = len(opened)
            while n > max(0, len(opened) - MAX_DEPTH) and opened[n - 1][2] not in (None, key):
                n -= 1
            if n and opened[n - 1][2] == key:
                start, before, _ = opened[n - 1]
                del opened[n - 1 :]
                with_tags[before] = Tag("open", start.markup, "range")
                with_tags[place] = Tag("close", item.markup, "range")
    return with_tags


def _mark(item: Item) -> tuple[tuple[str, str], bool] | None:
    """The range that a thing begins or ends, and whether it begins it."""
    if not isinstance(item, Tag) or not isinstance(item.markup, Thing) or len(item.markup.parts) != 1:
        return None
    element = item.markup.parts[0]
    if (
        not isinstance(getattr(element, "tag", None), str)
        or (match := _RANGE.fullmatch(element.tag.removeprefix(WORD))) is None
    ):
        return None
    return (match["kind"], element.get(WORD + "id", "")), match["end"] == "Start"


def in_order(items: list[Item]) -> list[Item]:
    """The items, where no mark that ends a range stands before the one that begins it."""
    ordered = list(items)
    ends: dict[tuple[str, str], int] = {}
    for place, item in enumerate(items):
        if mark := _mark(item):
            key, is_start = mark
            if not is_start:
                ends[key] = place
            elif key in ends:
                end = ends.pop(key)
                ordered[end], ordered[place] = ordered[place], ordered[end]
    return ordered


class Tree:
    """Items → elements: what is closed at an end and opened behind it is written once if nothing stands between."""

    def __init__(self, model: Any, run: Callable[[Any, str], Any]):
        """model: the run of the plain format. run: one in a format with a text."""
        self._make_run = run
        self._formats = [model]
        self._levels = [Level(None)]
        self._paragraphs: dict[Any, Level] = {None: self._levels[0]}  # None: the first
        # Ends, and white space, that may belong into what is written next.
        self._waiting: list[Thing] = []

    def add(self, item: Item) -> None:
        if isinstance(item, str):
            if item.isspace():
                self._waiting.append(Thing([self._make_run(self._formats[-1], item)]))
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

    def finish(self, copier: Copier) -> dict[Any, list[Any]]:
        """The elements of each paragraph."""
        self._flush()
        return {paragraph: level.elements(copier) for paragraph, level in self._paragraphs.items()}

    def _begin_paragraph(self, paragraph: Any) -> None:
        """Holders that are open are opened again in the new paragraph."""
        self._flush()
        holders = [level.holder for level in self._levels[1:] if level.holder]
        self._levels = [Level(None)]
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

    def _enter(self, holder: Holder) -> None:
        parts = self._levels[-1].parts
        last = parts[-1] if parts else None
        ends = [thing for thing in self._waiting if thing.is_end]
        are_within = all(thing.holders_within(holder) is not None for thing in ends)
        if not (are_within and isinstance(last, Level) and last.holder is holder):
            n_outside = self._waiting.index(ends[0]) if ends and are_within else len(self._waiting)
            for thing in self._waiting[:n_outside]:
                parts += thing.parts
            del self._waiting[:n_outside]
            last = Level(holder)
            parts.append(last)
        self._levels.append(last)

    def _put_end(self, thing: Thing) -> None:
        """It stays in what it was in if this is the last that was written, or what is written next."""
        level = self._levels[-1]
        holders = thing.holders_within(level.holder)
        if holders is None:
            self._put(*thing.parts)
            return
        for holder in holders:
            last = level.parts[-1] if level.parts else None
            is_behind_end = any(waiting.is_end for waiting in self._waiting)
            if is_behind_end or not (isinstance(last, Level) and last.holder is holder):
                self._waiting.append(thing)
                return
            level = last
        for waiting in (*self._waiting, thing):
            level.parts += waiting.parts
        self._waiting = []


@dataclass(eq=False)
class Level:
    """A holder's new content."""

    holder: Holder | None
    parts: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, holder: Holder) -> "Level":
        """The content that it has, which holds no words."""
        level = cls(holder)
        for node in holder.content:
            if isinstance(node, Holder):
                level.parts.append(cls.of(node))
            elif isinstance(node, Thing):
                level.parts += node.parts
        return level

    def elements(self, copier: Copier) -> list[Any]:
        content: list[Any] = []
        for part in self.parts:
            if isinstance(part, Level):
                content += part.elements(copier)
            elif isinstance(part, Written):
                content += part.elements
            else:
                content.append(part)
        return content if self.holder is None else self.holder.around(content, copier)
