"""Atoms: parts of a text that stay as they are, such as addresses, placeholders and tags written as text.

No model copies them reliably. All patterns are bounded, so that each beginning of a match costs little.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from heed.apps.documents.words import table
from heed.errors import HeedError


class AtomKind(NamedTuple):
    """A kind of atoms: its pattern, of which case is ignored unless it says otherwise, and examples, each a match."""

    name: str
    pattern: str
    examples: Sequence[str]
    is_address: bool = False


ATOM_KINDS = tuple(AtomKind(**kind) for kind in table("atoms")["kinds"])
# In a message's cases "#" is its number.
_NUMBER = AtomKind("number", r"(?<![\w\#])\#(?![\w\#])", ("#",))


def _any_of(kinds: Iterable[AtomKind]) -> re.Pattern[str]:
    # None begins within a word: this takes a fifth of the time that it takes to try all kinds there.
    pattern = "|".join(kind.pattern for kind in kinds)
    return re.compile(rf"(?!\s|(?<=\w)\w)(?:{pattern})", re.IGNORECASE | re.VERBOSE)


ADDRESS = _any_of(kind for kind in ATOM_KINDS if kind.is_address)
KEPT, _KEPT_IN_CASES = _any_of(ATOM_KINDS), _any_of((*ATOM_KINDS, _NUMBER))
# Between the parts of a condition or a loop no sentence goes on.
CONTROL = re.compile(
    r"(?<!\{)\{%[^{}]{1,500}%\}(?!\})|<%(?![=#%-])[^<>]{1,500}%>"
    r"|\{\{[~-]?\s?(?:[#/^]|(?:block|define|else|end|for|if|range|unless|with)\b)[^{}]{0,500}\}\}"
)
# Every atom has one of these, which most texts have not: looking for them takes a thirtieth of the time.
_SIGNS = re.compile(r"[@#$%&{\[⟦⟨〈《<\\/:_]|\.\S|\(\)|\d[A-Za-f-]")
MAX_PAIRS = 100  # of tags in a text; more are no elements, each tag stands for itself
MAX_BETWEEN = 500  # characters between the two tags of an element


# Scripts that put no spaces between words (Thai, Lao, Burmese, Khmer; kana, Han and their neighbours): no letter of
# theirs is a part of the address or the name beside it.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = re.compile(f"[{UNSPACED}]")
# Signs of the letter before them, which \w leaves out: vowels of Indian scripts, points of Hebrew, tones; and joiners.
MARKS = "\u200c\u200d" + "".join(
    sign
    for sign in map(chr, (*range(0x300, 0x3100), *range(0xA600, 0xAC00)))
    if unicodedata.category(sign).startswith("M")
)
LETTER = rf"(?:(?![{UNSPACED}])[\w{MARKS}])"  # of a word between spaces
Patterns = tuple[re.Pattern[str], ...]  # of what stays: earlier ones win


@lru_cache(maxsize=64)
def kept_patterns(keep: tuple[str, ...] = (), *, in_cases: bool = False) -> Patterns:
    """What stays in a text: what a user's expressions match, then the atoms. in_cases: within an ICU message.

    HeedError if an expression is none, or could take long.
    """
    builtin = _KEPT_IN_CASES if in_cases else KEPT
    if not keep:
        return (builtin,)
    made = [_bounded(text) for text in keep]
    if len(keep) > MAX_KEPT_EXPRESSIONS or sum(cost for _, cost in made) > MAX_COST:
        raise HeedError("keep: the expressions together may take too long; give fewer, or smaller repeats.")
    return re.compile("|".join(pattern for pattern, _ in made)), builtin


def find_kept(text: str, patterns: Patterns, spans: Iterable[tuple[int, int]] | None = None) -> Iterator[re.Match[str]]:
    """The matches of the patterns in these spans, by default the whole text, in order; earlier patterns win."""
    searched = text if text.isascii() else _UNSPACED.sub("\ue000", text)
    for start, end in [(0, len(text))] if spans is None else spans:
        yield from _find([*((pattern, text) for pattern in patterns[:-1]), (patterns[-1], searched)], start, end)


def _find(patterns: Sequence[tuple[re.Pattern[str], str]], start: int, end: int) -> Iterator[re.Match[str]]:
    (pattern, text), *others = patterns
    if not others and not _SIGNS.search(text, start, end):
        return
    for match in pattern.finditer(text, start, end):
        if others:
            yield from _find(others, start, match.start())
        yield match
        start = match.end()
    if others:
        yield from _find(others, start, end)


# The expressions of a user are searched in strangers' texts. So that no text makes one slow, repeats and groups never
# give back what they matched, and a repeat without an end has one.
MAX_KEPT_EXPRESSIONS = 50
MAX_COST = 1_000  # of all expressions: the sum of their repeats' ends, those within a repeated group multiplied by it
MAX_KEEP = 200  # characters of an expression
_MOST, _MOST_IN_GROUP, _MOST_GROUPS = 100, 30, 10  # of a repeat without an end
_PIECE = re.compile(
    r"(?P<single>\\[dDwWsSntr]|\\[^\w\s]|\[\^?\]?(?:\\.|[^\]\\])*+\]|[^\\\[\](){}|*+?])|(?P<bound>\\[bB])"
    r"|(?P<group>\((?:\?:)?(?!\?))"
)
_REPEAT = re.compile(r"(?:([*+?])|\{(\d{1,3})(?:(,)(\d{0,3}))?\})(?![*+?])")
_SAMPLE = "".join(map(chr, range(32, 127))) + "\täé中"


def _bounded(text: str) -> tuple[str, int]:
    """A user's expression, whose repeats are bounded and give nothing back, and its cost. HeedError names a fault."""
    if not text or len(text) > MAX_KEEP:
        raise HeedError(f"keep: an expression has 1 to {MAX_KEEP} characters, found {len(text)}.")
    try:
        pattern, cost, end = _alternatives(text, 0, depth=0)
        if end < len(text):
            raise HeedError(f"{text[end:][:10]} is not understood; the guide says what is")
        if re.compile(pattern).match(""):
            raise HeedError("it matches the empty text")
    except (HeedError, re.error) as error:
        raise HeedError(f"keep {text[:MAX_KEEP]}: {error}.") from None
    return pattern, cost


