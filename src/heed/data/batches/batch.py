"""A batch of sentence pairs: the ids that the network reads and writes, end to end. Padding is its reader's affair."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.text.tokenizer import SpecialIds

Ids = Sequence[int] | NDArray[np.unsignedinteger]
Rows = NDArray[Any]  # of a corpus, 4 bytes each: all that an epoch's plan takes; 8 beyond 4 billion pairs
EndToEnd = tuple[NDArray[Any], NDArray[np.int64]]  # ids of consecutive sentences, and their lengths


class Batch(NamedTuple):
    """Consecutive sentence pairs, in CPU memory.

    src (src_token): each source's ids, then eos. tgt_in (tgt_token): what the decoder reads, bos and then a target's
    ids; tgt_out (tgt_token): what it is to write, the ids and then eos. src_lengths, tgt_lengths (sentence): ids of
    each, the special one included. keep_masks (src_token), (tgt_token): False zeroes an id's embedding in training;
    None keeps all.
    """

    src: NDArray[np.int64]
    src_lengths: NDArray[np.int64]
    tgt_in: NDArray[np.int64]
    tgt_out: NDArray[np.int64]
    tgt_lengths: NDArray[np.int64]
    keep_masks: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None

    @classmethod
    def joined(cls, batches: Sequence["Batch"]) -> "Batch":
        """The pairs of all these batches, whose embeddings are all kept."""
        return cls._make([*map(np.concatenate, list(zip(*batches, strict=True))[:5]), None])

    @property
    def n_tgt_tokens(self) -> int:
        """Target tokens, eos included."""
        return len(self.tgt_out)

    @property
    def longest(self) -> int:
        """Tokens of the longest side."""
        return int(max(self.src_lengths.max(initial=0), self.tgt_lengths.max(initial=0)))


def make_batch(pairs: Sequence[tuple[Ids, Ids]], special: SpecialIds) -> Batch:
    """A batch of these pairs, in this order."""
    return batch_of(end_to_end([src for src, _ in pairs]), end_to_end([tgt for _, tgt in pairs]), special)


def end_to_end(sequences: Sequence[Ids], *, last: int | None = None) -> EndToEnd:
    """The ids of consecutive sequences, with `last` behind each, and the length of each."""
    end = [] if last is None else [last]
    ids: Iterable[int] = chain.from_iterable(part for sequence in sequences for part in (sequence, end))
    lengths = np.fromiter(map(len, sequences), np.int64, count=len(sequences)) + len(end)
    return np.fromiter(ids, np.int64, count=int(lengths.sum())), lengths


def batch_of(src: EndToEnd, tgt: EndToEnd, special: SpecialIds) -> Batch:
    """The batch of sources and targets that lie end to end, without special symbols."""
    src_ids, tgt_out = (np.insert(ids.astype(np.int64), np.cumsum(n), special.eos) for ids, n in (src, tgt))
    tgt_lengths = tgt[1] + 1
    tgt_in = np.roll(tgt_out, 1)  # bos stands where the sentence before had its eos
    tgt_in[np.cumsum(tgt_lengths) - tgt_lengths] = special.bos
    return Batch(src_ids, src[1] + 1, tgt_in, tgt_out, tgt_lengths)


def positions_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """(token): each token's position in its sentence, of consecutive sentences."""
    positions: NDArray[np.int64] = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return positions


def real_places(lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(sentence, longest): where sentences that are padded have their tokens."""
    real: NDArray[np.bool_] = np.arange(lengths.max(initial=0)) < lengths[:, None]
    return real
