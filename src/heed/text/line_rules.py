"""The rules of a line of text: what is blank, what has no part in a loss, what is strange or repeats itself.

Preparation, validation, tests, translating, scoring and serving ask the same questions here.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
LEAST_LETTERS = 5  # of a line that can be strange
REPEATED = 20  # words of a repetition


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
