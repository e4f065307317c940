"""Sentences → trees: beam search over symbols that can only write trees over exactly the words."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.config import validated
from heed.data.lines import wait_for_more, windows
from heed.decoding.search import DecodingSettings, Source, search
from heed.errors import HeedError
from heed.model.inference import prepack
from heed.model.transformer import Transformer
from heed.model_folder import load_model
from heed.parsing.trees import EMPTY, LinearisationSettings, Tree, escaped, plain, restored, sentence, split_words
from heed.runtime.device import DecodingPrecision, choose_machine
from heed.runtime.memory import keep_freed_memory, release_library_pages
from heed.text.tokenizer import Tokenizer

Ints = NDArray[np.int64]

MAX_SENTENCES = 64  # searched at a time
MAX_TOKENS = 2048  # of a sentence: attention's memory grows with the square
# Lines that are sorted by length together: few at first, so that output starts at once.
FIRST_WINDOW, LAST_WINDOW = 16, 1024
MAX_OPEN, MAX_OPENED_AT_ONCE = 100, 20  # brackets: within one another, one behind the other


@dataclass(frozen=True)
class Parse:
    """A sentence's tree, or None where an unconstrained search wrote none; score and natural log_prob of its symbols.

    confidence: the geometric mean of the symbols' probabilities; 0 of a blank or far too long sentence, which was not
    parsed.
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
        linearisation: LinearisationSettings,
        *,
        precision: DecodingPrecision = "fp32",
        constrained: bool = True,
        report: Callable[[str], None] = lambda line: None,
        copy: bool = True,
    ):
        """copy: whether the model stays as it is; else it becomes the parser's, which halves the memory."""
        self.model, self.tokenizer, self.settings = prepack(model, precision, copy=copy), tokenizer, settings
        self.constrained, self.linearisation, self.report = constrained, linearisation, report
        self._copies_words = linearisation.leaves == "words"
        self._longest = MAX_TOKENS
        if model.arch.positions == "learned":
            # A target has max_extra_tokens more and, where words are copied, a tag for every word.
            room = model.arch.max_positions - 2 - settings.max_extra_tokens
            self._longest = min(MAX_TOKENS, room // 2 if self._copies_words else room)
        self._symbol_ids = set(tokenizer.symbols.values())

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        device: str | None = None,
        precision: DecodingPrecision = "fp32",
        constrained: bool = True,
        report: Callable[[str], None] = lambda line: None,
        **changes: Any,
    ) -> "Parser":
        """The parser of a model folder; it searches as its recipe said but for `changes`, DecodingSettings by name."""
        keep_freed_memory()
        release_library_pages()
        loaded = load_model(Path(folder))
        if not loaded.card.parsing:
            raise HeedError(f"{folder}: this model translates (heed translate); it was not trained on trees.")
        linearisation = validated(LinearisationSettings, loaded.card.parsing, where=str(folder))
        values = loaded.card.decoding | {name: value for name, value in changes.items() if value is not None}
        settings = validated(DecodingSettings, values, where=str(folder))
        model = loaded.model.to(choose_machine("fp32", device=device).device)
        return cls(
            model, loaded.tokenizer, settings, linearisation,
            precision=precision, constrained=constrained, report=report, copy=False,
        )  # fmt: skip

    def parse(self, sentences: Iterable[Sequence[str]], *, tags: Iterable[Sequence[str]] | None = None) -> list[Parse]:
        """One parse a sentence, in order. A blank one has no tree, one that is far too long a flat one.

        HeedError if a word is empty or has spaces within, or if tags are not as many as words.
        """
        return list(self.stream(zip(sentences, tags, strict=True) if tags else ((words, None) for words in sentences)))

    def stream(self, sentences: Iterable[tuple[Sequence[str], Sequence[str] | None] | None]) -> Iterator[Parse]:
        """As `parse`, of (words, their tags or None) while they come in.

        A None among them says that no other is at hand yet, so that those before it need not wait; `sentences` may have
        a method `wait`, which blocks until another is. Given tags stand in the tree, and those that the model knows are
        what it must write.
        """
        waiting: deque[int] = deque()  # read, not given out yet
        given: dict[int, tuple[Sequence[str], Sequence[str] | None]] = {}
        done: dict[int, Parse] = {}
        constraint = None
        if self.constrained:
            constraint = TreeConstraint(self.tokenizer, self.settings.beam_size, copies_words=self._copies_words)
        sources = self._sources(sentences, waiting, given, done, constraint)
        for result in search(
            [self.model], sources, self.tokenizer.special, self.settings, n_sentences=MAX_SENTENCES,
            constraint=constraint, wait=wait_for_more(sentences),
        ):  # fmt: skip
            if result is not None:
                number, (best, *_) = result
                done[number] = self._parse(*given.pop(number), best.ids, best.score, best.log_prob)
            while waiting and waiting[0] in done:
                yield done.pop(waiting.popleft())
        for number in waiting:  # at the end, with nothing to search behind them
            yield done[number]

    def _sources(
        self,
        sentences: Iterable[tuple[Sequence[str], Sequence[str] | None] | None],
        waiting: "deque[int]",
        given: "dict[int, tuple[Sequence[str], Sequence[str] | None]]",
        done: dict[int, Parse],
        constraint: "TreeConstraint | None",
    ) -> Iterator[Source | None]:
        """Window by window, sorted by length; what is not searched is done."""
        n_read = 0
        for window in windows(sentences, first=FIRST_WINDOW, last=LAST_WINDOW, size=n_characters):
            if window is None:
                yield None
                continue
            numbers = range(n_read, n_read + len(window))
            n_read += len(window)
            waiting.extend(numbers)
            encoded = self.tokenizer.encode_lines([sentence(words) for words, _ in window])
            arriving = []
            for number, (words, tags), ids in zip(numbers, window, encoded, strict=True):
                _check(number, words, tags)
                if not words:
                    done[number] = Parse((), None, 0.0, 0.0, 0.0)
                elif len(ids) > self._longest:
                    self.report(
                        f"sentence {number + 1}: {len(ids):,} tokens, {self._longest:,} at most are parsed; it gets a "
                        "flat tree with a confidence of 0."
                    )
                    done[number] = Parse(tuple(words), Tree.flat(words, tags), 0.0, 0.0, 0.0)
                else:
                    given[number] = words, tags
                    at_least = 1 if constraint is None else constraint.expect(number, words, tags)
                    length = len(ids) + len(words) * self._copies_words
                    arriving.append(Source(number, ids, at_least=at_least, length=length))
            yield from sorted(arriving, key=lambda source: len(source.ids))

    def _parse(
        self, words: Sequence[str], tags: Sequence[str] | None, ids: tuple[int, ...], score: float, log_prob: float
    ) -> Parse:
        try:
            if not self._symbol_ids.intersection(ids):
                raise ValueError("no symbol")
            tree = restored(words, self.tokenizer.decode(ids).split(" "), tags)
        except ValueError:
            tree = None
        return Parse(tuple(words), tree, score, log_prob, math.exp(log_prob / (len(ids) + 1)))


