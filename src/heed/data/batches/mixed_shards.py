"""Batches of a mix whose parts are in shards: as `MixedBatches`, with memory that does not grow with a part.

A pass through a part of many shards takes them in a drawn order, a window of some at a time, and the pairs of a window
in a drawn order, too; a part of one window is drawn as if it were in one shard. An epoch has no more pairs than a
window of the largest shards, since it is planned at once.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.batches.batch import Rows
from heed.data.batches.mixed_batches import OF_PARTS, MixedBatches
from heed.data.batches.shard_batches import WINDOW_SHARDS, ShardBatches
from heed.data.batches.token_batches import BatchLimits
from heed.data.corpus.shard import SIDES
from heed.data.corpus.sharded import ShardedCorpus
from heed.data.mix import Mix
from heed.text.tokenizer import SpecialIds


class MixedShardBatches(MixedBatches):
    """As MixedBatches; a row is a pair's number through all shards."""

    def __init__(
        self,
        corpus: ShardedCorpus,
        special: SpecialIds,
        mix: Mix,
        *,
        max_src_tokens: int,
        max_tgt_tokens: int,
        micro_tokens: int,
        seed: int,
    ):
        """HeedError for a part without pairs."""
        self._corpus, self._shards, self._special, self._key = corpus, corpus, special, ()
        self._limits, self.micro_tokens = BatchLimits(max_src_tokens, max_tgt_tokens, None, seed), micro_tokens
        src, tgt = (_Lengths(corpus, side) for side in SIDES)
        self._src_lengths: Any = src
        self._tgt_lengths: Any = tgt
        ends = np.cumsum([0, *corpus.shards_of_parts]).tolist()
        self._parts = list(map(range, ends, ends[1:]))
        self._divide(mix, corpus.starts[ends].tolist())
        self._mean_lengths = [1 + corpus.mean_length(shards) for shards in self._parts]
        self._most_pairs = WINDOW_SHARDS * int(np.diff(corpus.starts).max())
        # Two windows of each part, and a shard for the line of a pair of those before.
        corpus.max_open = 1 + 2 * WINDOW_SHARDS * len(self._parts)

    @property
    def longest(self) -> int:
        """Tokens of the longest side."""
        return self._shards.longest[0] + 1

    def heaviest(self, *, padded: bool) -> list[Rows]:
        """As `ShardBatches.heaviest`, of whatever parts."""
        limits = {name: getattr(self._limits, name) for name in ("max_src_tokens", "max_tgt_tokens", "seed")}
        alike = ShardBatches(self._shards, self._special, **limits, micro_tokens=self.micro_tokens)
        return alike.heaviest(padded=padded)

    def _stream(self, part: int, *, begin: int, n: int, seed: int) -> Iterator[Rows]:
        shards, starts = self._parts[part], self._shards.starts
        if len(shards) <= WINDOW_SHARDS:
            yield from super()._stream(part, begin=begin, n=n, seed=seed)
            return
        while n:
            number, place = divmod(begin, self.sizes[part])
            order = shards.start + np.random.default_rng((seed, OF_PARTS, part, number)).permutation(len(shards))
            for window, first in enumerate(range(0, len(order), WINDOW_SHARDS), start=1):
                some = order[first : first + WINDOW_SHARDS]
                size = int((starts[some + 1] - starts[some]).sum())
                if place < size and n:
                    rows = np.concatenate([np.arange(starts[shard], starts[shard + 1]) for shard in some])
                    drawn = np.random.default_rng((seed, OF_PARTS, part, number, window)).permutation(size)
                    taken = rows[drawn[place : place + n]]
                    yield taken
                    begin, n, place = begin + len(taken), n - len(taken), place + len(taken)
                place -= size


class _Lengths:
    """Tokens of a side of all pairs, with eos or bos, looked up as they are asked for."""

    def __init__(self, corpus: ShardedCorpus, side: str):
        self._corpus, self._side = corpus, side

    def __len__(self) -> int:
        return len(self._corpus)

    def __getitem__(self, rows: Rows) -> NDArray[np.int64]:
        return self._corpus.lengths_of(self._side, rows) + 1
