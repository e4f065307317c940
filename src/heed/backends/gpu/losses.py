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
_ARGUMENTS = "Tensor(a!) logits, Tensor targets, Tensor weights, Tensor(b!) losses, float label_smoothing"
LIBRARY.define(f"smoothed_loss_({_ARGUMENTS}) -> ()")
LIBRARY.define(f"consistent_loss_({_ARGUMENTS}, float consistency) -> ()")


def loss_(
    logits: Float[Tensor, "row vocab"],
    targets: Int[Tensor, " token"],
    weights: Float[Tensor, " token"],
    losses: Float[Tensor, "2 token"],
    *,
    label_smoothing: float,
    consistency: float = 0.0,
) -> None:
    """Writes (loss, negative log-likelihood) of each token to `losses`; `logits` become the gradient.

    With a consistency the loss is `training.loss.consistent_loss_`, and the rows are of all tokens in the first pass,
    then in the second. weights: factors of the gradients; tokens of weight 0 are padding, with losses and gradients of
    0 whatever their logits are.
    """
    if consistency:
        torch.ops.heed.consistent_loss_(logits, targets, weights, losses, label_smoothing, consistency)
    else:
        torch.ops.heed.smoothed_loss_(logits, targets, weights, losses, label_smoothing)


def _on_gpu(name: str, logits: Float[Tensor, "row vocab"], *arguments: Any) -> None:
    from heed.backends.gpu import triton_losses

    with torch.cuda.device(logits.device):  # Triton launches on the current device
        getattr(triton_losses, name)(logits, *arguments)


def _nothing(*_: object) -> None:
    """On the meta device, which has no numbers."""


for _name in ("smoothed_loss_", "consistent_loss_"):
    LIBRARY.impl(_name, partial(_on_gpu, _name), "CUDA")
    LIBRARY.impl(_name, _nothing, "Meta")
