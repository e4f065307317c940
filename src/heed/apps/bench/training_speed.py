"""Training throughput on this machine, and its share of what the model's matrix products allow."""

import itertools
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from heed.apps.bench.inputs import MAX_LENGTH, SPECIAL, random_corpus, shape_of
from heed.backends.dispatch import backend_for
from heed.backends.training_protocol import Backend, TrainingOps
from heed.config import validated
from heed.data.batches.token_batches import BatchLimits, TokenBatches
from heed.model.architecture import Architecture
from heed.model.cost import Workload, forward_flops, matrix_products, n_parameters
from heed.model.transformer import Transformer
from heed.runs.recipe import read_preset
from heed.runtime.device import Machine, choose_machine, micro_batch_tokens
from heed.training.distributed import ALONE, Workers
from heed.training.loss import CPU_CHUNK, GPU_CHUNK
from heed.training.memory_probe import MemoryProbe
from heed.training.optimizer import Adam
from heed.training.settings import TrainingSettings
from heed.training.step import MasterWeights, sharing_of, train_step
from heed.training.step_size import StepSize, step_size

N_WINDOWS = 5
WINDOW_SECONDS = 3.0
LEARNING_RATE = 1e-5  # of every step: small, so that random targets do no harm


@dataclass(frozen=True)
class TrainingSpeed:
    """The result of `heed bench train`. Only real tokens count, not padding."""

    target_tokens_per_second: float
    source_tokens_per_second: float
    step_seconds: float
    model_flops_per_second: float
    ceiling_flops_per_second: float
    utilization: float
    peak_memory_bytes: int
    workers: int
    dtype: str
    device: str
    parameters: int
    windows: list[float]  # target tokens per second of each window
    step_size: StepSize


def preset_shape(
    preset: str,
    *,
    vocab_size: int | None,
    batch_tokens: int | None,
    precision: str,
    consistency: float | None = None,
    n_workers: int = 1,
    device: str | None = None,
    on_gpu: bool = False,
) -> tuple[Architecture, TrainingSettings, int]:
    """Returns a preset's architecture, training settings and vocabulary size, changed by the given values.

    Without `batch_tokens`, a step on a CPU is at most one micro-batch a worker: more of them would only take longer.
    on_gpu: as on a GPU, whatever this machine has.
    """
    tables = read_preset(preset, where="--preset")
    arch, vocab_size = shape_of(tables, preset=preset, vocab_size=vocab_size)
    training = tables.get("training", {}) | ({} if consistency is None else {"consistency": consistency})
    settings = validated(TrainingSettings, training, where=f"preset {preset}")
    tokens = batch_tokens or settings.batch_tgt_tokens
    if batch_tokens is None and not on_gpu and (chosen := choose_machine(device=device).device).type == "cpu":
        tokens = min(tokens, n_workers * micro_batch_tokens(chosen))
    changes = {"batch_src_tokens": tokens, "batch_tgt_tokens": tokens, "precision": precision}
    return arch, settings.model_copy(update=changes), vocab_size


