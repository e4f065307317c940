"""The plain network, on any device: what every other backend must agree with."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heed.backends.training_protocol import PassSettings
from heed.data.batches.batch import Batch
from heed.model.transformer import Transformer


class ReferenceBackend:
    """Trains by the model's own `forward`, padding included."""

    computes_padding = True

    def covers(self, model: Transformer) -> None:
        return None

    def target_features(self, model: Transformer, batch: Batch) -> Float[Tensor, "tgt_token d_model"]:
        state = model.start(model.encode(batch.src, batch.src_mask, keep_mask=batch.src_keep_mask), batch.src_mask)
        features = model.decode_features(batch.tgt_in, state, keep_mask=batch.tgt_keep_mask)
        return features.flatten(0, 1).index_select(0, batch.tgt_places)

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

    def smoothed_loss_(self, *_: Tensor, label_smoothing: float) -> None:
        return None

    def consistent_loss_(self, *_: Tensor, label_smoothing: float, consistency: float) -> None:
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