def _alternatives(text: str, place: int, *, depth: int) -> tuple[str, int, int]:
    """The pattern from a place on, its cost, and where it ends."""
    if depth > 3:
        raise HeedError("more than 3 groups within each other")
    output, total, taken = [], 0, ""  # taken: the characters of a repeat that comes directly before
    while True:
        if text[place : place + 1] == "|":
            output.append("|")
            place, taken = place + 1, ""
            continue
        piece = _PIECE.match(text, place)
        if piece is None:
            return "".join(output), total, place
        pattern, cost, place = piece[0], 1, piece.end()
        if piece["group"]:
            inner, cost, place = _alternatives(text, place, depth=depth + 1)
            if text[place : place + 1] != ")":
                raise HeedError("a bracket is not closed")
            pattern, place = f"(?>{inner})", place + 1
        low = high = 1
        if repeat := _REPEAT.match(text, place):
            most = _MOST_GROUPS if piece["group"] else _MOST_IN_GROUP if depth else _MOST
            sign, least, comma, highest = repeat.groups()
            low, high = {"*": (0, most), "+": (1, most), "?": (0, 1)}.get(sign) or (int(least), int(least))
            high = (int(highest) if highest else max(low, most)) if comma else high
            place = repeat.end()
        if low and taken and piece["single"] and any(re.match(taken, c) and re.match(pattern, c) for c in _SAMPLE):
            raise HeedError(f"the repeat of {taken} leaves nothing for {pattern}, as repeats give nothing back")
        taken = pattern if repeat and low < high and piece["single"] else ""
        output.append(f"{pattern}{{{low},{high}}}+" if repeat else pattern)
        total += high * cost


# ICU's messages


class Message(NamedTuple):
    """An ICU message, such as {n, plural, one {a file} other {# files}}: its span, and the spans of its words."""

    start: int
    end: int
    cases: list[tuple[int, int]]


_MESSAGE = re.compile(r"\{\s{0,3}\w{1,60}\s{0,3},\s{0,3}(?:plural|select|selectordinal)\s{0,3},", re.IGNORECASE)
_BRACES = re.compile("[{}]")


def find_messages(text: str) -> list[Message]:
    """The messages of a text that are in no other; what is in their cases may hold further ones."""
    beginnings = {match.start(): match.end() for match in _MESSAGE.finditer(text)}
    if not beginnings:
        return []
    # One pass pairs all braces; the outermost cases of a message are those that open directly in it.
    messages: list[Message] = []
    opened: list[tuple[int, list[tuple[int, int]]]] = []
    for brace in _BRACES.finditer(text):
        if brace[0] == "{":
            opened.append((brace.start(), []))
        elif opened:
            start, within = opened.pop()
            if start in beginnings and within:
                while messages and messages[-1].start > start:
                    messages.pop()
                messages.append(Message(start, brace.end(), within))
            if opened:
                opened[-1][1].append((start + 1, brace.start()))
    return messages


def pair_tags(matches: Sequence[re.Match[str]]) -> dict[int, int]:
    """Which of the matches of KEPT are the two tags of an element: the number of each one's partner."""
    partners: dict[int, int] = {}
    opened: list[int] = []
    for number, match in enumerate(matches):
        if not match["name"] or match["alone"]:
            continue
        if not match["end"]:
            opened.append(number)
        elif any(matches[i]["name"] == match["name"] for i in opened[-8:]):
            while matches[opened[-1]]["name"] != match["name"]:
                opened.pop()  # such as <br>
            opening = opened.pop()
            if match.start() - matches[opening].end() > MAX_BETWEEN:
                continue
            partners[number], partners[opening] = opening, number
            if len(partners) == 2 * MAX_PAIRS:
                break
    return partners
