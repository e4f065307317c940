"""Sentences → trees: beam search over symbols that can only write trees over exactly the words."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from heed.backends.protocol import SearchModel
from heed.config import shown, validated
from heed.data.reading.stream import wait_for_more
from heed.decoding.beam import Hypothesis, SearchPlan, search
from heed.decoding.loading import (
    PickledByValue,
    choose_precision,
    description,
    list_of,
    load_models,
    no_report,
    prepack_models,
    ready_models,
    recipe_settings,
)
from heed.decoding.option_rules import PARSER_RULES
from heed.decoding.settings import DecodingOptions, DecodingSettings
from heed.decoding.source_queue import Source, search_in_order
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model_folder import ModelFolder
from heed.parsing.lexicon import NO_LEXICON, Lexicon
from heed.parsing.trees import (
    EMPTY,
    Leaves,
    LinearisationSettings,
    Order,
    Tree,
    escape,
    leaf_symbol,
    linearise,
    restore,
    sentence,
    split_words,
)
from heed.runtime.device import DecodingPrecisionChoice
from heed.runtime.progress import Task, progress
from heed.text.printable import printable
from heed.text.tokenizer import Tokenizer, check_unicode
from heed.text.tokenizer_kinds import AnyTokenizer

Ints = NDArray[np.int64]
Tagged = tuple[Sequence[str], Sequence[str] | None]  # the words of a sentence, and their tags if they are given

MAX_TOKENS = 2048  # of a sentence: attention's memory grows with the square
ANY_TAG = -1  # in a script
MAX_OPEN, MAX_OPENED_AT_ONCE = 100, 20  # brackets: nested, consecutive


class ParserCard(LinearisationSettings):
    """The form of a parser's trees and words, in its model folder's card."""

    lexicon: Lexicon = NO_LEXICON


@dataclass(frozen=True)
class Parse:
    """A sentence's tree; score and natural log_prob of its symbols.

    tree: None for a blank sentence, and where an unconstrained search wrote no tree over the words.

    confidence: the geometric mean of the symbols' probabilities, the end's among them unless the tree was cut off; 0 of
    a blank or far too long sentence, which was not parsed.
    """

    words: tuple[str, ...]
    tree: Tree | None
    score: float
    log_prob: float
    confidence: float


def longest_sentence(arch: Architecture, settings: DecodingSettings, linearisation: LinearisationSettings) -> int:
    """The most tokens of a sentence that is parsed. HeedError if learned positions leave no room for any tree."""
    if arch.positions != "learned":
        return MAX_TOKENS
    # A target has max_extra_tokens more and, where words are copied, a tag for every word.
    room = arch.max_positions - 2 - settings.max_extra_tokens
    if linearisation.leaves == "words":
        room //= 2
    if room < 1:
        raise HeedError(
            f"max_positions={arch.max_positions} leaves no room for a tree: max_extra_tokens is "
            f"{settings.max_extra_tokens}; lower it."
        )
    return min(MAX_TOKENS, room)


class Parser(PickledByValue):
    """A model that was trained on trees, with its tokenizer and search settings; or several, which decide together.

    Thread safety: `parse` and `stream` change nothing in the parser, so several threads may call them at once; one
    stream belongs to one thread at a time. A parser can be pickled, also into another process of the same machine, if
    its `report` can.
    """

    def __init__(
        self,
        models: SearchModel | Sequence[SearchModel],
        tokenizer: AnyTokenizer,
        settings: DecodingSettings,
        linearisation: LinearisationSettings,
        *,
        lexicon: Lexicon = NO_LEXICON,
        precision: DecodingPrecisionChoice = "fp32",
        constrained: bool = True,
        report: Callable[[str], None] = no_report,
        copy: bool = True,
    ):
        """lexicon: of the trees that the models learned from.

        precision: in which it computes; "auto" takes the fastest that this machine is good at.

        copy: whether the models stay as they are; else they become the parser's, which halves the memory.
        """
        first = list_of(models)[0]
        self.precision = choose_precision(first, precision, device_name=first.device_name, report=report)
        self.models = prepack_models(models, self.precision, copy=copy)
        self.tokenizer = tokenizer
        self.settings = settings.model_copy(update={"min_tokens": 0})  # the words decide how long a tree is at least
        self.constrained, self.linearisation, self.report = constrained, linearisation, report
        self._copies_words = linearisation.leaves == "words"
        self._longest = min(longest_sentence(model.arch, settings, linearisation) for model in self.models)
        self._lexicon = lexicon
        self.language = ""  # of the sentences, and the models' folders, if they were loaded
        self.folders: tuple[str | Path, ...] = ()
        self._symbol_ids = set(tokenizer.symbols.values())

    @classmethod
    def load(
        cls,
        *folders: str | Path,
        device: str | None = None,
        precision: DecodingPrecisionChoice = "fp32",
        constrained: bool = True,
        report: Callable[[str], None] = no_report,
        **decoding: Unpack[DecodingOptions],
    ) -> "Parser":
        """The parser of a model folder, or of several, which decide together.

        It searches as the first model's recipe says; DecodingSettings given as keywords replace the recipe's. HeedError
        if a setting is unknown, out of range or without effect, a folder is damaged, its model translates, or the
        folders differ in their vocabulary, lexicon or order of symbols.
        """
        loaded = load_models(folders)
        settings = recipe_settings(loaded[0], decoding, where=str(folders[0]), rules=PARSER_RULES)
        return cls.of(
            loaded, settings, where=folders, precision=precision, constrained=constrained, report=report, device=device
        )

    @classmethod
    def of(
        cls,
        loaded: Sequence[ModelFolder],
        settings: DecodingSettings,
        *,
        where: Sequence[str | Path],
        precision: DecodingPrecisionChoice = "fp32",
        constrained: bool = True,
        report: Callable[[str], None] = no_report,
        device: str | None = None,
    ) -> "Parser":
        """The parser of loaded model folders of one vocabulary, whose models it takes over. Errors as `load`.

        where: the folders, as errors name them.
        """
        cards = [_parser_card(folder, name) for folder, name in zip(loaded, map(str, where), strict=True)]
        for name, card in zip(where, cards, strict=True):
            if card != cards[0]:
                raise HeedError(
                    f"{name}: its trees are other sequences than those of {where[0]}, or its lexicon is another; only "
                    "models of one recipe and treebank can be joined."
                )
        models, chosen = ready_models(loaded, precision, device=device, report=report)
        parser = cls(
            models, loaded[0].tokenizer, settings, cards[0],
            lexicon=cards[0].lexicon, precision=chosen, constrained=constrained, report=report, copy=False,
        )  # fmt: skip
        parser.language, parser.folders = loaded[0].card.src, tuple(where)
        return parser

    def __repr__(self) -> str:
        task = f"{printable(self.language) if self.language else '?'} → trees"
        beam_size = self.settings.beam_size
        about = description(self.models, self.folders, task=task, precision=self.precision, beam_size=beam_size)
        return f"<Parser {about}>"

    def parse(self, sentences: Iterable[Sequence[str]], *, tags: Iterable[Sequence[str]] | None = None) -> list[Parse]:
        """One parse of each sentence, in order. A blank sentence has no tree; one that is far too long has a flat one.

        HeedError if a word or a tag is empty or contains a space, if a tag contains a bracket, or if there are not as
        many tags as words.
        """
        n_sentences = len(sentences) if isinstance(sentences, Sized) else None
        tagged = ((words, None) for words in sentences) if tags is None else _pair_with_tags(sentences, tags)
        with progress("Parsing", total=n_sentences, unit="sentences") as task:
            return list(self.stream(tagged, task=task))

    def stream(self, sentences: Iterable[Tagged | None], *, task: Task | None = None) -> Iterator[Parse]:
        """Yields parses of (words, their tags or None) while they come in; memory does not grow with their number.

        None in place of a sentence means that the next one has not arrived yet: earlier sentences are parsed without
        waiting for it. `sentences` may have a method `wait`, which blocks until it arrives. Given tags stand in the
        tree, and the model must write those of them that it knows. task: counts the sentences that are parsed.
        """
        constraint = None
        if self.constrained:
            beam_size, how = self.settings.beam_size, self.linearisation
            constraint = TreeConstraint(
                self.tokenizer, beam_size, leaves=how.leaves, order=how.order, lexicon=self._lexicon
            )
        numbers = itertools.count()

        def sources_of(window: list[Tagged]) -> Iterator[list[Source]]:
            for tagged, ids in zip(window, self._encode(window), strict=True):
                source = self._source(next(numbers), tagged, ids, constraint)
                yield [] if source is None else [source]

        special, wait = self.tokenizer.special, wait_for_more(sentences)
        find = partial(search, SearchPlan(self.models, special, self.settings, constraint=constraint, wait=wait))
        for (words, tags), results in search_in_order(sentences, sources_of, find, size=n_characters, task=task):
            if results:
                yield self._parse(words, tags, results[0][0])
            else:
                yield Parse(tuple(words), Tree.flat(words, tags) if words else None, 0.0, 0.0, 0.0)

    def as_read(self, words: Sequence[str]) -> tuple[str, str]:
        """A sentence and its tree as lines of what the model reads and writes: rare words by class, symbols.

        HeedError for words that cannot be parsed, or where an unconstrained search writes no tree.
        """
        (parse,) = self.parse([words])
        if parse.tree is None:
            raise HeedError("the model writes no tree for this sentence.")
        how, form = self.linearisation, self._lexicon.form
        symbols = linearise(parse.tree, leaves=how.leaves, form=form, order=how.order)
        return sentence(words, form), " ".join(symbols)

    def _encode(self, sentences: list[Tagged]) -> list[list[int]]:
        return self.tokenizer.encode_lines([sentence(words, self._lexicon.form) for words, _ in sentences])

    def _source(
        self, number: int, tagged: Tagged, ids: list[int], constraint: "TreeConstraint | None"
    ) -> Source | None:
        """The source to search for a sentence; None if it is blank or far too long."""
        words, tags = tagged
        _check(number, words, tags)
        if not words:
            return None
        if len(ids) > self._longest:
            self.report(
                f"sentence {number + 1}: {len(ids):,} tokens, {self._longest:,} at most are parsed; it gets a flat "
                "tree with a confidence of 0."
            )
            return None
        min_limit = 1 if constraint is None else constraint.expect(number, words, tags)
        length = len(ids) + len(words) * self._copies_words
        return Source(number, ids, min_limit=min_limit, length=length)

    def _parse(self, words: Sequence[str], tags: Sequence[str] | None, best: Hypothesis) -> Parse:
        try:
            if not self._symbol_ids.intersection(best.ids):
                raise ValueError("no symbol")
            symbols = self.tokenizer.decode(best.ids).split(" ")
            tree = restore(words, symbols, tags, form=self._lexicon.form, order=self.linearisation.order)
        except ValueError:
            tree = None
        n_symbols = len(best.ids) + best.ended
        confidence = math.exp(best.log_prob / n_symbols) if n_symbols else 0.0
        return Parse(tuple(words), tree, best.score, best.log_prob, confidence)


def _parser_card(loaded: ModelFolder, where: str) -> ParserCard:
    """The form of the trees in a model folder's card. HeedError if its model translates or it is damaged."""
    if not loaded.card.parsing:
        raise HeedError(f"{where}: this model translates (heed translate); it was not trained on trees.")
    if not isinstance(loaded.tokenizer, Tokenizer):
        raise HeedError(f"{where}: damaged: a parser's tokenizer has symbols of trees, this one has none.")
    if unpaired := _unpaired_label(loaded.tokenizer):
        raise HeedError(f"{where}: damaged: its tokenizer lacks one of the brackets of {shown(unpaired)}.")
    return validated(ParserCard, loaded.card.parsing, where=where)


