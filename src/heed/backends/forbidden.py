"""Ids that a hypothesis may not take next."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def without_forbidden(
    log_probs: Float[Tensor, "row vocab"],
    required: Int[Tensor, "sentence beam"],
    never: Bool[Tensor, " vocab"],
    may_end: Bool[Tensor, " sentence"],
    *,
    eos: int,
) -> Float[Tensor, "row vocab"]:
    """The log-probabilities with -∞ for the ids that a row may not take: see `Backend.best_continuations`.

    required and may_end are on the CPU, where they cost nothing to ask: a GPU would be waited for.
    """
    device = log_probs.device
    log_probs = log_probs.masked_fill(never.to(device), -torch.inf)
    if not bool(may_end.all()):
        too_early = (~may_end).repeat_interleave(required.shape[1]).to(device)
        log_probs[:, eos] = log_probs[:, eos].masked_fill(too_early, -torch.inf)
    if bool((required < 0).all()):
        return log_probs
    only = required.to(device).view(-1, 1)
    others = torch.arange(log_probs.shape[1], device=device) != only
    return log_probs.masked_fill((only >= 0) & others, -torch.inf)
