"""Training and validation on a CPU: the operations of `TrainingOps` and the forward pass, by the kernels."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heed.backends.cpu import forward, search, training_ops
from heed.backends.cpu.packed_model import PackedModel, Packer
from heed.backends.reference import float_sums
from heed.backends.training_protocol import PassSettings
from heed.data.batches.batch import Batch
from heed.model.cost import Rows
from heed.model.coverage import Coverage
from heed.model.transformer import Transformer
from heed.runtime.device import DecodingPrecision

# With a radius by the plain network's attention.
COVERAGE = Coverage({**search.SETTINGS, "radius": True})


def supports(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels take tensors of this device and type, and can be used on this machine."""
    return device.type == "cpu" and dtype in (torch.float32, torch.bfloat16) and search.usable()


class CpuBackend:
    """Trains the network by the kernels."""

    computes_padding = False

    def covers(self, model: Transformer) -> str | None:
        return COVERAGE.missing(model)

    def target_features(self, model: Transformer, batch: Batch) -> Float[Tensor, "tgt_token d_model"]:
        with float_sums(model):  # PyTorch's norm is a stack's first, or of the embeddings
            return forward.target_features(model, batch)

    product = staticmethod(training_ops.product)
    loss_ = staticmethod(training_ops.loss_)

    def add_gradient(self, gradient: Float[Tensor, "*shape"], total: Float[Tensor, "*shape"]) -> None:
        if gradient.dtype == torch.bfloat16:
            training_ops.add_gradient(gradient.contiguous(), total)
        else:
            total.add_(gradient)

    @torch.no_grad()
    def adam_step(
        self,
        optimizer: torch.optim.Optimizer,
        weights: Sequence[tuple[Tensor, Tensor]],
        gradients: Float[Tensor, " weight"],
        finite: Bool[Tensor, ""],
    ) -> bool:
        if not finite:
            gradients.zero_()
            return True
        (group,) = optimizer.param_groups
        for master, copy in weights:
            state = optimizer.state[master]
            if not state:
                state.update(
                    step=torch.tensor(0.0), exp_avg=torch.zeros_like(master), exp_avg_sq=torch.zeros_like(master)
                )
            state["step"] += 1
            training_ops.adam_step(
                *(master, state["exp_avg"], state["exp_avg_sq"], cast(Tensor, master.grad)),
                copy=None if copy is master else copy,
                step=int(state["step"]),
                rate=group["lr"],
                betas=group["betas"],
                epsilon=group["eps"],
            )
        return True

    def training_passes(self, model: Transformer, totals: Float[Tensor, " 2"], settings: PassSettings) -> None:
        return None


def pack_module(model: Transformer, precision: DecodingPrecision, *, copy: bool) -> PackedModel:
    """The model packed for a search. Without `copy` it is given up: its weights may be gone."""
    state = {name: x.detach() for name, x in model.state_dict(keep_vars=True).items()}
    if not copy:
        for parameter in model.parameters():
            parameter.data = torch.empty(0)

    def take(name: str) -> Rows | None:
        tensor = state.pop(name, None)
        return None if tensor is None else tensor.float().numpy()

    packer = Packer(take, precision, activation=model.arch.activation)
    return PackedModel(model.arch, model.vocab_size, model.src_vocab_size, packer, precision=precision)
