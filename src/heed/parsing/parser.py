"""Sentences → trees: beam search over symbols that can only write trees over exactly the words."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.config import HeedError, validated
from heed.data.batching import SpecialIds
from heed.decoding.search import DecodingSettings, Source, search
from heed.model.inference import packed
from heed.model.transformer import Transformer
from heed.model_folder import load_model
from heed.parsing.trees import Tree, plain, restored, sentence
from heed.runtime import DecodingPrecision, choose_machine, keep_freed_memory
from heed.text.tokenizer import Tokenizer

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_SENTENCES = 64  # searched at a time
# Lines that are sorted by length together: few at first, so that output starts at once.
FIRST_WINDOW, LAST_WINDOW = 16, 1024
MAX_OPEN, MAX_OPENED_AT_ONCE = 100, 20  # brackets: within one another, one behind the other


@dataclass(frozen=True)
class Parse:
    """A sentence's tree, or None where an unconstrained search wrote none; score and natural log_prob of its symbols.

    confidence: the geometric mean of the symbols' probabilities.
    """

    words: tuple[str, ...]
    tree: Tree | None
    score: float
    log_prob: float
    confidence: float


class Parser:
    """A model that was trained on trees, with its tokenizer and search settings."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        settings: DecodingSettings,
        *,
        precision: DecodingPrecision = "fp32",
        constrained: bool = True,
    ):
        if not tokenizer.symbols:
            raise HeedError("this model's vocabulary has no symbols of trees: it translates; train a parser (docs).")
        self.model, self.tokenizer, self.settings = packed(model, precision), tokenizer, settings
        self.constrained = constrained
        self.special = SpecialIds(tokenizer.pad, tokenizer.bos, tokenizer.eos)

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        device: str | None = None,
        precision: DecodingPrecision = "fp32",
        constrained: bool = True,
        **changes: Any,
    ) -> "Parser":
        """The parser of a model folder; it searches as its recipe said but for `changes`, DecodingSettings by name."""
        keep_freed_memory()
        loaded = load_model(Path(folder))
        values = loaded.card.decoding | {name: value for name, value in changes.items() if value is not None}
        settings = validated(DecodingSettings, values, where=str(folder))
        model = loaded.model.to(choose_machine("fp32", device=device).device)
        return cls(model, loaded.tokenizer, settings, precision=precision, constrained=constrained)

    def parse(self, sentences: Iterable[Sequence[str]], *, tags: Iterable[Sequence[str]] | None = None) -> list[Parse]:
        """One parse a sentence, in order. A sentence without words has none."""
        return list(self.stream(zip(sentences, tags, strict=True) if tags else ((words, None) for words in sentences)))

    def stream(self, sentences: Iterable[tuple[Sequence[str], Sequence[str] | None] | None]) -> Iterator[Parse]:
        """As `parse`, of (words, their tags or None) while they come in.

        A None among them says that no other is at hand yet, so that those before it need not wait. Given tags stand in
        the tree, and those that the model knows are what it must write.
        """
        waiting: deque[int] = deque()  # read, not given out yet
        given: dict[int, tuple[Sequence[str], Sequence[str] | None]] = {}
        done: dict[int, Parse] = {}
        constraint = TreeConstraint(self.tokenizer, self.settings.beam_size) if self.constrained else None
        # Words are at most as many as ids: within input + max_extra_tokens there is room for a tree.
        settings = self.settings.model_copy(update={"max_tokens": None, "min_tokens": 0})
        sources = self._sources(iter(sentences), waiting, given, constraint)
        for result in search(
            [self.model], sources, self.special, settings, n_sentences=MAX_SENTENCES, constraint=constraint
        ):
            if result is not None:
                number, (best, *_) = result
                done[number] = self._parse(*given[number], best.ids, best.score, best.log_prob)
            while waiting and (waiting[0] in done or not given[waiting[0]][0]):
                number = waiting.popleft()
                words, _ = given.pop(number)
                yield done.pop(number) if words else Parse((), None, 0.0, 0.0, 1.0)
        for _ in waiting:  # blank ones at the end
            yield Parse((), None, 0.0, 0.0, 1.0)

    def _sources(
        self,
        sentences: Iterator[tuple[Sequence[str], Sequence[str] | None] | None],
        waiting: "deque[int]",
        given: "dict[int, tuple[Sequence[str], Sequence[str] | None]]",
        constraint: "TreeConstraint | None",
    ) -> Iterator[Source | None]:
        """Window by window, sorted by length."""
        number, window_size = 0, FIRST_WINDOW
        while True:
            window: list[int] = []
            for item in sentences:
                if item is not None:
                    given[number] = item
                    waiting.append(number)
                    window.append(number)
                    number += 1
                elif not window:
                    yield None
                if len(window) == window_size or (item is None and window):
                    break
            if not window:
                return
            ids = self.tokenizer.encode_lines([sentence(given[i][0]) for i in window])
            arriving = [Source(i, line) for i, line in zip(window, ids, strict=True) if given[i][0]]
            if constraint is not None:
                for source in arriving:
                    constraint.expect(source.number, *given[source.number])
            yield from sorted(arriving, key=lambda source: len(source.ids))
            window_size = min(2 * window_size, LAST_WINDOW)

    def _parse(
        self, words: Sequence[str], tags: Sequence[str] | None, ids: tuple[int, ...], score: float, log_prob: float
    ) -> Parse:
        try:
            tree = restored(words, self.tokenizer.pieces(ids), tags)
        except ValueError:
            tree = None
        return Parse(tuple(words), tree, score, log_prob, math.exp(log_prob / (len(ids) + 1)))


