"""The plain network, on any device: what every other backend must agree with."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

from heed.backends.training_protocol import PassSettings
from heed.data.batches.batch import Batch
from heed.data.batches.padded import PaddedBatch
from heed.model.transformer import Transformer


class FloatSums(TorchFunctionMode):
    """Within it, embeddings and norms in bf16 on a CPU are computed in fp32 if their gradients are wanted.

    There PyTorch sums the gradients of a weight one by one in bf16, in which 256 + 1 is 256: of 3,000 tokens, those of
    a norm's bias are off by 60 % (findings/torch_cpu_norms_sum_gradients_in_bf16.sh). A GPU sums them in fp32.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        in_bf16 = function in (F.embedding, F.layer_norm) and any(map(_is_bf16, (*args, *kwargs.values())))
        if not in_bf16 or not torch.is_grad_enabled():
            return function(*args, **kwargs)
        wide = {name: _widened(x) for name, x in kwargs.items()}
        return function(*map(_widened, args), **wide).bfloat16()


def float_sums(model: Transformer) -> AbstractContextManager[Any]:
    """`FloatSums` for a model that needs it; others pay nothing for it."""
    return FloatSums() if _is_bf16(model.src_embedding.weight) else nullcontext()


def _is_bf16(x: Any) -> bool:
    """Whether it is a tensor in bf16 on a CPU."""
    return isinstance(x, Tensor) and x.is_cpu and x.dtype == torch.bfloat16


def _widened(x: Any) -> Any:
    return x.float() if _is_bf16(x) else x


class ReferenceBackend:
    """Trains by the model's own `forward`, padding included."""

    computes_padding = True

    def covers(self, model: Transformer) -> None:
        return None

    def target_features(self, model: Transformer, batch: Batch) -> Float[Tensor, "tgt_token d_model"]:
        rows = PaddedBatch.of(batch, model.src_embedding.weight.device)
        with float_sums(model):
            state = model.start(model.encode(rows.src, rows.src_mask, keep_mask=rows.src_keep_mask), rows.src_mask)
            features = model.decode_features(rows.tgt_in, state, keep_mask=rows.tgt_keep_mask)
        return features.flatten(0, 1).index_select(0, rows.tgt_places)

    def product(
        self,
        a: Float[Tensor, "m depth"],
        b: Float[Tensor, "depth n"],
        *,
        out: Float[Tensor, "m n"],
        add: bool = False,
        bias: Float[Tensor, " n"] | None = None,
    ) -> Float[Tensor, "m n"]:
        if add:
            return out.add_(torch.mm(a, b))
        return torch.mm(a, b, out=out) if bias is None else torch.addmm(bias, a, b, out=out)

    def loss_(self, *_: Tensor, label_smoothing: float, consistency: float = 0.0) -> None:
        return None

    def add_gradient(self, gradient: Float[Tensor, "*shape"], total: Float[Tensor, "*shape"]) -> None:
        total.add_(gradient)

    def adam_step(
        self,
        optimizer: torch.optim.Optimizer,
        weights: Sequence[tuple[Tensor, Tensor]],
        gradients: Float[Tensor, " weight"],
        finite: Bool[Tensor, ""],
    ) -> bool:
        return False

    def training_passes(self, model: Transformer, totals: Float[Tensor, " 2"], settings: PassSettings) -> None:
        return None
