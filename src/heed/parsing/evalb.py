"""Labelled bracketing scores by the rules of EVALB (Sekine & Collins, its version of 2013)."""

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.config import SHOWN, cut, shown
from heed.data.reading.lines import read_lines
from heed.errors import HeedError
from heed.parsing.trees import ROOT, BadTree, StrayText, Tree, is_comment, is_root_label, parse_trees, remove_empty
from heed.runtime.progress import track

QUOTATION_MARKS = {"'", '"', "/"}
Bracket = tuple[str, int, int]  # label, first word, the word behind the last
AS_WRITTEN = "("  # no written label: stands above the trees of a line, which have their own roots, or none


@dataclass(frozen=True)
class Params:
    """EVALB's parameters; the defaults are those of its COLLINS.prm.

    count_root: whether a root called ROOT, S1, TOP or nothing is a constituent if no `deleted` label names it. So it is
    to EVALB, which gives each such tree a bracket that is always right.
    """

    deleted: frozenset[str] = frozenset(["TOP", "-NONE-", ",", ":", "``", "''", "."])
    deleted_for_length: frozenset[str] = frozenset(["-NONE-"])
    equal_labels: frozenset[tuple[str, str]] = frozenset([("ADVP", "PRT")])
    equal_words: frozenset[tuple[str, str]] = frozenset()
    quotes: frozenset[str] = frozenset()
    labelled: bool = True
    cutoff: int = 40
    count_root: bool = False

    @cached_property
    def alike(self) -> dict[str, list[str]]:
        """The labels that each label equals, in the order in which they are tried."""
        equals: dict[str, list[str]] = {}
        for one, other in (*sorted(self.equal_labels), *sorted((b, a) for a, b in self.equal_labels)):
            equals.setdefault(one, []).append(other)
        return equals

    @cached_property
    def uncounted(self) -> frozenset[str]:
        """Labels of brackets that do not count: the deleted ones and those that equal one of them."""
        return self.deleted | {one for one, others in self.alike.items() if not self.deleted.isdisjoint(others)}

    def signature(self) -> str:
        """Which settings made a score."""
        root = ["root counted"] * self.count_root
        if replace(self, count_root=False) == Params():
            return ", ".join(["EVALB, COLLINS.prm", *root])
        shown = [
            "labelled" if self.labelled else "unlabelled",
            f"deleted: {' '.join(sorted(self.deleted))}",
            f"for length: {' '.join(sorted(self.deleted_for_length))}",
            f"equal: {' '.join(sorted('='.join(pair) for pair in self.equal_labels | self.equal_words))}",
            f"quotes: {' '.join(sorted(self.quotes))}",
            f"cutoff {self.cutoff}",
        ]
        return ", ".join(["EVALB", *(part for part in shown if not part.endswith(": ")), *root])


@dataclass
class Counts:
    """Sums over sentences; an erroneous, skipped or left out one adds to nothing but its own count."""

    sentences: int = 0
    errors: int = 0
    skipped: int = 0
    left_out: int = 0  # their gold trees cannot be used
    matched: int = 0
    gold: int = 0
    predicted: int = 0
    complete: int = 0
    crossing: int = 0
    without_crossing: int = 0
    up_to_two_crossing: int = 0
    words: int = 0
    right_tags: int = 0

    def add(self, other: "Counts") -> None:
        for name in (each.name for each in fields(self)):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def valid(self) -> int:
        """Sentences that were scored."""
        return self.sentences - self.errors - self.skipped - self.left_out

    def numbers(self) -> dict[str, Any]:
        """Percentages and counts, as EVALB's summary has them."""
        recall, precision = _percent(self.matched, self.gold), _percent(self.matched, self.predicted)
        return {
            "sentences": self.sentences,
            "errors": self.errors,
            "skipped": self.skipped,
            "left_out": self.left_out,
            "recall": recall,
            "precision": precision,
            "f1": 2 * recall * precision / (recall + precision) if self.matched else 0.0,
            "complete_match": _percent(self.complete, self.valid),
            "average_crossing": self.crossing / self.valid if self.valid else 0.0,
            "no_crossing": _percent(self.without_crossing, self.valid),
            "two_or_less_crossing": _percent(self.up_to_two_crossing, self.valid),
            "tagging_accuracy": _percent(self.right_tags, self.words),
        }


