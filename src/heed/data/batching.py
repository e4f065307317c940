"""Batches of pairs of similar length, filled by tokens (section 5.1)."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.data.corpus.shard import SIDES, ParallelCorpus
from heed.model.cost import Workload
from heed.text.tokenizer import SpecialIds

Ids = Sequence[int] | NDArray[np.unsignedinteger]
Rows = NDArray[Any]  # of a corpus, 4 bytes each: all that an epoch's plan takes; 8 beyond 4 billion pairs
EndToEnd = tuple[NDArray[Any], NDArray[np.int64]]  # ids of consecutive sentences, and their lengths


@dataclass(frozen=True)
class Batch:
    """Padded ids with masks, True = real token. A source ends with eos; tgt_in begins with bos, tgt_out ends with eos.

    src and src_mask are (sentence, src); tgt_in, tgt_out and tgt_mask (sentence, tgt); tgt_places: where
    tgt_mask.flatten() is True, found on the CPU, since a GPU that searches a mask keeps the CPU waiting; rows: places
    in the corpus. src_keep_mask and tgt_keep_mask: False zeroes a token's embedding in training; None keeps all.
    """

    src: Tensor
    src_mask: Tensor
    tgt_in: Tensor
    tgt_out: Tensor
    tgt_mask: Tensor
    tgt_places: Tensor
    rows: Rows
    src_keep_mask: Tensor | None = None
    tgt_keep_mask: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device; to a GPU the copy runs beside the computation."""
        if device.type == "cpu":
            return self
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: _sent(tensor, device) for name, tensor in tensors.items()})  # type: ignore[arg-type]

    def twice(self, *, cutoff: float) -> "Batch":
        """The batch and itself behind it, of the same `rows`: two passes that are computed at once.

        cutoff: probability that the second leaves out a token's embedding, drawn from torch's generator where the batch
        is (token cutoff: Shen et al. 2020).
        """
        names = ("src", "src_mask", "tgt_in", "tgt_out", "tgt_mask")
        tensors = {name: torch.cat([getattr(self, name)] * 2) for name in names}
        tensors["tgt_places"] = torch.cat([self.tgt_places, self.tgt_places + self.tgt_mask.numel()])
        if cutoff:
            tensors |= {
                "src_keep_mask": _second_cut(self.src, cutoff),
                "tgt_keep_mask": _second_cut(self.tgt_in, cutoff),
            }
        return replace(self, **tensors)  # type: ignore[arg-type]

    @property
    def n_tgt_tokens(self) -> int:
        """Real target tokens, eos included."""
        return len(self.tgt_places)


def _second_cut(ids: Tensor, cutoff: float) -> Tensor:
    """Which tokens of a batch and its repetition stay."""
    stay = torch.rand(ids.shape, device=ids.device) >= cutoff
    return torch.cat([torch.ones_like(stay), stay])


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def pad_sources(sequences: Sequence[Ids], special: SpecialIds) -> tuple[Tensor, Tensor]:
    """Sources as the encoder takes them: with eos, padded; and their mask."""
    ids, lengths = _end_to_end(sequences)
    mask = _real(lengths)
    return _with_eos(ids, lengths, mask, special), torch.from_numpy(mask)


def make_batch(pairs: Sequence[tuple[Ids, Ids]], special: SpecialIds, *, rows: Rows) -> Batch:
    """A batch of these pairs, in this order."""
    return batch_of(_end_to_end([src for src, _ in pairs]), _end_to_end([tgt for _, tgt in pairs]), special, rows)


def _end_to_end(sequences: Sequence[Ids]) -> EndToEnd:
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
    return np.fromiter(chain.from_iterable(sequences), dtype=np.int64, count=int(lengths.sum())), lengths


