"""A description of a recipe's text: `heed data check`. It never changes what is trained on.

Memory: 16 bytes a training pair and a sample, whatever the size of the corpus.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from heed.data.corpora.own_recipe import language_of
from heed.data.inspection.pair_faults import faults
from heed.data.inspection.repetitions import EvaluationSets, Repetitions, all_repetitions, n_copies, normal_form
from heed.data.inspection.sides import Order, Sides
from heed.data.inspection.translations import unrelated_parts
from heed.data.reading.columns import row_of
from heed.data.reading.dev_split import HeldOut
from heed.data.reading.lines import LineFault
from heed.data.reading.pairs import UNREADABLE, FilePair, Pair, TrainingText, read_pairs
from heed.data.reading.text_files import TextFiles
from heed.data.settings import DataSettings
from heed.runtime.progress import counted, track
from heed.text.line_rules import is_blank
from heed.text.tokenizer_kinds import AnyTokenizer

SIDES = ("source", "target")
SAMPLE = 10_000  # pairs whose sides and tokens are looked at
SAMPLE_OF_FILE = 4_000  # pairs of each file, which are compared with each other
SHOWN_LINES = 10
EXCERPT = 60  # characters that are shown of a suspicious line


WRONG_ORDERS = (Order.EXCHANGED, Order.BOTH_SRC, Order.BOTH_TGT)
Placed = tuple[FilePair, int, Pair]  # a pair, with its files and its line there


@dataclass(frozen=True)
class SuspiciousLine:
    """A line that a person should look at."""

    file: str
    line: int
    reason: str
    text: str  # around what is suspicious

    def __str__(self) -> str:
        return f"{self.file}, {row_of(self.file, self.line)}: {self.reason}: {self.text}"


class Lengths:
    """Lengths of lines, with the place of the longest."""

    def __init__(self) -> None:
        self._counts = Counter[int]()
        self.longest, self.line, self.file = 0, 0, ""

    def add(self, length: int, file: Path, line: int) -> None:
        """Counts a line."""
        self._counts[length] += 1
        if length > self.longest:
            self.longest, self.line, self.file = length, line, str(file)

    def numbers(self) -> dict[str, Any]:
        """For JSON."""
        return {"median": quantile(self._counts, 0.5), "longest": self.longest, "file": self.file, "line": self.line}


class Sample:
    """Up to `most` pairs at equal distances through a text of unknown length."""

    def __init__(self, most: int) -> None:
        self.placed: list[Placed] = []
        self._every, self._n, self._most = 1, 0, most

    def add(self, placed: Placed) -> None:
        """Keeps the pair if it is its turn."""
        if self._n % self._every == 0:
            self.placed.append(placed)
            if len(self.placed) >= self._most:
                self.placed, self._every = self.placed[::2], 2 * self._every
        self._n += 1

    @property
    def pairs(self) -> list[Pair]:
        """The pairs, without their places."""
        return [pair for *_, pair in self.placed]


class Spectrum:
    """Numbers of one set of pairs: lengths of its sides and their ratios, blank and untranslated ones; and a sample."""

    def __init__(self, files: Iterable[FilePair]):
        self.files, self.sample = tuple(files), Sample(SAMPLE)
        self.n_pairs = self.n_blank = self.n_untranslated = self.n_unequal = 0
        self.words, self.characters = (Lengths(), Lengths()), (Lengths(), Lengths())
        self._ratios = Counter[float]()

    def add(self, placed: Placed, max_ratio: float) -> None:
        """Counts a pair."""
        self.n_pairs += 1
        self.sample.add(placed)
        files, number, (src, tgt) = placed
        for file, line, words, characters in zip(files, (src, tgt), self.words, self.characters, strict=True):
            words.add(len(line.split()), file, number)
            characters.add(len(line), file, number)
        if is_blank(src) or is_blank(tgt):
            self.n_blank += 1
            return
        self.n_untranslated += src == tgt
        ratio = len(tgt) / len(src)
        self.n_unequal += max(ratio, 1 / ratio) > max_ratio
        self._ratios[round(ratio, 2)] += 1

    @property
    def same_sides(self) -> bool:
        """Whether both sides are one text."""
        return 0 < self.n_untranslated == self.n_pairs - self.n_blank

    def numbers(self) -> dict[str, Any]:
        """For JSON."""
        sides = {
            name: {"words": words.numbers(), "characters": characters.numbers()}
            for name, words, characters in zip(SIDES, self.words, self.characters, strict=True)
        }
        ratios = dict(zip(("5%", "median", "95%"), (quantile(self._ratios, q) for q in (0.05, 0.5, 0.95)), strict=True))
        return {
            "files": [[str(side) for side in pair] for pair in self.files],
            "pairs": self.n_pairs,
            **sides,
            "target_characters_per_source_character": ratios,
            "above_max_ratio": self.n_unequal,
            "with_a_blank_side": self.n_blank,
            "target_equals_source": self.n_untranslated,
        }


@dataclass(frozen=True)
class Inspection:
    """The result: `numbers` for programs, `text` for people."""

    numbers: dict[str, Any]
    remarks: list[str]  # what a user should know
    lines: list[SuspiciousLine]

    def text(self) -> Iterator[str]:
        """Lines to print."""
        yield from (f"! {remark}" for remark in self.remarks)
        for name, numbers in self.numbers["sets"].items():
            yield from _text_of_set(name, numbers)
        unknown, order = self.numbers["unknown_tokens"], self.numbers["order_of_sides"]
        shares = f"{unknown['source']['share']:.2%} of source tokens, {unknown['target']['share']:.2%} of target tokens"
        yield f"unknown to the vocabulary: {shares} ({unknown['vocabulary']})"
        if order["examined"]:
            orders = ", ".join(f"{order[kind.value]:,} {kind.value}" for kind in WRONG_ORDERS)
            yield f"sides of {order['examined']:,} training pairs, told by their letters: {orders}"
        else:
            yield "sides: their letters do not distinguish them"
        suspicious = self.numbers["suspicious"]
        yield "suspicious pairs: " + ("; ".join(f"{n:,} {reason}" for reason, n in suspicious.items()) or "none")
        yield from (f"  {line}" for line in self.lines)


def _text_of_set(name: str, numbers: dict[str, Any]) -> Iterator[str]:
    files = "; ".join(", ".join(dict.fromkeys(pair)) for pair in numbers["files"])
    yield f"{name}: {numbers['pairs']:,} pairs ({files})"
    for side in SIDES:
        lengths = (
            f"{counted(of_unit['median'] or 0, unit)} (longest: {of_unit['longest']:,} in line {of_unit['line']:,})"
            for unit, of_unit in (("word", numbers[side]["words"]), ("character", numbers[side]["characters"]))
        )
        yield f"  {side}, median: {', '.join(lengths)}"
    low, median, high = numbers["target_characters_per_source_character"].values()
    if median is not None:
        yield (
            f"  target characters per source character: {median:.2f} (median), {low:.2f} to {high:.2f} in 90 % of the "
            f"pairs; {numbers['above_max_ratio']:,} beyond data.max_ratio"
        )
    n_blank, n_equal = numbers["with_a_blank_side"], numbers["target_equals_source"]
    yield f"  {n_blank:,} with a blank side; {n_equal:,} with target = source"
    if "copies" in numbers:
        yield f"  {numbers['copies']:,} copies of other pairs; {numbers['copies_of_sources']:,} sources occurred before"
    if "in_training" in numbers:
        overlap = numbers["in_training"]
        first = f" (first: line {overlap['first_line']:,})" if "first_line" in overlap else ""
        yield (
            f"  in train too: {overlap['pairs']:,} pairs; of other pairs, {overlap['other_sources']:,} sources and "
            f"{overlap['other_targets']:,} targets{first}"
        )


def quantile(counts: Counter[Any], share: float) -> Any:
    """The smallest value that at least this share of what was counted does not exceed; None if nothing was."""
    rest = share * counts.total()
    for value in sorted(counts):
        rest -= counts[value]
        if rest <= 0:
            return value
    return None


class Suspicions:
    """Suspicious pairs: their number by fault, and the first lines with each."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self._first: dict[str, list[SuspiciousLine]] = {}

    def add(self, reason: str, placed: Placed, *, side: int, character: int = 0) -> None:
        """Counts a pair and remembers it if it is among the first."""
        self.counts[reason] += 1
        first = self._first.setdefault(reason, [])
        if len(first) < SHOWN_LINES:
            begin, (files, line, pair) = max(0, character - EXCERPT // 3), placed
            text = pair[side][begin : begin + EXCERPT]
            excerpt = "…" * (begin > 0) + text + "…" * (begin + EXCERPT < len(pair[side]))
            first.append(SuspiciousLine(str(files[side]), line, reason, excerpt))

    def shown(self) -> list[SuspiciousLine]:
        """SHOWN_LINES of them, of as many kinds as possible; the rarest kinds first."""
        kinds = [self._first[reason] for reason in sorted(self.counts, key=lambda reason: self.counts[reason])]
        by_turns = (kind[turn] for turn in range(SHOWN_LINES) for kind in kinds if turn < len(kind))
        return sorted(islice(by_turns, SHOWN_LINES), key=lambda line: (line.reason, line.file, line.line))


def inspect_text(files: TextFiles, data: DataSettings, *, tokenizer: AnyTokenizer | None) -> Inspection:
    """Reads all text of a recipe.

    tokenizer: of the model that training starts from; None if a vocabulary will be learned. HeedError if the text
    cannot be read.
    """
    text = TrainingText(files.train, data.column_names)
    spectra = {name: Spectrum(text) for name, text in _texts(files).items()}
    suspicions, held_out, remarks = Suspicions(), HeldOut(), list[str]()
    lines_of_sets = {name: array("L") for name in files.evaluation_sets}

    def placed(pairs: Iterable[tuple[tuple[int, int], Pair]]) -> Iterator[Placed]:
        return ((files.train[source], row + 1, pair) for (source, row), pair in pairs)

    def given_pairs() -> Iterator[tuple[Placed, Pair]]:
        return ((one, one[-1]) for one in placed(text.pairs(files.n_given)))

    def observed(name: str, placed: Iterable[Placed]) -> Iterator[Pair]:
        for one in placed:
            _, line, (src, tgt) = one
            spectra[name].add(one, data.max_ratio)
            if name in lines_of_sets:
                lines_of_sets[name].append(line)
            if name == "dev" and files.dev_split:
                held_out.add(src, tgt)
            for reason, side, character in faults(src, src if data.tgt_symbols else tgt, max_ratio=data.max_ratio):
                suspicions.add(reason, one, side=side, character=character)
            yield src, tgt

    # Dev and the tests first: where they stand in training is looked for below.
    sets = {name: _placed(pair, data.column_names) for name, pair in files.evaluation_sets.items()}
    if files.dev_split:
        sets["dev"] = (place for place, _ in files.dev_split.pairs(given_pairs, name=files.name_of_given))
    evaluation_sets = EvaluationSets(
        {name: observed(name, placed) for name, placed in sets.items()}, symbols=data.tgt_symbols
    )

    def unreadable(place: tuple[int, int], fault: LineFault) -> None:
        suspicions.add(f"line {UNREADABLE}", *placed([(place, (str(fault), ""))]), side=0)

    def training_pairs() -> Iterator[Placed]:
        pairs = text.pairs(on_fault=unreadable)
        good = placed((place, pair) for place, pair in pairs if not held_out.has(place[0], *pair))
        for _, of_file in groupby(good, key=lambda one: one[0]):
            sample = Sample(SAMPLE_OF_FILE)
            for one in of_file:
                sample.add(one)
                yield one
            remarks.extend(_unrelated(sample))

    repetitions, sources = Repetitions(evaluation_sets), array("q")
    for pair in track(observed("train", training_pairs()), "Reading training text", unit="pairs"):
        if not any(map(is_blank, pair)):
            repetitions.add(*pair)
            sources.append(hash(normal_form(pair[0])))
    repeated = all_repetitions([repetitions.hashes()], [repetitions.facts()], evaluation_sets.sizes, share=1)

    sample = spectra["train"].sample
    samples = {name: spectra[name].sample for name in sets}
    remarks += [remark for of_set in samples.values() for remark in _unrelated(of_set)]
    sides = None if data.tgt_symbols else Sides.learn(sample.pairs)
    orders = _orders(sides, sample, suspicions)
    exchanged = [name for name, one in samples.items() if sides and sides.seem_exchanged(one.pairs)]
    numbers = {name: spectrum.numbers() for name, spectrum in spectra.items()}
    numbers["train"] |= {"copies": repeated.n_copies, "copies_of_sources": n_copies(np.frombuffer(sources, np.int64))}
    for name, overlap in repeated.overlaps.items():
        numbers[name]["in_training"] = {
            "pairs": overlap.n_pairs,
            "other_sources": overlap.n_sources,
            "other_targets": overlap.n_targets,
        }
        if overlap.first is not None:
            numbers[name]["in_training"]["first_line"] = lines_of_sets[name][overlap.first]
    lines = suspicions.shown()
    result = {
        "sets": numbers,
        "unknown_tokens": _unknown_tokens(tokenizer, sample.pairs),
        "order_of_sides": {"examined": len(sample.placed) if sides else 0, **orders, "sets_exchanged": exchanged},
        "suspicious": dict(suspicions.counts.most_common()),
        "suspicious_lines": [vars(line) for line in lines],
    }
    remarks += [*_remarks_on_files(files, data, spectra), *repeated.remarks(src=data.src, tgt=data.tgt)]
    remarks += [f"{name}: its sides seem to be exchanged, compared with those of train." for name in exchanged]
    return Inspection(result, remarks, lines)


def _unrelated(sample: Sample) -> Iterator[str]:
    """Remarks on parts of a file whose sides do not seem to be each other's translations."""
    for part in unrelated_parts(sample.pairs):
        (files, first, _), (_, last, _) = sample.placed[part.start], sample.placed[part.stop - 1]
        names = " and ".join(dict.fromkeys(map(str, files)))
        yield (
            f"{names}: lines {first:,} to {last:,} do not seem to be translations of each other, by their "
            "lengths, numbers and names."
        )


def _placed(files: FilePair, columns: tuple[str, str]) -> Iterator[Placed]:
    return ((files, line, pair) for line, pair in enumerate(read_pairs(files, columns), start=1))


def _texts(files: TextFiles) -> dict[str, list[FilePair]]:
    """The files of each set; those of train also have dev if that is split off."""
    sets = {name: [pair] for name, pair in files.evaluation_sets.items()}
    return (
        {"train": list(files.train)} | sets | ({"dev": list(files.train[: files.n_given])} if files.dev_split else {})
    )


def _orders(sides: Sides | None, sample: Sample, suspicions: Suspicions) -> dict[str, int]:
    """How many pairs of the sample have each order of sides, other than the right one."""
    counts = {order.value: 0 for order in WRONG_ORDERS}
    for one in sample.placed if sides else ():
        assert sides is not None
        _, _, pair = one
        order = sides.order(pair).value
        if pair[0] != pair[1] and order in counts:
            counts[order] += 1
            suspicions.add(f"sides {order}" if order == "exchanged" else order, one, side=1)
    return counts


def _unknown_tokens(tokenizer: AnyTokenizer | None, pairs: list[Pair]) -> dict[str, Any]:
    """How many tokens of the sample the vocabulary lacks; one that is learned has all bytes, and so lacks none."""
    unk = None if tokenizer is None else tokenizer.special.unk
    if tokenizer is None or unk is None:
        return {name: {"share": 0.0} for name in SIDES} | {"vocabulary": "byte-level"}
    encoded = tokenizer.encode_lines([src for src, _ in pairs]), tokenizer.encode_targets([tgt for _, tgt in pairs])
    shares = {}
    for name, lines in zip(SIDES, encoded, strict=True):
        n_tokens = sum(map(len, lines))
        shares[name] = {"share": sum(ids.count(unk) for ids in lines) / max(1, n_tokens)}
    return shares | {"vocabulary": "of the model that training starts from"}


def _remarks_on_files(files: TextFiles, data: DataSettings, spectra: dict[str, Spectrum]) -> Iterator[str]:
    for src, tgt in files.pairs:
        if data.src != data.tgt and (language_of(src), language_of(tgt)) == (data.tgt, data.src):
            yield f"{src}, {tgt}: exchanged? data.src is {data.src}, data.tgt {data.tgt}."
    for name, spectrum in spectra.items():
        if spectrum.same_sides:
            yield f"{name}: source and target are the same text."