@dataclass
class ParseScore:
    """The scores of `evalb`, over all sentences and over those of at most `cutoff` words."""

    params: Params
    all: Counts = field(default_factory=Counts)
    short: Counts = field(default_factory=Counts)
    each: list[tuple[int, Counts, str]] = field(default_factory=list)  # length, counts, why it is not scored
    missed_gold: int = 0  # brackets of erroneous and skipped sentences
    roots_left_out: Counter[str] = field(default_factory=Counter)  # by label: those of both sides that EVALB counts

    @property
    def f1(self) -> float:
        return float(self.all.numbers()["f1"])

    @property
    def strict_f1(self) -> float:
        """F1 if all brackets of erroneous and skipped sentences count as missed, which EVALB leaves out."""
        recall = _percent(self.all.matched, self.all.gold + self.missed_gold)
        precision = _percent(self.all.matched, self.all.predicted)
        return 2 * recall * precision / (recall + precision) if self.all.matched else 0.0


def evalb(pairs: Iterable[tuple[Tree | str | None, Tree | str | None]], params: Params | None = None) -> ParseScore:
    """Scores predicted trees against gold ones, pair by pair: cleaned (`trees.clean`), or from `read_pairs_of_trees`.

    A prediction of None is skipped and one of other words is an error, as EVALB has it; a text instead of a tree says
    why there is none, and is an error. A gold tree of None has no words; a text instead of it says why it cannot be
    used, and the pair is left out. Deleted tags take their words along, in each tree by its own tags; so a word that is
    punctuation in one of them only makes an error.
    """
    params = params or Params()
    score = ParseScore(params)
    for gold, predicted in track(pairs, "Scoring trees", unit="trees"):
        if isinstance(gold, str):
            left_out = Counts(sentences=1, left_out=1)
            score.all.add(left_out)  # not to `short`: its length is unknown
            score.each.append((0, left_out, gold))
            continue
        gold = gold or Tree(ROOT)
        length = sum(leaf.label not in params.deleted_for_length for leaf in gold.leaves())
        counts, why = _compare_pair(gold, predicted, params)
        if why or counts.skipped:
            score.missed_gold += len(_brackets(gold, params)[1])
        else:
            for tree in (gold, predicted):
                score.roots_left_out.update(_roots_left_out(tree, params) if isinstance(tree, Tree) else ())
        score.all.add(counts)
        if length <= params.cutoff:
            score.short.add(counts)
        score.each.append((length, counts, why))
    return score


def _compare_pair(gold: Tree, predicted: Tree | str | None, params: Params) -> tuple[Counts, str]:
    # Numbers of words must agree; if they do not, quotation marks that only one tree would delete stay in both.
    if isinstance(predicted, str):
        return Counts(sentences=1, errors=1), predicted
    gold_leaves, gold_brackets = _brackets(gold, params)
    leaves, brackets = _brackets(predicted, params) if predicted else ([], [])
    if predicted and leaves and len(leaves) != len(gold_leaves):
        doubtful = _quotes(gold, predicted, params)
        gold_leaves, gold_brackets = _brackets(gold, params, doubtful)
        leaves, brackets = _brackets(predicted, params, doubtful)
    # A sentence that cannot be compared is counted, but not scored.
    if not leaves:
        return Counts(sentences=1, skipped=1), ""
    if len(leaves) != len(gold_leaves):
        return Counts(sentences=1, errors=1), f"{len(leaves)} words, expected {len(gold_leaves)}"
    for ours, theirs in zip(leaves, gold_leaves, strict=True):
        if not _same(str(ours.word), str(theirs.word), params.equal_words):
            return Counts(sentences=1, errors=1), _other_word(str(ours.word), str(theirs.word))
    # EVALB's counts, which are summed over sentences before F1 is computed.
    matched = _matches(gold_brackets, brackets, params)
    crossing = _crossing([bracket[1:] for bracket in brackets], [bracket[1:] for bracket in gold_brackets])
    return Counts(
        sentences=1,
        matched=matched,
        gold=len(gold_brackets),
        predicted=len(brackets),
        complete=int(matched == len(gold_brackets) == len(brackets)),
        crossing=crossing,
        without_crossing=int(crossing == 0),
        up_to_two_crossing=int(crossing <= 2),
        words=len(leaves),
        right_tags=sum(_same(a.label, b.label, params.equal_labels) for a, b in zip(leaves, gold_leaves, strict=True)),
    ), ""


