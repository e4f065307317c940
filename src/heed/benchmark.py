"""Throughput of training and of search on this machine; of training, its share of what matrix products allow."""

import itertools
import math
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heed.backends.cpu.training_ops import product
from heed.config import validated
from heed.data.batching import TokenBatches
from heed.data.corpus import ParallelCorpus, write_corpus
from heed.decoding.beam import search
from heed.decoding.settings import DecodingSettings
from heed.decoding.stream import Source
from heed.model.cost import Workload, forward_flops, matrix_products, n_parameters, training_flops
from heed.model.inference import prepack
from heed.model.transformer import Architecture, Transformer
from heed.recipe import read_preset
from heed.runtime.device import DecodingPrecision, Machine, choose_machine, micro_batch_tokens
from heed.runtime.memory import keep_freed_memory, memory_of
from heed.text.tokenizer import SpecialIds
from heed.training.distributed import Workers
from heed.training.objective import CPU_CHUNK, GPU_CHUNK
from heed.training.trainer import MasterWeights, TrainingSettings, largest_fitting_batches, make_optimizer, train_step

WINDOWS = 5
SECONDS_A_WINDOW = 3.0
MEAN_LENGTH, LENGTH_DEVIATION = 25, 9  # tokens of a sentence, eos included
SPECIAL = SpecialIds()


@dataclass(frozen=True)
class TrainingSpeed:
    """What `heed bench train` prints. Tokens are real ones: padding is not counted."""

    target_tokens_per_second: float
    source_tokens_per_second: float
    step_seconds: float
    model_flops_per_second: float
    ceiling_flops_per_second: float
    utilization: float
    peak_memory_bytes: int
    dtype: str
    device: str
    parameters: int
    windows: list[float]  # target tokens a second of each

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def preset_shape(
    preset: str, *, vocab_size: int | None, batch_tokens: int | None, precision: str
) -> tuple[Architecture, TrainingSettings, int]:
    """(architecture, training, vocabulary) of a preset, changed by what is given.

    Where no batch is given, one pass of it on a CPU: more passes a step would only take longer.
    """
    tables = read_preset(preset, where="--preset")
    arch = validated(Architecture, tables.get("model", {}), where=f"preset {preset}")
    settings = validated(TrainingSettings, tables.get("training", {}), where=f"preset {preset}")
    tokens = batch_tokens or settings.batch_tgt_tokens
    device = choose_machine().device
    if batch_tokens is None and device.type == "cpu":
        tokens = min(tokens, micro_batch_tokens(device))
    changes = {"batch_src_tokens": tokens, "batch_tgt_tokens": tokens, "precision": precision}
    settings = settings.model_copy(update=changes)
    return arch, settings, vocab_size or int(tables.get("tokenizer", {}).get("vocab_size", 37_000))


def training_speed(
    arch: Architecture,
    settings: TrainingSettings,
    *,
    vocab_size: int,
    device: str | None = None,
    n_windows: int = WINDOWS,
) -> TrainingSpeed:
    """Whole steps on random sentences of 5 to 60 tokens, 25 in the mean; the median of the windows after a warm-up.

    The ceiling is the rate of the model's own matrix products, forward and both backward ones, run by themselves in the
    same shapes and precision.
    """
    keep_freed_memory()
    machine = choose_machine(settings.precision, device=device)
    tokens = max(settings.batch_src_tokens, settings.batch_tgt_tokens)
    torch.manual_seed(settings.seed)
    weights = MasterWeights(Transformer(arch, vocab_size), machine)
    optimizer = make_optimizer(weights.masters, settings)
    with tempfile.TemporaryDirectory() as folder:
        batches = TokenBatches(
            _random_corpus(Path(folder) / "corpus", vocab_size, n_tokens=20 * tokens),
            SPECIAL,
            max_src_tokens=settings.batch_src_tokens,
            max_tgt_tokens=settings.batch_tgt_tokens,
            micro_tokens=min(tokens, settings.micro_batch_tokens or micro_batch_tokens(machine.device)),
            seed=1,
        )
        batches = largest_fitting_batches(weights, optimizer, batches, machine, Workers())
        steps = _Steps(batches, weights, optimizer, settings, machine)
        if machine.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(machine.device)
            steps.run(len(batches.plan(0)))  # every shape once, for which memory and kernels are got ready
        n_steps = 1
        if steps.run(1).seconds < SECONDS_A_WINDOW:
            n_steps = max(1, round(SECONDS_A_WINDOW / steps.run(2).seconds * 2))
            steps.run(n_steps)
        windows = [steps.run(n_steps) for _ in range(n_windows)]
        # Two sides of one micro-batch as they are in the mean, for the shapes of the ceiling.
        n_passes = sum(window.n_passes for window in windows)
        n_src = sum(window.n_src for window in windows) // n_passes
        n_tgt = sum(window.n_tgt for window in windows) // n_passes
    peak = _peak_memory(machine.device)
    speed = statistics.median(window.n_tgt / window.seconds for window in windows)
    # The ceiling knows products with weights only: attention's pairs and Adam are left out on both sides.
    work = Workload(sum(window.n_src for window in windows), sum(window.n_tgt for window in windows))
    flops = 3 * forward_flops(arch, vocab_size, work)
    flops_a_token = flops / work.n_tgt
    ceiling = _matrix_product_ceiling(arch, vocab_size, machine, n_src=n_src, n_tgt=n_tgt)
    return TrainingSpeed(
        target_tokens_per_second=speed,
        source_tokens_per_second=speed * n_src / n_tgt,
        step_seconds=statistics.median(window.seconds / n_steps for window in windows),
        model_flops_per_second=speed * flops_a_token,
        ceiling_flops_per_second=ceiling,
        utilization=speed * flops_a_token / ceiling,
        peak_memory_bytes=peak,
        dtype=machine.precision,
        device=str(machine.device),
        parameters=n_parameters(arch, vocab_size),
        windows=[window.n_tgt / window.seconds for window in windows],
    )