def batch_of(src: EndToEnd, tgt: EndToEnd, special: SpecialIds, rows: Rows) -> Batch:
    """The batch of sources and targets that lie end to end."""
    src_mask, tgt_mask = _real(src[1]), _real(tgt[1])
    src_ids, tgt_out = _with_eos(*src, src_mask, special), _with_eos(*tgt, tgt_mask, special)
    tgt_in = np.full(tgt_mask.shape, special.pad, dtype=np.int64)
    tgt_in[:, 0] = special.bos
    tgt_in[:, 1:][tgt_mask[:, 1:]] = tgt[0]
    masks = torch.from_numpy(src_mask), torch.from_numpy(tgt_mask)
    return Batch(src_ids, masks[0], torch.from_numpy(tgt_in), tgt_out, masks[1], mask_places(masks[1]), rows)


def _real(lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(sentence, longest + 1): where the tokens of sentences of these lengths stand, one special symbol with each."""
    return np.arange(lengths.max(initial=0) + 1) <= lengths[:, None]


def _with_eos(ids: NDArray[Any], lengths: NDArray[np.int64], mask: NDArray[np.bool_], special: SpecialIds) -> Tensor:
    rows = np.full(mask.shape, special.pad, dtype=np.int64)
    rows[:, :-1][mask[:, 1:]] = ids
    rows[np.arange(len(lengths)), lengths] = special.eos
    return torch.from_numpy(rows)


def mask_places(mask: Tensor) -> Tensor:
    """Where mask.flatten() is True."""
    return mask.flatten().nonzero()[:, 0]


class BatchLimits(NamedTuple):
    """The settings that, with the corpus, decide the batches of an epoch: most tokens a side, seed of the order."""

    max_src_tokens: int
    max_tgt_tokens: int
    micro_tokens: int
    seed: int

    @property
    def n_micro_batches(self) -> int:
        """Micro-batches of a batch at most."""
        # Equal shares fill a batch better: 25,000 in passes of 10,000 at most are 3 of 8,333, not 2 of 10,000.
        return -(-max(self.max_src_tokens, self.max_tgt_tokens) // self.micro_tokens)

    @property
    def pass_tokens(self) -> int:
        """Tokens a side of the largest micro-batch, which one long pair may exceed."""
        return max(self.max_src_tokens, self.max_tgt_tokens) // self.n_micro_batches


class PlanPart(NamedTuple):
    """The first `n_batches` of the batches that these limits make."""

    limits: BatchLimits
    n_batches: int


class Drawn(NamedTuple):
    """How far a mix is when an epoch begins: the steps taken, and the pairs drawn of each part."""

    step: int
    pairs: tuple[int, ...]


class Lengths(Protocol):
    """Pairs as batches are planned of them."""

    @property
    def lengths(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Number of ids of each source and of each target."""

    def __len__(self) -> int: ...


class Batches(Protocol):
    """The order of training, in windows of an epoch that are planned one after another."""

    limits: BatchLimits

    @property
    def n_windows(self) -> int:
        """Of an epoch."""

    @property
    def micro_tokens(self) -> int:
        """Tokens a side of a micro-batch at most."""

    @property
    def longest(self) -> int:
        """Tokens of the longest side."""

    def plan(
        self,
        epoch: int,
        *,
        window: int = 0,
        order_seed: int | None = None,
        earlier: Sequence[PlanPart] = (),
        drawn: Drawn | None = None,
    ) -> list[list[Rows]]:
        """A window's batches, each a list of micro-batches, each an array of rows.

        order_seed: by which the epoch's windows were drawn, if not by that of the limits. earlier: used of the window.
        drawn: of a mix (MixedBatches), before the epoch.
        """

    def drawn_after(
        self, epoch: int, *, step: int, earlier: Sequence[PlanPart] = (), drawn: Drawn | None = None
    ) -> Drawn | None:
        """Of a mix: what is drawn when the epoch ends, which it does at this step."""

    def with_micro_tokens(self, micro_tokens: int) -> "Batches":
        """The same with another limit of a micro-batch."""

    def heaviest(self) -> list[Rows]:
        """The micro-batches that need the most memory."""

    def workload(self, micro_batches: list[Rows]) -> Workload:
        """Tokens of these rows, and pairs of them that attention compares."""

    def lines(self, micro_batches: list[Rows]) -> list[int]:
        """Where these rows stood in the training text."""

    def named(self, lines: Sequence[int]) -> str:
        """Some of `lines` for the user to read."""

    def collate(self, rows: Rows) -> Batch:
        """The batch of these rows."""


class TokenBatches:
    """The order of training: which pairs form which batch of which epoch.

    A batch holds at most `max_src_tokens` and `max_tgt_tokens`, special symbols and padding counted, and is cut into
    micro-batches of like lengths that hold an equal share of it each, at most `micro_tokens` a side. A pair that is
    longer than that share is a micro-batch by itself, and one longer than the limits a batch. The plan of an epoch
    depends on the corpus, the limits, seed and epoch only; if limits or seed change in the middle of an epoch, the new
    ones apply to the pairs that are left of it.
    """

    def __init__(
        self,
        corpus: ParallelCorpus | Lengths,
        special: SpecialIds,
        *,
        max_src_tokens: int,
        max_tgt_tokens: int,
        micro_tokens: int,
        seed: int,
        key: tuple[int, ...] = (),
    ):
        """key: draws another order than that of seed and epoch alone."""
        self._corpus, self._special, self._key = corpus, special, key
        src, tgt = corpus.lengths
        # With eos, with bos. numpy sorts 16-bit numbers by their digits, many times as fast as longer ones.
        smallest = np.uint16 if max(src.max(initial=0), tgt.max(initial=0)) < 2**16 - 1 else np.int32
        self._src_lengths, self._tgt_lengths = (src + 1).astype(smallest), (tgt + 1).astype(smallest)
        self._limit(BatchLimits(max_src_tokens, max_tgt_tokens, micro_tokens, seed))

    def _limit(self, limits: BatchLimits) -> None:
        self.limits = limits
        self._src_limit = limits.max_src_tokens // limits.n_micro_batches
        self._tgt_limit = limits.max_tgt_tokens // limits.n_micro_batches

    @property
    def micro_tokens(self) -> int:
        """Tokens a side of a micro-batch at most."""
        return self.limits.micro_tokens

    @property
    def n_windows(self) -> int:
        """One: an epoch is planned as a whole."""
        return 1

    def plan(
        self,
        epoch: int,
        *,
        window: int = 0,
        order_seed: int | None = None,
        earlier: Sequence[PlanPart] = (),
        drawn: Drawn | None = None,
    ) -> list[list[Rows]]:
        """The epoch's batches, each a list of micro-batches, each an array of rows of the corpus; it is one window.

        earlier: what has been used of the epoch under other limits, in this order; its pairs are left out. drawn: of a
        mix (MixedBatches), before the epoch.
        """
        left = np.ones(len(self._src_lengths), dtype=bool)
        for part in earlier:
            for micro_batches in self._with_limits(part.limits)._plan(epoch, left)[: part.n_batches]:
                left[np.concatenate(micro_batches)] = False
        return self._plan(epoch, left)

    def drawn_after(
        self, epoch: int, *, step: int, earlier: Sequence[PlanPart] = (), drawn: Drawn | None = None
    ) -> Drawn | None:
        """Of a mix: what is drawn when the epoch ends, which it does at this step."""
        return None

    def _plan(self, epoch: int, left: NDArray[np.bool_]) -> list[list[Rows]]:
        draw = np.random.default_rng((self.limits.seed, epoch, *self._key))
        order = draw.permutation(len(self._corpus)).astype(np.uint32)  # decides between pairs of equal lengths
        if not left.all():
            order = order[left[order]]
        return self._batches_of(order, draw)

    def _batches_of(self, order: Rows, draw: np.random.Generator) -> list[list[Rows]]:
        """Batches of these rows in a drawn order; pairs of equal lengths stay in theirs."""
        for lengths in (self._src_lengths, self._tgt_lengths):  # stable, the more important last
            order = order[np.argsort(lengths[order], kind="stable")]
        micro_batches = self._cut(order)
        return self._group([micro_batches[i] for i in draw.permutation(len(micro_batches))])

    def _group(self, micro_batches: list[Rows]) -> list[list[Rows]]:
        """Batches of as many as the limits allow, or of fewer where pairs longer than a share would overfill one."""
        batches: list[list[Rows]] = []
        n_src = n_tgt = 0
        for rows in micro_batches:
            src, tgt = (len(rows) * int(lengths[rows].max()) for lengths in (self._src_lengths, self._tgt_lengths))
            full = n_src + src > self.limits.max_src_tokens or n_tgt + tgt > self.limits.max_tgt_tokens
            if not batches or full or len(batches[-1]) == self.limits.n_micro_batches:
                batches.append([])
                n_src = n_tgt = 0
            batches[-1].append(rows)
            n_src, n_tgt = n_src + src, n_tgt + tgt
        return batches

    def with_micro_tokens(self, micro_tokens: int) -> "TokenBatches":
        """The same with another limit of a micro-batch: other batches, of the same size."""
        return self._with_limits(self.limits._replace(micro_tokens=micro_tokens))

    def _with_limits(self, limits: BatchLimits) -> "TokenBatches":
        other = copy.copy(self)
        other._limit(limits)
        return other

    def heaviest(self) -> list[Rows]:
        """The micro-batches that need the most memory: of the most tokens, and of the longest pair."""
        pieces = self._cut(np.lexsort((self._src_lengths, self._tgt_lengths)).astype(np.uint32))
        src, tgt = self._src_lengths, self._tgt_lengths
        tokens = [len(rows) * (int(src[rows].max()) + int(tgt[rows].max())) for rows in pieces]
        longest = [int(src[rows].max()) + int(tgt[rows].max()) for rows in pieces]
        return [pieces[int(np.argmax(tokens))], pieces[int(np.argmax(longest))]]

    @property
    def longest(self) -> int:
        """Tokens of the longest side."""
        return int(max(self._src_lengths.max(), self._tgt_lengths.max()))

    def workload(self, micro_batches: list[Rows]) -> Workload:
        """Tokens of these rows, eos and bos included, and pairs of them that attention compares; no padding."""
        rows = np.concatenate(micro_batches)
        src, tgt = (lengths[rows].astype(np.int64) for lengths in (self._src_lengths, self._tgt_lengths))
        return Workload(*map(int, (src.sum(), tgt.sum(), src @ src, tgt @ tgt, src @ tgt)))

    def lines(self, micro_batches: list[Rows]) -> list[int]:
        """Where these rows stood in the training text, counted from 1 through all of its files."""
        assert isinstance(self._corpus, ParallelCorpus)
        return sorted(self._corpus.lines[np.concatenate(micro_batches)].tolist())

    def named(self, lines: Sequence[int]) -> str:
        """Some of `lines` for the user to read, each by its number in its file."""
        assert isinstance(self._corpus, ParallelCorpus)
        return lines_named(lines, self._corpus.place)

    def _cut(self, order: Rows) -> list[Rows]:
        """Consecutive pieces of `order`, each as long as both its padded sides stay within the limits."""
        src, tgt = (lengths[order] for lengths in (self._src_lengths, self._tgt_lengths))
        pieces, start = [], 0
        while start < len(order):
            window = slice(start, start + max(1, self._tgt_limit // int(tgt[start])))
            counts = np.arange(1, len(src[window]) + 1)
            fits = (np.maximum.accumulate(src[window]) * counts <= self._src_limit) & (
                np.maximum.accumulate(tgt[window]) * counts <= self._tgt_limit
            )
            size = max(1, int(fits.argmin()) if not fits.all() else len(fits))
            pieces.append(order[start : start + size])
            start += size
        return pieces

    def collate(self, rows: Rows) -> Batch:
        """The batch of these rows. HeedError if the corpus on disk is no longer what it was."""
        assert isinstance(self._corpus, ParallelCorpus)
        src, tgt = (self._corpus.end_to_end(side, rows) for side in SIDES)
        return batch_of(src, tgt, self._special, rows)


def lines_named(lines: Sequence[int], place: Callable[[int], tuple[str, int]]) -> str:
    """Lines for the user to read, each by its number in its file. place: gives both."""
    by_file: dict[str, list[str]] = {}
    for file, number in map(place, lines):
        by_file.setdefault(file, []).append(f"{number:,}")
    return " and ".join(f"lines {', '.join(of)} of {file or 'the training text'}" for file, of in by_file.items())
