"""The order of training over a corpus in shards: its shards in a random order, a window of some of them at a time.

A window is a corpus of its own for `TokenBatches`, whose steps it fills. Seed and epoch decide the order
of the shards, and with the window's number its batches, so that a run's state is three numbers: epoch, window, batch.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.batches.batch import Batch, Rows, batch_of
from heed.data.batches.token_batches import (
    BEGINNING,
    REAL_TOKENS,
    BatchLimits,
    EpochState,
    OneText,
    Step,
    TokenBatches,
    lines_named,
    pieces_of,
    tokens_of_pass,
)
from heed.data.corpus.shard import SIDES
from heed.data.corpus.sharded import ShardedCorpus
from heed.model.cost import Workload
from heed.text.tokenizer import SpecialIds

WINDOW_SHARDS = 4


class ShardBatches(OneText):
    """As `TokenBatches`; a row is a pair's number through all shards."""

    plan_name = REAL_TOKENS
    of_window: type[TokenBatches] = TokenBatches

    def __init__(
        self,
        corpus: ShardedCorpus,
        special: SpecialIds,
        *,
        max_src_tokens: int,
        max_tgt_tokens: int,
        micro_tokens: int,
        seed: int,
    ):
        self._corpus, self._special = corpus, special
        self._limits, self.micro_tokens = BatchLimits(max_src_tokens, max_tgt_tokens, None, seed), micro_tokens
        self._window: tuple[tuple[int, ...], _Window] | None = None

    @property
    def limits(self) -> BatchLimits:
        """What decides the steps, with the corpus."""
        return self._limits

    @property
    def n_windows(self) -> int:
        """Of an epoch."""
        return -(-self._corpus.n_shards // WINDOW_SHARDS)

    @property
    def longest(self) -> int:
        """Tokens of the longest side."""
        return self._corpus.longest[0] + 1

    @property
    def pass_tokens(self) -> int:
        """Tokens a side of the largest pass, which one long pair may exceed."""
        return tokens_of_pass(self.limits, self.micro_tokens, self.longest)

    @property
    def n_passes(self) -> int:
        """Passes of a full step, where no padding is computed."""
        return -(-self.limits.most // self.pass_tokens)

    def with_micro_tokens(self, micro_tokens: int) -> "ShardBatches":
        """The same steps, divided into passes of this many tokens a side."""
        other = copy.copy(self)
        other.micro_tokens = micro_tokens
        return other

    def plan(self, epoch: int, at: EpochState = BEGINNING) -> list[Step]:
        """As `Batches.plan`."""
        shards = self._shards(epoch, at.window, self.limits.seed if at.order_seed is None else at.order_seed)
        pairs = self._pairs_of(shards)
        steps = self._batches(pairs, key=(at.window,)).plan(epoch, EpochState(earlier=at.earlier))
        return [[pairs.numbers(rows) for rows in step] for step in steps]

    def passes(self, step: Step, *, padded: bool) -> list[Rows]:
        """As `TokenBatches.passes`."""
        rows = np.concatenate(step)
        limit = tokens_of_pass(self.limits, self.micro_tokens, self.longest, padded=padded)
        return [rows[places] for places in pieces_of(*self._lengths(rows), limit, padded=padded)]

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
        return self.of_window(
            pairs,
            self._special,
            max_src_tokens=self.limits.max_src_tokens,
            max_tgt_tokens=self.limits.max_tgt_tokens,
            micro_tokens=self.micro_tokens,
            seed=self.limits.seed,
            key=key,
        )

    def heaviest(self, *, padded: bool) -> list[Rows]:
        """The passes of a window that need the most memory: of the most tokens, and of the longest pair of all.

        The window has the shard of the longest pair, and others: among millions of pairs, those of every length fill
        passes about as well as they are ever filled.
        """
        first = self._corpus.shard_of_longest
        others = [number for number in range(self._corpus.n_shards) if number != first]
        pairs = self._pairs_of((first, *others[: WINDOW_SHARDS - 1]))
        return [pairs.numbers(rows) for rows in self._batches(pairs, key=()).heaviest(padded=padded)]

    def workload(self, step: Step) -> Workload:
        """As `TokenBatches.workload`."""
        src, tgt = self._lengths(np.concatenate(step))
        return Workload(*map(int, (src.sum(), tgt.sum(), src @ src, tgt @ tgt, src @ tgt)))

    def _lengths(self, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """With eos, with bos."""
        src, tgt = (1 + self._corpus.lengths_of(side, rows) for side in SIDES)
        return src, tgt

    def lines(self, step: Step) -> list[int]:
        """Where these rows stood in the training text, counted from 1 through all of its files."""
        return sorted(self._corpus.lines_of(np.concatenate(step)).tolist())

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