def training_speed(
    arch: Architecture,
    settings: TrainingSettings,
    *,
    vocab_size: int,
    device: str | None = None,
    n_windows: int = N_WINDOWS,
    workers: Workers = ALONE,
) -> TrainingSpeed:
    """Runs whole steps on random sentences and returns the median speed over `n_windows` windows after a warm-up.

    workers: those that train together, of which this process is the first; the others call `join_training_speed`.
    """
    # The warm-up also tells how many steps fill a window.
    machine = choose_machine(settings.precision, device=device)
    with training_loop(arch, settings, vocab_size, machine, workers=workers) as loop:
        n_steps = loop.warm_up()
        windows = [loop.run(n_steps) for _ in range(n_windows)]
        loop.end()
        backend, size = loop.backend, loop.step_size()
    peak = peak_memory(machine.device)  # before the ceiling takes memory of its own

    # The ceiling multiplies matrices of a mean micro-batch's size, on all threads.
    n_src, n_tgt, n_micro_batches = (
        sum(getattr(window, name) for window in windows) for name in ("n_src", "n_tgt", "n_micro_batches")
    )
    work = Workload(n_src, n_tgt).times(settings.n_passes)
    with workers.all_threads():
        per_batch = {"n_src": work.n_src // n_micro_batches, "n_tgt": work.n_tgt // n_micro_batches}
        ceiling = _matrix_product_ceiling(arch, vocab_size, machine, backend, **per_batch)

    # The median, so that a window which another process disturbed does not count.
    speed = statistics.median(window.n_tgt / window.seconds for window in windows)
    # The ceiling knows only products with weights, so attention's products and Adam are left out here too.
    flops_per_token = 3 * forward_flops(arch, vocab_size, work) / n_tgt
    return TrainingSpeed(
        target_tokens_per_second=speed,
        source_tokens_per_second=speed * n_src / n_tgt,
        step_seconds=statistics.median(window.seconds / n_steps for window in windows),
        model_flops_per_second=speed * flops_per_token,
        ceiling_flops_per_second=ceiling,
        utilization=speed * flops_per_token / ceiling,
        peak_memory_bytes=peak,
        workers=workers.n,
        dtype=machine.precision,
        device=str(machine.device),
        parameters=n_parameters(arch, vocab_size),
        windows=[window.n_tgt / window.seconds for window in windows],
        step_size=size,
    )


def join_training_speed(
    arch: Architecture, settings: TrainingSettings, *, vocab_size: int, device: str | None, workers: Workers
) -> None:
    """Runs the same steps as the first worker, until it ends."""
    machine = choose_machine(settings.precision, device=device)
    with training_loop(arch, settings, vocab_size, machine, workers=workers) as loop:
        loop.follow()


@contextmanager
def training_loop(
    arch: Architecture, settings: TrainingSettings, vocab_size: int, machine: Machine, *, workers: Workers
) -> Iterator["TrainingLoop"]:
    """Steps on random sentences, of this process and the workers that train with it."""
    torch.manual_seed(settings.seed)
    with tempfile.TemporaryDirectory() as folder:
        yield TrainingLoop(arch, settings, vocab_size, machine, workers=workers, corpus=Path(folder) / "corpus")


@dataclass(frozen=True)
class _Window:
    seconds: float
    n_src: int
    n_tgt: int
    n_micro_batches: int


class TrainingLoop:
    """A model that is trained on random sentences, epoch after epoch. The corpus must outlive it."""

    def __init__(
        self,
        arch: Architecture,
        settings: TrainingSettings,
        vocab_size: int,
        machine: Machine,
        *,
        workers: Workers,
        corpus: Path,
    ):
        self._settings, self._machine, self._workers = settings, machine, workers
        self._weights = MasterWeights(Transformer(arch, vocab_size), machine)
        self._optimizer = Adam(self._weights.masters.parameters(), settings)
        tokens = max(settings.batch_src_tokens, settings.batch_tgt_tokens)
        longest = arch.max_positions if arch.positions == "learned" else MAX_LENGTH
        micro_tokens = min(tokens, settings.micro_tokens(micro_batch_tokens(machine.device)))
        batches = TokenBatches(
            random_corpus(corpus, vocab_size, n_tokens=20 * tokens, longest=longest),
            SPECIAL,
            BatchLimits(settings.batch_src_tokens, settings.batch_tgt_tokens, micro_tokens, seed=1),
        )
        probe = MemoryProbe(self._weights, self._optimizer, machine, workers, settings)
        self._batches = probe.largest_fitting(batches)
        self._plans = itertools.chain.from_iterable(self._batches.plan(epoch) for epoch in itertools.count())

    @property
    def n_batches(self) -> int:
        """Steps of an epoch."""
        return len(self._batches.plan(0))

    def warm_up(self) -> int:
        """Runs some steps and returns how many fill a window of WINDOW_SECONDS."""
        if self._machine.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._machine.device)
            self.run(self.n_batches)  # every shape once: each allocates memory and chooses kernels
        if self.run(1).seconds >= WINDOW_SECONDS:
            return 1
        n_steps = max(1, round(WINDOW_SECONDS / self.run(2).seconds * 2))
        self.run(n_steps)
        return n_steps

    def run(self, n_steps: int) -> _Window:
        """Runs some steps, in all workers."""
        return self._run(self._workers.broadcast(n_steps))

    def follow(self) -> None:
        """Runs as many steps as the first worker does, until it ends."""
        while n_steps := self._workers.broadcast(0):
            self._run(n_steps)

    @property
    def backend(self) -> Backend:
        """The backend that runs its network."""
        return backend_for(self._weights.model)

    def step_size(self) -> StepSize:
        """Its steps' tokens and computed rows."""
        return step_size(self._batches, self._batches.plan(0), self._weights, self._settings)

    def end(self) -> None:
        """Lets the other workers end."""
        self._workers.broadcast(0)

    def _run(self, n_steps: int) -> _Window:
        """Collates, computes gradients and updates: everything that a step of `heed train` does."""
        n_src = n_tgt = n_micro_batches = 0
        _synchronize(self._machine.device)
        started = time.perf_counter()
        padded = self._weights.computes_padding(self._settings)
        for step in itertools.islice(self._plans, n_steps):
            passes = self._batches.passes(step, padded=padded)
            shard = self._workers.shard(passes, sharing_of(self._weights.model))
            work = self._batches.workload(step)
            train_step(
                self._weights,
                self._optimizer,
                [self._batches.collate(part) for part in shard],
                self._settings,
                workers=self._workers,
                rate=LEARNING_RATE,
                n_tgt_tokens=work.n_tgt,
            )
            n_src += work.n_src
            n_tgt += work.n_tgt
            n_micro_batches += len(passes)
        _synchronize(self._machine.device)
        return _Window(time.perf_counter() - started, n_src, n_tgt, n_micro_batches)


