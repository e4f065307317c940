"""The largest micro-batches that memory holds, found by trying them before the first step."""

from dataclasses import dataclass

import torch

from heed.backends.choice import backend_for
from heed.data.batching import Batches
from heed.errors import HeedError, is_out_of_memory
from heed.runtime.device import Machine
from heed.runtime.memory import free_memory, peak_memory, reset_peak_memory
from heed.training.distributed import Workers
from heed.training.settings import TrainingSettings
from heed.training.step import MasterWeights, micro_batch_loss


@dataclass(frozen=True)
class MemoryProbe:
    """Tries passes of a run. The gradients are zero afterwards, and no weight has changed."""

    weights: MasterWeights
    optimizer: torch.optim.Adam
    machine: Machine
    workers: Workers
    settings: TrainingSettings

    def largest_fitting(self, batches: Batches) -> Batches:
        """The batches, their micro-batches halved until every worker's memory holds the largest of them.

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

    def fits(self, batches: Batches) -> bool:
        """Whether every worker can run forward and backward over the heaviest micro-batches."""
        fits = torch.ones(1, device=self.machine.device)
        try:
            self._try_heaviest(batches)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            fits.zero_()
        self.weights.zero_sums()
        if self.machine.device.type == "cuda":
            torch.cuda.empty_cache()
        self.workers.all_reduce_(fits)
        return int(fits) == self.workers.n

    def _try_heaviest(self, batches: Batches) -> None:
        """Runs forward and backward over the heaviest micro-batches; an out-of-memory error if they do not fit.

        A GPU reports that its memory is full. A CPU's system would kill the process instead: there a quarter of the
        rows goes first, and all of them only if four times the memory that the quarter took is free.
        """
        on_cpu = self.machine.device.type == "cpu"
        heaviest = batches.heaviest()
        if backend_for(self.weights.model).computes_padding:  # else a pass merges a worker's parts: see _Loop
            heaviest = self.workers.shard(heaviest)
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
                batch = batches.collate(part).to(self.machine.device)
                loss, _ = micro_batch_loss(self.weights.model, batch, self.settings)
                loss.backward()
                self.weights.collect_gradients()
        moments.clear()