class TreeConstraint:
    """Which symbols may follow, so that brackets balance, none is empty, and each word has its leaf, in order.

    Every row of the search has a state here: how many words are left, the open brackets, whether the last one has
    contents. A bracket opens only while what is left to write, closed at once, still fits into the longest output.
    """

    def __init__(self, tokenizer: Tokenizer, beam_size: int):
        names = sorted(tokenizer.symbols)
        labels = sorted({name[1:] for name in names if name[0] in "()"})
        self.ids = np.array([tokenizer.eos, *(tokenizer.symbols[name] for name in names)])
        self._beam = beam_size
        label_of = {label: i for i, label in enumerate(labels)}
        # By candidate: the label that it opens, or closes, or -1; whether it is a leaf.
        self._opens = np.array([-1, *(label_of[name[1:]] if name[0] == "(" else -1 for name in names)])
        self._closes = np.array([-1, *(label_of[name[1:]] if name[0] == ")" else -1 for name in names)])
        self._leaf = np.array([False, *(name[0] not in "()" for name in names)])
        self._place = np.zeros(int(self.ids.max()) + 1, np.int64)
        self._place[self.ids] = np.arange(len(self.ids))
        self._candidate = {name: i for i, name in enumerate(names, start=1) if name[0] not in "()"}
        self._expected: dict[int, tuple[int, Ints]] = {}
        self._left = np.empty(0, np.int64)  # words, by row
        self._tags = np.empty((0, 0), np.int64)  # candidates that the last words must take, from behind; -1: any
        self._stack = np.empty((0, MAX_OPEN), np.int64)
        self._open = np.empty(0, np.int64)
        self._just_opened = np.empty(0, np.int64)  # brackets in a row

    def expect(self, number: int, words: Sequence[str], tags: Sequence[str] | None) -> None:
        """Says what the source of this number consists of, before it is searched."""
        known = [self._candidate.get(tag, -1) for tag in tags or ()]
        self._expected[number] = len(words), np.array(known[::-1], np.int64)

    def admit(self, numbers: Sequence[int]) -> None:
        """New sentences, behind the others."""
        new = [self._expected.pop(number) for number in numbers]
        n_rows, width = len(new) * self._beam, max(self._tags.shape[1], *(len(tags) for _, tags in new))
        tags = np.full((len(new), width), -1)
        for row, (_, known) in zip(tags, new, strict=True):
            row[: len(known)] = known
        old = np.pad(self._tags, [(0, 0), (0, width - self._tags.shape[1])], constant_values=-1)
        self._tags = np.concatenate([old, np.repeat(tags, self._beam, axis=0)])
        words = np.array([n_words for n_words, _ in new])
        self._left = np.concatenate([self._left, np.repeat(words, self._beam)])
        self._stack = np.concatenate([self._stack, np.zeros((n_rows, MAX_OPEN), np.int64)])
        self._open = np.concatenate([self._open, np.zeros(n_rows, np.int64)])
        self._just_opened = np.concatenate([self._just_opened, np.zeros(n_rows, np.int64)])

    def allowed(self, rows: Ints, steps_left: Ints) -> Bools:
        """(row, candidate): what these rows may write, which have so many steps left."""
        left, n_open = self._left[rows], self._open[rows]
        fresh = self._just_opened[rows]
        may_open = (left > 0) & (n_open < MAX_OPEN) & (fresh < MAX_OPENED_AT_ONCE)
        may_open &= left + n_open + 3 <= steps_left  # itself, all the words, all that closes, eos
        top = self._stack[rows, (n_open - 1).clip(0)]
        may_close = (n_open > 0) & (fresh == 0)
        allowed = may_open[:, None] & (self._opens >= 0)
        allowed |= may_close[:, None] & (self._closes == top[:, None])
        allowed |= (left > 0)[:, None] & self._leaf
        allowed[:, 0] = (left == 0) & (n_open == 0)
        if self._tags.shape[1]:
            wanted = np.where(left > 0, self._tags[rows, (left - 1).clip(0, self._tags.shape[1] - 1)], -1)
            others = np.arange(len(self.ids)) != wanted[:, None]
            allowed &= ~((wanted >= 0)[:, None] & self._leaf & others)
        return allowed

    def advance(self, rows: Ints, ids: Ints) -> None:
        """Row i goes on from the old row rows[i] with ids[i]; rows that are not named are gone."""
        place = self._place[ids]
        opens, closes, leaf = self._opens[place], self._closes[place], self._leaf[place]
        self._tags, self._left = self._tags[rows], self._left[rows] - leaf
        self._stack, n_open = self._stack[rows], self._open[rows]
        opening = np.flatnonzero((opens >= 0) & (n_open < MAX_OPEN))
        self._stack[opening, n_open[opening]] = opens[opening]
        self._open = n_open + (opens >= 0) - (closes >= 0)
        self._just_opened = np.where(opens >= 0, self._just_opened[rows] + 1, 0)


def read_tagged(line: str, number: int) -> tuple[list[str], list[str]]:
    """Words and tags of a line of word/TAG; the last slash divides. HeedError names the line of one without."""
    words, tags = [], []
    for token in line.split():
        word, slash, tag = token.rpartition("/")
        if not (word and tag and slash):
            raise HeedError(f"standard input, line {number}: {token!r} is not word/TAG.")
        words.append(plain(word))
        tags.append(tag)
    return words, tags
