"""The protocol of backends that train, too: they run the modules of model/ as fast as they can, with the same results.

tests/backends/test_equivalence.py holds every backend to the plain network.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heed.data.batches.batch import Batch
from heed.model.transformer import Transformer

# Products get a multiple of this number of rows: oneDNN prepares anew for each number (docs/explain/performance.md).
ROW_MULTIPLE = 64


@runtime_checkable
class TrainingOps(Protocol):
    """The operations of a training step besides the network."""

    def product(
        self,
        a: Float[Tensor, "m depth"],
        b: Float[Tensor, "depth n"],
        *,
        out: Float[Tensor, "m n"],
        add: bool = False,
        bias: Float[Tensor, " n"] | None = None,
    ) -> Float[Tensor, "m n"]:
        """out = a · b + bias; or with `add` out += a · b, out in fp32. Either factor may be a transposed view."""

    def loss_(
        self,
        logits: Float[Tensor, "row vocab"],
        targets: Int[Tensor, " token"],
        *,
        label_smoothing: float,
        consistency: float = 0.0,
    ) -> tuple[Float[Tensor, " token"], Float[Tensor, " token"]] | None:
        """`training.loss.smoothed_loss_`, or with a consistency `consistent_loss_`, by a kernel.

        None, with nothing done, if this backend has none.
        """

    def add_gradient(self, gradient: Float[Tensor, "*shape"], total: Float[Tensor, "*shape"]) -> None:
        """total += gradient, total in fp32."""

    def adam_step(
        self,
        optimizer: torch.optim.Optimizer,
        weights: Sequence[tuple[Tensor, Tensor]],
        gradients: Float[Tensor, " weight"],
        finite: Bool[Tensor, ""],
    ) -> bool:
        """Whether a kernel took the step of `training.optimizer.Adam`, unless not finite, and zeroed the gradients.

        weights: pairs of a weight in fp32, which the optimizer updates, and its copy to compute with, which becomes
        equal but for rounding; both may be one. gradients: the memory in which theirs lie.
        """


@dataclass(frozen=True)
class PassSettings:
    """The settings of training that decide what a pass computes: see `TrainingSettings`."""

    label_smoothing: float
    consistency: float = 0.0
    cutoff: float = 0.0

    @property
    def n_passes(self) -> int:
        """How often each batch is computed."""
        return 2 if self.consistency else 1


@runtime_checkable
class TrainingPasses(Protocol):
    """Whole passes of training, for a backend that prepares them once and repeats them for each batch.

    Each adds losses and gradients to the sums that it was made with.
    """

    @property
    def n_tokens(self) -> int:
        """Real tokens a side that a pass holds; 0 before anything is reserved or run."""

    def reserve(self, n_tokens: int, longest: int) -> None:
        """Prepares for passes over `n_tokens` real tokens a side, in sentences of at most `longest`."""

    def run(self, batches: Sequence[Batch], *, scale: float) -> None:
        """Adds the losses of these batches to the sums, and their gradients times `scale`.

        Sentences are packed into as few passes as hold them. An out-of-memory error leaves the sums undefined.
        """

    def run_as_written(self, batches: Sequence[Batch], *, scale: float) -> None:
        """Runs passes by the model as it is, with nothing prepared, for comparisons with the plain network."""

    def run_once(self, batches: Sequence[Batch], *, scale: float) -> None:
        """Runs passes prepared for the model's present mode, for comparisons; gives back what was prepared."""

    def shapes(self, batches: Sequence[Batch]) -> set[Hashable]:
        """The shapes of the passes that these batches take, each of which is prepared once."""

    def n_rows(self, batches: Sequence[Batch]) -> int:
        """Rows a side that the passes of these batches compute."""

    def halve(self) -> bool:
        """Halves the tokens of a pass from now on; False if that would not hold the longest sentence."""


@runtime_checkable
class Backend(TrainingOps, Protocol):
    """How the network of a module is trained and validated. `modules.backend_for` chooses one."""

    # Whether `target_features` computes padding: if not, sentences of any lengths may share a pass.
    computes_padding: bool

    def covers(self, model: Transformer) -> str | None:
        """None if this backend computes all of the network as it is; else what it does not, to follow "has"."""

    def target_features(self, model: Transformer, batch: Batch) -> Float[Tensor, "tgt_token d_model"]:
        """The decoder's output at the targets' tokens, sentence by sentence, on the model's device.

        Training and validation run this; it is differentiable.
        """

    def training_passes(
        self, model: Transformer, totals: Float[Tensor, " 2"], settings: PassSettings
    ) -> TrainingPasses | None:
        """Passes that add to `totals` (loss, negative log-likelihood) and to each weight's fp32 `main_grad`.

        None if this backend has none: then training runs `target_features`, the losses and autograd's backward pass.
        """
