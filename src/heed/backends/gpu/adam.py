"""Adam's step on a GPU, recorded once: update, gradients to zero, weights copied to those that compute."""

import logging
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heed.backends.gpu.capture import Captured

log = logging.getLogger(__name__)
KINDS = ("step", "exp_avg", "exp_avg_sq")


class RecordedAdam:
    """The step of one optimizer on fixed memory.

    weights: pairs of a weight in fp32, which the optimizer updates, and its copy to compute with. gradients: the memory
    in which theirs lie.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        weights: Sequence[tuple[Tensor, Tensor]],
        gradients: Float[Tensor, " weight"],
    ):
        self._optimizer, self._weights, self._gradients = optimizer, weights, gradients
        self._masters = [master for master, _ in weights]
        self._copies = [(master, copy) for master, copy in weights if copy is not master]
        self._rate, self._not_finite = torch.zeros(2, device=gradients.device)
        self._state: dict[str, list[Tensor]] = {}
        self._work: Captured | None = None
        self._records = gradients.device.type == "cuda"

    def is_of(self, weights: Sequence[tuple[Tensor, Tensor]], gradients: Float[Tensor, " weight"]) -> bool:
        """Whether it was made for these weights and this memory."""
        return self._gradients is gradients and self._weights is weights

    def step(self, finite: Bool[Tensor, ""]) -> None:
        """The optimizer's step, unless not finite; then the gradients are zero."""
        (group,) = self._optimizer.param_groups
        self._rate.fill_(group["lr"])
        self._not_finite.copy_(~finite)
        if not self._holds_state():  # the first step, or a checkpoint has been restored
            self._work, self._state = None, self._take_state()
            self._update()
            self._record()
        elif self._work is None:
            self._update()
        else:
            self._work.replay()

    def _record(self) -> None:
        """Records the step for those that follow: that is no step, and the one before it was the warm-up."""
        if not self._records:
            return
        try:
            self._work = Captured(self._update, self._gradients.device, n_warm_ups=0)
        except Exception as error:
            self._records = False
            log.warning("Adam's step cannot be recorded as a CUDA graph (%s); it is launched each time.", error)

    def _holds_state(self) -> bool:
        """Whether the optimizer's moments are those that the work reads and writes."""
        states = self._optimizer.state
        return bool(self._state) and all(
            states[master].get(kind) is self._state[kind][i] for i, master in enumerate(self._masters) for kind in KINDS
        )

    def _take_state(self) -> dict[str, list[Tensor]]:
        for master in self._masters:
            if not self._optimizer.state[master]:
                self._optimizer.state[master].update(
                    step=torch.zeros((), dtype=torch.float32, device=master.device),
                    exp_avg=torch.zeros_like(master),
                    exp_avg_sq=torch.zeros_like(master),
                )
        return {kind: [self._optimizer.state[master][kind] for master in self._masters] for kind in KINDS}

    @torch.no_grad()
    def _update(self) -> None:
        (group,) = self._optimizer.param_groups
        steps = self._state["step"]
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            self._masters,
            [cast(Tensor, master.grad) for master in self._masters],
            *(self._state["exp_avg"], self._state["exp_avg_sq"], [], steps),
            lr=self._rate,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=self._not_finite,
        )
        torch._foreach_sub_(steps, [self._not_finite] * len(steps))  # a step left out is none
        self._gradients.zero_()
        if self._copies:
            torch._foreach_copy_([copy for _, copy in self._copies], [master for master, _ in self._copies])
