"""Full stops that do not end a sentence: after abbreviations, ordinals and times."""

import re
from dataclasses import dataclass
from functools import cache

from heed.apps.documents.words import table


@dataclass(frozen=True, kw_only=True)
class Abbreviations:
    """The abbreviations of a language, in small letters, without the last full stop.

    titles: before a name. ambiguous: titles, or names of streets, that may also end a sentence. numbered: before a
    number. inner: always within a sentence. starters: begin a sentence, so that a full stop before them does not belong
    to an initial or an ordinal; without them, initials and ordinals are sentencex's matter. dated: behind the times of
    `times`, and behind ordinals. before_ordinal: behind them, a number with a full stop is an ordinal (where ordinals
    are written so).
    """

    titles: frozenset[str] = frozenset()
    ambiguous: frozenset[str] = frozenset()
    numbered: frozenset[str] = frozenset()
    inner: frozenset[str] = frozenset()
    starters: frozenset[str] = frozenset()
    times: frozenset[str] = frozenset()
    dated: frozenset[str] = frozenset()
    before_ordinal: re.Pattern[str] | None = None


@cache
def abbreviations(language: str) -> Abbreviations:
    """The abbreviations of a language, by its code without a region; none for one that the table does not have."""
    lists = table("abbreviations").get(language, {})
    ordinal = lists.get("before_ordinal")
    return Abbreviations(
        **{name: frozenset(words.split()) for name, words in lists.items() if name != "before_ordinal"},
        before_ordinal=None if ordinal is None else re.compile(ordinal, re.IGNORECASE),
    )


_LAST_WORD = re.compile(r"(?:^|[\s(\[{\"'“„«»‚‘’])([^\s(\[{\"'“„«»‚‘’]{1,30})\.$")
_FIRST_WORD = re.compile(r"[(\[\"'“„«]?((?:[^\W\d_]|['’](?=\w))+)")
_INITIAL = re.compile(r"(?:[^\W\d_][.-]+)*[^\W\d_]")  # "J", "U.S", "J.-C"
_ROMAN = re.compile(r"[IVXLC]{1,7}")
_NUMBER = re.compile(r"[(\[]?(?:\d|[IVXLC]{1,7}\b|[A-Za-z]?[-.]?\d)")
_NUMERAL = re.compile(r"\d++(?!\.\s+[^\W\d_])")
_MARKER = re.compile(r"\s*[(\[]?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,5})[.)]{1,2}\s*")  # of a list: "1.", "b)"
SEEN = 40  # characters before and behind a full stop, on which the rules depend


def ends_sentence(before: str, after: str, words: Abbreviations) -> bool:
    """Whether a sentence may end between these texts, which white space may separate, as far as a full stop tells."""
    after = after.lstrip()
    match = _LAST_WORD.search(before[-SEEN:])
    if not match or not after:
        return True
    word, following = match[1], _FIRST_WORD.match(after[:SEEN])
    lower, first = word.lower(), following[1] if following else ""
    starts = first.lower() in words.starters or re.split("['’]", first.lower())[0] in words.starters
    if first[:1].islower() and after[0] not in "'’" and (word[-1].isdecimal() or _ROMAN.fullmatch(word)):
        return False  # an ordinal, in any language that writes them so: 3. října, XIX. století
    if lower in words.inner or (first and lower in words.titles):
        return False
    if _NUMBER.match(after) and (lower in words.numbered or (lower.endswith("str") and "str" in words.numbered)):
        return False  # also Hauptstr. 5
    if not words.starters:
        return True
    if _NUMERAL.match(after) and word.isalpha() and word.islower() and len(word) <= 4 and lower not in words.starters:
        return False  # as short as most abbreviations: few sentences begin with a number
    if lower in words.times and (first.lower() in words.dated or first[:1].islower()):
        return False
    if lower in words.ambiguous:
        return not first or starts
    if first[:1].islower():  # who writes everything in small letters ends sentences with words
        is_short = word[0].isupper() and len(word) <= 4
        return lower not in words.numbered and not is_short and not _INITIAL.fullmatch(word)
    if _INITIAL.fullmatch(word) and (first or after[0].isdigit()):
        return bool(first) and starts
    return not _is_ordinal(word, before[-SEEN:][: match.start(1)], first, starts=starts, words=words)


def _is_ordinal(word: str, before: str, first: str, *, starts: bool, words: Abbreviations) -> bool:
    if words.before_ordinal is None or not first or starts:
        return False
    if _ROMAN.fullmatch(word):  # Friedrich II.
        return before.rstrip().rpartition(" ")[2][:1].isupper()
    if not (word.isdecimal() and len(word) <= 3):
        return False
    return first.lower() in words.dated or words.before_ordinal.search(before.rstrip()) is not None


def is_marker(text: str) -> bool:
    """Whether it is nothing but the marker of a list's item."""
    return _MARKER.fullmatch(text) is not None
