"""The rules of a line of text: what is blank, what has no part in a loss, where a long line is cut.

Preparation, validation, tests, translating, scoring and serving ask the same questions here.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # what reads lines alone needs no tokenizer
    from heed.text.tokenizer_kinds import AnyTokenizer

Spans = Sequence[tuple[int, int]]

# What Unicode shows as nothing besides white space, control and format characters: Default_Ignorable_Code_Point of
# Unicode 16 that are letters or marks, and the empty pattern of Braille.
_HIDDEN = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, *range(0x180B, 0x1810)))
) | frozenset(map(chr, (*range(0xFE00, 0xFE10), 0x2065, *range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000))))
# Format characters that are shown: marks that Arabic, Syriac and Kaithi write around a number.
_SHOWN_FORMATS = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")
_UNBROKEN_SPACES = "\xa0\u2007\u202f"  # no-break spaces stand within a number or a name
_SENTENCE_END = re.compile(r"[.!?…؟۔।॥።։]['\"”’»)\]]{0,3}(?=\s)|[。！？｡．។။༎][」』）”’\"】〉》]{0,3}")
LEAST_LETTERS = 5  # of a line that can be strange
REPEATED = 20  # words of a repetition
_AROUND = 256  # characters on both sides of a cut in which graphemes are looked for; longer ones are not kept whole


class Part(NamedTuple):
    """A part of a long line. before: what stood between it and the part before, such as a space.

    after_sentence: whether the part before ended with a sentence.
    """

    text: str
    before: str = ""
    after_sentence: bool = False


def is_blank(text: str) -> bool:
    """Whether nothing of a text can be seen: it is empty, or all white space, controls and hidden characters."""
    if "!" <= text[:1] <= "~":  # as most lines begin; asked four times for each pair that is prepared
        return False
    return all(map(_is_hidden, text))


def _is_hidden(character: str) -> bool:
    if character.isspace() or character in _HIDDEN:
        return True
    return unicodedata.category(character) in ("Cc", "Cf") and character not in _SHOWN_FORMATS


def reason_against_loss(
    lines: tuple[str, str],
    ids: Sequence[Sequence[int]],
    tokenizer: "AnyTokenizer",
    *,
    max_tokens: int,
    training: bool = False,
) -> str | None:
    """Why no loss and no perplexity counts a pair of lines, such as "with a blank side"; None if they do.

    ids: those of each line. max_tokens: the longest side of a training pair (data.max_tokens). training: whether it is
    a pair to learn from, which may have unknown tokens; a perplexity that counts these praises a model for writing
    nothing.
    """
    if any(map(is_blank, lines)):
        return "with a blank side"
    src_ids, tgt_ids = ids
    if tokenizer.symbols and not tgt_ids:
        return "with a symbol that the training set lacks"
    if max(len(src_ids), len(tgt_ids)) > max_tokens:
        return f"longer than {max_tokens} tokens (data.max_tokens)"
    if not training and tokenizer.special.unk in tgt_ids:
        return "with a target that the vocabulary lacks a part of"
    return None


def is_strange(text: str, spans: Spans) -> bool:
    """Whether most letters of a source's longer words are tokens of their own, in a script that has capitals.

    spans: of the source's tokens. A few letters tell nothing.
    """
    words = (range(*word.span()) for word in re.finditer(r"[^\W\d_]{2,}", text))
    letters = {place for word in words for place in word if text[place].lower() != text[place].upper()}
    alone = {start for start, end in spans if end - start == 1 and start in letters}
    return len(letters) >= LEAST_LETTERS and 2 * len(alone) > len(letters)


def is_uneven(source: str, target: str) -> bool:
    """Whether one text is so much longer than the other that it is hardly its translation.

    By bytes of UTF-8, of which scripts need one to three a letter, and Chinese three for what is a word elsewhere.
    """
    lengths = sorted(len(text.encode(errors="replace")) for text in (source, target))
    return lengths[1] > 6 * lengths[0] + 60


def is_repetition(words: Sequence[str]) -> bool:
    """Whether the last REPEATED words, or tokens, are of a quarter as many kinds or fewer."""
    return len(words) >= REPEATED and len(set(words[-REPEATED:])) <= REPEATED // 4


class Mentions:
    """Lines that something is said of: how many, and the first ten by name."""

    def __init__(self) -> None:
        self._n, self._first = 0, list[str]()

    def __len__(self) -> int:
        return self._n

    def add(self, name: str) -> None:
        self._n += 1
        self._first += [name] * (len(self._first) < 10)

    def __str__(self) -> str:
        n_more = self._n - len(self._first)
        return ", ".join(self._first) + (f" and {n_more:,} more" if n_more else "")


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
