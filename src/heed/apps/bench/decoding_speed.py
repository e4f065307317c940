"""Beam search throughput and latency on this machine."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from heed.apps.bench.inputs import FIRST_WORD, SPECIAL, shape_of
from heed.apps.bench.training_speed import peak_memory
from heed.config import validated
from heed.decoding.beam import SearchPlan, search
from heed.decoding.loading import choose_precision, no_report, prepack_models
from heed.decoding.settings import DecodingSettings
from heed.decoding.source_queue import SearchMemory, Source, max_live_tokens
from heed.errors import HeedError
from heed.model.transformer import Transformer
from heed.runs.recipe import read_preset
from heed.runtime.device import DecodingPrecisionChoice, choose_machine

MIN_BATCHES = 4  # at least, however long they take
WARM_UP = 1 / 5  # of all measurements: the first ones allocate memory and fill the batch


@dataclass(frozen=True)
class DecodingSpeed:
    """The result of `heed bench decode`. Only tokens of the best hypotheses count; latency: from reading to result."""

    target_tokens_per_second: float
    sentences_per_second: float
    latency_ms_p50: float
    latency_ms_p95: float
    dtype: str
    device: str
    beam: int
    batch: int
    peak_memory_bytes: int
    windows: list[float]  # target tokens per second of each batch


def decoding_speed(
    preset: str,
    *,
    beam: int,
    batch: int,
    src_length: int,
    tgt_length: int,
    vocab_size: int | None = None,
    precision: DecodingPrecisionChoice = "auto",
    device: str | None = None,
    seconds: float = 15.0,
) -> DecodingSpeed:
    """Searches with random weights, random sources of `src_length` tokens and every output forced to `tgt_length`.

    HeedError if the batch is more than a search holds at a time.
    """
    # Every output has the same length, so that a number of tokens is known before the search.
    lengths = dict.fromkeys(("max_extra_tokens", "max_tokens", "min_tokens"), tgt_length)
    settings = validated(DecodingSettings, {"beam_size": beam, **lengths}, where="heed bench decode")
    arch, vocab_size = shape_of(read_preset(preset, where="--preset"), preset=preset, vocab_size=vocab_size)
    machine = choose_machine("fp32", device=device)
    if batch * tgt_length > (most := max_live_tokens(str(machine.device))):
        raise HeedError(
            f"--batch {batch}, --tgt-len {tgt_length}: a search holds {most:,} tokens of outputs at a time; lower one "
            "of them."
        )
    # Random weights: speed does not depend on what they are.
    torch.manual_seed(1)
    model = Transformer(arch, vocab_size).eval().to(machine.device)
    computed = choose_precision(model, precision, device_name=str(machine.device), report=no_report)
    (ready,) = prepack_models(model, computed, copy=False)
    memory = SearchMemory([ready], settings, sampling=None)
    most = max(1, min(memory.max_sentences(batch), memory.max_tokens() // tgt_length))
    if most < batch:
        raise HeedError(
            f"--batch {batch}: a search with --beam {beam} and --tgt-len {tgt_length} holds {most} sentences at a "
            "time; lower one of the three."
        )
    # A stream that never runs dry, so that the batch stays full.
    stopwatch = _Stopwatch(batch=batch, seconds=seconds)
    plan = SearchPlan([ready], SPECIAL, settings, n_sentences=batch)
    for result in search(plan, stopwatch.sources(src_length, vocab_size)):
        if result is None:  # nothing has finished
            continue
        number, (best, *_) = result
        assert len(best.ids) == tgt_length
        stopwatch.finish(number)
    windows = [batch * tgt_length / took for took in stopwatch.batch_seconds()]
    latencies = stopwatch.latencies()
    speed = float(np.median(windows))
    return DecodingSpeed(
        target_tokens_per_second=speed,
        sentences_per_second=speed / tgt_length,
        latency_ms_p50=float(np.quantile(latencies, 0.5)) * 1e3,
        latency_ms_p95=float(np.quantile(latencies, 0.95)) * 1e3,
        dtype=computed,
        device=str(machine.device),
        beam=beam,
        batch=batch,
        peak_memory_bytes=peak_memory(machine.device),
        windows=windows,
    )


class _Stopwatch:
    """Hands out random sources until time is up, and records when each was read and finished."""

    def __init__(self, *, batch: int, seconds: float):
        self._batch, self._seconds = batch, seconds
        self._read: dict[int, float] = {}
        self._latencies: list[float] = []
        self._batch_ends = [time.perf_counter()]

    def sources(self, length: int, vocab_size: int) -> Iterator[Source]:
        """Sources of `length` tokens, eos included."""
        draw = np.random.default_rng(1)
        for number in itertools.count():
            now = time.perf_counter()
            if len(self._batch_ends) > MIN_BATCHES and now - self._batch_ends[0] > self._seconds:
                return
            self._read[number] = now
            yield Source(number, draw.integers(FIRST_WORD, vocab_size, length - 1).tolist())

    def finish(self, number: int) -> None:
        self._latencies.append(time.perf_counter() - self._read.pop(number))
        if len(self._latencies) % self._batch == 0:
            self._batch_ends.append(time.perf_counter())

    def batch_seconds(self) -> list[float]:
        """Seconds from the end of one batch to the next, after the warm-up."""
        seconds: list[float] = np.diff(self._batch_ends)[int(len(self._batch_ends) * WARM_UP) :].tolist()
        return seconds

    def latencies(self) -> list[float]:
        """Seconds per sentence, after the warm-up."""
        return self._latencies[int(len(self._latencies) * WARM_UP) :]
