"""Batches of a mix: pairs of several parts in fixed shares, in an order fixed by seed, epoch and what was drawn before.

An epoch is as many pairs as the parts in use have together, of each part as many as its share says. A part is gone
through in passes, each a permutation of its pairs; a pass goes on in the next epoch. An epoch is made of rounds of some
ROUND_BATCHES batches in each of which the shares are already right, so that they come true within a thousand steps.
Within a round, pairs of all parts are put into steps as without a mix.

A pass through a part of many shards takes them in a drawn order, a window of some at a time, and the pairs of a window
in a drawn order, too; a part of one window is drawn as if it were in one shard. Of a corpus in shards, an epoch has no
more pairs than a window of the largest ones, since it is planned at once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.batches.batch import Rows
from heed.data.batches.token_batches import (
    BEGINNING,
    WINDOW_SHARDS,
    BatchLimits,
    Drawn,
    EpochState,
    PlanPart,
    Step,
    TokenBatches,
)
from heed.data.corpus.shard import SIDES
from heed.data.corpus.sharded import TrainingCorpus
from heed.data.mix import Mix
from heed.errors import HeedError
from heed.text.tokenizer import SpecialIds

ROUND_BATCHES = 50
MIN_EPOCH_PAIRS = 1000  # so that a share of a small corpus is not rounded by more than a thousandth
OF_PARTS = 0x6D6978  # in the seed of a part's permutations, so that no epoch's order has the same


class MixedBatches(TokenBatches):
    """The order of training on a mix."""

    n_windows = 1

    def __init__(
        self, corpus: TrainingCorpus, special: SpecialIds, limits: BatchLimits, *, mix: Mix, n_files: Sequence[int]
    ):
        """n_files: of each part, whose pairs stand in the corpus in this order. HeedError for a part without pairs."""
        super().__init__(corpus, special, limits)
        self._parts = corpus.parts(n_files)
        self._most_pairs: int | None = None  # of an epoch
        if corpus.n_shards > 1:
            self._most_pairs = WINDOW_SHARDS * int(np.diff(corpus.starts).max())
            # Two windows of each part, and a shard for the line of a pair of those before.
            corpus.max_open = 1 + 2 * WINDOW_SHARDS * len(self._parts)
        self.mix, self.sizes = mix, [len(part.rows) for part in self._parts]
        for part, size in zip(mix.parts, self.sizes, strict=True):
            if not size:
                raise HeedError(
                    f"no pair of data.mix's part {part.name} is left; leave the part out, or change its text."
                )
        self.stages = mix.begun_after(self.sizes)
        self._mean_lengths = [(part.n_longer + len(part.rows)) / len(part.rows) for part in self._parts]

    def plan(self, epoch: int, at: EpochState = BEGINNING) -> list[Step]:
        """The epoch's steps that are left until the stage ends."""
        drawn = at.drawn or self._nothing_drawn
        end = self.mix.end_of(self.mix.stage_at(drawn.step))
        whole = self._whole_plan(epoch, at.earlier, drawn)
        n_earlier = sum(part.n_batches for part in at.earlier)
        return whole if end is None else whole[: max(0, end - drawn.step - n_earlier)]

    def drawn_after(self, epoch: int, at: EpochState = BEGINNING, *, step: int) -> Drawn:
        """What is drawn when the epoch ends, which it does at this step."""
        drawn = at.drawn or self._nothing_drawn
        new = self._counts(drawn.step)
        unused = np.empty(0, np.int64)
        if step == self.mix.end_of(self.mix.stage_at(drawn.step)):  # the stage may have cut it short
            new, unused = self._begun_and_unused(epoch, at.earlier, drawn, step=step)
        pairs, left = list(drawn.pairs), []
        for part, rows in enumerate(self._left_of(drawn)):
            own = self._parts[part].rows
            pairs[part] += max(0, new[part] - len(rows))
            left.append((*unused[(own.start <= unused) & (unused < own.stop)].tolist(), *rows[new[part] :]))
        return Drawn(step, tuple(pairs), tuple(left) if any(left) else ())

    def _begun_and_unused(
        self, epoch: int, earlier: tuple[PlanPart, ...], drawn: Drawn, *, step: int
    ) -> tuple[list[int], NDArray[Any]]:
        """The pairs of each part in the rounds that were begun at this step, and the rows of those without a step."""
        rows, rounds, steps = self._places(epoch, earlier, drawn)
        is_used = np.ones(len(rows), dtype=bool)
        for places in steps[step - drawn.step - sum(part.n_batches for part in earlier) :]:
            is_used[np.concatenate(places)] = False
        begun = int(np.searchsorted(rounds, np.flatnonzero(is_used).max(initial=-1), side="right"))
        new = [n * begun // (len(rounds) - 1) for n in self._counts(drawn.step)]
        end = rounds[begun]
        return new, rows[:end][~is_used[:end]]

    def _left_of(self, drawn: Drawn) -> tuple[tuple[int, ...], ...]:
        return drawn.left or ((),) * len(self.sizes)

    def facts(self) -> dict[str, str]:
        """The shares of each stage."""
        return {"mix": "; ".join(self.mix.lines(self.sizes))}

    def facts_at(self, epoch: int, at: EpochState, *, step: int) -> dict[str, str]:
        """How often each part has been gone through."""
        passes = self.passes_of_parts(epoch, at, step=step)
        return {"passes": ", ".join(f"{part.name} {n:.2f}" for part, n in zip(self.mix.parts, passes, strict=True))}

    def passes_of_parts(self, epoch: int, at: EpochState = BEGINNING, *, step: int) -> list[float]:
        """How often each part has been gone through at this step of the epoch."""
        drawn = at.drawn or self._nothing_drawn
        share = self._share_used(epoch, at.earlier, drawn, step=step)
        used = [n - len(rows) for n, rows in zip(drawn.pairs, self._left_of(drawn), strict=True)]
        in_epoch = self._counts(drawn.step)
        return [(n + share * more) / size for n, more, size in zip(used, in_epoch, self.sizes, strict=True)]

    def _share_used(self, epoch: int, earlier: tuple[PlanPart, ...], drawn: Drawn, *, step: int) -> float:
        """The share of the epoch's batches that is used, as if no stage ended in it."""
        n_batches = sum(part.n_batches for part in earlier) + len(self._whole_plan(epoch, earlier, drawn))
        return (step - drawn.step) / n_batches

    @property
    def _nothing_drawn(self) -> Drawn:
        return Drawn(0, (0,) * len(self.sizes))

    def _counts(self, step: int) -> list[int]:
        """Pairs of each part in an epoch that begins after this step."""
        shares = self.mix.shares(self.mix.stage_at(step), self.sizes)
        n_pairs = max(MIN_EPOCH_PAIRS, sum(size for size, share in zip(self.sizes, shares, strict=True) if share))
        n_pairs = min(n_pairs, self._most_pairs or n_pairs)
        return [max(1, round(share * n_pairs)) if share else 0 for share in shares]

    def _n_rounds(self, counts: Sequence[int], limits: BatchLimits) -> int:
        """The number of rounds of an epoch with `counts` pairs of each part."""
        n_tokens = sum(n * mean for n, mean in zip(counts, self._mean_lengths, strict=True))
        return max(1, round(n_tokens / min(limits.max_src_tokens, limits.max_tgt_tokens) / ROUND_BATCHES))

    def _whole_plan(self, epoch: int, earlier: tuple[PlanPart, ...], drawn: Drawn) -> list[Step]:
        """The epoch's steps, as if no stage ended in it."""
        rows, _, steps = self._places(epoch, earlier, drawn)
        return [[rows[places] for places in step] for step in steps]

    def _places(self, epoch: int, earlier: tuple[PlanPart, ...], drawn: Drawn) -> tuple[Rows, list[int], list[Step]]:
        """The epoch's rows, where its rounds begin, and its steps, which hold places among the rows."""
        # Which pairs it has does not change in the middle of it, so the limits and the seed count that it began with.
        rows, rounds = self._draw(drawn, earlier[0].limits if earlier else self.limits)
        # Of these pairs, a row of the corpus may occur twice: what follows counts places among them.
        lengths = [self._corpus.lengths_of(side, rows).astype(np.int32) for side in SIDES]
        return rows, rounds, self.plans(lengths, self._pass_limits, rounds=rounds).steps(epoch, earlier)

    def _draw(self, drawn: Drawn, limits: BatchLimits) -> tuple[Rows, list[int]]:
        """The rows of an epoch, and where each of its rounds begins and the last one ends."""
        counts = self._counts(drawn.step)
        n_rounds = self._n_rounds(counts, limits)
        by_part = []
        for part, (begin, left, n) in enumerate(zip(drawn.pairs, self._left_of(drawn), counts, strict=True)):
            first = np.array(left[:n], np.int64)
            following = self._stream(part, begin=begin, n=n - len(first), seed=limits.seed)
            by_part.append(np.concatenate([first, *following]))
        pieces = [
            rows[len(rows) * number // n_rounds : len(rows) * (number + 1) // n_rounds]
            for number in range(n_rounds)
            for rows in by_part
        ]
        ends = np.cumsum([len(piece) for piece in pieces])[len(by_part) - 1 :: len(by_part)]
        smallest = np.uint32 if len(self._corpus) < 2**32 else np.int64
        return np.concatenate(pieces).astype(smallest), [0, *ends.tolist()]

    def _stream(self, part: int, *, begin: int, n: int, seed: int) -> Iterator[Rows]:
        """n rows of a part from its pair number `begin` on, counted through all passes."""
        while n:
            number, place = divmod(begin, self.sizes[part])
            for ranges, key in self._windows(part, (seed, OF_PARTS, part, number)):
                size = sum(map(len, ranges))
                if place < size and n:
                    rows = np.concatenate([np.arange(of.start, of.stop) for of in ranges])
                    taken = rows[np.random.default_rng(key).permutation(size)[place : place + n]]
                    yield taken
                    begin, n, place = begin + len(taken), n - len(taken), place + len(taken)
                place -= size

    def _windows(self, part: int, key: tuple[int, ...]) -> Iterator[tuple[list[range], tuple[int, ...]]]:
        """The rows of each window of a part's pass, and the key by which their order is drawn. key: of the pass."""
        shards = self._parts[part].shards
        if len(shards) <= WINDOW_SHARDS:
            yield [self._parts[part].rows], key
            return
        starts = self._corpus.starts.tolist()
        order = (shards.start + np.random.default_rng(key).permutation(len(shards))).tolist()
        for window, first in enumerate(range(0, len(order), WINDOW_SHARDS), start=1):
            some = order[first : first + WINDOW_SHARDS]
            yield [range(starts[shard], starts[shard + 1]) for shard in some], (*key, window)
