"""Lines that are too long for one search: where they are cut into parts."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

from heed.text.line_rules import Spans, is_blank

_UNBROKEN_SPACES = "\xa0\u2007\u202f"  # no-break spaces stand within a number or a name
_SENTENCE_END = re.compile(r"[.!?…؟۔।॥።։]['\"”’»)\]]{0,3}(?=\s)|[。！？｡．។။༎][」』）”’\"】〉》]{0,3}")
_AROUND = 256  # characters on both sides of a cut in which graphemes are looked for; longer ones are not kept whole


class Part(NamedTuple):
    """A part of a long line. before: what stood between it and the part before, such as a space.

    after_sentence: whether the part before ended with a sentence.
    """

    text: str
    before: str = ""
    after_sentence: bool = False


def parts_of_line(text: str, spans: Spans, most: int) -> list[Part]:
    """A line, cut so that no part has more than `most` of its tokens, whose spans of characters are given.

    It is cut at the last sentence end that leaves few enough tokens, else at the last space, else between two
    graphemes (UAX #29). Encoded alone, a part may have more tokens than it has in the line.
    """
    starts = [start for start, _ in spans]
    parts: list[Part] = []
    begin, before, after_sentence = 0, "", False
    while (first := bisect_left(starts, begin)) + most < len(starts):
        end, after_sentence_here = _cut(text, begin, max(begin + 1, starts[first + most]))
        parts.append(Part(text[begin:end], before, after_sentence))
        begin, after_sentence = end, after_sentence_here
        while begin < len(text) and _may_break(text[begin]):
            begin += 1
        before = text[end:begin]
    return [*parts, Part(text[begin:], before, after_sentence)]


def _cut(text: str, begin: int, limit: int) -> tuple[int, bool]:
    """Where the part that begins there ends, at most at `limit`; whether a sentence ends there."""
    sentence_ends = [
        end
        for match in _SENTENCE_END.finditer(text, begin, limit + 1)
        if begin < (end := match.end()) <= limit and not text[end : end + _AROUND].lstrip()[:1].islower()
    ]
    if sentence_ends:
        return sentence_ends[-1], True
    for end in range(limit, begin, -1):
        if end < len(text) and _may_break(text[end]) and not is_blank(text[begin:end]):
            while _may_break(text[end - 1]):
                end -= 1
            return end, False
    first = max(begin, limit - _AROUND)
    ends = (first + end for end in _grapheme_ends(text[first : limit + _AROUND]))
    return max((end for end in ends if begin < end <= limit), default=limit), False


def _grapheme_ends(text: str) -> Iterator[int]:
    from tokenizers import Regex, pre_tokenizers  # here: lines are seldom cut

    graphemes = pre_tokenizers.Split(Regex(r"\X"), behavior="isolated")
    return (end for _, (_, end) in graphemes.pre_tokenize_str(text))


def _may_break(character: str) -> bool:
    return character == "\u200b" or (character.isspace() and character not in _UNBROKEN_SPACES)


def cut_line(
    text: str,
    most: int,
    *,
    spans_of: Callable[[str], Spans],
    encode: Callable[[list[str]], list[list[int]]],
    window: int | None = None,
) -> list[tuple[Part, list[int]]]:
    """The parts of a line with their ids, at most `most` of each: `parts_of_line`, cut again where that is too many.

    window: the tokens that a part may have in the line, `most` by default. A single character of more than `most` ids
    is cut between them.
    """
    window = window or most
    parts = parts_of_line(text, spans_of(text), window)
    cut: list[tuple[Part, list[int]]] = []
    for part, ids in zip(parts, encode([part.text for part in parts]), strict=True):
        if len(ids) <= most:
            cut.append((part, ids))
        elif window > 1:
            (first, first_ids), *rest = cut_line(
                part.text, most, spans_of=spans_of, encode=encode, window=max(1, window // 2)
            )
            cut += [(part._replace(text=first.text), first_ids), *rest]
        else:
            cut += [(part if i == 0 else Part(""), ids[i : i + most]) for i in range(0, len(ids), most)]
    return cut
