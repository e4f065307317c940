"""Text that occurs twice where it should not: copies of pairs, sources as their own translations, dev in training."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.text.line_rules import is_blank

# From these shares on, preparation says so. Khayrallah and Koehn 2018 (table 2): 5 % of untranslated sentences cost a
# Transformer several BLEU. Web corpora have more copies than that of pairs, which does no harm by itself.
UNTRANSLATED_SHARE, COPIED_SHARE = 0.02, 0.1
IN_TRAINING_SHARE = 0.01  # of the pairs of dev, or of a test set
SIDE_SHARE = 0.05  # of their other sources, or targets: short ones recur in any text
MOST_HASHES = 2**24  # that are compared at once
# After the name of a set, which has no slash: what shards say of its sources, and of its targets.
OF_SOURCES, OF_TARGETS = "/src", "/tgt"


def normal_form(line: str) -> str:
    """The line as leaks are looked for: whatever its spaces and the case of its first letter."""
    line = line.strip()
    if "  " in line or "\t" in line or "\xa0" in line:
        line = " ".join(line.split())
    return line if line[:1].islower() else line[:1].lower() + line[1:]


def overlap_keys(src: str, tgt: str) -> tuple[int, int, int]:
    """Hashes, for this process, of a pair, of its source and of its target, in normal form."""
    src, tgt = normal_form(src), normal_form(tgt)
    return hash((src, tgt)), hash((0, src)), hash((1, tgt))


@dataclass(frozen=True)
class Overlap:
    """How many pairs of a set are training pairs too, and how many others have a training pair's source or target."""

    n_lines: int
    n_pairs: int
    n_sources: int
    n_targets: int
    first: int | None  # index of the first such pair; if there is none, of the first such source or target

    def __str__(self) -> str:
        sides = {"source": self.n_sources, "target": self.n_targets}
        if self.n_pairs:
            also = "".join(f", and {n:,} other {side} lines" for side, n in sides.items() if n)
            return f"{self.n_pairs:,} of its {self.n_lines:,} pairs are training pairs too{also}"
        return " and ".join(
            f"{n:,} of its {self.n_lines:,} {side}s are training {side}s too" for side, n in sides.items() if n
        )

    @property
    def is_leak(self) -> bool:
        """Whether the share of the set that is in training makes its scores mean less."""
        n_sides = max(self.n_sources, self.n_targets)
        return 0 < self.n_pairs >= IN_TRAINING_SHARE * self.n_lines or 0 < n_sides >= SIDE_SHARE * self.n_lines


class Repetitions:
    """Counts them in training pairs that are added one by one. Memory: 32 bytes a pair.

    Python's own hashes of 64 bits stand for the texts. Pairs with a blank side are not counted.
    """

    def __init__(self, sets: Mapping[str, Iterable[tuple[str, str]]], *, symbols: bool = False):
        """sets: the pairs of dev and test sets, by name. symbols: whether targets are such lines, as trees are, which
        may well be alike."""
        self._symbols = symbols
        self._sets = {name: _hashes(pairs) for name, pairs in sets.items()}
        self._exact, self._pairs, self._src, self._tgt = array("q"), array("q"), array("q"), array("q")
        self.n_untranslated = 0

    def add(self, src: str, tgt: str) -> None:
        """Notes a training pair."""
        if not is_blank(src) and not is_blank(tgt):
            self._exact.append(hash((src, tgt)))
            of_pair, of_src, of_tgt = overlap_keys(src, tgt)
            self._pairs.append(of_pair)
            self._src.append(of_src)
            if not self._symbols:
                self._tgt.append(of_tgt)
            self.n_untranslated += src == tgt

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def n_copies(self) -> int:
        """Pairs that have occurred before."""
        return _n_copies(self._exact)

    @property
    def n_source_copies(self) -> int:
        """Pairs whose source has occurred before, copies of pairs among them."""
        return _n_copies(self._src)

    def overlaps(self) -> dict[str, Overlap]:
        """Of each set with the training pairs."""
        overlaps = {}
        in_training = [np.sort(np.frombuffer(numbers, np.int64)) for numbers in (self._pairs, self._src, self._tgt)]
        for name, of_set in self._sets.items():
            is_pair, is_src, is_tgt = (_is_among(*both) for both in zip(of_set, in_training, strict=True))
            rows = np.flatnonzero(is_pair if is_pair.any() else is_src | is_tgt)
            n_pairs, n_src, n_tgt = (int(found.sum()) for found in (is_pair, is_src & ~is_pair, is_tgt & ~is_pair))
            overlaps[name] = Overlap(len(is_pair), n_pairs, n_src, n_tgt, int(rows[0]) if len(rows) else None)
        return overlaps

    def counts(self) -> "RepetitionCounts":
        """What has been counted so far."""
        return RepetitionCounts(len(self), self.n_untranslated, self.n_copies, self.overlaps())


