"""What training minimises: the label-smoothed loss of section 5.4."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.base import ROW_MULTIPLE, Backend

# Tokens whose logits exist at a time: fewer stay in the processor's cache, more make fewer passes over the gradient of
# the weight (docs/explain/performance.md); a GPU wants larger products.
CPU_CHUNK, GPU_CHUNK = 512, 4096


def projected_loss(
    backend: Backend,
    features: Float[Tensor, "token d_model"],
    weight: Float[Tensor, "vocab d_model"],
    targets: Int[Tensor, " token"],
    *,
    label_smoothing: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """(label-smoothed loss, plain negative log-likelihood) of logits features · weightᵀ, each summed over the tokens.

    Smoothing as in torch.nn.functional.cross_entropy: the target distribution is 1 - ε at the right id plus ε / vocab
    at every id, the right one included (Szegedy et al. 2016). The logits of some hundred tokens exist at a time, and
    their gradient is worked out at once, so memory does not grow with tokens × vocabulary. The second value carries no
    gradient. If the weight has an fp32 tensor `main_grad`, its gradient is added there, and none is returned.
    """
    loss, nll = _ProjectedLoss.apply(backend, features, weight, targets, label_smoothing)
    return loss, nll


class _ProjectedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, backend: Backend, features: Tensor, weight: Tensor, targets: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        vocab_size = weight.shape[0]
        with_grad = any(ctx.needs_input_grad)
        feature_grad = torch.empty_like(features) if with_grad else None
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if with_grad else None
        loss = torch.zeros((), device=features.device)
        nll = torch.zeros((), device=features.device)
        chunk = CPU_CHUNK if features.is_cpu else GPU_CHUNK
        buffer = features.new_empty(chunk, vocab_size)
        for start in range(0, len(features), chunk):
            x, y = features[start : start + chunk], targets[start : start + chunk]
            n = len(x)
            if n % ROW_MULTIPLE:
                x = F.pad(x, (0, 0, 0, -n % ROW_MULTIPLE))
            logits = backend.product(x, weight.T, out=buffer[: len(x)])
            losses, nlls = backend.smoothed_loss_(logits[:n], y, label_smoothing=epsilon)
            loss += losses.sum()
            nll += nlls.sum()
            if feature_grad is not None and weight_grad is not None:
                logits[n:] = 0
                feature_grad[start : start + n] = backend.product(logits, weight, out=torch.empty_like(x))[:n]
                backend.product(logits.T, x, out=weight_grad, add=True)
        if with_grad:
            ctx.save_for_backward(feature_grad, weight_grad)
        ctx.main_grad, ctx.dtype = getattr(weight, "main_grad", None), weight.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        feature_grad, weight_grad = ctx.saved_tensors
        scale = grads[0]
        if ctx.main_grad is None:
            weight_grad = (weight_grad * scale).to(ctx.dtype)
        else:
            ctx.main_grad.addcmul_(weight_grad, scale)
            weight_grad = None
        return None, feature_grad * scale.to(feature_grad.dtype), weight_grad, None, None
