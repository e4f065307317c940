"""Every head's weights for one pair, with the words that they join."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from heed.config import shown
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.text.printable import is_hidden, printable
from heed.text.segmentation import TEXT
from heed.text.tokenizer_kinds import AnyTokenizer

View = Literal["encoder", "decoder", "cross"]
VIEWS: tuple[View, ...] = get_args(View)
BEGIN, END = "<s>", "</s>"
MAX_TOKENS = 1000  # a side; the weights grow with the square


@dataclass(frozen=True)
class Attention:
    """One kind of attention: weights (layer, head, query, key) with the words at their queries and keys."""

    weights: NDArray[np.float32]
    queries: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class AttentionTrace:
    """A model's attention for one pair. A query of the decoder is named by the token that it reads; one of cross
    attention by the token that is written there."""

    source: str
    target: str
    encoder: Attention
    decoder: Attention
    cross: Attention

    def view(self, name: View) -> Attention:
        """One of the three."""
        attention: Attention = getattr(self, name)
        return attention


def trace(
    translator: Translator, source: str, *, target: str | None = None, whole_words: bool = False
) -> AttentionTrace:
    """The weights for this source and its translation, or another target.

    whole_words: joins the pieces of a word: of the weights that they receive it takes the sum, of those that they give
    the mean.
    """
    if not source.strip():
        raise HeedError("there is no sentence to look at.")
    # The pair as ids, the target translated if none is given.
    tokenizer = translator.tokenizer
    src = tokenizer.encode(source)
    _check_length("source", src)
    if target is None:
        target = translator.translate([source])[0].text
    tgt = tokenizer.encode_targets([target])[0]
    if tokenizer.symbols and target.strip() and not tgt:
        raise HeedError(f"the target {shown(target)} is none: this model writes symbols of trees, such as (NP.")
    _check_length("target", tgt)
    # Labels of rows and columns: pieces, or whole words.
    weights = translator.attention(source, target)
    src_pieces, tgt_pieces = tokenizer.src_pieces(src), tokenizer.pieces(tgt)
    if whole_words:
        src_pieces = _spell(source, tokenizer.src_spans([source])[0])
        tgt_pieces = _spell_target(tokenizer, target)
    parts = {
        "encoder": (weights.encoder, [*src_pieces, END], [*src_pieces, END]),
        "decoder": (weights.decoder, [BEGIN, *tgt_pieces], [BEGIN, *tgt_pieces]),
        "cross": (weights.cross, [*tgt_pieces, END], [*src_pieces, END]),
    }
    kinds = {
        name: _attention(w.float().cpu().numpy(), queries, keys, whole_words)
        for name, (w, queries, keys) in parts.items()
    }
    return AttentionTrace(source, target, kinds["encoder"], kinds["decoder"], kinds["cross"])


def _check_length(side: str, ids: Sequence[int]) -> None:
    if len(ids) > MAX_TOKENS:
        raise HeedError(f"the {side} has {len(ids):,} tokens; {MAX_TOKENS:,} can be looked at.")


def _attention(weights: NDArray[Any], queries: Sequence[str], keys: Sequence[str], whole_words: bool) -> Attention:
    if whole_words:
        starts = [word_starts(pieces) for pieces in (queries, keys)]
        weights = np.add.reduceat(weights, starts[1], axis=3)
        sizes = np.diff([*starts[0], len(queries)])
        weights = np.add.reduceat(weights, starts[0], axis=2) / sizes[:, None]
        queries, keys = (_join(pieces, begins) for pieces, begins in zip((queries, keys), starts, strict=True))
    return Attention(weights.astype(np.float32), tuple(map(_visible, queries)), tuple(map(_visible, keys)))


def _visible(piece: str) -> str:
    """The piece without the space before it; ␣ or an escape such as \\u200b where nothing could be seen."""
    piece = piece.strip()
    return printable(piece) if all(map(is_hidden, piece)) and piece else piece or "␣"


def _spell_target(tokenizer: AnyTokenizer, target: str) -> list[str]:
    """Returns the text of each piece of a target; symbols by name, with the spelled words among them."""
    if not tokenizer.symbols:
        return _spell(target, tokenizer.tgt_spans([target])[0])
    spelled: list[str] = []
    for name in target.split(" "):
        if name.startswith(TEXT):
            first, *more = _spell(name[1:], tokenizer.tgt_spans([name[1:]])[0])
            spelled += [f" {first}", *more]
        elif name:
            spelled.append(f" {name}")
    return spelled


def _spell(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    """The text of each piece, with the space before a word.

    Of pieces that begin at the same character, as those of its bytes do, the first has all of their text.
    """
    spelled: list[str] = []
    done = 0
    for _, run in groupby(spans, key=lambda span: span[0]):
        ends = [end for _, end in run]
        spelled += [text[done : max(ends)], *[""] * (len(ends) - 1)]
        done = max(done, *ends)
    return spelled


def word_starts(pieces: Sequence[str]) -> list[int]:
    """Where words begin: behind a space, and where letters or digits meet others. An empty piece begins none."""

    def begins(before: str, piece: str) -> bool:
        if piece[:1].isspace() or piece in (BEGIN, END) or before in (BEGIN, END):
            return True
        return not (before.isspace() or _continues(piece[:1]) or (_in_word(before[-1:]) and piece[:1].isalnum()))

    starts, before = [], ""
    for i, piece in enumerate(pieces):
        if i == 0 or (piece and begins(before, piece)):
            starts.append(i)
        before = piece or before
    return starts


def _in_word(letter: str) -> bool:
    return letter.isalnum() or _continues(letter)


def _continues(letter: str) -> bool:
    """Whether it belongs to the character before it, as accents, vowel signs and joiners do."""
    return letter != "" and unicodedata.category(letter) in ("Mn", "Mc", "Me", "Cf")


def _join(pieces: Sequence[str], starts: Sequence[int]) -> list[str]:
    return ["".join(pieces[i:j]) for i, j in zip(starts, [*starts[1:], len(pieces)], strict=True)]


def word_place(words: Sequence[str], word: str) -> int:
    """The place of a word, given as the word or its number from 1. HeedError lists the words."""
    numbers = [str(number) for number in range(1, len(words) + 1)]
    for names in (words, numbers):
        if word in names:
            return names.index(word)
    raise HeedError(f"no word {shown(word)} there; the words are: {' '.join(words)}.")