@dataclass(frozen=True)
class _Window:
    seconds: float
    n_src: int
    n_tgt: int
    n_passes: int


class _Steps:
    """Training steps, one after the other, over a corpus without end."""

    def __init__(
        self,
        batches: TokenBatches,
        weights: MasterWeights,
        optimizer: torch.optim.Adam,
        settings: TrainingSettings,
        machine: Machine,
    ):
        self._batches, self._weights, self._optimizer = batches, weights, optimizer
        self._settings, self._machine = settings, machine
        self._plans = itertools.chain.from_iterable(batches.plan(epoch) for epoch in itertools.count())

    def run(self, n_steps: int) -> _Window:
        """Collating, passes, update: everything that a step of `heed train` does."""
        n_src = n_tgt = n_passes = 0
        self._wait()
        started = time.perf_counter()
        for rows in itertools.islice(self._plans, n_steps):
            collated = [self._batches.collate(part) for part in rows]
            train_step(self._weights, self._optimizer, collated, self._settings, self._machine, Workers(), rate=1e-5)
            n_src += sum(int(batch.src_mask.sum()) for batch in collated)
            n_tgt += sum(batch.n_tgt_tokens for batch in collated)
            n_passes += len(collated)
        self._wait()
        return _Window(time.perf_counter() - started, n_src, n_tgt, n_passes)

    def _wait(self) -> None:
        if self._machine.device.type == "cuda":
            torch.cuda.synchronize(self._machine.device)


@dataclass(frozen=True)
class Forecast:
    """What a run will take on this machine, from some steps on random sentences of 25 tokens in the mean."""

    parameters: int
    n_steps: int
    step_seconds: float
    hours: float
    target_tokens_per_second: float
    peak_memory_bytes: int
    memory_bytes: int  # that the device has
    flops: float
    dtype: str
    device: str

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def forecast(arch: Architecture, settings: TrainingSettings, *, vocab_size: int, n_pairs: int | None) -> Forecast:
    """Takes steps of the run's own size. n_pairs: of the corpus, where `max_epochs` is the limit."""
    # A step of the big model takes minutes on a laptop: one window tells enough.
    speed = training_speed(arch, settings, vocab_size=vocab_size, n_windows=1)
    tokens_a_step = speed.target_tokens_per_second * speed.step_seconds
    n_steps = settings.max_steps
    if settings.max_epochs is not None and n_pairs is not None:
        n_steps = min(n_steps, math.ceil(settings.max_epochs * n_pairs * MEAN_LENGTH / tokens_a_step))
    if settings.max_minutes is not None:
        n_steps = min(n_steps, math.ceil(settings.max_minutes * 60 / speed.step_seconds))
    n_src, n_tgt = (
        round(rate * speed.step_seconds * n_steps)
        for rate in (speed.source_tokens_per_second, speed.target_tokens_per_second)
    )
    keys = MEAN_LENGTH + LENGTH_DEVIATION**2 / MEAN_LENGTH  # that a token meets: its sentence's length, in the mean
    work = Workload(n_src, n_tgt, *(round(n * keys) for n in (n_src, n_tgt, n_tgt)))
    return Forecast(
        speed.parameters,
        n_steps,
        speed.step_seconds,
        n_steps * speed.step_seconds / 3600,
        speed.target_tokens_per_second,
        speed.peak_memory_bytes,
        memory_of(choose_machine(settings.precision)),
        training_flops(arch, vocab_size, work, n_steps=n_steps),
        speed.dtype,
        speed.device,
    )


