"""Adam (Kingma & Ba 2015), with the paper's constants in section 5.3."""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from heed.training.settings import TrainingSettings


class Adam(torch.optim.Optimizer):
    """Kingma and Ba's algorithm 1, one weight at a time.

    Its state has the names that torch.optim.Adam gives it: `step`, `exp_avg` and `exp_avg_sq`, their m and v. Backends
    with a kernel of their own read and write the same state; tests hold their results to `step`.
    """

    def __init__(self, weights: Iterable[nn.Parameter], settings: TrainingSettings):
        betas = (settings.adam_beta1, settings.adam_beta2)
        super().__init__(weights, {"lr": 0.0, "betas": betas, "eps": settings.adam_epsilon})

    @torch.no_grad()
    def step(self, finite: Bool[Tensor, ""]) -> None:  # type: ignore[override]  # takes no closure
        """Updates the weights by their gradients at the rate `lr`; unless `finite`, nothing changes."""
        (group,) = self.param_groups
        beta1, beta2 = group["betas"]
        for weight in group["params"]:
            state, gradient = self._state_of(weight), weight.grad
            # Running means of the gradient and of its square.
            step = state["step"] + 1
            mean = torch.lerp(state["exp_avg"], gradient, 1 - beta1)
            square = (beta2 * state["exp_avg_sq"]).addcmul_(gradient, gradient, value=1 - beta2)
            # Both begin at zero, which their divisors make up for. PyTorch's square roots in fp32 are not always the
            # nearest number; by way of fp64, this has the bits of the fused torch.optim.Adam on a CPU.
            rate = group["lr"] / (1 - beta1 ** step.double())
            root = square.double().sqrt_().float().div_((1 - beta2 ** step.double()).sqrt()).add_(group["eps"])
            updated = weight - (rate * mean).div_(root)
            # Chosen on the device: asking for `finite` here would wait for a GPU.
            new = {"step": step, "exp_avg": mean, "exp_avg_sq": square}
            for kept, value in ((weight, updated), *((state[name], value) for name, value in new.items())):
                torch.where(finite, value, kept, out=kept)

    def _state_of(self, weight: Float[Tensor, "*shape"]) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            state["step"] = torch.zeros((), device=weight.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        return state
