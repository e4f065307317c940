"""One optimizer step: micro-batches summed into one gradient, over all workers, then Adam."""

import copy
import logging
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from heed.backends.dispatch import backend_for
from heed.backends.training_protocol import PassSettings, TrainingOps, TrainingPasses
from heed.data.batches.batch import Batch, real_places
from heed.data.batches.padded import sent
from heed.errors import is_out_of_memory
from heed.model.transformer import Transformer
from heed.runtime.device import Machine
from heed.training.distributed import ALONE, Sharing, Workers
from heed.training.gradient_reduction import GradientReduction
from heed.training.loss import projected_loss
from heed.training.optimizer import Adam
from heed.training.settings import TrainingSettings

log = logging.getLogger(__name__)


class AllReduceBuffer:
    """The sums of a step over all workers, in one piece of memory, so that one all-reduce serves them all.

    The gradients of all weights lie one after another; four scalars follow them. All are views of `buffer`, in fp32.
    """

    N_SCALARS = 4

    def __init__(self, n_weights: int, device: torch.device):
        self.buffer = torch.zeros(n_weights + self.N_SCALARS, device=device)
        self.gradients = self.buffer[:n_weights]
        self.scalars = self.buffer[n_weights:]
        self.loss, self.nll, self.n_stopping, self.seconds = self.scalars
        # loss, nll: label-smoothed loss and negative log-likelihood, summed over the target tokens; n_stopping: workers
        # that were asked to stop; seconds: of training before this step, by the first worker's clock