def _check(number: int, words: Sequence[str], tags: Sequence[str] | None) -> None:
    for word in words:
        if [word] != split_words(word):
            raise HeedError(f"sentence {number + 1}: the word {word!r} is empty or has spaces within.")
    if tags is not None and len(tags) != len(words):
        raise HeedError(f"sentence {number + 1}: {len(words)} words, but {len(tags)} tags.")


class TreeConstraint:
    """Which ids may follow, so that brackets balance, none is empty, and each word has its leaf, in order.

    Every row of the search has a state here: where it is in its sentence's script, the open brackets, whether the last
    one has contents. A script says leaf by leaf what must be written: the pieces of the word, where words are copied,
    and a tag, any or a given one. Which piece follows is no question, so it is not scored as one: otherwise a word that
    the model copies with little confidence would be put off by one more bracket, and yet another. A bracket opens only
    while what is left to write, closed at once, still fits into the longest output.
    """

    ANY_TAG = -1

    def __init__(self, tokenizer: Tokenizer, beam_size: int, *, copies_words: bool):
        names = sorted(tokenizer.symbols)
        labels = {label: i for i, label in enumerate(sorted({name[1:] for name in names if name[0] in "()"}))}
        self._tokenizer, self._beam, self._copies_words = tokenizer, beam_size, copies_words
        # What an id opens or closes: a label's number, or -1.
        self._opens, self._closes = np.full((2, len(tokenizer)), -1)
        for name in names:
            if name[0] in "()":
                (self._opens if name[0] == "(" else self._closes)[tokenizer.symbols[name]] = labels[name[1:]]
        special = tokenizer.special
        text = set(range(len(tokenizer))) - set(tokenizer.symbols.values()) - {special.pad, special.bos, special.eos}
        self.given = np.array(sorted(text) if copies_words else [], np.int64)
        self._opening = np.flatnonzero(self._opens >= 0)
        self._closing = np.array([tokenizer.symbols[f"){label}"] for label in labels] or [-1], np.int64)
        self._tag_ids = {name: i for name, i in tokenizer.symbols.items() if name[0] not in "()"}
        self._tags = np.array(sorted(self._tag_ids.values()), np.int64)
        self._scripts: dict[int, tuple[list[int], list[bool]]] = {}
        self._script = np.empty((0, 0), np.int64)  # by row; behind its end eos
        self._begins = np.empty((0, 0), np.bool_)  # where in it a leaf begins
        self._length = np.empty(0, np.int64)
        self._at = np.empty(0, np.int64)
        self._stack = np.empty((0, MAX_OPEN), np.int64)
        self._open = np.empty(0, np.int64)
        self._just_opened = np.empty(0, np.int64)  # brackets in a row

    def expect(self, number: int, words: Sequence[str], tags: Sequence[str] | None) -> int:
        """Says what the source of this number consists of, before it is searched; returns its shortest output."""
        script: list[int] = []
        begins: list[bool] = []
        for place, word in enumerate(words):
            pieces = self._tokenizer.encode(plain(word)) if self._copies_words else []
            script += [*pieces, self._tag_ids.get(tags[place], self.ANY_TAG) if tags else self.ANY_TAG]
            begins += [True, *[False] * len(pieces)]
        self._scripts[number] = script, begins
        return len(script) + 1

    def admit(self, numbers: Sequence[int]) -> None:
        """New sentences, behind the others."""
        new = [self._scripts.pop(number) for number in numbers]
        width = max(self._script.shape[1], *(len(script) + 1 for script, _ in new))
        scripts, begins = np.full((len(new), width), self._tokenizer.special.eos), np.ones((len(new), width), np.bool_)
        for row, (script, begin) in enumerate(new):
            scripts[row, : len(script)], begins[row, : len(script)] = script, begin
        more = [(0, 0), (0, width - self._script.shape[1])]

        def behind(old: NDArray[Any], added: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate([old, np.repeat(added, self._beam, axis=0)])

        self._script = behind(np.pad(self._script, more, constant_values=self._tokenizer.special.eos), scripts)
        self._begins = behind(np.pad(self._begins, more, constant_values=True), begins)
        self._length = behind(self._length, np.array([len(script) for script, _ in new]))
        none = np.zeros(len(new), np.int64)
        self._at, self._open, self._just_opened = (
            behind(old, none) for old in (self._at, self._open, self._just_opened)
        )
        self._stack = behind(self._stack, np.zeros((len(new), MAX_OPEN), np.int64))

    def choices(self, rows: Ints, steps_left: Ints) -> Ints:
        """(row, choice): what these rows may write, which have so many steps left; -1 for nothing."""
        at, n_open, fresh = self._at[rows], self._open[rows], self._just_opened[rows]
        to_write = self._length[rows] - at
        between = self._begins[rows, at]
        may_open = between & (to_write > 0) & (n_open < MAX_OPEN) & (fresh < MAX_OPENED_AT_ONCE)
        may_open &= to_write + n_open + 3 <= steps_left  # itself, the script, all that closes, eos
        may_close = between & (n_open > 0) & (fresh == 0)
        top = self._stack[rows, (n_open - 1).clip(0)]
        scripted = self._script[rows, at]
        any_tag = scripted == self.ANY_TAG
        may_write = (to_write > 0) | (n_open == 0)  # the script's end is eos, when all is closed
        return np.concatenate(
            [
                np.where(may_close, self._closing[top], -1)[:, None],
                np.where(may_write & ~any_tag, scripted, -1)[:, None],
                np.where((may_write & any_tag)[:, None], self._tags, -1),
                np.where(may_open[:, None], self._opening, -1),
            ],
            axis=1,
        )

    def advance(self, rows: Ints, ids: Ints) -> None:
        """Row i goes on from the old row rows[i] with ids[i]; rows that are not named are gone."""
        opens, closes = self._opens[ids], self._closes[ids]
        self._script, self._begins, self._length = self._script[rows], self._begins[rows], self._length[rows]
        self._at = np.minimum(self._at[rows] + ((opens < 0) & (closes < 0)), self._length)
        self._stack, n_open = self._stack[rows], self._open[rows]
        opening = np.flatnonzero((opens >= 0) & (n_open < MAX_OPEN))
        self._stack[opening, n_open[opening]] = opens[opening]
        self._open = (n_open + (opens >= 0) - (closes >= 0)).clip(0, MAX_OPEN)
        self._just_opened = np.where(opens >= 0, self._just_opened[rows] + 1, 0)


def n_characters(given: tuple[Sequence[str], Sequence[str] | None]) -> int:
    """Of a sentence: its words and their tags."""
    return sum(len(word) for part in given if part for word in part)


def read_tagged(line: str, number: int) -> tuple[list[str], list[str]]:
    """Words and tags of a line of word/TAG; the last slash divides. HeedError names the line of one without."""
    words, tags = [], []
    for token in split_words(line):
        word, slash, tag = token.rpartition("/")
        if not (word and tag and slash):
            raise HeedError(f"standard input, line {number}: {token!r} is not word/TAG.")
        if tag == EMPTY:
            raise HeedError(f"standard input, line {number}: {token!r} is a trace, no word; leave it out.")
        words.append(word)
        tags.append(escaped(tag))
    return words, tags
