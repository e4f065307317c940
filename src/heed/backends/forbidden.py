"""Ids that a hypothesis may not take next."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from heed.backends.live_prefixes import NextIds


def mask_forbidden(log_probs: Float[Tensor, "row vocab"], next_ids: NextIds) -> Float[Tensor, "row vocab"]:
    """The log-probabilities with -∞ for the ids that a row may not take, which are asked about on the CPU: a GPU would
    be waited for."""
    device, (never, may_end, eos, allowed) = log_probs.device, next_ids
    log_probs = log_probs.masked_fill(torch.from_numpy(never).to(device), -torch.inf)
    if not may_end.all():
        too_early = torch.from_numpy(np.repeat(~may_end, len(log_probs) // len(may_end))).to(device)
        log_probs[:, eos] = log_probs[:, eos].masked_fill(too_early, -torch.inf)
    if allowed is None:
        return log_probs
    rows = [row for row, ids in enumerate(allowed) if ids is not None]
    others = torch.ones(len(rows), log_probs.shape[1], dtype=torch.bool)
    for of_row, row in zip(others, rows, strict=True):
        of_row[torch.from_numpy(allowed[row]).long()] = False
    at = torch.tensor(rows, dtype=torch.int64).to(device)
    return log_probs.index_copy_(0, at, log_probs[at].masked_fill(others.to(device), -torch.inf))
