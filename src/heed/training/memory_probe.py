"""The largest micro-batches that memory holds, found by trying them before the first step."""

import gc
from dataclasses import dataclass

import torch

from heed.backends.training_protocol import TrainingPasses
from heed.data.batches.batch import Batch, Rows
from heed.data.batches.token_batches import TokenBatches
from heed.errors import HeedError, is_out_of_memory
from heed.runtime.device import Machine
from heed.runtime.memory import free_memory, peak_memory, reset_peak_memory
from heed.training.distributed import Workers
from heed.training.optimizer import Adam
from heed.training.settings import TrainingSettings
from heed.training.step import MasterWeights, micro_batch_loss, sharing_of

# Sentences on which a backend's passes are compared with the plain network, and the largest difference of both
# gradients relative to their norm: rounding to bf16 makes 0.01 of it, attention that sees the future 0.5 or more.
N_COMPARED, MAX_DIFFERENCE = 32, 0.1


@dataclass(frozen=True)
class MemoryProbe:
    """Tries passes of a run. The gradients are zero afterwards, and no weight has changed."""

    weights: MasterWeights
    optimizer: Adam
    machine: Machine
    workers: Workers
    settings: TrainingSettings

    def largest_fitting(self, batches: TokenBatches) -> TokenBatches:
        """The batches, their passes halved until every worker's memory holds the largest of them.

        HeedError if not even one pair fits.
        """
        while not self.fits(batches):
            if batches.micro_tokens <= batches.longest:
                raise HeedError(
                    f"not even one pair of {batches.longest:,} tokens fits into memory: lower data.max_tokens, or take "
                    "a smaller model."
                )
            batches = batches.with_micro_tokens(max(batches.micro_tokens // 2, batches.longest))
        return batches

    def fits(self, batches: TokenBatches) -> bool:
        """Whether every worker can run forward and backward over the heaviest micro-batches."""
        fits = True
        try:
            self._try_heaviest(batches)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        self.weights.zero_sums()
        if self.machine.device.type == "cuda":
            if not fits:
                gc.collect()  # the error's traceback may hold tensors in a cycle
            torch.cuda.empty_cache()
        return not self.workers.any(not fits)

    def _try_heaviest(self, batches: TokenBatches) -> None:
        """Runs forward and backward over the heaviest micro-batches; an out-of-memory error if they do not fit.

        A GPU reports that its memory is full. A CPU's system would kill the process instead: there a quarter of the
        rows goes first, and all of them only if four times the memory that the quarter took is free.
        """
        on_cpu = self.machine.device.type == "cpu"
        self.weights.model.train()  # a validation may have come before
        if (passes := self.weights.passes(self.settings)) is not None:
            # Workers share each micro-batch if there are fewer of these: none has its padding computed by all.
            n_sharing = max(1, self.workers.n // batches.n_passes)
            n_tokens = batches.pass_tokens // n_sharing + (n_sharing > 1) * batches.longest
            passes.reserve(n_tokens, batches.longest)
        heaviest = batches.heaviest(padded=self.weights.computes_padding(self.settings))
        sharing = sharing_of(self.weights.model)
        if sharing == "rows":
            heaviest = self.workers.shard(heaviest)
        elif sharing == "whole" and batches.n_passes < self.workers.n:  # then workers share each of them
            heaviest = [part for rows in heaviest for part in self.workers.shard([rows])]
        if heaviest:
            self._check_passes(batches.collate(heaviest[0][:N_COMPARED]))
        moments = []
        if not self.optimizer.state:  # the first step allocates Adam's two moments
            moments = [torch.empty_like(self.weights.sums.buffer) for _ in range(2)]
        for rows in heaviest:
            before = reset_peak_memory() if on_cpu else 0
            parts = [rows[: -(-len(rows) // 4)], rows] if on_cpu else [rows]
            for i, part in enumerate(parts):
                # All workers count as if they shared this machine's memory: on several machines that is too cautious.
                if i == 1 and 4 * self.workers.n * (peak_memory() - before) > free_memory():
                    raise MemoryError
                self._try_pass(part, batches)
        moments.clear()

    def _try_pass(self, rows: Rows, batches: TokenBatches) -> None:
        batch = batches.collate(rows)
        if (passes := self.weights.passes(self.settings)) is not None:
            try:
                passes.run([batch], scale=1.0)
                return
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self.weights.give_up_passes(error)
                self.weights.model.train()
        self._run_plainly(batch, self.settings)

    def _check_passes(self, batch: Batch) -> None:
        """Gives up passes that differ from the plain network, before the moments take memory."""
        if (passes := self.weights.passes(self.settings)) is None:
            return
        try:
            self._compare(passes, batch)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.weights.give_up_passes(error)
        self.weights.model.train()

    def _run_plainly(self, batch: Batch, settings: TrainingSettings) -> None:
        loss, _ = micro_batch_loss(self.weights.model, batch, settings)
        loss.backward()
        self.weights.collect_gradients()

    def _compare(self, passes: TrainingPasses, batch: Batch) -> None:
        """RuntimeError if the passes' gradients differ from the plain network's, all dropout apart, beyond rounding.

        Compared as they are written, which is quick, then compiled and recorded as in training.
        """
        gradients = self.weights.sums.gradients
        self.weights.model.eval()
        self.weights.zero_sums()
        self._run_plainly(batch, self.settings.model_copy(update={"cutoff": 0.0}))
        expected = gradients.clone()
        for run, state in ((passes.run_as_written, ""), (passes.run_once, "compiled or recorded, ")):
            self.weights.zero_sums()
            run([batch], scale=1.0)
            difference = float(torch.linalg.vector_norm(gradients - expected) / torch.linalg.vector_norm(expected))
            if not difference <= MAX_DIFFERENCE:
                raise RuntimeError(f"{state}their gradients differ from the plain network's by {difference:.0%}")
        self.weights.zero_sums()