def _unpaired_label(tokenizer: Tokenizer) -> str | None:
    """The first label of which the tokenizer has only one bracket, if any."""
    opened, closed = ({name[1:] for name in tokenizer.symbols if name[0] == bracket} for bracket in "()")
    return min(opened ^ closed, default=None)


def _pair_with_tags(sentences: Iterable[Sequence[str]], tags: Iterable[Sequence[str]]) -> Iterator[Tagged]:
    """HeedError if there are more of one than of the other."""
    for number, (words, own) in enumerate(itertools.zip_longest(sentences, tags), start=1):
        if words is None or own is None:
            raise HeedError(f"sentence {number}: has no {'words' if words is None else 'tags'}.")
        yield words, own


def _check(number: int, words: Sequence[str], tags: Sequence[str] | None) -> None:
    if isinstance(words, str) or isinstance(tags, str):
        raise HeedError(f"sentence {number + 1} is one text; expected a list of its words: write text.split().")
    for word in words:
        check_unicode(word)
        if [word] != split_words(word):
            raise HeedError(f"sentence {number + 1}: the word {shown(word)} is empty or has spaces within.")
    if tags is not None and len(tags) != len(words):
        raise HeedError(f"sentence {number + 1}: {len(words)} words, but {len(tags)} tags.")
    for tag in tags or ():
        check_unicode(tag)
        if [tag] != split_words(tag) or not set(tag).isdisjoint("()"):
            raise HeedError(f"sentence {number + 1}: the tag {shown(tag)} is empty or has spaces or brackets within.")
        if tag == EMPTY:
            raise HeedError(f"sentence {number + 1}: {EMPTY} is the tag of a trace, not of a word; leave it out.")


