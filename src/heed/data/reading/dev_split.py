"""Dev pairs split off the training text by a hash of each pair.

The hash alone decides, so neither the order of the lines and files nor text that is appended later matters, and all
copies of a pair go the same way. A share takes the pairs whose hash lies below a fixed bound: appended text moves no
other pair. A count takes the pairs with the smallest hashes: appended pairs may take the place of some, which then are
trained on, but none that was trained on moves to dev.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import TypeVar

import numpy as np

from heed.data.reading.pairs import Pair
from heed.errors import HeedError
from heed.text.line_rules import is_blank

Place = TypeVar("Place")
HASH_BITS = 64
MAX_SHARE = 0.5
CHUNK_HASHES = 2**16
CHARACTERS_PER_TOKEN = 4  # of ordinary text, or fewer


def pair_hash(src: str, tgt: str) -> int:
    """A number below 2 ** HASH_BITS, the same on every machine."""
    text = f"{src}\n{tgt}".encode(errors="surrogatepass")  # no line contains \n
    return int.from_bytes(blake2b(text, digest_size=HASH_BITS // 8).digest(), "big")


@dataclass(frozen=True, kw_only=True)
class DevSplit:
    """Which pairs of the training text become dev.

    either_side: whether pairs that share one side with dev are kept out of training wherever they stand. Runs begun
    before that rule leave out, of the text itself, dev's pairs alone.
    """

    size: int | float  # number of different pairs, or their share
    max_tokens: int  # longer pairs, estimated by their characters, stay in training, as do pairs of unequal length
    max_ratio: float
    either_side: bool = True

    def pairs(self, read: Callable[[], Iterable[tuple[Place, Pair]]], *, name: str) -> Iterator[tuple[Place, Pair]]:
        """The dev pairs with their places in the text, the first copy of each.

        read: gives the text, called `name` in errors. It is read twice for a number, once for a share; memory grows
        with dev only. HeedError if the text is too small.
        """
        bound = self._bound(read, name)
        n_pairs, n_dev_lines, seen = 0, 0, set[int]()
        for place, pair in read():
            n_pairs += 1
            if not self._is_suitable(*pair) or (number := pair_hash(*pair)) >= bound:
                continue
            n_dev_lines += 1
            if number not in seen:
                seen.add(number)
                yield place, pair
        if not seen:
            raise HeedError(
                f"data.dev = {self.size} chooses none of the {n_pairs:,} pairs of {name}; give a larger share, or "
                "a number of pairs."
            )
        if 2 * n_dev_lines > n_pairs:
            raise HeedError(
                f"data.dev = {self.size} chooses {n_dev_lines:,} of the {n_pairs:,} pairs of {name}, copies "
                "included: more than half; choose fewer."
            )

    def _bound(self, read: Callable[[], Iterable[tuple[Place, Pair]]], name: str) -> int:
        """The hash at which dev ends."""
        if isinstance(self.size, float):
            return int(self.size * 2**HASH_BITS)
        kept, bound, n_pairs = np.empty(0, np.uint64), int(2**HASH_BITS), 0

        def smaller_hashes() -> Iterator[int]:
            nonlocal n_pairs
            for _, (src, tgt) in read():
                n_pairs += 1
                if self._is_suitable(src, tgt) and (number := pair_hash(src, tgt)) < bound:
                    yield number

        hashes = smaller_hashes()
        while chunk := list(islice(hashes, max(self.size, CHUNK_HASHES))):
            kept = np.unique(np.concatenate([kept, np.array(chunk, np.uint64)]))[: self.size]
            bound = int(kept[-1]) + 1 if len(kept) == self.size else bound
        if 2 * self.size > n_pairs:
            raise HeedError(
                f"data.dev = {self.size:,} is more than half of the {n_pairs:,} pairs of {name}; choose fewer."
            )
        if len(kept) < self.size:
            raise HeedError(
                f"data.dev = {self.size:,}, but only {len(kept):,} different pairs of {name} are suitable (neither "
                "blank nor very long nor of very unequal length); choose fewer."
            )
        return bound

    def _is_suitable(self, src: str, tgt: str) -> bool:
        """Decided by the pair alone, before there is a vocabulary that could count its tokens."""
        if is_blank(src) or is_blank(tgt):
            return False
        if any(side.endswith("\r") or side.startswith("\ufeff") for side in (src, tgt)):
            return False  # which reading the written file would strip
        shorter, longer = sorted((len(src), len(tgt)))
        return longer <= CHARACTERS_PER_TOKEN * self.max_tokens and longer <= self.max_ratio * shorter


class HeldOut:
    """The pairs of dev, by which training text is told that must not be learned from. Memory: three numbers a pair."""

    def __init__(self, dev: Iterable[Pair] = (), *, sides_from: int = 0):
        """sides_from: the first of the training files in which one side shared with dev is enough."""
        self._sides_from = sides_from
        self._pairs, self._src, self._tgt = set[int](), set[int](), set[int]()
        for pair in dev:
            self.add(*pair)

    def add(self, src: str, tgt: str) -> None:
        """Holds out another pair."""
        self._pairs.add(hash((src, tgt)))
        self._src.add(hash(src))
        self._tgt.add(hash(tgt))

    def has(self, source: int, src: str, tgt: str) -> bool:
        """Whether this pair of a training file, counted from 0, must not be learned from."""
        if source >= self._sides_from:
            return hash(src) in self._src or hash(tgt) in self._tgt
        return hash((src, tgt)) in self._pairs