def _random_corpus(folder: Path, vocab_size: int, *, n_tokens: int) -> ParallelCorpus:
    draw = np.random.default_rng(1)
    n_pairs = max(100, n_tokens // MEAN_LENGTH)
    src_lengths = np.clip(draw.normal(MEAN_LENGTH - 1, LENGTH_DEVIATION, n_pairs), 4, 59).astype(int)
    tgt_lengths = np.clip(src_lengths + draw.normal(0, 2, n_pairs), 4, 59).astype(int)

    def pairs() -> Iterator[tuple[list[int], list[int]]]:
        for lengths in zip(src_lengths, tgt_lengths, strict=True):
            src, tgt = (draw.integers(3, vocab_size, length).tolist() for length in lengths)
            yield src, tgt

    return write_corpus(folder, pairs(), vocab_size=vocab_size)


def _matrix_product_ceiling(arch: Architecture, vocab_size: int, machine: Machine, *, n_src: int, n_tgt: int) -> float:
    """Operations a second of the products of one pass, each timed by itself, the best of several times."""
    chunk = CPU_CHUNK if machine.device.type == "cpu" else GPU_CHUNK
    total_flops = total_seconds = 0.0
    for n_rows, n_in, n_out, count in matrix_products(arch, vocab_size, n_src=n_src, n_tgt=n_tgt, chunk=chunk):
        x, weight, dy = (
            torch.randn(*shape, device=machine.device).to(machine.dtype)
            for shape in ((n_rows, n_in), (n_out, n_in), (n_rows, n_out))
        )
        y, dx, dw = x @ weight.T, dy @ weight, dy.T @ x
        seconds = _seconds(x, weight.T, y) + _seconds(dy, weight, dx) + _seconds(dy.T, x, dw)
        total_seconds += count * seconds
        total_flops += count * 6.0 * n_rows * n_in * n_out
    return total_flops / total_seconds


def _seconds(a: Tensor, b: Tensor, out: Tensor) -> float:
    best, n = float("inf"), 20 if a.is_cuda else 1  # a GPU takes a small one faster than it is asked for one
    for _ in range(7):
        if a.is_cuda:
            torch.cuda.synchronize(a.device)
        started = time.perf_counter()
        for _ in range(n):
            product(a, b, out=out)
        if a.is_cuda:
            torch.cuda.synchronize(a.device)
        best = min(best, (time.perf_counter() - started) / n)
    return best


def _peak_memory(device: torch.device) -> int:
    """Bytes: of the GPU's tensors, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True)
class DecodingSpeed:
    """What `heed bench decode` prints. Tokens are those of the best hypotheses; latency is from read to found."""

    target_tokens_per_second: float
    sentences_per_second: float
    latency_ms_p50: float
    latency_ms_p95: float
    dtype: str
    device: str
    beam: int
    batch: int
    peak_memory_bytes: int
    windows: list[float]  # target tokens a second of each batch

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def decoding_speed(
    preset: str,
    *,
    beam: int,
    batch: int,
    src_length: int,
    tgt_length: int,
    vocab_size: int | None = None,
    precision: DecodingPrecision = "fp32",
    device: str | None = None,
    seconds: float = 15.0,
) -> DecodingSpeed:
    """Batches of random sources of one length, every output forced to one length, with random weights."""
    tables = read_preset(preset, where="--preset")
    arch = validated(Architecture, tables.get("model", {}), where=f"preset {preset}")
    vocab_size = vocab_size or int(tables.get("tokenizer", {}).get("vocab_size", 37_000))
    keep_freed_memory()
    machine = choose_machine("fp32", device=device)
    torch.manual_seed(1)
    model = prepack(Transformer(arch, vocab_size).to(machine.device), precision)
    settings = DecodingSettings(
        beam_size=beam, max_extra_tokens=tgt_length, max_tokens=tgt_length, min_tokens=tgt_length
    )
    draw = np.random.default_rng(1)
    started = time.perf_counter()
    read: dict[int, float] = {}
    ends, latencies = [started], []

    def sources() -> Iterator[Source]:
        for number in itertools.count():
            if len(ends) >= 5 and time.perf_counter() - started > seconds:
                return
            read[number] = time.perf_counter()
            yield Source(number, draw.integers(3, vocab_size, src_length - 1).tolist())

    for result in search([model], sources(), SPECIAL, settings, n_sentences=batch):
        if result is None:
            continue
        number, (best, *_) = result
        assert len(best.ids) == tgt_length
        latencies.append(time.perf_counter() - read.pop(number))
        if len(latencies) % batch == 0:
            ends.append(time.perf_counter())
    warm = len(latencies) // 5  # the first ones find memory and fill the batch
    windows = [batch * tgt_length / took for took in np.diff(ends)[len(ends) // 5 :]]
    middle = float(np.median(windows))
    return DecodingSpeed(
        target_tokens_per_second=middle,
        sentences_per_second=middle / tgt_length,
        latency_ms_p50=float(np.quantile(latencies[warm:], 0.5)) * 1e3,
        latency_ms_p95=float(np.quantile(latencies[warm:], 0.95)) * 1e3,
        dtype=precision,
        device=str(machine.device),
        beam=beam,
        batch=batch,
        peak_memory_bytes=_peak_memory(machine.device),
        windows=windows,
    )
