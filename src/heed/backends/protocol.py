"""The protocol of backends, which run the network of model/ as fast as they can and with the same results.

tests/backends/test_equivalence.py holds every backend to the plain network.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from heed.backends.beam_account import BeamAccount, ContinuationRules, Continuations, EndingRules, StepLimits
from heed.backends.live_prefixes import AllowedIds, LivePrefixes
from heed.data.batches.batch import Batch
from heed.errors import HeedError
from heed.model.transformer import Transformer
from heed.runtime.device import DecodingPrecision

# Products get a multiple of this number of rows: oneDNN prepares anew for each number (docs/explain/performance.md).
ROW_MULTIPLE = 64
# Positions for which a search has room at first.
FIRST_CAPACITY = 64


NO_INT8 = "int8 needs Heed's kernels: a C++ compiler, and a CPU with AVX2, AVX-512 or NEON; take fp32."
NO_BF16 = "a search in bf16 needs a GPU, or AMX and Heed's kernels; take int8 or fp32, which are faster here."


@runtime_checkable
class SearchState(Protocol):
    """A model's state between the steps of a search. Sentences are in the order of their admission, `beam_size` rows
    each."""

    # Whether `logits` can leave out rows.
    takes_active_rows: bool

    @property
    def n_free(self) -> int:
        """Sentences that can be admitted now."""

    def admit(self, src: Int[Tensor, "sentence src"], src_mask: Bool[Tensor, "sentence src"]) -> None:
        """Adds sources (with eos) after those that are being searched."""

    def logits(
        self, tokens: Int[Tensor, " row"], active: Int[Tensor, " active"] | None = None
    ) -> Float[Tensor, "active vocab"]:
        """Logits after `tokens`, which become part of every row.

        active: the rows that matter; None: all of them.
        """

    def take_steps(
        self,
        account: BeamAccount,
        rules: EndingRules,
        fused_rules: ContinuationRules,
        prefixes: LivePrefixes,
        step_limits: StepLimits,
    ) -> NDArray[np.bool_] | None:
        """Extends all hypotheses by their best continuations, within these limits, without `logits` and `select`.

        Returns which searches are over, or None, without having done anything, if this state only takes single steps.
        HeedError if the logits are not finite.
        """

    def select(self, rows: Int[Tensor, " new_row"], sentences: Int[Tensor, " kept"]) -> None:
        """Keeps these sentences (in their order), and as their rows these, of the same sentences."""


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

    def smoothed_loss_(
        self, logits: Float[Tensor, "token vocab"], targets: Int[Tensor, " token"], *, label_smoothing: float
    ) -> tuple[Float[Tensor, " token"], Float[Tensor, " token"]] | None:
        """`training.loss.smoothed_loss_` by a kernel; None, with nothing done, if this backend has none."""

    def consistent_loss_(
        self,
        logits: Float[Tensor, "two_passes vocab"],
        targets: Int[Tensor, " token"],
        *,
        label_smoothing: float,
        consistency: float,
    ) -> tuple[Float[Tensor, " token"], Float[Tensor, " token"]] | None:
        """`training.loss.consistent_loss_` by a kernel; None, with nothing done, if this backend has none."""

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
        """Adds the losses of these batches, in CPU memory, to the sums, and their gradients times `scale`.

        Sentences are packed into as few passes as hold them. An out-of-memory error leaves the sums undefined.
        """

    def run_as_written(self, batches: Sequence[Batch], *, scale: float) -> None:
        """As `run`, by the model in the mode it is in, with nothing prepared: to be compared with the plain network."""

    def shapes(self, batches: Sequence[Batch]) -> set[Hashable]:
        """The shapes of the passes that these batches take, each of which is prepared once."""

    def n_rows(self, batches: Sequence[Batch]) -> int:
        """Rows a side that the passes of these batches compute."""

    def halve(self) -> bool:
        """Halves the tokens of a pass from now on; False if that would not hold the longest sentence."""


@runtime_checkable
class SearchOps(Protocol):
    """The operations of a search's step besides the network."""

    def best_continuations(
        self,
        logits: Float[Tensor, "active vocab"],
        active: Int[Tensor, " active"] | None,
        log_probs: Float[Tensor, "sentence beam"],
        allowed: AllowedIds | None,
        never: Bool[Tensor, " vocab"],
        may_end: Bool[Tensor, " sentence"],
        *,
        eos: int,
        k: int,
    ) -> tuple[Float[Tensor, "sentence k"], Int[Tensor, "sentence k"]]:
        """The k largest sums of a row's log-probability and its next id's: (fp64 values, row in the beam · vocab + id).

        active: the rows that have logits, None for all; other rows have no continuation. allowed: of every row, the
        ids that it may take. never: ids that no row may take. may_end: whether eos may follow. Of equals the first is
        taken; where fewer than k exist, the values are -∞.
        """

    def extend_beams(
        self, account: BeamAccount, continuations: Continuations, rules: EndingRules
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """As `beam_account.extend`, whose results it has, bit for bit."""


@runtime_checkable
class Backend(TrainingOps, SearchOps, Protocol):
    """How the network is run. `choice.backend_for` chooses one."""

    # Whether `target_features` computes padding: if not, sentences of any lengths may share a pass.
    computes_padding: bool

    def covers(self, model: Transformer) -> str | None:
        """None if this backend computes all of the network as it is; else what it does not, to follow "has"."""

    def target_features(self, model: Transformer, batch: Batch) -> Float[Tensor, "tgt_token d_model"]:
        """The decoder's output at the real target positions, sentence by sentence; the batch is on the model's device.

        Training, validation and scoring run this; it is differentiable.
        """

    def training_passes(
        self, model: Transformer, totals: Float[Tensor, " 2"], settings: PassSettings
    ) -> TrainingPasses | None:
        """Passes that add to `totals` (loss, negative log-likelihood) and to each weight's fp32 `main_grad`.

        None if this backend has none: then training runs `target_features`, the losses and autograd's backward pass.
        """

    def fastest_precision(self, device: torch.device) -> tuple[DecodingPrecision, str]:
        """The precision in which a search is fastest on this device, and why; it costs no BLEU (docs/results.md)."""

    def prepack(self, model: Transformer, precision: DecodingPrecision, *, copy: bool = True) -> Transformer:
        """The model ready to translate in this precision, without gradients; HeedError if that is impossible here.

        Without `copy` the model itself is changed, and memory never holds all weights twice.
        """

    def search_state(self, model: Transformer, *, n_sentences: int, beam_size: int) -> SearchState:
        """The state of a search over at most `n_sentences` sentences at a time."""

    def search_threads(self, model: Transformer) -> int:
        """The number of threads that searches on a thread each may use at a time; 1 where one search is as fast."""

    def use_threads(self, n: int) -> None:
        """Lets the calling thread compute by n threads from now on."""


def bytes_per_position(model: Transformer) -> int:
    """The memory that a row of a search takes for each of its positions, at most."""
    arch, width = model.arch, model.arch.n_heads * (model.arch.key_width + model.arch.value_width)
    # Keys and values of all layers, those of one layer twice while its cache grows; ids and ancestors.
    return (arch.decoder_layers + 1) * width * model.src_embedding.weight.element_size() + 32


class NotFiniteError(HeedError):
    """A search or a score met NaN or ∞."""

    def __init__(self) -> None:
        super().__init__(
            "the model's numbers are not finite: its weights are damaged, or too large for the precision; take an "
            "earlier checkpoint, or --precision fp32 instead of bf16 or int8."
        )