def _brackets(tree: Tree, params: Params, kept: Container[int] = ()) -> tuple[list[Tree], list[Bracket]]:
    """(leaves that count, brackets that count, in the order in which they open). A cleaned tree's root never does.

    `kept`: places of leaves that count in any case.
    """
    leaves: list[Tree] = []
    brackets: list[Bracket] = []
    place = 0

    def visit(node: Tree) -> None:
        nonlocal place
        if node.word is not None:
            if node.label not in params.deleted or place in kept:
                leaves.append(node)
            place += 1
            return
        number, start = len(brackets), len(leaves)
        brackets.append((node.label, start, start))
        for child in node.children:
            visit(child)
        brackets[number] = (_trim_label(node.label), start, len(leaves))

    for child in tree.children:
        for node in child.children if _is_root(child, tree) and not params.count_root else (child,):
            visit(node)
    return leaves, [b for b in brackets if b[1] < b[2] and b[0] not in params.uncounted]


def _is_root(node: Tree, above: Tree) -> bool:
    return above.label == AS_WRITTEN and node.word is None and is_root_label(node.label)


def _roots_left_out(tree: Tree, params: Params) -> list[str]:
    """Labels of the roots that EVALB would count with these parameters, and we do not."""
    roots = [] if params.count_root else [node.label for node in tree.children if _is_root(node, tree)]
    return [label for label in roots if label not in params.uncounted]


def _quotes(gold: Tree, predicted: Tree, params: Params) -> set[int]:
    """Places of quotation marks that would be deleted from one tree alone, which takes them for an apostrophe, say.

    EVALB keeps these in both.
    """
    return {
        place
        for place, (a, b) in enumerate(zip(gold.leaves(), predicted.leaves(), strict=False))
        if (a.label in params.deleted) != (b.label in params.deleted)
        and {a.label, b.label} <= params.quotes
        and {a.word, b.word} <= QUOTATION_MARKS
    }


def _trim_label(label: str) -> str:
    """EVALB cuts a label at its first - or =."""
    return label.split("-")[0].split("=")[0]


def _matches(gold: list[Bracket], predicted: list[Bracket], params: Params) -> int:
    """How many gold brackets have one of the same span and label, each used once."""
    left = Counter(_drop_label(bracket, params) for bracket in predicted)
    matched = 0
    for bracket in gold:
        label, start, end = _drop_label(bracket, params)
        for other in (label, *params.alike.get(label, ())):
            if left[other, start, end]:
                left[other, start, end] -= 1
                matched += 1
                break
    return matched


def _drop_label(bracket: Bracket, params: Params) -> Bracket:
    return bracket if params.labelled else ("", *bracket[1:])


def _crossing(predicted: list[tuple[int, int]], gold: list[tuple[int, int]]) -> int:
    """How many predicted spans cross a gold one: each begins or ends strictly within the other."""
    if not predicted or not gold:
        return 0
    ours, theirs = np.array(predicted), np.array(gold)
    # Read from right to left, a gold span that begins before ours and ends within it begins within and ends behind.
    return int((_left_open(ours, theirs) | _left_open(-ours[:, ::-1], -theirs[:, ::-1])).sum())


