"""The losses of backends/gpu/losses.py on a CPU, which has no kernel of its own: the formulas of training/loss.py.

Registered on the operations themselves, so that the code which a GPU runs computes here.
"""

import torch
from torch import Tensor

from heed.backends.gpu.losses import LIBRARY
from heed.training import loss


def smoothed_loss_by_formula_(
    logits: Tensor, targets: Tensor, weights: Tensor, losses: Tensor, label_smoothing: float
) -> None:
    """`losses.smoothed_loss_`."""
    gradient = logits.float()
    losses.copy_(torch.stack(loss.smoothed_loss_(gradient, targets.long(), label_smoothing=label_smoothing)))
    _weigh(logits, gradient, weights, losses)


def consistent_loss_by_formula_(
    logits: Tensor, targets: Tensor, weights: Tensor, losses: Tensor, label_smoothing: float, consistency: float
) -> None:
    """`losses.consistent_loss_`."""
    gradient, options = logits.float(), {"label_smoothing": label_smoothing, "consistency": consistency}
    losses.copy_(torch.stack(loss.consistent_loss_(gradient, targets.long(), **options)))
    _weigh(logits, gradient, weights.repeat(2), losses)


def _weigh(logits: Tensor, gradient: Tensor, weights: Tensor, losses: Tensor) -> None:
    real = weights != 0
    losses.copy_(losses.where(real[: losses.shape[1]], 0))
    logits.copy_((gradient * weights[:, None]).where(real[:, None], 0))
    # What lies between rows no GPU reads. With AMX oneDNN multiplies it by zeros, and NaN stays NaN
    # (uxlfoundation/oneDNN#5717, mended after 3.14).
    logits.as_strided((len(logits), logits.stride(0)), logits.stride())[:, logits.shape[1] :] = 0


LIBRARY.impl("smoothed_loss_", smoothed_loss_by_formula_, "CPU")
LIBRARY.impl("consistent_loss_", consistent_loss_by_formula_, "CPU")
REGISTERED = True
