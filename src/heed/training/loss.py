"""The training loss: label-smoothed as in section 5.4, and with R-Drop also the distance between two passes."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.protocol import ROW_MULTIPLE, TrainingOps

# Tokens whose logits exist at a time: fewer stay in the processor's cache, more make fewer passes over the gradient of
# the weight (docs/explain/performance.md); a GPU wants larger products.
CPU_CHUNK, GPU_CHUNK = 512, 4096


def projected_loss(
    backend: TrainingOps,
    features: Float[Tensor, "token d_model"],
    weight: Float[Tensor, "vocab d_model"],
    targets: Int[Tensor, " token"],
    *,
    label_smoothing: float,
    bias: Float[Tensor, " vocab"] | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """(label-smoothed loss, negative log-likelihood) of logits features · weightᵀ + bias, summed over the tokens.

    Smoothing as in torch.nn.functional.cross_entropy: the target distribution is 1 - ε at the right id plus ε / vocab
    at every id, the right one included (Szegedy et al. 2016). The logits of some hundred tokens exist at a time, and
    their gradient is worked out at once, so memory does not grow with tokens × vocabulary. The second value carries no
    gradient. If weight or bias has an fp32 tensor `main_grad`, its gradient is added there, and none is returned.
    """
    loss, nll = _ProjectedLoss.apply(backend, features, weight, bias, targets, label_smoothing, None)
    return loss, nll


def consistent_loss(
    backend: TrainingOps,
    features: Float[Tensor, "two_passes d_model"],
    weight: Float[Tensor, "vocab d_model"],
    targets: Int[Tensor, " token"],
    *,
    label_smoothing: float,
    consistency: float,
    bias: Float[Tensor, " vocab"] | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """As `projected_loss`, of two passes over the same tokens, whose features are concatenated: R-Drop.

    A token's loss is (L(P) + L(Q)) / 2 + α / 4 · (KL(P || Q) + KL(Q || P)), with the passes' distributions P and Q,
    their label-smoothed losses L and the `consistency` α: half the loss of Liang et al. 2021, equations 2 to 4. So α
    means what it means there, and two equal passes have the loss and gradient of one. Gradients flow through P and Q,
    as there and as in SimCut (Gao et al. 2022), whose loss is L(P) + α KL(P || Q): its α weighs the divergence as much
    as twice that number here. The second value is the mean of both passes'.
    """
    loss, nll = _ProjectedLoss.apply(backend, features, weight, bias, targets, label_smoothing, consistency)
    return loss, nll


class _ProjectedLoss(torch.autograd.Function):
    # Of one pass, or with a `consistency` of two.
    @staticmethod
    def forward(
        ctx: Any,
        backend: TrainingOps,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        label_smoothing: float,
        consistency: float | None,
    ) -> tuple[Tensor, Tensor]:
        # Gradients are computed here, since the logits are there only now; `backward` scales them.
        vocab_size, d_model = weight.shape
        n_passes = 1 if consistency is None else 2
        passes = features.view(n_passes, len(targets), d_model)
        with_grad = any(ctx.needs_input_grad)
        feature_grad = torch.empty_like(passes) if with_grad else None
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if with_grad else None
        bias_grad = torch.zeros_like(bias, dtype=torch.float32) if with_grad and bias is not None else None
        # A chunk of logits at a time, in one buffer, so that memory does not grow with batch times vocabulary.
        loss = torch.zeros((), device=features.device)
        nll = torch.zeros((), device=features.device)
        chunk = CPU_CHUNK if features.is_cpu else GPU_CHUNK
        buffer = features.new_empty(chunk, vocab_size)
        for start in range(0, len(targets), chunk // n_passes):
            tokens = slice(start, start + chunk // n_passes)
            x, y = passes[:, tokens].flatten(0, 1), targets[tokens]
            n = len(x)
            if n % ROW_MULTIPLE:
                x = F.pad(x, (0, 0, 0, -n % ROW_MULTIPLE))
            logits = backend.product(x, weight.T, out=buffer[: len(x)], bias=bias)
            if consistency is None:
                losses, nlls = backend.smoothed_loss_(logits[:n], y, label_smoothing=label_smoothing)
            else:
                losses, nlls = backend.consistent_loss_(
                    logits[:n], y, label_smoothing=label_smoothing, consistency=consistency
                )
            # Either loss leaves the gradient in place of the logits.
            loss += losses.sum()
            nll += nlls.sum()
            if feature_grad is not None and weight_grad is not None:
                logits[n:] = 0
                product = backend.product(logits, weight, out=torch.empty_like(x))[:n]
                feature_grad[:, tokens] = product.view(n_passes, -1, d_model)
                backend.product(logits.T, x, out=weight_grad, add=True)
                if bias_grad is not None:
                    bias_grad += logits.sum(0, dtype=torch.float32)
        # A weight with `main_grad` takes its gradient in `backward`, without a copy in the model's precision.
        if with_grad:
            ctx.save_for_backward(None if feature_grad is None else feature_grad.flatten(0, 1), weight_grad, bias_grad)
        ctx.main_grads, ctx.dtype = [getattr(x, "main_grad", None) for x in (weight, bias)], weight.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        feature_grad, *sums = ctx.saved_tensors
        scale = grads[0]
        gradients: list[Tensor | None] = []
        for total, main_grad in zip(sums, ctx.main_grads, strict=True):
            if total is None or main_grad is None:
                gradients.append(None if total is None else (total * scale).to(ctx.dtype))
            else:
                main_grad.addcmul_(total, scale)
                gradients.append(None)
        return None, feature_grad * scale.to(feature_grad.dtype), *gradients, None, None, None