class TreeConstraint:
    """Allows only ids that keep brackets balanced and nonempty and give each word its leaf, in order.

    Every row of the search has a state here: its position in its sentence's script, the open brackets, what it wrote
    last. A script lists leaf by leaf what must be written: the pieces of the word, where words are copied,
    and a tag: a given one, or one of those that the lexicon allows. The next piece is never in doubt, so its
    probability is not the model's: otherwise the search would put off a word that the model copies with little
    confidence by opening one bracket after another. A bracket opens only while the rest of the script, closed at once,
    still fits into the longest output.
    """

    def __init__(
        self,
        tokenizer: AnyTokenizer,
        beam_size: int,
        *,
        leaves: Leaves,
        order: Order = "top-down",
        lexicon: Lexicon = NO_LEXICON,
    ):
        names = sorted(tokenizer.symbols)
        labels = {label: i for i, label in enumerate(sorted({name[1:] for name in names if name[0] in "()"}))}
        self._tokenizer, self._beam, self._lexicon = tokenizer, beam_size, lexicon
        self._leaves, self._copies_words, self._in_order = leaves, leaves == "words", order == "in-order"
        # What an id opens or closes: a label's number, or -1.
        self._opens, self._closes = np.full((2, len(tokenizer)), -1)
        for name in names:
            if name[0] in "()":
                (self._opens if name[0] == "(" else self._closes)[tokenizer.symbols[name]] = labels[name[1:]]
        special = tokenizer.special
        text = set(range(len(tokenizer))) - set(tokenizer.symbols.values()) - {special.pad, special.bos, special.eos}
        self.given = np.array(sorted(text) if self._copies_words else [], np.int64)
        self._opening = np.flatnonzero(self._opens >= 0)
        self._closing = np.array([tokenizer.symbols[f"){label}"] for label in labels] or [-1], np.int64)
        self._tag_ids = {name: i for name, i in tokenizer.symbols.items() if name[0] not in "()"}
        # (set, choice): the tags that a leaf may have, padded with -1. A script names set s as -1 - s.
        self._tags = np.array([sorted(self._tag_ids.values())], np.int64)
        self._tag_sets: dict[frozenset[str], int] = {frozenset(): ANY_TAG}
        self._scripts: dict[int, tuple[list[int], list[bool]]] = {}
        self._script = np.empty((0, 0), np.int64)  # by row; behind its end eos
        self._begins = np.empty((0, 0), np.bool_)  # where in it a leaf begins
        self._length = np.empty(0, np.int64)
        self._at = np.empty(0, np.int64)  # its place in the script
        self._stack = np.empty((0, MAX_OPEN), np.int64)
        self._open = np.empty(0, np.int64)
        self._is_empty = np.empty(0, np.bool_)  # whether an opening bracket is the last symbol
        self._opened = np.empty(0, np.int64)  # brackets since the last leaf
        # In order, a bracket's first child is what was written last, so trees become deep without many open brackets.
        self._depth = np.empty(0, np.int64)  # of what was written last
        self._depths = np.empty((0, MAX_OPEN + 1), np.int64)  # of the deepest child, by the number of open brackets

    def expect(self, number: int, words: Sequence[str], tags: Sequence[str] | None) -> int:
        """Registers the words of the source of this number before it is searched; the length of its shortest output."""
        script: list[int] = []
        begins: list[bool] = []
        for place, word in enumerate(words):
            pieces = self._tokenizer.encode(self._lexicon.form(word)) if self._copies_words else []
            given = self._tag_ids.get(leaf_symbol(tags[place], self._leaves), ANY_TAG) if tags else None
            script += [*pieces, self._tag_set(word) if given is None else given]
            begins += [True, *[False] * len(pieces)]
        self._scripts[number] = script, begins
        return len(script) + 1

    def _tag_set(self, word: str) -> int:
        """A script's number for the set of tags that this word may have."""
        tags = self._lexicon.tags(word).intersection(self._tag_ids)
        if tags not in self._tag_sets:
            self._tag_sets[tags] = -1 - len(self._tags)
            ids = sorted(self._tag_ids[tag] for tag in tags)
            more = np.pad(ids, (0, self._tags.shape[1] - len(ids)), constant_values=-1)
            self._tags = np.concatenate([self._tags, more[None]])
        return self._tag_sets[tags]

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
        self._at, self._open, self._opened, self._depth = (
            behind(old, none) for old in (self._at, self._open, self._opened, self._depth)
        )
        self._is_empty = behind(self._is_empty, np.ones(len(new), np.bool_))
        self._stack = behind(self._stack, np.zeros((len(new), MAX_OPEN), np.int64))
        self._depths = behind(self._depths, np.zeros((len(new), MAX_OPEN + 1), np.int64))

    def choices(self, rows: Ints, steps_left: Ints) -> Ints:
        """(row, choice): the ids that these rows may write, padded with -1; steps_left: of each row, eos included."""
        at, n_open, is_empty = self._at[rows], self._open[rows], self._is_empty[rows]
        to_write = self._length[rows] - at
        between = self._begins[rows, at]
        may_open = between & (self._opened[rows] < MAX_OPENED_AT_ONCE)
        may_close = between & (n_open > 0)
        if self._in_order:
            may_open &= ~is_empty & (n_open + self._depth[rows] < MAX_OPEN)
        else:
            may_open &= (to_write > 0) & (n_open < MAX_OPEN)
            may_close &= ~is_empty
        may_open &= to_write + n_open + 3 <= steps_left  # itself, the script, all that closes, eos
        top = self._stack[rows, (n_open - 1).clip(0)]
        scripted = self._script[rows, at]
        tag_set = -1 - scripted
        may_write = (to_write > 0) | (n_open == 0)  # the script's end is eos, when all is closed
        return np.concatenate(
            [
                np.where(may_close, self._closing[top], -1)[:, None],
                np.where(may_write & (tag_set < 0), scripted, -1)[:, None],
                np.where((may_write & (tag_set >= 0))[:, None], self._tags[tag_set.clip(0)], -1),
                np.where(may_open[:, None], self._opening, -1),
            ],
            axis=1,
        )

    def advance(self, rows: Ints, ids: Ints | None) -> None:
        """Row i is now the old row rows[i] with ids[i] behind, or nothing; rows that are not named are gone."""
        self._script, self._begins, self._length = self._script[rows], self._begins[rows], self._length[rows]
        self._at, self._stack, self._open = self._at[rows], self._stack[rows], self._open[rows]
        self._is_empty, self._opened = self._is_empty[rows], self._opened[rows]
        self._depth, self._depths = self._depth[rows], self._depths[rows]
        if ids is None:
            return
        opens, closes, n_open = self._opens[ids], self._closes[ids], self._open
        is_leaf = (opens < 0) & (closes < 0)
        self._at = np.minimum(self._at + is_leaf, self._length)
        opening = np.flatnonzero((opens >= 0) & (n_open < MAX_OPEN))
        self._stack[opening, n_open[opening]] = opens[opening]
        self._open = (n_open + (opens >= 0) - (closes >= 0)).clip(0, MAX_OPEN)
        if self._in_order:
            self._depths[opening, self._open[opening]] = 0
            every = np.arange(len(rows))
            self._depth = np.where(is_leaf, 1, np.where(closes >= 0, self._depths[every, n_open] + 1, self._depth))
            self._depths[every, self._open] = np.maximum(self._depths[every, self._open], self._depth)
        self._is_empty = opens >= 0
        self._opened = np.where(is_leaf, 0, self._opened + (opens >= 0))


def n_characters(sentence: Tagged) -> int:
    """The characters of a sentence's words and tags."""
    return sum(len(word) for part in sentence if part for word in part)


def read_tagged(line: str, number: int) -> tuple[list[str], list[str]]:
    """Words and tags of a line of word/TAG; the last slash divides. HeedError names the line of one without."""
    words, tags = [], []
    for token in split_words(line):
        word, slash, tag = token.rpartition("/")
        if not (word and tag and slash):
            raise HeedError(f"standard input, line {number}: {shown(token)} is not word/TAG.")
        if tag == EMPTY:
            raise HeedError(f"standard input, line {number}: {shown(token)} is a trace, no word; leave it out.")
        words.append(word)
        tags.append(escape(tag))
    return words, tags
