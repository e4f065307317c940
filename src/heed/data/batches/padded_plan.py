"""The plan of batches of Heed 0.1 and earlier: limits count padding. Only runs that began with it load this file.

A step is made of micro-batches of like lengths, cut by padded tokens, of which each holds an equal share of the limits,
at most `micro_tokens` a side. So what a step holds depends on the machine. It goes with the next minor version.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.batches.batch import Rows
from heed.data.batches.mixed_batches import MixedBatches, RoundBatches
from heed.data.batches.shard_batches import ShardBatches
from heed.data.batches.token_batches import PADDED, BatchLimits, Drawn, PlanPart, Step, TokenBatches, padded_slices


class _MicroBatches:
    """A step as its micro-batches, which the limits decide together with `micro_tokens`."""

    plan_name = PADDED
    micro_tokens: int
    _limits: BatchLimits

    @property
    def limits(self) -> BatchLimits:
        """What decides the steps, with the corpus."""
        return self._limits._replace(micro_tokens=self.micro_tokens)

    @property
    def n_passes(self) -> int:
        """Micro-batches of a step at most."""
        return n_micro_batches(self.limits)

    @property
    def pass_tokens(self) -> int:
        """Tokens a side of the largest micro-batch, which one long pair may exceed."""
        return self.limits.most // self.n_passes

    def passes(self, step: Step, *, padded: bool) -> list[Rows]:
        """The step's micro-batches."""
        return step


class PaddedBatches(_MicroBatches, TokenBatches):
    """TokenBatches where a pair that is longer than a micro-batch's share is a micro-batch alone."""

    def _with_limits(self, limits: BatchLimits) -> "TokenBatches":
        other = super()._with_limits(limits)
        other.micro_tokens = limits.micro_tokens or self.micro_tokens
        return other

    def heaviest(self, *, padded: bool) -> list[Rows]:
        """The micro-batches that need the most memory: of the most tokens, and of the longest pair."""
        pieces = self._cut(np.lexsort((self._src_lengths, self._tgt_lengths)).astype(np.uint32))
        src, tgt = self._src_lengths, self._tgt_lengths
        longest = [int(src[rows].max()) + int(tgt[rows].max()) for rows in pieces]
        tokens = [len(rows) * most for rows, most in zip(pieces, longest, strict=True)]
        return [pieces[int(np.argmax(tokens))], pieces[int(np.argmax(longest))]]

    def _steps_of(self, order: Rows, draw: np.random.Generator) -> list[Step]:
        micro_batches = self._cut(self._by_length(order))
        return self._group([micro_batches[i] for i in draw.permutation(len(micro_batches))])

    def _group(self, micro_batches: list[Rows]) -> list[Step]:
        """Steps of as many as the limits allow, or of fewer where pairs longer than a share would overfill one."""
        steps: list[Step] = []
        n_src = n_tgt = 0
        for rows in micro_batches:
            src, tgt = (len(rows) * int(lengths[rows].max()) for lengths in (self._src_lengths, self._tgt_lengths))
            full = n_src + src > self.limits.max_src_tokens or n_tgt + tgt > self.limits.max_tgt_tokens
            if not steps or full or len(steps[-1]) == self.n_passes:
                steps.append([])
                n_src = n_tgt = 0
            steps[-1].append(rows)
            n_src, n_tgt = n_src + src, n_tgt + tgt
        return steps

    def _cut(self, order: Rows) -> list[Rows]:
        """Consecutive pieces of `order`, each as long as both its padded sides stay within a pass."""
        src_limit, tgt_limit = (
            most // self.n_passes for most in (self.limits.max_src_tokens, self.limits.max_tgt_tokens)
        )
        src, tgt = (lengths[order] for lengths in (self._src_lengths, self._tgt_lengths))
        return [order[piece] for piece in padded_slices(src, tgt, src_limit, tgt_limit)]


class _PaddedRounds(PaddedBatches, RoundBatches):
    """PaddedBatches of a mix, round by round."""


class PaddedMixedBatches(_MicroBatches, MixedBatches):
    """PaddedBatches of a mix. What a stage leaves of its last round comes in the next pass only."""

    of_text, of_rounds = PaddedBatches, _PaddedRounds

    def _begun_and_unused(
        self, epoch: int, earlier: tuple[PlanPart, ...], drawn: Drawn, *, step: int
    ) -> tuple[list[int], NDArray[Any]]:
        counts = self._counts(drawn.step)
        n_rounds = self._n_rounds(counts, earlier[0].limits if earlier else self.limits)
        begun = math.ceil(self._share_used(epoch, earlier, drawn, step=step) * n_rounds)
        return [n * begun // n_rounds for n in counts], np.empty(0, np.int64)


class PaddedShardBatches(_MicroBatches, ShardBatches):
    """PaddedBatches over shards."""

    of_window = PaddedBatches


def n_micro_batches(limits: BatchLimits) -> int:
    """Micro-batches of a step at most: of 25,000 in passes of 10,000 at most 3 of 8,333, not 2 of 10,000."""
    return -(-limits.most // (limits.micro_tokens or limits.most))