class MasterWeights:
    """The weights in fp32, which the optimizer updates, and their copy in the machine's precision, which computes.

    In fp32 both are one. In bf16 the copy is renewed after each step, instead of being cast in every pass as autocast
    does. Gradients are summed in fp32 over all micro-batches, in `sums`. Each weight of the copy has its master's
    gradient as `main_grad`, to which the loss adds the gradients of the output projection directly.
    """

    def __init__(self, model: Transformer, machine: Machine):
        self.masters = model.to(machine.device)
        self.model = model if machine.dtype == torch.float32 else copy.deepcopy(model).to(machine.dtype)
        self.pairs = list(zip(self.masters.parameters(), self.model.parameters(), strict=True))
        sizes = [master.numel() for master, _ in self.pairs]
        self.sums = AllReduceBuffer(sum(sizes), machine.device)
        for (master, parameter), gradient in zip(self.pairs, self.sums.gradients.split(sizes), strict=True):
            master.grad = gradient.view_as(master)
            parameter.main_grad = master.grad  # type: ignore[attr-defined]  # a tensor takes any attribute
        self._passes: tuple[PassSettings, TrainingPasses | None] | None = None

    def passes(self, settings: TrainingSettings) -> TrainingPasses | None:
        """The backend's whole passes of training; None if it has none, or if they failed before."""
        chosen = PassSettings(settings.label_smoothing, settings.consistency, settings.cutoff)
        if self._passes is None or self._passes[0] != chosen:
            self._passes = (chosen, None)
            try:
                made = backend_for(self.model).training_passes(self.model, self.sums.scalars[:2], chosen)
                self._passes = (chosen, made)
            except ImportError as error:  # an older PyTorch
                self.give_up_passes(error)
        return self._passes[1]

    def computes_padding(self, settings: TrainingSettings) -> bool:
        """Whether a pass computes the padding of its sentences, too."""
        return self.passes(settings) is None and backend_for(self.model).computes_padding

    def give_up_passes(self, error: Exception) -> None:
        """From now on the plain network trains: the backend's passes could not be prepared."""
        assert self._passes is not None
        self._passes = (self._passes[0], None)
        self.zero_sums()
        first_line = (str(error) or type(error).__name__).partition("\n")[0]
        log.warning(
            "Passes for the GPU cannot be prepared (%s: %s), so PyTorch's operations train the network; HEED_KERNELS=0 "
            "does so without trying.",
            *(type(error).__name__, first_line),
        )

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Adds the copy's gradients to the masters'."""
        if self.model is self.masters:
            return
        backend = backend_for(self.model)
        for i in range(len(self.pairs)):
            self.collect_gradient(i, backend)

    @torch.no_grad()
    def collect_gradient(self, i: int, backend: TrainingOps) -> None:
        """Adds the i-th weight's gradient to its master's."""
        master, parameter = self.pairs[i]
        if master is not parameter and parameter.grad is not None and master.grad is not None:
            backend.add_gradient(parameter.grad, master.grad)
            parameter.grad = None

    def reduction(self, workers: Workers) -> GradientReduction:
        """The sum of a step over all workers, to be made anew for each step."""
        collect = partial(self.collect_gradient, backend=backend_for(self.model))
        return GradientReduction(self.sums.buffer, self.pairs, workers, collect=collect, output=self.masters.output)

    def zero_sums(self) -> None:
        """Forgets the gradients and all else that was summed."""
        self.sums.buffer.zero_()
        if self.model is not self.masters:
            for parameter in self.model.parameters():
                parameter.grad = None

    @torch.no_grad()
    def copy_to_compute(self) -> None:
        """Renews the copy from the masters."""
        if self.model is not self.masters:
            for master, parameter in self.pairs:
                parameter.copy_(master)

    def are_finite(self) -> bool:
        """Whether the masters hold neither NaN nor ∞."""
        return all(bool(parameter.isfinite().all()) for parameter in self.masters.parameters())


def sharing_of(model: Transformer) -> Sharing:
    """How workers share this model's steps.

    Without padding, as a CPU's kernels compute, sentences of any lengths can share a pass; a worker's rows of one
    micro-batch alone would be a slow, short one. A GPU's passes must not be longer than the memory was tried for.
    """
    if not model.src_embedding.weight.is_cpu:
        return "whole"
    return "rows" if backend_for(model).computes_padding else "merged"


def micro_batch_loss(model: Transformer, batch: Batch, settings: TrainingSettings) -> tuple[Tensor, Tensor]:
    """(smoothed loss, negative log-likelihood), each summed over the batch's target tokens.

    With `consistency` of two passes, computed as one of twice the sentences.
    """
    backend, output = backend_for(model), model.output
    targets = sent(batch.tgt_out, output.weight.device)
    passes = twice(batch, cutoff=settings.cutoff) if settings.consistency else batch
    return projected_loss(
        *(backend, backend.target_features(model, passes), output.weight, targets),
        label_smoothing=settings.label_smoothing,
        consistency=settings.consistency,
        bias=output.bias,
    )


def twice(batch: Batch, *, cutoff: float) -> Batch:
    """The batch and itself behind it: two passes that are computed at once.

    cutoff: probability that the second leaves out a token's embedding, drawn from torch's generator (token cutoff: Shen
    et al. 2020).
    """
    both = Batch.joined([batch, batch])
    if not cutoff:
        return both
    return both._replace(keep_masks=(_second_cut(batch.src_lengths, cutoff), _second_cut(batch.tgt_lengths, cutoff)))


def _second_cut(lengths: NDArray[np.int64], cutoff: float) -> NDArray[np.bool_]:
    """Which tokens of a batch and its repetition stay."""
    real = real_places(lengths)
    stay = (torch.rand(real.shape) >= cutoff).numpy()[real]  # padding draws, too: a seed keeps its run
    return np.concatenate([np.ones_like(stay), stay])


class StepOutcome(NamedTuple):
    """The outcome of a step, the same on all workers."""

    finite: bool  # whether loss and gradient are; otherwise the step is skipped
    stopping: bool  # whether a worker was asked to stop
    seconds: float  # of training before the step


class QueuedStep:
    """A step that the device may still be computing, and its sums over the target tokens of all workers.

    loss, nll: the loss that training minimises, with `consistency` that of `consistent_loss_`; the negative
    log-likelihood has no smoothing, and with `consistency` is the mean of both passes. Both are 0 if the step is not
    finite; the weights then stayed as they were.
    """

    def __init__(self, sums: AllReduceBuffer, finite: Bool[Tensor, ""]):
        loss, nll, n_stopping, seconds = sums.scalars.clone()  # the buffer is zeroed for the next step
        self.loss, self.nll = loss.where(finite, 0), nll.where(finite, 0)
        self._outcome = torch.stack([finite.to(seconds.dtype), n_stopping, seconds])
        self._copied: torch.cuda.Event | None = None
        if loss.is_cuda:  # copied now: reading it later would wait for everything queued in between
            self._outcome = self._outcome.to("cpu", non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(loss.device))

    def wait(self) -> StepOutcome:
        """The outcome, once the device has computed the step."""
        if self._copied is not None:
            self._copied.synchronize()
        finite, n_stopping, seconds = self._outcome.tolist()
        return StepOutcome(bool(finite), n_stopping > 0, seconds)


class OutOfMemory(Exception):
    """Memory ran out in a forward or backward pass; the weights have not changed and no gradient is left."""


def train_step(
    weights: MasterWeights,
    optimizer: Adam,
    batches: list[Batch],
    settings: TrainingSettings,
    *,
    workers: Workers = ALONE,
    rate: float,
    n_tgt_tokens: int | None = None,
    stop: bool = False,
    seconds: float = 0.0,
) -> QueuedStep:
    """Updates the weights by the gradient of the mean token loss over all micro-batches.

    batches: this worker's micro-batches. n_tgt_tokens: target tokens of all workers, if there are several. Nothing in
    here waits for a GPU's numbers. OutOfMemory, or OtherWorkerEnded, before the weights change.
    """
    sums, reduction = weights.sums, weights.reduction(workers)
    accumulate_gradients(
        weights,
        batches,
        settings,
        n_tgt_tokens=n_tgt_tokens or sum(batch.n_tgt_tokens for batch in batches),
        reduction=reduction,
    )
    sums.n_stopping.fill_(stop)
    sums.seconds.fill_(seconds if workers.first else 0)
    reduction.finish()
    norm = torch.linalg.vector_norm(sums.gradients)
    finite = torch.isfinite(norm) & torch.isfinite(sums.loss)
    result = QueuedStep(sums, finite)
    if settings.clip_norm is not None:
        sums.gradients.mul_((settings.clip_norm / (norm + 1e-6)).clamp(max=1))
    for group in optimizer.param_groups:
        group["lr"] = rate
    # By the backend's kernel, if it has one; that computes Adam alone.
    if type(optimizer) is not Adam or not backend_for(weights.model).adam_step(
        optimizer, weights.pairs, sums.gradients, finite
    ):
        optimizer.step(finite)
        sums.gradients.zero_()
        weights.copy_to_compute()
    sums.scalars.zero_()
    return result


def accumulate_gradients(
    weights: MasterWeights,
    batches: list[Batch],
    settings: TrainingSettings,
    *,
    n_tgt_tokens: int,
    reduction: GradientReduction | None = None,
) -> None:
    """Adds losses and gradients of the micro-batches, the gradients divided by n_tgt_tokens, to `weights.sums`.

    reduction: sums the gradients over all workers from the last backward pass on. OutOfMemory with the sums at zero.
    """
    weights.model.train()
    exhausted = None
    try:
        if not _accumulated_by_passes(weights, batches, settings, n_tgt_tokens):
            for i, batch in enumerate(batches, start=1):
                last = reduction.during_backward() if reduction and i == len(batches) else nullcontext()
                with last:
                    _accumulate(weights, batch, settings, n_tgt_tokens)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        exhausted = str(error).partition("\n")[0] or "MemoryError"
    if exhausted is None:
        return
    # Here, since the first error's traceback keeps the tensors of the pass alive.
    weights.zero_sums()
    passes = weights.passes(settings)
    if passes is None or not passes.halve():
        raise OutOfMemory(exhausted)
    log.warning("Memory ran out; training continues with passes of %s tokens.", f"{passes.n_tokens:,}")
    accumulate_gradients(weights, batches, settings, n_tgt_tokens=n_tgt_tokens, reduction=reduction)


def _accumulated_by_passes(
    weights: MasterWeights, batches: list[Batch], settings: TrainingSettings, n_tgt_tokens: int
) -> bool:
    """Whether the backend has passes of its own, which then have added all losses and gradients."""
    if (passes := weights.passes(settings)) is None:
        return False
    try:
        if batches:
            passes.run(batches, scale=1 / n_tgt_tokens)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        weights.give_up_passes(error)  # passes of another shape may be prepared late
        return False
    return True


def _accumulate(weights: MasterWeights, batch: Batch, settings: TrainingSettings, n_tgt_tokens: int) -> None:
    loss, nll = micro_batch_loss(weights.model, batch, settings)
    (loss / n_tgt_tokens).backward()
    weights.collect_gradients()
    weights.sums.loss.add_(loss.detach())
    weights.sums.nll.add_(nll)