@dataclass(frozen=True)
class RepetitionCounts:
    """Repetitions in training pairs. estimated: whether n_copies is estimated from some of the pairs."""

    n_pairs: int
    n_untranslated: int
    n_copies: int
    overlaps: Mapping[str, Overlap]
    estimated: bool = False

    def leaks(self) -> Iterator[str]:
        """A remark on the sets that are in training too, if there are any; the worst is named first."""
        overlaps = {name: found for name, found in self.overlaps.items() if found.is_leak}
        if overlaps:
            worst = max(overlaps, key=lambda name: overlaps[name].n_pairs / overlaps[name].n_lines)
            others = [name for name in overlaps if name != worst]
            so_are = f" (so are lines of {', '.join(others)})" if others else ""
            yield f"{worst}: {overlaps[worst]}{so_are}; scores on them will be too high."

    def remarks(self, *, src: str, tgt: str) -> Iterator[str]:
        """Remarks for the user, three lines at most. src, tgt: the languages."""
        yield from self.leaks()
        if src != tgt and self.n_untranslated > UNTRANSLATED_SHARE * self.n_pairs:
            share = self.n_untranslated / self.n_pairs
            yield (
                f"in {self.n_untranslated:,} training pairs ({share:.1%}) the target is a copy of the source; "
                "the model may learn to copy."
            )
        if self.n_copies > COPIED_SHARE * self.n_pairs:
            about, share = "about " * self.estimated, self.n_copies / self.n_pairs
            yield f"{about}{self.n_copies:,} training pairs ({share:.1%}) are copies of others."


def repetitions_of_shards(
    hashes: Iterable[Path], said: Sequence[Mapping[str, Any]], sizes: Mapping[str, int], *, share: int
) -> RepetitionCounts:
    """What shards say together. hashes: of each, the file of the lowest 1 / `share` of its pairs' hashes, in order.

    said: their sidecars. sizes: the pairs of dev and of each test set.
    """
    overlaps = {}
    for name, n_lines in sizes.items():
        pairs, sources, targets = (
            {place for one in said for place in one["overlaps"].get(name + of_side, ())}
            for of_side in ("", OF_SOURCES, OF_TARGETS)
        )
        first = min(pairs or sources | targets, default=None)
        overlaps[name] = Overlap(n_lines, len(pairs), len(sources - pairs), len(targets - pairs), first)
    n_pairs, n_untranslated = (sum(one[name] for one in said) for name in ("counted", "untranslated"))
    of_shards = [np.load(path, mmap_mode="r", allow_pickle=False) for path in hashes]
    # Of more than fit into memory, the lowest tell enough.
    while sum(map(len, of_shards)) > MOST_HASHES:
        share *= 2
        of_shards = [of[: np.searchsorted(of, np.uint64(2**64 // share))] for of in of_shards]
    ordered = np.sort(np.concatenate(of_shards))
    n_copies = share * int((ordered[1:] == ordered[:-1]).sum())
    return RepetitionCounts(n_pairs, n_untranslated, n_copies, overlaps, estimated=share > 1)


def _hashes(pairs: Iterable[tuple[str, str]]) -> tuple[NDArray[np.int64], ...]:
    """Of the pairs, of their sources and of their targets, in order."""
    hashes = array("q"), array("q"), array("q")
    for pair in pairs:
        for numbers, key in zip(hashes, overlap_keys(*pair), strict=True):
            numbers.append(key)
    return tuple(np.frombuffer(numbers, np.int64) for numbers in hashes)


def _n_copies(numbers: "array[int]") -> int:
    ordered = np.sort(np.frombuffer(numbers, np.int64))
    return int((ordered[1:] == ordered[:-1]).sum())


def _is_among(numbers: NDArray[np.int64], ordered: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not len(ordered):
        return np.zeros(len(numbers), np.bool_)
    found: NDArray[np.bool_] = ordered[np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)] == numbers
    return found
