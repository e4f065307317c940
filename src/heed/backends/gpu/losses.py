"""The training losses in one pass over bf16 logits, as operations of PyTorch: `heed::smoothed_loss_` and
`heed::consistent_loss_`.

A Triton kernel reads each row of logits and writes its gradient in place (triton_losses.py), in fp32. Tests hold it to
the formulas in training/loss.py, which stand in for it on emulated devices.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

LIBRARY = torch.library.Library("heed", "FRAGMENT")
LIBRARY.define(
    "smoothed_loss_(Tensor(a!) logits, Tensor targets, Tensor weights, Tensor(b!) losses, float label_smoothing) -> ()"
)
LIBRARY.define(
    "consistent_loss_(Tensor(a!) logits, Tensor targets, Tensor weights, Tensor(b!) losses, float label_smoothing, "
    "float consistency) -> ()"
)


def smoothed_loss_(
    logits: Float[Tensor, "token vocab"],
    targets: Int[Tensor, " token"],
    weights: Float[Tensor, " token"],
    losses: Float[Tensor, "2 token"],
    *,
    label_smoothing: float,
) -> None:
    """Writes (label-smoothed loss, negative log-likelihood) of each token to `losses`; `logits` become the gradient.

    weights: factors of the gradients; tokens of weight 0 are padding, with losses and gradients of 0 whatever their
    logits are.
    """
    torch.ops.heed.smoothed_loss_(logits, targets, weights, losses, label_smoothing)


def consistent_loss_(
    logits: Float[Tensor, "two_passes vocab"],
    targets: Int[Tensor, " token"],
    weights: Float[Tensor, " token"],
    losses: Float[Tensor, "2 token"],
    *,
    label_smoothing: float,
    consistency: float,
) -> None:
    """Does what `smoothed_loss_` does for `training.loss.consistent_loss`: first passes, then second ones."""
    torch.ops.heed.consistent_loss_(logits, targets, weights, losses, label_smoothing, consistency)


def _on_gpu(name: str, logits: Tensor, *arguments: Any) -> None:
    from heed.backends.gpu import triton_losses

    with torch.cuda.device(logits.device):  # Triton launches on the current device
        getattr(triton_losses, name)(logits, *arguments)


def _nothing(*_: object) -> None:
    """On the meta device, which has no numbers."""


for _name in ("smoothed_loss_", "consistent_loss_"):
    LIBRARY.impl(_name, partial(_on_gpu, _name), "CUDA")
    LIBRARY.impl(_name, _nothing, "Meta")
