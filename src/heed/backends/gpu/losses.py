"""The training losses in one pass over bf16 logits, as operations of PyTorch: `heed::smoothed_loss_` and
`heed::consistent_loss_`.

On a GPU with Triton a kernel reads each row of logits and writes its gradient in place (triton_losses.py); elsewhere
PyTorch's own operations do, to which tests hold the kernels. Either computes in fp32.
"""

import functools
import importlib.util

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
    """As `smoothed_loss_`, of the loss `training.loss.consistent_loss`: all tokens' first pass, then their second."""
    torch.ops.heed.consistent_loss_(logits, targets, weights, losses, label_smoothing, consistency)


def smoothed_loss_by_torch_(
    logits: Tensor, targets: Tensor, weights: Tensor, losses: Tensor, label_smoothing: float
) -> None:
    """`smoothed_loss_` in PyTorch's own operations."""
    real, at_target = weights != 0, targets.long()[:, None]
    log_prob = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    nll = -log_prob.gather(1, at_target)[:, 0]
    loss = (1 - label_smoothing) * nll - label_smoothing * log_prob.mean(dim=-1)
    losses.copy_(torch.stack([loss, nll]).where(real, 0))
    grad = log_prob.exp_().sub_(label_smoothing / logits.shape[1])
    grad.scatter_add_(1, at_target, torch.full_like(at_target, label_smoothing - 1, dtype=torch.float32))
    logits.copy_((grad * weights[:, None]).where(real[:, None], 0))


def consistent_loss_by_torch_(
    logits: Tensor, targets: Tensor, weights: Tensor, losses: Tensor, label_smoothing: float, consistency: float
) -> None:
    """`consistent_loss_` in PyTorch's own operations; the gradient is ReferenceBackend's."""
    n, vocab_size = len(targets), logits.shape[1]
    real, at_target = weights != 0, targets.long()[:, None]
    # The loss: half of both passes' losses, and a quarter of alpha of the divergences in both directions.
    log_prob = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    nlls = -log_prob.gather(1, at_target.repeat(2, 1))[:, 0]
    of_passes = (1 - label_smoothing) * nlls - label_smoothing * log_prob.mean(dim=-1)
    ratio = log_prob[:n] - log_prob[n:]  # log p / q
    p, q = log_prob.exp_().split(n)
    forward, backward = (p * ratio).sum(dim=-1, keepdim=True), -(q * ratio).sum(dim=-1, keepdim=True)
    weight = consistency / 4
    loss = (of_passes[:n] + of_passes[n:]) / 2 + weight * (forward + backward)[:, 0]
    losses.copy_(torch.stack([loss, (nlls[:n] + nlls[n:]) / 2]).where(real, 0))
    # Its gradient by each pass's logits.
    on_target = torch.full_like(at_target, (label_smoothing - 1) / 2, dtype=torch.float32)
    for rows, probs, others, kl, sign in ((logits[:n], p, q, forward, 1), (logits[n:], q, p, backward, -1)):
        factor = torch.add(0.5 + weight * (1 - kl), ratio, alpha=sign * weight)
        rest = torch.rsub(others, -label_smoothing / (2 * vocab_size), alpha=weight)
        grad = rest.addcmul_(factor, probs).scatter_add_(1, at_target, on_target)
        rows.copy_((grad * weights[:, None]).where(real[:, None], 0))


@functools.cache
def has_triton() -> bool:
    """Whether Triton, which PyTorch's builds for GPUs bring, is installed."""
    return importlib.util.find_spec("triton") is not None


def _smoothed_on_gpu(logits: Tensor, targets: Tensor, weights: Tensor, losses: Tensor, label_smoothing: float) -> None:
    if has_triton():
        from heed.backends.gpu.triton_losses import smoothed_loss_by_triton_ as smoothed
    else:
        smoothed = smoothed_loss_by_torch_
    with torch.cuda.device(logits.device):  # Triton launches on the current device
        smoothed(logits, targets, weights, losses, label_smoothing)


def _consistent_on_gpu(
    logits: Tensor, targets: Tensor, weights: Tensor, losses: Tensor, label_smoothing: float, consistency: float
) -> None:
    if has_triton():
        from heed.backends.gpu.triton_losses import consistent_loss_by_triton_ as consistent
    else:
        consistent = consistent_loss_by_torch_
    with torch.cuda.device(logits.device):
        consistent(logits, targets, weights, losses, label_smoothing, consistency)


def _nothing(*_: object) -> None:
    """On the meta device, which has no numbers."""


for _name, _on_cpu, _on_gpu in (
    ("smoothed_loss_", smoothed_loss_by_torch_, _smoothed_on_gpu),
    ("consistent_loss_", consistent_loss_by_torch_, _consistent_on_gpu),
):
    LIBRARY.impl(_name, _on_cpu, "CPU")
    LIBRARY.impl(_name, _on_gpu, "CUDA")
    LIBRARY.impl(_name, _nothing, "Meta")
