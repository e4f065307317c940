"""Packed sequences: the consecutive real positions of a batch, so that no padding is computed."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from heed.backends.training_protocol import ROW_MULTIPLE
from heed.data.batches.batch import positions_of, real_places


@dataclass(frozen=True)
class PackedSequences:
    """Where the sequences of a batch lie: sequence s has the rows offsets[s] to offsets[s + 1] - 1.

    One more sequence of 1 to ROW_MULTIPLE rows comes last, as padding: it makes the number of rows a multiple.
    """

    lengths: NDArray[np.int64]  # of the sequences but the last
    offsets: Int[Tensor, " sequence_and_2"]
    positions: Int[Tensor, " token"]  # each row's position in its sequence

    @classmethod
    def of(cls, lengths: NDArray[np.int64]) -> "PackedSequences":
        """Sequences of these lengths."""
        n_real = int(lengths.sum())
        n_padding = ROW_MULTIPLE - n_real % ROW_MULTIPLE
        offsets = np.concatenate([[0], np.cumsum(lengths), [n_real + n_padding]])
        # Padding is at position 0, which every table of learned positions has.
        positions = np.concatenate([positions_of(lengths), np.zeros(n_padding, np.int64)])
        return cls(lengths, torch.from_numpy(offsets), torch.from_numpy(positions))

    @cached_property
    def mask(self) -> Bool[Tensor, "sequence position"]:
        """Where sequences that are padded to one length are real."""
        return torch.from_numpy(real_places(self.lengths))

    @property
    def longest(self) -> int:
        """Rows of the longest sequence but the last."""
        return int(self.lengths.max(initial=0))

    @property
    def n_real(self) -> int:
        """Rows that are not padding."""
        return int(self.offsets[-2])

    def pack(self, x: Shaped[Tensor, "sequence position ..."]) -> Shaped[Tensor, "token ..."]:
        """All real positions, then zeros."""
        real = x[self.mask]
        return torch.cat([real, real.new_zeros(len(self.positions) - len(real), *x.shape[2:])])

    def unpack(self, x: Shaped[Tensor, "token ..."]) -> Shaped[Tensor, "sequence position ..."]:
        """The real positions back in their batch, zeros elsewhere."""
        padded = x.new_zeros(*self.mask.shape, *x.shape[1:])
        padded[self.mask] = x[: self.n_real]
        return padded
