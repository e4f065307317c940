"""Text → sentences, and whether a text needs translation."""

import re
from collections.abc import Callable
from itertools import accumulate

from heed.apps.documents.text.abbreviations import SEEN, Abbreviations, abbreviations, ends_sentence, is_marker
from heed.apps.documents.text.atoms import find_kept, kept_patterns
from heed.errors import HeedError

Span = tuple[int, int]
Splitter = Callable[[str], list[Span]]

WHITE_SPACE = " \t\r\n\f\v"  # no-break spaces belong to the text, but not those around a sentence
_AROUND = f"{WHITE_SPACE}\xa0\u202f\ufeff"  # a byte order mark that a client left in a text, too
_AS_SPACES = dict.fromkeys(map(ord, WHITE_SPACE), " ")  # where a paragraph ends, a document's reader knows better
_IN_BRACKETS = re.compile(
    r"(?:(?<=[.!?…])|(?<=[.!?…][)\]\"”’»])) (?: {0,99})"
    r"(?:\([^()]{2,500}[.!?…][\"”’»]?\)|\[[^\[\]]{2,500}[.!?…][\"”’»]?\])"
    r"(?= +[(\[\"“„«¿¡]?\w| *$)"
)
_BEFORE_CAPITAL = re.compile(
    r"(?<![^\W\d_])([^\W\d_]{2,30})(?:[.…][\"”’»)\]]{0,2}|[!?]) +(?=[\"“«(\[¿¡]{0,2}((?=[^\W\d_])\w+))"
)
# Full stops that sentencex does not know: Khmer's, but in its "etc.", and Tibetan's.
_MORE_STOPS = re.compile("[។៕།༎](?!ល។)[។៕།༎”»’]* *")
# Dutch 's and 't, which sentencex takes for the ends of a quotation.
_APOSTROPHE = re.compile(r"(?<!\S)['’](?=[stnkmr]\b)")
_OPENING = re.compile(r"(?<=\s)[\"'“”„‘’«»‹›¿¡(\[]+\Z")
# A sentence goes on behind what somebody says: small letters, particles of Japanese, and Chinese verbs of saying.
_QUOTED = re.compile("[.!?…。！？][\"'”“’‘»«›‹」』)\\]]+\\Z")
_GOES_ON = re.compile(
    "と(?![うきこてっにもり])|って|など|なんて|を|[^\\W\\d_。！？「“]{0,4}(?:[说說问問喊]|[叫答]道?[：，。])"
)
_COLUMNS = re.compile("(?:[\xa0\u202f] ?){3,}")  # no-break spaces that align what stands behind them
# Characters that are split at a time: the splitter's time grows with the square of their number.
MAX_SPLIT = 10_000


def splitter(language: str) -> Splitter:
    """A function from a text to the spans of its sentences, without the white space around them.

    language: a code such as "en" or "en-GB". HeedError if sentencex is not installed.
    """
    # Imported when it is used: only documents and the server split sentences, and only they need the package.
    try:
        import sentencex
    except ImportError:
        raise HeedError("sentences are found by sentencex, which is not installed: pip install heed-mt.") from None

    # Rules are those of a language, whatever its region.
    code = re.split("[-_]", language.lower(), maxsplit=1)[0]
    words = abbreviations(code)

    # sentencex proposes ends; our rules for brackets and for words that begin sentences add some, and what we know of
    # abbreviations takes others away.
    def split(text: str) -> list[Span]:
        spans = []
        text = text.translate(_AS_SPACES)
        respelled = _APOSTROPHE.sub("\u02bc", text)
        for first, last in _windows(text):
            start = first
            ends = set(accumulate(map(len, sentencex.segment(code, respelled[first:last])), initial=first))
            ends = {max(first, end - _n_opening(text, end)) if end < last else end for end in ends}
            ends |= {match.end() for match in _MORE_STOPS.finditer(text, first, last)}
            ends |= _ends_at_brackets(text, first, last) | _ends_before_starters(text, first, last, words)
            columns = {match.end() for match in _COLUMNS.finditer(text, first, last)}
            for end in sorted((ends | columns) - {first}):
                if end < last and end not in columns and not _may_end(text, start, end, words):
                    continue
                if text[start:end].strip(_AROUND):
                    spans.append(strip_span(text, start, end))
                start = end
        return spans

    return split


def _n_opening(text: str, end: int) -> int:
    """How many quotes and brackets before `end` open what stands behind it, such as 's Avonds."""
    match = None if text[end : end + 1].isspace() else _OPENING.search(text[max(0, end - 4) : end])
    return len(match[0]) if match else 0


def _may_end(text: str, start: int, end: int, words: Abbreviations) -> bool:
    """Whether a sentence from `start` may end at `end`, where a splitter ends it."""
    before = text[max(start, end - 2 * SEEN) : end].rstrip(WHITE_SPACE)
    after = text[end : end + SEEN]
    if _QUOTED.search(before) and (after.lstrip()[:1].islower() or _GOES_ON.match(after)):
        return False
    if before.endswith(".") and not text[end - 1 : end].isspace() and not text[end : end + 1].isspace():
        return False  # within a word, such as "J.-C."
    if end - start < SEEN and is_marker(text[start:end]):
        return False
    return ends_sentence(before, after, words)


def _ends_before_starters(text: str, first: int, last: int, words: Abbreviations) -> set[int]:
    """Ends between a full stop that is not an abbreviation's and a word that begins sentences, also within quotes."""
    return {
        match.end()
        for match in _BEFORE_CAPITAL.finditer(text, first, last)
        if match[2][0].isupper() and match[2].lower() in words.starters and match[1].lower() not in words.numbered
    }


def _ends_at_brackets(text: str, first: int, last: int) -> set[int]:
    """Before and behind brackets around whole sentences."""
    return {end for match in _IN_BRACKETS.finditer(text, first, last) for end in match.span()}


def strip_span(text: str, start: int, end: int) -> Span:
    """The span without white space at its ends, such as an indentation by no-break spaces."""
    part = text[start:end]
    start += len(part) - len(part.lstrip(_AROUND))
    return start, start + len(part.strip(_AROUND))


def _windows(text: str) -> list[Span]:
    """Spans of at most MAX_SPLIT characters that end behind a space where there is one."""
    windows, start = [], 0
    while len(text) - start > MAX_SPLIT:
        end = text.rfind(" ", start, start + MAX_SPLIT) + 1 or start + MAX_SPLIT
        windows.append((start, end))
        start = end
    return [*windows, (start, len(text))]


def needs_translation(text: str) -> bool:
    """Whether it has a letter outside addresses and placeholders; numbers and punctuation need no translation."""
    bounds = [0, *(bound for match in find_kept(text, kept_patterns()) for bound in match.span()), len(text)]
    return any(any(map(str.isalpha, text[a:b])) for a, b in zip(bounds[::2], bounds[1::2], strict=True))
