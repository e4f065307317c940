"""Packed sequences: the consecutive real positions of a batch, so that no padding is computed."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from heed.backends.training_protocol import ROW_MULTIPLE


@dataclass(frozen=True)
class PackedSequences:
    """Where the sequences of a batch lie: sequence s has the rows offsets[s] to offsets[s + 1] - 1.

    One more sequence of 1 to ROW_MULTIPLE rows comes last, as padding: it makes the number of rows a multiple.
    """

    mask: Bool[Tensor, "sequence position"]
    offsets: Int[Tensor, " sequence_and_2"]
    positions: Int[Tensor, " token"]  # each row's position in its sequence

    @classmethod
    def from_mask(cls, mask: Bool[Tensor, "sequence position"]) -> "PackedSequences":
        """The sequences of the positions where the mask is True, which come first in each of its rows."""
        offsets = torch.zeros(len(mask) + 2, dtype=torch.int64)
        torch.cumsum(mask.sum(1), 0, out=offsets[1:-1])
        n_padding = ROW_MULTIPLE - int(offsets[-2]) % ROW_MULTIPLE
        offsets[-1] = offsets[-2] + n_padding
        positions = torch.arange(mask.shape[1]).expand_as(mask)[mask]
        # At position 0, which every table of learned positions has.
        return cls(mask, offsets, torch.cat([positions, torch.zeros(n_padding, dtype=torch.int64)]))

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
