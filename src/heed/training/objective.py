"""What training minimises, and how fast it steps: label-smoothed loss (section 5.4) and equation 3."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


def learning_rate(step: int, *, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """factor · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5): equation 3; step counts from 1."""
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def projected_loss(
    features: Float[Tensor, "token d_model"],
    weight: Float[Tensor, "vocab d_model"],
    targets: Int[Tensor, " token"],
    *,
    label_smoothing: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """(label-smoothed loss, plain negative log-likelihood) of logits features · weightᵀ, each summed over the tokens.

    Smoothing as in torch.nn.functional.cross_entropy: the target distribution is 1 - ε at the right id plus ε / vocab
    at every id, the right one included (Szegedy et al. 2016). The logits of a few hundred tokens exist at a time, and
    their gradient is worked out at once, so memory does not grow with tokens × vocabulary. The second value carries no
    gradient.
    """
    loss, nll = _ProjectedLoss.apply(features, weight, targets, label_smoothing)
    return loss, nll


class _ProjectedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, targets: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        vocab_size = weight.shape[0]
        with_grad = any(ctx.needs_input_grad)
        feature_grad = torch.empty_like(features) if with_grad else None
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if with_grad else None
        loss = torch.zeros((), device=features.device)
        nll = torch.zeros((), device=features.device)
        # 8 MiB of logits at a time stay in a processor's cache; a GPU wants larger products.
        chunk = max(64, (2**26 if features.is_cuda else 2**21) // vocab_size)
        for start in range(0, len(features), chunk):
            x, y = features[start : start + chunk], targets[start : start + chunk, None]
            log_prob = torch.log_softmax((x @ weight.T).float(), dim=-1)
            chunk_nll = -log_prob.gather(1, y).sum()
            nll += chunk_nll
            loss += (1 - epsilon) * chunk_nll
            if epsilon:
                loss -= epsilon / vocab_size * log_prob.sum()
            if feature_grad is not None and weight_grad is not None:
                grad = log_prob.exp_()
                if epsilon:
                    grad -= epsilon / vocab_size
                grad.scatter_add_(1, y, torch.full_like(y, epsilon - 1, dtype=grad.dtype))
                grad = grad.to(features.dtype)
                feature_grad[start : start + chunk] = grad @ weight
                weight_grad += grad.T @ x
        if feature_grad is not None and weight_grad is not None:
            ctx.save_for_backward(feature_grad, weight_grad.to(weight.dtype))
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        feature_grad, weight_grad = ctx.saved_tensors
        scale = grads[0]
        return feature_grad * scale.to(feature_grad.dtype), weight_grad * scale.to(weight_grad.dtype), None, None
