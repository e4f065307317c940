"""Packed passes: the consecutive real tokens of a batch's sentences, in memory of one size for all batches.

A GPU that replays a recorded pass needs the same shapes and addresses every time. So a pass has room for `capacity`
tokens a side, of which the last are padding, in sequences of their own, and for a number of sequences.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.training_protocol import ROW_MULTIPLE
from heed.data.batches.batch import Batch, make_batch, positions_of
from heed.text.tokenizer import SpecialIds

# Room for this share of `capacity` sequences: short sentences need more, and empty ones cost blocks of threads that
# find nothing to do, so that passes of long sentences have less.
SEQUENCE_SHARES = (16, 2)
# Flash attention's backward pass has a row of its grid for each sequence, of which CUDA allows 65,535; a pass may hold
# each sentence twice.
MAX_SEQUENCES = 65_535 // 2


@dataclass(frozen=True)
class PassShape:
    """The size of a pass: tokens a side, the longest sequence and the number of sequences, padding's included."""

    capacity: int
    longest: int
    n_sequences: int

    @classmethod
    def for_tokens(cls, n_tokens: int, longest: int) -> "PassShape":
        """With room for `n_tokens` a side in sequences of any length up to `longest`; for fewer if that is beyond what
        MAX_SEQUENCES allow.

        Padding's sequences must be as short as `longest` too, since attention computes no more of a sequence, and none
        may be without keys: so one token at least is kept for each.
        """
        longest = max(longest, 2)  # else every token would be padding's
        # At most half of the sequences are padding's.
        n_tokens = max(min(n_tokens, longest * (MAX_SEQUENCES // 4)), longest)
        capacity = n_tokens + -n_tokens % ROW_MULTIPLE
        while (shape := cls._of(capacity, longest)).n_tokens < n_tokens:  # more tokens may need more padding
            capacity += ROW_MULTIPLE
        return shape

    @classmethod
    def _of(cls, capacity: int, longest: int) -> "PassShape":
        shape = cls(capacity, longest, 0)
        n_sequences = capacity // min(SEQUENCE_SHARES) + shape.n_padding
        return cls(capacity, longest, min(n_sequences, MAX_SEQUENCES))

    @property
    def n_padding(self) -> int:
        """Sequences of padding."""
        return -(-self.capacity // self.longest) + 1

    @property
    def n_tokens(self) -> int:
        """Real tokens a side at most."""
        return self.capacity - self.n_padding

    def narrower(self, n_sentences: int) -> "PassShape":
        """The smallest shape of this one's kinds that holds this number of sentences."""
        rooms = [self.capacity // share + self.n_padding for share in SEQUENCE_SHARES]
        room = next((room for room in rooms if n_sentences + self.n_padding <= room), self.n_sequences)
        return PassShape(self.capacity, self.longest, min(room, self.n_sequences))

    @property
    def n_words(self) -> int:
        """32-bit words of a pass: see `PassInputs`."""
        return 5 * self.capacity + 2 * (self.n_sequences + 1) + 2


class PassInputs(NamedTuple):
    """The inputs of a pass, views of one piece of memory.

    positions: of each token in its sequence. starts: where each sequence starts, then the capacity. n_tgt_tokens: real
    target tokens, which come first. scale: factor of the gradients.
    """

    src: Int[Tensor, " token"]
    src_positions: Int[Tensor, " token"]
    src_starts: Int[Tensor, " sequence_and_1"]
    tgt_in: Int[Tensor, " token"]
    tgt_positions: Int[Tensor, " token"]
    tgt_starts: Int[Tensor, " sequence_and_1"]
    tgt_out: Int[Tensor, " token"]
    n_tgt_tokens: Int[Tensor, " 1"]
    scale: Float[Tensor, " 1"]

    @classmethod
    def of(cls, words: Int[Tensor, " word"], shape: PassShape) -> "PassInputs":
        """The views of `shape.n_words` words."""
        tokens, starts = shape.capacity, shape.n_sequences + 1
        parts = words.split([tokens, tokens, starts, tokens, tokens, starts, tokens, 1, 1])
        return cls._make([*parts[:-1], parts[-1].view(torch.float32)])


def divided(batch: Batch, shape: PassShape) -> Iterator[Batch]:
    """Consecutive sentences, as many as fit into a pass; none may be longer than the shape's longest."""
    src_ends, tgt_ends = (np.cumsum(lengths) for lengths in (batch.src_lengths, batch.tgt_lengths))
    start = src_start = tgt_start = 0
    while start < len(src_ends):
        # The last sentence that fits by the source's tokens, by the target's, and by the number of sequences.
        end = min(
            int(np.searchsorted(src_ends, src_start + shape.n_tokens, side="right")),
            int(np.searchsorted(tgt_ends, tgt_start + shape.n_tokens, side="right")),
            start + shape.n_sequences - shape.n_padding,
        )
        src, tgt, sentences = (
            slice(src_start, int(src_ends[end - 1])),
            slice(tgt_start, int(tgt_ends[end - 1])),
            slice(start, end),
        )
        yield Batch(
            *(batch.src[src], batch.src_lengths[sentences]),
            *(batch.tgt_in[tgt], batch.tgt_out[tgt], batch.tgt_lengths[sentences]),
        )
        start, src_start, tgt_start = end, src.stop, tgt.stop


def fill(into: PassInputs, batch: Batch, shape: PassShape, *, scale: float) -> None:
    """Writes a pass's sentences to its inputs, which are in CPU memory."""
    for lengths, positions, starts, rows in (
        (batch.src_lengths, into.src_positions, into.src_starts, ((into.src, batch.src),)),
        (
            *(batch.tgt_lengths, into.tgt_positions, into.tgt_starts),
            ((into.tgt_in, batch.tgt_in), (into.tgt_out, batch.tgt_out)),
        ),
    ):
        n_real = int(lengths.sum())
        # Padding is cut into as many sequences on both sides, of almost equal lengths.
        padding = np.diff(np.linspace(n_real, shape.capacity, shape.n_padding + 1).astype(np.int64))
        ends = np.cumsum(np.concatenate([lengths, padding]))
        offsets = starts.numpy()
        offsets[0] = 0
        offsets[1 : len(ends) + 1] = ends
        offsets[len(ends) + 1 :] = shape.capacity
        # Padding is at position 0, which every table of learned positions has, of id 0, which every vocabulary has.
        for target, values in ((positions, positions_of(lengths)), *rows):
            target.numpy()[:n_real] = values
            target.numpy()[n_real:] = 0
    into.n_tgt_tokens.numpy()[0] = len(batch.tgt_out)
    into.scale.numpy()[0] = scale


NO_SENTENCES = make_batch([], SpecialIds())
