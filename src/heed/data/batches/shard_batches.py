"""The order of training over a corpus in shards: its shards in a random order, a window of some of them at a time.

A window is a corpus of its own for `TokenBatches`, whose steps it fills. Seed and epoch decide the order
of the shards, and with the window's number its batches, so that a run's state is three numbers: epoch, window, batch.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.batches.batch import Rows
from heed.data.batches.token_batches import BEGINNING, Batches, EpochState, Step, TokenBatches
from heed.data.corpus.sharded import ShardedCorpus

WINDOW_SHARDS = 4


class ShardBatches(Batches):
    """`TokenBatches` over shards; a row is a pair's number through all of them."""

    of_window: type[TokenBatches] = TokenBatches

    _corpus: ShardedCorpus
    _window: "tuple[tuple[int, ...], _Window] | None" = None

    @property
    def n_windows(self) -> int:
        """The number of windows of an epoch."""
        return -(-self._corpus.n_shards // WINDOW_SHARDS)

    @property
    def longest(self) -> int:
        """Tokens of the longest side."""
        return self._corpus.longest[0] + 1

    def plan(self, epoch: int, at: EpochState = BEGINNING) -> list[Step]:
        """Implements `Batches.plan`."""
        shards = self._shards(epoch, at.window, self.limits.seed if at.order_seed is None else at.order_seed)
        pairs = self._pairs_of(shards)
        steps = self._batches(pairs, key=(at.window,)).plan(epoch, EpochState(earlier=at.earlier))
        return [[pairs.numbers(rows) for rows in step] for step in steps]

    def _shards(self, epoch: int, window: int, seed: int) -> tuple[int, ...]:
        # The stream of the first window, whose key is (seed, epoch, 0), too, since NumPy pads a key with zeros. It does
        # no harm: here it orders the shards, there their pairs.
        order = np.random.default_rng((seed, epoch)).permutation(self._corpus.n_shards)
        return tuple(order[window * WINDOW_SHARDS : (window + 1) * WINDOW_SHARDS].tolist())

    def _pairs_of(self, shards: tuple[int, ...]) -> "_Window":
        if self._window is None or self._window[0] != shards:
            self._window = None  # two at once would take twice the memory
            self._window = shards, _Window(self._corpus, shards)
        return self._window[1]

    def _batches(self, pairs: "_Window", *, key: tuple[int, ...]) -> TokenBatches:
        limits = self.limits._replace(micro_tokens=self.micro_tokens)
        return self.of_window(pairs, self._special, limits, key=key)

    def heaviest(self, *, padded: bool) -> list[Rows]:
        """The passes of a window that need the most memory: of the most tokens, and of the longest pair of all.

        The window has the shard of the longest pair, and others: among millions of pairs, those of every length fill
        passes about as well as they are ever filled.
        """
        first = self._corpus.shard_of_longest
        others = [number for number in range(self._corpus.n_shards) if number != first]
        pairs = self._pairs_of((first, *others[: WINDOW_SHARDS - 1]))
        return [pairs.numbers(rows) for rows in self._batches(pairs, key=()).heaviest(padded=padded)]


class _Window:
    """Some shards as one corpus, whose rows are counted through these alone."""

    def __init__(self, corpus: ShardedCorpus, shards: tuple[int, ...]):
        self._corpus = corpus
        sizes = [int(corpus.starts[number + 1] - corpus.starts[number]) for number in shards]
        self._ends = np.cumsum(sizes)
        # What is added to a row of each shard for its number through all.
        self._shifts = corpus.starts[list(shards)] - (self._ends - sizes)
        # Half of the memory, where no side is too long for that.
        smallest = np.uint16 if corpus.longest[0] < 2**16 - 1 else np.int32
        src, tgt = (np.empty(len(self), smallest) for _ in range(2))
        for number, size, end in zip(shards, sizes, self._ends.tolist(), strict=True):
            src[end - size : end], tgt[end - size : end] = corpus.shard(number).lengths
        self.lengths: tuple[NDArray[Any], NDArray[Any]] = src, tgt

    def __len__(self) -> int:
        return int(self._ends[-1])

    def numbers(self, rows: Rows) -> NDArray[Any]:
        """The rows' numbers through all shards."""
        shards = np.searchsorted(self._ends, rows, side="right")
        numbers: NDArray[Any] = rows + self._shifts[shards]
        return numbers.astype(np.uint32 if len(self._corpus) < 2**32 else np.int64)
