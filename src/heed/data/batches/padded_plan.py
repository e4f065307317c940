"""The plan of batches of Heed 0.1 and earlier: limits count padding. Only runs that began with it load this file.

A step is made of micro-batches of like lengths, cut by padded tokens, of which each holds an equal share of the limits,
at most `micro_tokens` a side. So what a step holds depends on the machine. It goes with the next minor version.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.batches.batch import Rows
from heed.data.batches.mixed_batches import MixedBatches
from heed.data.batches.token_batches import (
    PADDED,
    BatchLimits,
    Drawn,
    PlanPart,
    Step,
    StepPlan,
    TokenBatches,
    heaviest_padded,
    padded_slices,
)


class _PaddedPlan(StepPlan):
    """A StepPlan where a pair that is longer than a micro-batch's share is a micro-batch alone."""

    def _steps_of(self, order: Rows, draw: np.random.Generator) -> list[Step]:
        micro_batches = self.cut(self._by_length(order))
        return self._group([micro_batches[i] for i in draw.permutation(len(micro_batches))])

    def _group(self, micro_batches: list[Rows]) -> list[Step]:
        """Steps of as many as the limits allow, or of fewer where pairs longer than a share would overfill one."""
        steps: list[Step] = []
        n_src = n_tgt = 0
        for rows in micro_batches:
            src, tgt = (len(rows) * int(lengths[rows].max()) for lengths in (self._src_lengths, self._tgt_lengths))
            full = n_src + src > self._limits.max_src_tokens or n_tgt + tgt > self._limits.max_tgt_tokens
            if not steps or full or len(steps[-1]) == n_micro_batches(self._limits):
                steps.append([])
                n_src = n_tgt = 0
            steps[-1].append(rows)
            n_src, n_tgt = n_src + src, n_tgt + tgt
        return steps

    def cut(self, order: Rows) -> list[Rows]:
        """Consecutive pieces of `order`, each as long as both its padded sides stay within a pass."""
        src_limit, tgt_limit = (
            most // n_micro_batches(self._limits) for most in (self._limits.max_src_tokens, self._limits.max_tgt_tokens)
        )
        src, tgt = (lengths[order] for lengths in (self._src_lengths, self._tgt_lengths))
        return [order[piece] for piece in padded_slices(src, tgt, src_limit, tgt_limit)]


class PaddedBatches(TokenBatches):
    """TokenBatches whose steps are their micro-batches, which the limits decide together with `micro_tokens`."""

    plan_name = PADDED
    plans = _PaddedPlan

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

    def _heaviest_of(self, src: NDArray[Any], tgt: NDArray[Any], *, padded: bool) -> list[Rows]:
        pieces = _PaddedPlan((src - 1, tgt - 1), self.limits).cut(np.lexsort((src, tgt)).astype(np.uint32))
        return heaviest_padded(src, tgt, pieces)


class PaddedMixedBatches(PaddedBatches, MixedBatches):
    """PaddedBatches of a mix. What a stage leaves of its last round comes in the next pass only."""

    def _begun_and_unused(
        self, epoch: int, earlier: tuple[PlanPart, ...], drawn: Drawn, *, step: int
    ) -> tuple[list[int], NDArray[Any]]:
        counts = self._counts(drawn.step)
        n_rounds = self._n_rounds(counts, earlier[0].limits if earlier else self.limits)
        begun = math.ceil(self._share_used(epoch, earlier, drawn, step=step) * n_rounds)
        return [n * begun // n_rounds for n in counts], np.empty(0, np.int64)


def n_micro_batches(limits: BatchLimits) -> int:
    """Micro-batches of a step at most: of 25,000 in passes of 10,000 at most 3 of 8,333, not 2 of 10,000."""
    return -(-limits.most // (limits.micro_tokens or limits.most))
