"""The words of a translated sentence, and the word of the source that each of them translates."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from heed.apps.documents.text.atoms import LETTER, MARKS, UNSPACED
from heed.apps.documents.text.items import Tag
from heed.apps.documents.text.sentences import Span
from heed.apps.documents.text.tagged_text import Element, Place, TaggedText
from heed.text.alignment import Link, Translated

_LATIN = "[0-9A-Za-zÀ-ɏ]"
WITHIN_WORD = re.compile(f"{LETTER}{{2}}")
_WORDS = re.compile(rf"[{UNSPACED}][{MARKS}]*+|{LETTER}++|[^\w\s]")


@dataclass
class TargetWord:
    """A word of the target, the source characters that it translates, and the elements that it belongs to."""

    start: int
    end: int
    source: Span = (0, 0)
    elements: list["Element"] = field(default_factory=list)  # outermost first
    kept: Tag | None = None  # what stands in place of the word


def target_words(text: str, kept: list[Place]) -> list[TargetWord] | None:
    """The words of a translation; a text that must stay is one word. None if one is missing or there too often."""
    wanted: dict[str, list[Place]] = {}
    for place in kept:
        wanted.setdefault(place.tag.text, []).append(place)
    spans: list[tuple[int, int, Place]] = []
    if wanted:
        # The longest first: a text may contain another.
        pattern = "|".join(_whole(text) for text in sorted(wanted, key=len, reverse=True))
        for match in re.finditer(pattern, text):
            if not wanted[match[0]]:
                return None
            spans.append((match.start(), match.end(), wanted[match[0]].pop(0)))
    if any(wanted.values()):
        return None
    tokens, last = [], 0
    for start, end, place in spans:
        tokens += [TargetWord(*match.span()) for match in _WORDS.finditer(text, last, start)]
        tokens.append(TargetWord(start, end, (place.offset, place.offset + place.length), kept=place.tag))
        last = end
    return tokens + [TargetWord(*match.span()) for match in _WORDS.finditer(text, last)]


def _whole(text: str) -> str:
    """A pattern for the text where it is not part of a longer word."""
    before, after = (f"(?<!{_LATIN})", f"(?!{_LATIN})")
    return before * text[0].isalnum() + re.escape(text) + after * text[-1].isalnum()


def source_words(source: str, kept: list[Place]) -> list[Span]:
    words: list[Span] = []
    last = 0
    for place in kept:
        words += [match.span() for match in _WORDS.finditer(source, last, place.offset)]
        last = place.offset + place.length
        words.append((place.offset, last))
    words += [match.span() for match in _WORDS.finditer(source, last)]
    return words or [(0, len(source))]


def set_sources(tokens: list[TargetWord], result: Translated, words: list[Span]) -> None:
    """Gives each word the source word that it translates: its longest link's, or without links the one at its place."""
    starts = [start for start, _ in words]
    links: Sequence[Link] = result.alignment or ()
    first, ratio = 0, len(words) / max(1, len(tokens))
    before: Span | None = None
    for number, token in enumerate(tokens):
        while first < len(links) and links[first].tgt_end <= token.start:
            first += 1
        best, longest, place = None, 0, first
        while place < len(links) and links[place].tgt_start < token.end:
            overlap = min(token.end, links[place].tgt_end) - max(token.start, links[place].tgt_start)
            if overlap > longest:
                best, longest = links[place], overlap
            place += 1
        if token.kept is None:
            if best is not None:
                middle = (best.src_start + best.src_end - 1) // 2
            elif links and before is not None:
                middle = before[0]
            else:
                middle = words[int(number * ratio)][0]
            token.source = words[max(0, bisect_right(starts, middle) - 1)]
        before = token.source


def split_within_words(tokens: list[TargetWord], sentence: TaggedText, text: str) -> list[TargetWord]:
    """The words, cut where the source's are by a tag within them, as in m<sup>2</sup>, if they have the same parts.

    A word that is the same in both texts is cut as in the source; else its last or its first part is cut off, but not
    at a thing, which stays behind the word.
    """
    # Things are cut off from words that are the same only: within another word no place for them is known.
    elements = [place.offset for place in sentence.tags if place.tag.kind in ("open", "close")]
    every = [place.offset for place in sentence.tags if place.tag.kind != "break" and not place.length]
    if not every:
        return tokens

    # The bounds of the parts, in the source (cuts) and in the target (places).
    words: list[TargetWord] = []
    for token in tokens:
        start, end = token.source
        word = text[token.start : token.end]
        is_same = len(word) == end - start and word.casefold() == sentence.text[start:end].casefold()
        offsets = every if is_same else elements
        bounds = [start, *sorted(set(offsets[bisect_right(offsets, start) : bisect_left(offsets, end)])), end]
        if token.kept is not None or len(bounds) == 2:
            words.append(token)
            continue
        first, last = sentence.text[start : bounds[1]], sentence.text[bounds[-2] : end]
        if is_same:
            cuts, places = bounds, [token.start + cut - start for cut in bounds]
        elif word.endswith(last) and word != last:
            cuts, places = [start, bounds[-2], end], [token.start, token.end - len(last), token.end]
        elif word.startswith(first) and word != first:
            cuts, places = [start, bounds[1], end], [token.start, token.start + len(first), token.end]
        else:
            words.append(token)
            continue
        words += [TargetWord(*span, source) for span, source in zip(pairwise(places), pairwise(cuts), strict=True)]
    return words
