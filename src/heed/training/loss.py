"""The training loss: label-smoothed as in section 5.4, and with R-Drop also the distance between two passes."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.training_protocol import ROW_MULTIPLE, TrainingOps

# Tokens whose logits exist at a time: fewer stay in the processor's cache, more make fewer passes over the gradient of
# the weight (docs/explain/performance.md); a GPU wants larger products.
CPU_CHUNK, GPU_CHUNK = 512, 4096


def projected_loss(
    backend: TrainingOps,
    features: Float[Tensor, "row d_model"],
    weight: Float[Tensor, "vocab d_model"],
    targets: Int[Tensor, " token"],
    *,
    label_smoothing: float,
    consistency: float = 0.0,
    bias: Float[Tensor, " vocab"] | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """(loss, negative log-likelihood) of logits features · weightᵀ + bias, summed over the tokens.

    The loss is `smoothed_loss_`, or with a `consistency` that of two passes, `consistent_loss_`. The logits of some
    hundred tokens exist at a time, and their gradient is worked out at once, so memory does not grow with tokens ×
    vocabulary. The second value carries no gradient. If weight or bias has an fp32 tensor `main_grad`, its gradient is
    added there, and none is returned.
    """
    loss, nll = _ProjectedLoss.apply(backend, features, weight, bias, targets, label_smoothing, consistency)
    return loss, nll


def smoothed_loss_(
    logits: Float[Tensor, "token vocab"], targets: Int[Tensor, " token"], *, label_smoothing: float
) -> tuple[Float[Tensor, " token"], Float[Tensor, " token"]]:
    """(label-smoothed loss, negative log-likelihood) per token; `logits` become the gradient of the loss.

    Section 5.4, ε = 0.1: the cross-entropy with the distribution 1 - ε at the target plus ε / vocab everywhere, the
    target included, as in torch.nn.functional.cross_entropy (Szegedy et al. 2016). Its gradient by the logits is the
    softmax less that distribution.
    """
    log_prob = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    nll = -log_prob.gather(1, targets[:, None])[:, 0]
    loss = (1 - label_smoothing) * nll - label_smoothing * log_prob.mean(dim=-1)
    grad = log_prob.exp_().sub_(label_smoothing / logits.shape[1])
    grad.scatter_add_(1, targets[:, None], torch.full_like(targets[:, None], label_smoothing - 1, dtype=grad.dtype))
    logits.copy_(grad)
    return loss, nll


def consistent_loss_(
    logits: Float[Tensor, "two_passes vocab"],
    targets: Int[Tensor, " token"],
    *,
    label_smoothing: float,
    consistency: float,
) -> tuple[Float[Tensor, " token"], Float[Tensor, " token"]]:
    """R-Drop's (loss, mean negative log-likelihood of both passes) per token; `logits`, of all tokens in the first pass
    and then in the second, become the gradient of the loss.

    A token's loss is (L(P) + L(Q)) / 2 + α / 4 · (KL(P || Q) + KL(Q || P)), with the passes' distributions P and Q,
    their label-smoothed losses L and the `consistency` α: half the loss of Liang et al. 2021, equations 2 to 4. So α
    means what it means there, and two equal passes have the loss and gradient of one. Gradients flow through P and Q,
    as there and as in SimCut (Gao et al. 2022), whose loss is L(P) + α KL(P || Q): its α weighs the divergence as much
    as twice that number here.
    """
    n, vocab_size = len(targets), logits.shape[1]
    # fp64 stays, in which tests prove the gradient.
    log_prob = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    both_targets = targets.repeat(2)[:, None]
    nlls = -log_prob.gather(1, both_targets)[:, 0]
    losses = (1 - label_smoothing) * nlls - label_smoothing * log_prob.mean(dim=-1)
    ratio = log_prob[:n] - log_prob[n:]  # log p / q
    p, q = log_prob.exp_().split(n)
    forward, backward = (p * ratio).sum(dim=-1, keepdim=True), -(q * ratio).sum(dim=-1, keepdim=True)  # KL
    weight = consistency / 4
    loss = (losses[:n] + losses[n:]) / 2 + weight * (forward + backward)[:, 0]
    # The gradient by the first logits: of KL(p || q) it is p (ratio - KL), of KL(q || p) p - q, of half the first
    # pass's loss p / 2 less half the target distribution. By the second logits it is the same, exchanged.
    at_target = torch.full_like(targets[:, None], (label_smoothing - 1) / 2, dtype=p.dtype)
    for rows, probs, others, kl, sign in ((logits[:n], p, q, forward, 1), (logits[n:], q, p, backward, -1)):
        factor = torch.add(0.5 + weight * (1 - kl), ratio, alpha=sign * weight)
        rest = torch.rsub(others, -label_smoothing / (2 * vocab_size), alpha=weight)
        rows.copy_(rest.addcmul_(factor, probs).scatter_add_(1, targets[:, None], at_target))
    return loss, (nlls[:n] + nlls[n:]) / 2


class _ProjectedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        backend: TrainingOps,
        features: Float[Tensor, "row d_model"],
        weight: Float[Tensor, "vocab d_model"],
        bias: Float[Tensor, " vocab"] | None,
        targets: Int[Tensor, " token"],
        label_smoothing: float,
        consistency: float,
    ) -> tuple[Tensor, Tensor]:
        # Gradients are computed here, since the logits are there only now; `backward` scales them.
        vocab_size, d_model = weight.shape
        n_passes, options = 1, {"label_smoothing": label_smoothing}
        plain: Callable[..., Any] = smoothed_loss_
        if consistency:
            n_passes, plain, options = 2, consistent_loss_, options | {"consistency": consistency}
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
            # By the backend's kernel, if it has one. Either loss leaves the gradient in place of the logits.
            losses, nlls = backend.loss_(logits[:n], y, **options) or plain(logits[:n], y, **options)
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
