"""The common form of all documents: a stream of texts and tags.

A format's reader turns a document into items, `items_job` translates the texts between them, and the format's
writer puts the items together again. The items of a document whose texts do not change give back the same document.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Kind = Literal["open", "close", "atom", "spelling", "break", "cut"]
MAX_DEPTH = 32  # elements within each other in a sentence; deeper ones end it
MAX_TAGS = (
    200  # between two cuts; more end the sentence, so that a stranger's page costs time in proportion to its size
)


CUE = "cue"  # the name of a break between two subtitles of a sentence, which is divided there whatever its length
EVERY_LINE = "every line"  # the name of a break that comes back even if no words are left for its line


class LiteralMarkup(str):
    """Markup that is text of the document, such as an address: it is written as words are."""


@dataclass(frozen=True)
class Verbatim:
    """Markup that is items of the document, such as an address that tags divide; questions to the model among them."""

    items: list[Any]


@dataclass(frozen=True)
class Cases:
    """Markup that is an ICU message: its items, and lists of them for the words of its cases."""

    items: "list[Item | list[Item]]"


@dataclass(frozen=True)
class Tag:
    """Something between or around words.

    open, close: an element whose words keep it wherever they go, such as <b>. atom: a thing that stands between words,
    such as an image; with a `text`, words that stay as they are, such as an inline `code`. spelling: how the document
    spells the words in its `text`, such as an escape or a character reference; it stays if the translation has these
    words as often. break: a line end within a sentence; with a `hyphen`, within a word, whose parts it joins: the
    hyphen, which may be empty, stands before it in the document only. cut: what no sentence crosses. markup: what the
    writer needs; name: opening and closing tags of one name belong together. half: of a tag that closes or opens an
    element around an end within it, as in `halves`.
    """

    kind: Kind
    markup: Any
    name: str = ""
    text: str = ""
    hyphen: str | None = None
    half: Any = None


Item = str | Tag


def item_of(tag: Tag) -> Item:
    """The tag, or what it stands for if that is text."""
    return str(tag.markup) if isinstance(tag.markup, LiteralMarkup) else tag


def as_cut(tag: Tag) -> Tag:
    return replace(tag, kind="cut", text="")


def with_read(items: Sequence[Item], pattern: re.Pattern[str], read: Callable[[re.Match[str]], Item]) -> list[Item]:
    """The items, with what `read` makes of each match of the pattern in their words."""
    pieces: list[Item] = []
    for item in items:
        if not isinstance(item, str):
            pieces.append(item)
            continue
        last = 0
        for match in pattern.finditer(item):
            pieces += [item[last : match.start()], read(match)]
            last = match.end()
        pieces.append(item[last:])
    return [piece for piece in pieces if piece != ""]


def cut_at(items: Sequence[Item], pattern: re.Pattern[str]) -> list[Item]:
    """The items, cut at what the pattern matches in their words and at things between words that it matches."""
    read = with_read(items, pattern, lambda match: Tag("cut", LiteralMarkup(match[0])))
    return [as_cut(item) if isinstance(item, Tag) and _is_thing(item, pattern) else item for item in read]


def _is_thing(tag: Tag, pattern: re.Pattern[str]) -> bool:
    return tag.kind == "atom" and isinstance(tag.markup, str) and pattern.fullmatch(tag.markup) is not None


def match_tags(items: Sequence[Item]) -> list[Item]:
    """The items, where opening and closing tags that are no pair between two cuts are cuts themselves."""
    # Between two cuts, tags pair up as brackets do; `unmatched` is the stack.
    matched = list(items)
    unmatched: list[int] = []  # opening tags since the last cut, outermost first
    n_tags = 0

    # A tag that fits nothing ends the sentence, so nothing that is open there can be closed later.
    def cut(place: int) -> None:
        tag = matched[place]
        assert isinstance(tag, Tag)
        for i in (*unmatched, place):
            opening = matched[i]
            assert isinstance(opening, Tag)
            matched[i] = as_cut(opening)
        unmatched.clear()

    # Too many tags, or too deep ones, end it as well.
    for place, item in enumerate(matched):
        if isinstance(item, str):
            continue
        n_tags += item.kind != "spelling"
        if item.kind == "cut" or n_tags > MAX_TAGS or (item.kind == "open" and len(unmatched) == MAX_DEPTH):
            cut(place)
            n_tags = 0
        elif item.kind == "open":
            unmatched.append(place)
        elif item.kind == "close":
            name = getattr(matched[unmatched[-1]], "name", None) if unmatched else None
            if name == item.name:
                unmatched.pop()
            else:
                cut(place)

    # Elements that are never closed.
    for place in unmatched:
        item = matched[place]
        assert isinstance(item, Tag)
        matched[place] = as_cut(item)
    return matched


def paired(items: Sequence[Item], mark_of: Callable[[Tag], tuple[str, bool] | None]) -> list[Item]:
    """The items, where two things that mark a range, such as a bookmark's, are an element if they are nested as one.

    mark_of: the key of the range that a thing begins or ends, and whether it begins it.
    """
    # A pair of marks is an element only if nothing else begins within it and ends outside of it: other tags that end
    # discard the ranges begun within, and so does a cut. All marks that are left stay things.
    matched = list(items)
    opened: list[tuple[Tag, int, str]] = []  # opening tags, their places; a range's key
    for place, item in enumerate(items):
        if isinstance(item, str):
            continue
        if item.kind == "cut":
            opened.clear()
        elif item.kind == "open":
            opened.append((item, place, ""))
        elif item.kind == "close":
            while opened and opened.pop()[2]:
                pass
        elif mark := mark_of(item):
            key, is_start = mark
            if is_start:
                opened.append((item, place, key))
                continue
            # Ranges that overlap with this one stay marks. MAX_DEPTH bounds the time for a hostile document.
            n = len(opened)
            while n > max(0, len(opened) - MAX_DEPTH) and opened[n - 1][2] not in ("", key):
                n -= 1
            if n and opened[n - 1][2] == key:
                start, before, _ = opened[n - 1]
                del opened[n - 1 :]
                matched[before], matched[place] = Tag("open", start.markup, key), Tag("close", item.markup, key)
    return matched
