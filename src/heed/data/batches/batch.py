"""A batch: padded ids with masks, as the network takes them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
