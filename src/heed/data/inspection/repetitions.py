"""Text that occurs twice where it should not: copies of pairs, sources as their own translations, dev in training."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.reading.dev_split import HASH_BITS, pair_hash
from heed.data.reading.pairs import Pair

# From these shares on, preparation says so. Khayrallah and Koehn 2018 (table 2): 5 % of untranslated sentences cost a
# Transformer several BLEU. Web corpora have more copies than that of pairs, which alone does no harm.
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


class EvaluationSets:
    """Dev and test sets, whose pairs and their sides are found by their hashes."""

    def __init__(self, sets: Mapping[str, Iterable[Pair]], *, symbols: bool = False):
        """symbols: whether targets are such lines, as trees are, which may well be alike."""
        self.sizes: dict[str, int] = {}
        # Of each hash the places where it stands, in a set or in its sources or targets.
        self.places: dict[int, list[tuple[str, int]]] = {}
        of_sides = ("", OF_SOURCES) if symbols else ("", OF_SOURCES, OF_TARGETS)
        for name, pairs in sets.items():
            self.sizes[name] = 0
            for place, pair in enumerate(pairs):
                self.sizes[name] += 1
                for key, of_side in zip(overlap_keys(*pair), of_sides, strict=False):
                    self.places.setdefault(key, []).append((f"{name}{of_side}", place))


class Repetitions:
    """Counts them in training pairs that are added one by one, neither side of them blank. Memory: 8 bytes a pair."""

    def __init__(self, sets: EvaluationSets, *, share: int = 1):
        """share: one in how many of the pairs' hashes is kept, the lowest, to tell copies by; 0 keeps none."""
        self._sets, self._below = sets, 2**HASH_BITS // share if share else 0
        self._hashes = array("Q")
        self._overlaps: dict[str, set[int]] = {}
        self._n_untranslated = self._n_counted = 0

    def add(self, src: str, tgt: str) -> None:
        """Notes a training pair."""
        for key in overlap_keys(src, tgt):
            for name, place in self._sets.places.get(key, ()):
                self._overlaps.setdefault(name, set()).add(place)
        self._n_counted += 1
        self._n_untranslated += src == tgt
        if self._below and (number := pair_hash(src, tgt)) < self._below:
            self._hashes.append(number)

    def hashes(self) -> NDArray[np.uint64]:
        """The hashes that were kept, in order."""
        return np.sort(np.frombuffer(self._hashes, np.uint64))

    def facts(self) -> dict[str, Any]:
        """What else was counted, for JSON."""
        overlaps = {name: sorted(places) for name, places in sorted(self._overlaps.items())}
        return {"untranslated": self._n_untranslated, "overlaps": overlaps, "counted": self._n_counted}


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
        overlaps = {name: overlap for name, overlap in self.overlaps.items() if overlap.is_leak}
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


def all_repetitions(
    hashes: Sequence[NDArray[np.uint64]], sidecars: Sequence[Mapping[str, Any]], sizes: Mapping[str, int], *, share: int
) -> RepetitionCounts:
    """What the `Repetitions` of several texts say together, of which each has kept one in `share` hashes.

    sizes: the pairs of dev and of each test set.
    """
    overlaps = {}
    for name, n_lines in sizes.items():
        pairs, sources, targets = (
            {place for one in sidecars for place in one["overlaps"].get(name + of_side, ())}
            for of_side in ("", OF_SOURCES, OF_TARGETS)
        )
        first = min(pairs or sources | targets, default=None)
        overlaps[name] = Overlap(n_lines, len(pairs), len(sources - pairs), len(targets - pairs), first)
    n_pairs, n_untranslated = (sum(one[name] for one in sidecars) for name in ("counted", "untranslated"))
    # Of more than fit into memory, the lowest tell enough.
    while share > 1 and sum(map(len, hashes)) > MOST_HASHES:
        share *= 2
        hashes = [of[: np.searchsorted(of, np.uint64(2**HASH_BITS // share))] for of in hashes]
    return RepetitionCounts(n_pairs, n_untranslated, share * n_copies(np.concatenate(hashes)), overlaps, share > 1)


def n_copies(numbers: NDArray[Any]) -> int:
    """How many of the numbers have occurred before."""
    ordered = np.sort(numbers)
    return int((ordered[1:] == ordered[:-1]).sum())