def _matrix_product_ceiling(
    arch: Architecture, vocab_size: int, machine: Machine, backend: TrainingOps, *, n_src: int, n_tgt: int
) -> float:
    """FLOP/s of the model's matrix products, forward and both backward ones, each timed alone in the training dtype.

    n_src, n_tgt: tokens of a micro-batch.
    """
    chunk = CPU_CHUNK if machine.device.type == "cpu" else GPU_CHUNK
    total_flops = total_seconds = 0.0
    for n_rows, n_in, n_out, count in matrix_products(arch, vocab_size, n_src=n_src, n_tgt=n_tgt, chunk=chunk):
        x, weight, dy = (
            torch.randn(*shape, device=machine.device).to(machine.dtype)
            for shape in ((n_rows, n_in), (n_out, n_in), (n_rows, n_out))
        )
        y, dx, dw = x @ weight.T, dy @ weight, dy.T @ x
        factors = ((x, weight.T, y), (dy, weight, dx), (dy.T, x, dw))
        seconds = sum(_product_seconds(backend, *three) for three in factors)
        total_seconds += count * seconds
        total_flops += count * 6.0 * n_rows * n_in * n_out
    return total_flops / total_seconds


def _product_seconds(backend: TrainingOps, a: Tensor, b: Tensor, out: Tensor) -> float:
    """The best of seven measurements."""
    # A GPU computes a small product faster than one can be launched and waited for, so it is given 20 at a time.
    best, n = float("inf"), 20 if a.is_cuda else 1
    for _ in range(7):
        _synchronize(a.device)
        started = time.perf_counter()
        for _ in range(n):
            backend.product(a, b, out=out)
        _synchronize(a.device)
        best = min(best, (time.perf_counter() - started) / n)
    return best


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> int:
    """Peak bytes: of the GPU's tensors, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts in bytes, Linux in KiB
