"""The order of training over a corpus in shards: its shards in a random order, a window of some of them at a time.

A window is a corpus of its own for `TokenBatches`, whose buckets of lengths it fills. Seed and epoch decide the order
of the shards, and with the window's number its batches, so that a run's state is three numbers: epoch, window, batch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.batching import Batch, BatchLimits, Drawn, PlanPart, Rows, TokenBatches, batch_of, lines_named
from heed.data.corpus.shard import SIDES
from heed.data.corpus.sharded import ShardedCorpus
from heed.model.cost import Workload
from heed.text.tokenizer import SpecialIds

WINDOW_SHARDS = 4


class ShardBatches:
    """As `TokenBatches`; a row is a pair's number through all shards."""

    def __init__(self, corpus: ShardedCorpus, special: SpecialIds, *, limits: BatchLimits):
        self._corpus, self._special, self.limits = corpus, special, limits
        self._window: tuple[tuple[int, ...], _Window] | None = None

    @property
    def n_windows(self) -> int:
        """Of an epoch."""
        return -(-self._corpus.n_shards // WINDOW_SHARDS)

    @property
    def micro_tokens(self) -> int:
        """Tokens a side of a micro-batch at most."""
        return self.limits.micro_tokens

    @property
    def longest(self) -> int:
        """Tokens of the longest side."""
        return self._corpus.longest[0] + 1

    def with_micro_tokens(self, micro_tokens: int) -> "ShardBatches":
        """The same with another limit of a micro-batch: other batches, of the same size."""
        return ShardBatches(self._corpus, self._special, limits=self.limits._replace(micro_tokens=micro_tokens))

    def plan(
        self,
        epoch: int,
        *,
        window: int = 0,
        order_seed: int | None = None,
        earlier: Sequence[PlanPart] = (),
        drawn: Drawn | None = None,
    ) -> list[list[Rows]]:
        """As `Batches.plan`."""
        shards = self._shards(epoch, window, self.limits.seed if order_seed is None else order_seed)
        pairs = self._pairs_of(shards)
        found = self._batches(pairs, key=(window,)).plan(epoch, earlier=earlier)
        return [[pairs.numbers(rows) for rows in micro_batches] for micro_batches in found]

    def drawn_after(
        self, epoch: int, *, step: int, earlier: Sequence[PlanPart] = (), drawn: Drawn | None = None
    ) -> None:
        """Nothing is: shards have no mix."""

    def _shards(self, epoch: int, window: int, seed: int) -> tuple[int, ...]:
        # Another stream than a window's own, whose key has three numbers.
        order = np.random.default_rng((seed, epoch)).permutation(self._corpus.n_shards)
        return tuple(order[window * WINDOW_SHARDS : (window + 1) * WINDOW_SHARDS].tolist())

    def _pairs_of(self, shards: tuple[int, ...]) -> "_Window":
        if self._window is None or self._window[0] != shards:
            self._window = None  # two at once would take twice the memory
            self._window = shards, _Window(self._corpus, shards)
        return self._window[1]

    def _batches(self, pairs: "_Window", *, key: tuple[int, ...]) -> TokenBatches:
        return TokenBatches(pairs, self._special, **self.limits._asdict(), key=key)

    def heaviest(self) -> list[Rows]:
        """The micro-batches of a window that need the most memory: of the most tokens, and of the longest pair of all.

        The window has the shard of the longest pair, and others: among millions of pairs, those of every length fill
        micro-batches about as well as they are ever filled.
        """
        first = self._corpus.shard_of_longest
        others = [number for number in range(self._corpus.n_shards) if number != first]
        pairs = self._pairs_of((first, *others[: WINDOW_SHARDS - 1]))
        return [pairs.numbers(rows) for rows in self._batches(pairs, key=()).heaviest()]

    def workload(self, micro_batches: list[Rows]) -> Workload:
        """As `TokenBatches.workload`."""
        rows = np.concatenate(micro_batches)
        src, tgt = (1 + self._corpus.end_to_end(side, rows)[1] for side in SIDES)
        return Workload(*map(int, (src.sum(), tgt.sum(), src @ src, tgt @ tgt, src @ tgt)))

    def lines(self, micro_batches: list[Rows]) -> list[int]:
        """Where these rows stood in the training text, counted from 1 through all of its files."""
        return sorted(self._corpus.lines_of(np.concatenate(micro_batches)).tolist())

    def named(self, lines: Sequence[int]) -> str:
        """Some of `lines` for the user to read, each by its number in its file."""
        return lines_named(lines, self._corpus.place)

    def collate(self, rows: Rows) -> Batch:
        """The batch of these rows. HeedError if the corpus on disk is no longer what it was."""
        src, tgt = (self._corpus.end_to_end(side, rows) for side in SIDES)
        return batch_of(src, tgt, self._special, rows)


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
