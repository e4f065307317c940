"""Sentences padded to one length, as the plain network takes them. Masks are True at real tokens."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heed.data.batches.batch import Batch, real_places

CPU = torch.device("cpu")


class PaddedBatch(NamedTuple):
    """A batch on the device that computes it.

    src, src_mask and src_keep_mask are (sentence, src); tgt_in, tgt_mask and tgt_keep_mask (sentence, tgt); tgt_places:
    where tgt_mask.flatten() is True, found on the CPU, since a GPU that searches a mask keeps the CPU waiting.
    """

    src: Tensor
    src_mask: Tensor
    tgt_in: Tensor
    tgt_mask: Tensor
    tgt_places: Tensor
    src_keep_mask: Tensor | None = None
    tgt_keep_mask: Tensor | None = None

    @classmethod
    def of(cls, batch: Batch, device: torch.device = CPU) -> "PaddedBatch":
        """The batch with padding; to a GPU the copy runs beside the computation."""
        src, src_mask = padded(batch.src, batch.src_lengths)
        tgt_in, tgt_mask = padded(batch.tgt_in, batch.tgt_lengths)
        arrays = [src, src_mask, tgt_in, tgt_mask, np.flatnonzero(tgt_mask)]
        if batch.keep_masks is not None:
            lengths = batch.src_lengths, batch.tgt_lengths
            arrays += [padded(mask, of_side)[0] for mask, of_side in zip(batch.keep_masks, lengths, strict=True)]
        return cls(*(sent(array, device) for array in arrays))


def padded(tokens: NDArray[Any], lengths: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Sentences that lie end to end, padded with zeros: (sentence, position); and where they are real."""
    mask = real_places(lengths)
    rows = np.zeros(mask.shape, tokens.dtype)
    rows[mask] = tokens
    return rows, mask


def sent(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on a device; to a GPU the copy runs beside the computation."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