def _left_open(ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each of our spans, whether one of theirs begins strictly within it and ends behind it.

    Takes n log n steps; to compare each with each takes minutes where a sentence has 10^5 brackets.
    """
    first = min(ours.min(), theirs.min())
    ours, theirs = ours - first, theirs - first
    furthest = np.zeros(max(ours.max(), theirs.max()) + 1, np.int64)  # end of what begins at each place
    np.maximum.at(furthest, theirs[:, 0], theirs[:, 1])
    begin, end = ours[:, 0] + 1, ours[:, 1]
    n_places = end - begin
    furthest_ends = np.zeros(len(ours), np.int64)
    width = 1  # furthest[i] is the maximum over `width` places from i
    while width <= n_places.max():
        # Two windows, which overlap, cover a range of width to 2 × width places.
        here = (width <= n_places) & (n_places < 2 * width)
        furthest_ends[here] = np.maximum(furthest[begin[here]], furthest[end[here] - width])
        furthest = np.maximum(furthest[:-width], furthest[width:])
        width *= 2
    return furthest_ends > end


def _same(one: str, other: str, equal: frozenset[tuple[str, str]]) -> bool:
    return one == other or (one, other) in equal or (other, one) in equal


def _other_word(actual: str, expected: str) -> str:
    """Names both words, with the code points in which they differ if a reader may not see the difference."""
    n_before = _n_alike(actual, expected)
    n_after = _n_alike(actual[n_before:][::-1], expected[n_before:][::-1])
    parts = [word[n_before : len(word) - n_after] for word in (actual, expected)]
    words = f"the word {shown(actual)}, expected {shown(expected)}"
    if "".join(parts).isascii() and shown(actual) != shown(expected):
        return words
    here, there = (cut(" ".join(f"U+{ord(c):04X}" for c in part[:SHOWN]), SHOWN) or "nothing" for part in parts)
    return f"{words} (from character {n_before + 1}: {here}, expected {there})"


def _n_alike(one: str, other: str) -> int:
    """The length of what both begin with."""
    unlike = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(unlike, min(len(one), len(other)))


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def read_params(path: Path) -> Params:
    """Parameters in the form of EVALB's .prm files. HeedError names the line of an unknown or broken one."""
    # The values of each parameter, in the order of the file; the last one counts where only one can.
    values: dict[str, list[str]] = {}
    kinds = {  # DEBUG and MAX_ERROR are known, but nothing here depends on them: all sentences are scored
        "DELETE_LABEL": 1, "DELETE_LABEL_FOR_LENGTH": 1, "EQ_LABEL": 2, "EQ_WORD": 2, "LABELED": 1, "CUTOFF_LEN": 1,
        "DEBUG": 1, "MAX_ERROR": 1, "QUOTE_LABEL": 1,
    }  # fmt: skip
    for number, line in enumerate(read_lines(path), start=1):
        name, *arguments = line.split() or [""]
        if not name or name.startswith("#"):
            continue
        if name not in kinds:
            raise HeedError(f"{path}, line {number}: unknown parameter {cut(name)}; known: {', '.join(kinds)}.")
        if len(arguments) != kinds[name]:
            raise HeedError(f"{path}, line {number}: {name} takes {kinds[name]} value(s), found {len(arguments)}.")
        if name in ("LABELED", "CUTOFF_LEN") and not re.fullmatch("[0-9]{1,9}", arguments[0]):
            raise HeedError(
                f"{path}, line {number}: {name} takes a number of up to 9 digits, found {shown(arguments[0])}."
            )
        values.setdefault(name, []).append(" ".join(arguments))

    # Parameters that the file leaves out have EVALB's own defaults, not those of COLLINS.prm.
    def pairs(name: str) -> frozenset[tuple[str, str]]:
        return frozenset((one, other) for one, other in (value.split() for value in values.get(name, [])))

    return Params(
        deleted=frozenset(values.get("DELETE_LABEL", [])),
        deleted_for_length=frozenset(values.get("DELETE_LABEL_FOR_LENGTH", [])),
        equal_labels=pairs("EQ_LABEL"),
        equal_words=pairs("EQ_WORD"),
        quotes=frozenset(values.get("QUOTE_LABEL", [])),
        labelled=int(values.get("LABELED", ["1"])[-1]) != 0,
        cutoff=int(values.get("CUTOFF_LEN", ["40"])[-1]),
    )


def read_pairs_of_trees(
    gold: Path, predicted: Iterable[str], *, name: str, report: Callable[[str], None]
) -> tuple[list[tuple[Tree | str | None, Tree | str | None]], list[int]]:
    """(gold trees, each with its prediction; the line of each prediction).

    Pairs are of the same line where both files have as many, else of the same place; comments are no pairs. Each tree
    is what is written without traces, below a node AS_WRITTEN, so that `evalb` can tell which has a root of its own. In
    place of one that cannot be used, a text says why.

    predicted: a tree a line, or a blank one for none; name: where they are from. report: told of text between gold
    trees. HeedError if brackets of gold trees do not pair or the numbers differ.
    """
    gold_lines, lines = list(read_lines(gold)), list(predicted)
    numbers = _lines_of_pairs(gold_lines, lines)
    golds = None if numbers is None else _a_tree_each(gold_lines, numbers, name=str(gold))
    if numbers is None or golds is None:
        golds = _trees_in_order(gold_lines, name=str(gold), report=report)
        numbers = [number for number, line in enumerate(lines, start=1) if not is_comment(line)]
        while numbers and len(numbers) > len(golds) and not lines[numbers[-1] - 1].strip():
            numbers.pop()  # blank lines at the end
    if len(golds) != len(numbers):
        raise HeedError(
            f"{gold} has {len(golds):,} trees, {name} {len(numbers):,} lines: each tree needs the line of "
            "its prediction, blank where there is none."
        )
    if not any(isinstance(tree, Tree) for tree in golds):
        faults = [tree for tree in golds if isinstance(tree, str)]
        raise HeedError(
            f"{faults[0]}; there is no other tree to score." if faults else f"{gold}: there is no tree to score."
        )
    return [(tree, _prediction(lines[number - 1])) for tree, number in zip(golds, numbers, strict=True)], numbers


def _lines_of_pairs(gold_lines: list[str], lines: list[str]) -> list[int] | None:
    """The numbers of the lines of pairs; None if one file has more lines, or a tree beside a comment in the gold file.

    A comment beside a gold tree, such as "# no parse", is not a prediction.
    """
    if len(gold_lines) != len(lines):
        return None
    numbers = []
    for number, (gold, line) in enumerate(zip(gold_lines, lines, strict=True), start=1):
        if is_comment(gold):
            if line.strip() and not is_comment(line):
                return None
        elif gold.strip() or not is_comment(line):
            numbers.append(number)
    return numbers


def _a_tree_each(lines: list[str], numbers: list[int], *, name: str) -> list[Tree | str | None] | None:
    """The tree of each of these lines, None for a blank one or traces only; None if trees are not written so."""
    golds: list[Tree | str | None] = []
    try:
        for number in numbers:
            parsed = list(parse_trees([lines[number - 1]]))
            faults = [tree for tree in parsed if isinstance(tree, BadTree)]
            trees = [tree for tree in parsed if isinstance(tree, Tree)]
            if len(trees) > 1:
                return None
            golds.append(
                f"{name}, line {number}, column {faults[0].column}: {faults[0]}" if faults else _as_written(trees)
            )
    except BadTree:
        return None
    return golds


def _trees_in_order(lines: list[str], *, name: str, report: Callable[[str], None]) -> list[Tree | str | None]:
    golds: list[Tree | str | None] = []
    try:
        for tree in parse_trees(lines):
            if isinstance(tree, StrayText):
                report(f"{name}, {tree.where}: {tree}; skipped.")
            elif isinstance(tree, BadTree):
                golds.append(f"{name}, {tree.where}: {tree}")
            else:
                golds.append(_as_written([tree]))
    except BadTree as error:
        raise HeedError(f"{name}, {error.where}: {error}.") from None
    return golds


def _as_written(trees: Iterable[Tree]) -> Tree | None:
    return remove_empty(Tree(AS_WRITTEN, tuple(trees)))


def _prediction(line: str) -> Tree | str | None:
    if line.strip() in ("()", "(())"):  # how some parsers say that they found none
        return None
    trees: list[Tree] = []
    try:
        for tree in parse_trees([line]):
            if isinstance(tree, BadTree):
                raise tree
            trees.append(tree)
    except BadTree as error:
        return f"column {error.column}, {error}"
    return _as_written(trees)  # several trees in a line are one to EVALB
