"""The order of training: batches of pairs, filled by real tokens, and their division into passes (section 5.1).

The shards of a corpus, which may be one, are taken in a random order, a window of some of them at a time. Seed and
epoch decide the order of the shards, and with the window's number its batches, so that a run's state is three numbers:
epoch, window, batch.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from heed.data.batches.batch import Batch, Rows, batch_of
from heed.data.corpus.shard import SIDES
from heed.data.corpus.sharded import TrainingCorpus
from heed.model.cost import Workload
from heed.text.tokenizer import SpecialIds

Step = list[Rows]  # one array, or in the padded plan one for each pass
# Names of plans, kept in checkpoints: a run keeps the plan that it began with.
REAL_TOKENS = "real tokens"
PADDED = "padded"  # of Heed 0.1 and before 0.2: padded_plan.py
WINDOW_SHARDS = 4


class BatchLimits(NamedTuple):
    """Most tokens of a step and of a pass, a side, and the seed of the order.

    With the corpus they decide the steps of an epoch: micro_tokens in the padded plan alone. In the limits of other
    batches it is None.
    """

    max_src_tokens: int
    max_tgt_tokens: int
    micro_tokens: int | None
    seed: int

    @property
    def most(self) -> int:
        """The limit of the side that may have more tokens."""
        return max(self.max_src_tokens, self.max_tgt_tokens)


class PlanPart(NamedTuple):
    """The first `n_batches` of the batches that these limits make."""

    limits: BatchLimits
    n_batches: int


class Drawn(NamedTuple):
    """How far a mix is when an epoch begins: the steps taken, and the pairs drawn of each part.

    left: rows of each part that were drawn for a stage which ended before their step; the epoch begins with them.
    """

    step: int
    pairs: tuple[int, ...]
    left: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class EpochState:
    """What decides a plan besides corpus, limits and epoch.

    window: of the epoch, where it is planned in several. order_seed: by which the epoch's windows were drawn, if not by
    that of the limits. earlier: used of the window, under other limits. drawn: of a mix (MixedBatches), before the
    epoch; None before the first.
    """

    window: int = 0
    order_seed: int | None = None
    earlier: tuple[PlanPart, ...] = ()
    drawn: Drawn | None = None


BEGINNING = EpochState()


# Of a full step: each group has pairs of like lengths, so that passes that compute padding have little of it, and a
# step has groups of many lengths, so that its gradient is not one of long or of short sentences.
GROUPS_OF_STEP = 16
# Where padding is computed, longer passes would hold lengths too unlike: at an eighth of a step, 81 to 93 % of what is
# computed is real; at all of it, half.
PADDED_SHARE, MIN_PADDED_TOKENS = 8, 1024
LOOK_AHEAD = 256  # pairs among which one is looked for that fits where the next one does not


class StepPlan:
    """Steps of pairs of these lengths: which of them form which step of which epoch.

    A step holds at most `max_src_tokens` and `max_tgt_tokens` real tokens, special symbols counted, and is filled until
    none of the next pairs fits; a pair longer than the limits is a step alone. The steps of an epoch depend
    on the lengths, the limits, seed and epoch only, never on the machine: how a step is divided is decided later.
    """

    def __init__(
        self,
        lengths: Sequence[NDArray[Any]],
        limits: BatchLimits,
        *,
        window: int = 0,
        rounds: Sequence[int] | None = None,
    ):
        """lengths: number of ids of each source and of each target. window: draws another order than the first one's.

        rounds: where each round of pairs begins that are put into steps by themselves, and the last one's end; None for
        one round.
        """
        self._limits, self._window = limits, window
        self._rounds = rounds or (0, len(lengths[0]))
        # With eos, with bos. numpy sorts 16-bit numbers by their digits, many times as fast as longer ones.
        smallest = np.uint16 if max(of.max(initial=0) for of in lengths) < 2**16 - 1 else np.int32
        self._src_lengths, self._tgt_lengths = ((of + 1).astype(smallest) for of in lengths)

    def steps(self, epoch: int, earlier: Sequence[PlanPart] = ()) -> list[Step]:
        """The steps of the epoch that are left after those of `earlier`."""
        left = np.ones(len(self._src_lengths), dtype=bool)
        for part in earlier:
            other = copy.copy(self)
            other._limits = part.limits._replace(micro_tokens=part.limits.micro_tokens or self._limits.micro_tokens)
            for step in other._steps(epoch, left)[: part.n_batches]:
                left[np.concatenate(step)] = False
        return self._steps(epoch, left)

    def _steps(self, epoch: int, left: NDArray[np.bool_]) -> list[Step]:
        steps: list[Step] = []
        for number, (begin, end) in enumerate(pairwise(self._rounds), start=self._window):
            draw = np.random.default_rng((self._limits.seed, epoch, number))
            order = (begin + draw.permutation(end - begin)).astype(np.uint32)  # decides between pairs of equal lengths
            steps += self._steps_of(order[left[order]], draw)
        return steps

    def _steps_of(self, order: Rows, draw: np.random.Generator) -> list[Step]:
        """Steps of these rows in a drawn order; pairs of equal lengths stay in theirs."""
        order = self._by_length(order)
        # Groups of consecutive pairs, each a share of a step on the side that is fuller there.
        limits = self._limits
        shares = np.maximum(
            self._src_lengths[order].astype(np.float32) / limits.max_src_tokens,
            self._tgt_lengths[order].astype(np.float32) / limits.max_tgt_tokens,
        )
        group = (np.cumsum(shares, dtype=np.float64) * GROUPS_OF_STEP).astype(np.int64)
        groups = np.split(order, np.flatnonzero(np.diff(group)) + 1)
        return self._fill(np.concatenate([groups[i] for i in draw.permutation(len(groups))]))

    def _by_length(self, order: Rows) -> Rows:
        """By the target's length, then the source's; those of equal lengths in their order."""
        for lengths in (self._src_lengths, self._tgt_lengths):  # stable, the more important last
            order = order[np.argsort(lengths[order], kind="stable")]
        return order

    def _fill(self, order: Rows) -> list[Step]:
        """Steps of consecutive pairs of `order`, in which a pair moves ahead that fits where the next does not."""
        steps: list[Step] = []
        start, guess = 0, 1024
        while start < len(order):
            window = order[start : start + guess]
            src, tgt = (lengths[window].astype(np.int64) for lengths in (self._src_lengths, self._tgt_lengths))
            size = max(1, _n_fitting(src, tgt, self._limits.max_src_tokens, self._limits.max_tgt_tokens))
            if size + LOOK_AHEAD > len(window) and start + len(window) < len(order):
                guess = 2 * guess
                continue
            size = self._close_gap(window, src, tgt, size)
            steps.append([order[start : start + size]])
            start, guess = start + size, size + size // 4 + 2 * LOOK_AHEAD
        return steps

    def _close_gap(self, window: Rows, src: NDArray[np.int64], tgt: NDArray[np.int64], size: int) -> int:
        """The size of a step of the first `size` pairs and those of the next ones that still fit, put behind these."""
        src_gap = self._limits.max_src_tokens - int(src[:size].sum())
        tgt_gap = self._limits.max_tgt_tokens - int(tgt[:size].sum())
        ahead = slice(size, size + LOOK_AHEAD)
        taken = np.zeros(len(src[ahead]), dtype=bool)
        while (fits := (src[ahead] <= src_gap) & (tgt[ahead] <= tgt_gap) & ~taken).any():
            # The longest that fits: fewer tokens stay unfilled than with the first.
            i = int(np.argmax(np.where(fits, np.maximum(src[ahead], tgt[ahead]), 0)))
            taken[i] = True
            src_gap, tgt_gap = src_gap - int(src[size + i]), tgt_gap - int(tgt[size + i])
        window[ahead] = np.concatenate([window[ahead][taken], window[ahead][~taken]])
        return size + int(taken.sum())


class TokenBatches:
    """The batches of a corpus, in windows of an epoch that are planned one after another.

    plan_name: kept in checkpoints. stages: of a mix, what begins after a step, by the step. micro_tokens: tokens a side
    of a pass at most. If limits or seed change in the middle of a window, the new ones apply to the pairs that are left
    of it.
    """

    plan_name = REAL_TOKENS
    plans: type[StepPlan] = StepPlan
    stages: Mapping[int, str] = MappingProxyType({})

    _window: "tuple[tuple[int, ...], _Window] | None" = None

    def __init__(self, corpus: TrainingCorpus, special: SpecialIds, limits: BatchLimits):
        self._corpus = corpus
        self._special, self._limits = special, limits._replace(micro_tokens=None)
        self.micro_tokens = limits.micro_tokens or limits.most

    @property
    def limits(self) -> BatchLimits:
        """What decides the steps, with the corpus."""
        return self._limits

    @property
    def n_windows(self) -> int:
        """The number of windows of an epoch."""
        return -(-self._corpus.n_shards // WINDOW_SHARDS)

    @property
    def longest(self) -> int:
        """Tokens of the longest side."""
        return self._corpus.longest[0] + 1

    @property
    def pass_tokens(self) -> int:
        """Tokens a side of the largest pass, which one long pair may exceed."""
        return self._tokens_of_pass(padded=False)

    @property
    def n_passes(self) -> int:
        """Passes of a full step, where no padding is computed."""
        return -(-self.limits.most // self.pass_tokens)

    def plan(self, epoch: int, at: EpochState = BEGINNING) -> list[Step]:
        """The steps of a window that are left; a row is a pair's number through all shards."""
        shards = self._shards(epoch, at.window, self.limits.seed if at.order_seed is None else at.order_seed)
        pairs = self._pairs_of(shards)
        steps = self.plans(pairs.lengths, self._pass_limits, window=at.window).steps(epoch, at.earlier)
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

    @property
    def _pass_limits(self) -> BatchLimits:
        return self.limits._replace(micro_tokens=self.micro_tokens)

    def heaviest(self, *, padded: bool) -> list[Rows]:
        """The passes of a window that need the most memory: of the most tokens, and of the longest pair of all.

        The window has the shard of the longest pair, and others: among millions of pairs, those of every length fill
        passes about as well as they are ever filled.
        """
        first = self._corpus.shard_of_longest
        others = [number for number in range(self._corpus.n_shards) if number != first]
        pairs = self._pairs_of((first, *others[: WINDOW_SHARDS - 1]))
        src, tgt = (of + 1 for of in pairs.lengths)
        return [pairs.numbers(rows) for rows in self._heaviest_of(src, tgt, padded=padded)]

    def _heaviest_of(self, src: NDArray[Any], tgt: NDArray[Any], *, padded: bool) -> list[Rows]:
        """The passes that need the most memory, of pairs of these lengths."""
        limit = self._tokens_of_pass(padded=padded)
        if padded:
            return heaviest_padded(src, tgt, _pieces(src, tgt, limit, padded=True))
        # Full ones, of any pairs and of the longest.
        orders = (
            np.random.default_rng(0).permutation(len(src)),
            np.argsort(src.astype(np.int64) + tgt.astype(np.int64))[::-1],
        )
        return [order[: max(1, _n_fitting(src[order], tgt[order], limit, limit))].astype(np.uint32) for order in orders]

    def drawn_after(self, epoch: int, at: EpochState = BEGINNING, *, step: int) -> Drawn | None:
        """What is drawn of a mix when the epoch ends, which it does at this step."""
        return None

    def facts(self) -> dict[str, str]:
        """Facts for the model's card, before training."""
        return {}

    def facts_at(self, epoch: int, at: EpochState, *, step: int) -> dict[str, str]:
        """Facts for the model's card, at this step of the epoch."""
        return {}

    def with_micro_tokens(self, micro_tokens: int) -> Self:
        """Batches of the same steps, divided into passes of `micro_tokens` tokens a side."""
        other = copy.copy(self)
        other.micro_tokens = micro_tokens
        return other

    def passes(self, step: Step, *, padded: bool) -> list[Rows]:
        """A step divided into what this machine computes at a time. padded: whether padding is computed, and counts."""
        rows = np.concatenate(step)
        pieces = _pieces(*self._lengths(rows), self._tokens_of_pass(padded=padded), padded=padded)
        return [rows[places] for places in pieces]

    def _tokens_of_pass(self, *, padded: bool) -> int:
        """Tokens a side of the passes into which a step is divided: equal shares, with room for one pair more.

        Without that room, a pair at each border would make one pass more than needed: a GPU's passes have one size.
        """
        most, micro_tokens = self.limits.most, self.micro_tokens
        if padded:
            return min(micro_tokens, max(MIN_PADDED_TOKENS, most // PADDED_SHARE))
        if micro_tokens >= most:
            return most
        n_passes = -(-most // max(1, micro_tokens - self.longest))
        return min(micro_tokens, -(-most // n_passes) + self.longest)

    def _lengths(self, rows: Rows) -> tuple[NDArray[Any], NDArray[Any]]:
        """Tokens of each side of these rows, with eos, with bos."""
        src, tgt = (1 + self._corpus.lengths_of(side, rows) for side in SIDES)
        return src, tgt

    def workload(self, step: Step) -> Workload:
        """Tokens of these rows, and pairs of them that attention compares; no padding."""
        src, tgt = (lengths.astype(np.int64) for lengths in self._lengths(np.concatenate(step)))
        return Workload(*map(int, (src.sum(), tgt.sum(), src @ src, tgt @ tgt, src @ tgt)))

    def lines(self, step: Step) -> list[int]:
        """Where these rows stood in the training text, counted from 1 through all of its files."""
        return sorted(self._corpus.lines_of(np.concatenate(step)).tolist())

    def named(self, lines: Sequence[int]) -> str:
        """Some of `lines` for the user to read, each by its number in its file."""
        by_file: dict[str, list[str]] = {}
        for file, number in map(self._corpus.place, lines):
            by_file.setdefault(file, []).append(f"{number:,}")
        return " and ".join(f"lines {', '.join(of)} of {file or 'the training text'}" for file, of in by_file.items())

    def collate(self, rows: Rows) -> Batch:
        """The batch of these rows. HeedError if the corpus on disk is no longer what it was."""
        src, tgt = (self._corpus.end_to_end(side, rows) for side in SIDES)
        return batch_of(src, tgt, self._special)


class _Window:
    """Some shards as one corpus, whose rows are counted through these alone."""

    def __init__(self, corpus: TrainingCorpus, shards: tuple[int, ...]):
        self._n_pairs = len(corpus)  # of all shards
        sizes = [int(corpus.starts[number + 1] - corpus.starts[number]) for number in shards]
        self._ends = np.cumsum(sizes)
        # What is added to a row of each shard for its number through all.
        self._shifts = corpus.starts[list(shards)] - (self._ends - sizes)
        # Half of the memory, where no side is too long for that.
        smallest = np.uint16 if corpus.longest[0] < 2**16 - 1 else np.int32
        src, tgt = (np.empty(sum(sizes), smallest) for _ in range(2))
        for number, size, end in zip(shards, sizes, self._ends.tolist(), strict=True):
            src[end - size : end], tgt[end - size : end] = corpus.shard(number).lengths
        self.lengths: tuple[NDArray[Any], NDArray[Any]] = src, tgt

    def numbers(self, rows: Rows) -> NDArray[Any]:
        """The rows' numbers through all shards."""
        shards = np.searchsorted(self._ends, rows, side="right")
        numbers: NDArray[Any] = rows + self._shifts[shards]
        return numbers.astype(np.uint32 if self._n_pairs < 2**32 else np.int64)


def heaviest_padded(src: NDArray[Any], tgt: NDArray[Any], pieces: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """The two of these passes that need the most memory: of the most tokens with padding, and of the longest pair."""
    longest = [int(src[rows].max()) + int(tgt[rows].max()) for rows in pieces]
    tokens = [len(rows) * most for rows, most in zip(pieces, longest, strict=True)]
    return [pieces[int(np.argmax(tokens))], pieces[int(np.argmax(longest))]]


def _n_fitting(src: NDArray[Any], tgt: NDArray[Any], src_limit: int, tgt_limit: int) -> int:
    """How many pairs of these lengths, from the first on, stay within the limits."""
    sides = (src, src_limit), (tgt, tgt_limit)
    return min(int(np.searchsorted(np.cumsum(n, dtype=np.int64), limit, side="right")) for n, limit in sides)


def _pieces(src: NDArray[Any], tgt: NDArray[Any], limit: int, *, padded: bool) -> list[NDArray[np.int64]]:
    """Places of pairs of these lengths, in pieces whose sides stay within the limit; a longer pair is a piece alone.

    padded: sides count with padding, so a piece has pairs of like lengths; without, each has pairs of every length, so
    that both its sides and attention are equal shares.
    """
    if padded:
        order = np.lexsort((src, tgt))
        return [order[piece] for piece in padded_slices(src[order], tgt[order], limit, limit)]
    src, tgt = src.astype(np.int64), tgt.astype(np.int64)
    order = np.argsort(src + tgt, kind="stable")
    is_long = np.maximum(src, tgt)[order] > limit
    alone, order = order[is_long, None], order[~is_long]
    n = max(1, -(-max(int(src[order].sum()), int(tgt[order].sum())) // limit))
    while any(max(src[order[i::n]].sum(), tgt[order[i::n]].sum()) > limit for i in range(n)):
        n += 1
    return [*alone, *(order[i::n] for i in range(n) if len(order))]


def padded_slices(src: NDArray[Any], tgt: NDArray[Any], src_limit: int, tgt_limit: int) -> Iterator[slice]:
    """Consecutive pairs whose padded sides stay within the limits, of pairs ordered by the target's length."""
    start = 0
    while start < len(src):
        window = slice(start, start + max(1, tgt_limit // int(tgt[start])))
        counts = np.arange(1, len(src[window]) + 1)
        fits = (np.maximum.accumulate(src[window]) * counts <= src_limit) & (tgt[window] * counts <= tgt_limit)
        size = max(1, int(fits.argmin()) if not fits.all() else len(fits))
        yield slice(start, start + size)
        start += size
