"""The feed-forward layer's first half, max(0, x W1 + b1), as one operation of PyTorch: `heed::relu_product`.

A GPU's library of products takes the maximum before it writes, which saves a pass over the largest activations.
torch.compile would take product and maximum apart again, were they not an operation of their own.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

LIBRARY = torch.library.Library("heed", "FRAGMENT")
LIBRARY.define("relu_product(Tensor x, Tensor weight, Tensor bias) -> Tensor")


def relu_product(
    x: Float[Tensor, "token d_model"], weight: Float[Tensor, "d_ff d_model"], bias: Float[Tensor, " d_ff"]
) -> Float[Tensor, "token d_ff"]:
    """max(0, x · weightᵀ + bias), differentiable."""
    product: Tensor = torch.ops.heed.relu_product(x, weight, bias)
    return product


def _on_gpu(
    x: Float[Tensor, "token d_model"], weight: Float[Tensor, "d_ff d_model"], bias: Float[Tensor, " d_ff"]
) -> Tensor:
    return torch._addmm_activation(bias, x, weight.t())


def _elsewhere(
    x: Float[Tensor, "token d_model"], weight: Float[Tensor, "d_ff d_model"], bias: Float[Tensor, " d_ff"]
) -> Tensor:
    return torch.addmm(bias, x, weight.t()).relu_()


def _without_numbers(
    x: Float[Tensor, "token d_model"], weight: Float[Tensor, "d_ff d_model"], bias: Float[Tensor, " d_ff"]
) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Float[Tensor, "token d_ff"]) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output)


def _backward(ctx: Any, grad: Float[Tensor, "token d_ff"]) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, output = ctx.saved_tensors
    grad = torch.where(output > 0, grad, 0)
    return grad @ weight, grad.t() @ x, grad.sum(0)


LIBRARY.impl("relu_product", _on_gpu, "CUDA")
LIBRARY.impl("relu_product", _elsewhere, "CPU")
torch.library.register_fake("heed::relu_product", _without_numbers, lib=LIBRARY)
torch.library.register_autograd("heed::relu_product", _backward, setup_context=_keep, lib=LIBRARY)
