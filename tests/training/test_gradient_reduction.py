"""Two processes over gloo, as torchrun starts them: sums in slices during the backward pass, shares, hangs."""

import json
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.commands import Commands
from tests.conftest import SPECIAL
from tests.training.runs import BF16, FP32, copy_corpus, run_training
from torch import Tensor

from heed.backends.protocol import NotFiniteError
from heed.data.batches.token_batches import BatchLimits, TokenBatches
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.runtime.device import Machine
from heed.text.tokenizer_kinds import load_tokenizer
from heed.training import gradient_reduction, process_group, trainer
from heed.training.distributed import ALONE, OtherWorkerEnded, Workers, join_workers
from heed.training.process_group import Deadline
from heed.training.settings import TrainingSettings
from heed.training.step import MasterWeights, accumulate_gradients
from heed.training.validation import batch_nll

PROJECT = Path(__file__).resolve().parents[2]
STEPS = {"max_steps": 20, "report_every": 1, "micro_batch_tokens": 150}
NO_DROPOUT = Architecture(n_layers=2, d_model=32, d_ff=64, n_heads=4, dropout=0.0)


@pytest.fixture
def run_two(commands: Commands, tmp_path: Path) -> Callable[..., list[str]]:
    """Runs two processes that each call this file's function `part`; returns their messages. kernels: HEED_KERNELS."""

    def run(part: str, *, statuses: tuple[int, int] = (0, 0), kernels: str = "00") -> list[str]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
        environment = os.environ | place | {"HEED_DEVICE": "cpu"}
        code = f"import pathlib, sys; from {__name__} import {part}; {part}(pathlib.Path(sys.argv[1]))"
        server = commands.server(environment)
        processes = [
            server.start([str(tmp_path)], cwd=PROJECT, environment=environment | own, code=code)
            for own in ({"RANK": str(rank), "HEED_KERNELS": kernels[rank]} for rank in range(2))
        ]
        try:
            messages = [process.communicate(timeout=300)[1] for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert tuple(process.returncode for process in processes) == statuses, messages
        return messages

    return run


def small_batches(folder: Path) -> TokenBatches:
    """Of four micro-batches."""
    return TokenBatches(copy_corpus(folder, 50, n_pairs=40), SPECIAL, BatchLimits(240, 240, 70, seed=1))


def sums_of(
    machine: Machine, share: str, batches: TokenBatches, workers: Workers, *, overlapping: bool
) -> tuple[Tensor, int]:
    """The step's sums over all workers, and how many slices the backward pass has started."""
    torch.manual_seed(1)
    arch = Architecture(n_layers=2, d_model=16, d_ff=16, n_heads=2, dropout=0.0, share=share, output_bias=True)
    weights = MasterWeights(Transformer(arch, 50), machine)
    reduction = weights.reduction(workers) if overlapping else None
    step = batches.plan(0)[0]
    micro_batches = batches.passes(step, padded=True)
    collated = [batches.collate(rows) for rows in workers.shard(micro_batches, "whole")]
    n_tgt_tokens = batches.workload(step).n_tgt
    accumulate_gradients(weights, collated, TrainingSettings(), n_tgt_tokens=n_tgt_tokens, reduction=reduction)
    if reduction is None:
        workers.all_reduce_(weights.sums.buffer)
        return weights.sums.buffer, 0
    started = len(reduction._waits)
    assert started < len(reduction._slices)
    reduction.finish()
    return weights.sums.buffer, started


def reduce_in_slices(folder: Path) -> None:
    workers = join_workers(FP32.device)
    batches = small_batches(folder / f"corpus{workers.rank}")
    assert len(batches.passes(batches.plan(0)[0], padded=True)) == 4
    for machine in (FP32, BF16):
        for share in ("all", "tgt", "none"):
            for slice_bytes, most_before in ((1, 40), (2000, 4), (2**25, 0)):
                gradient_reduction.SLICE_BYTES = slice_bytes
                summed, started = sums_of(machine, share, batches, workers, overlapping=True)
                assert started >= most_before, (machine, share, slice_bytes, started)
                at_once, _ = sums_of(machine, share, batches, workers, overlapping=False)
                assert torch.equal(summed, at_once)
            alone, _ = sums_of(machine, share, batches, ALONE, overlapping=True)
            torch.testing.assert_close(summed, alone, **({} if machine == FP32 else {"rtol": 0.02, "atol": 1e-3}))


@pytest.mark.slow
def test_gradients_are_summed_to_the_same_bits_in_slices_that_start_during_the_backward_pass(run_two):
    run_two("reduce_in_slices")


def train_with_whole_micro_batches(folder: Path) -> None:
    trainer.sharing_of = lambda model: "whole"  # as on a GPU
    gradient_reduction.SLICE_BYTES = 2000
    train_by_two(folder)


def train_by_two(folder: Path) -> None:
    workers = join_workers(FP32.device)
    run_training(folder, load_tokenizer(folder / "tokenizer"), "two", workers=workers, arch=NO_DROPOUT, **STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "kernels"), [("train_with_whole_micro_batches", "00"), ("train_by_two", "10")])
def test_two_ranks_take_the_same_steps_as_one(tmp_path, number_tokenizer, monkeypatch, run_two, part, kernels):
    """By whole micro-batches, and where one of two machines lacks the kernels, which would divide a step otherwise."""
    monkeypatch.setattr("heed.backends.cpu.search.usable", lambda: False)
    number_tokenizer.save(tmp_path / "tokenizer")
    run_two(part, kernels=kernels)
    run_training(tmp_path, number_tokenizer, "one", arch=NO_DROPOUT, **STEPS)
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    for ours, theirs in zip(one, two, strict=True):
        assert ours["step"] == theirs["step"] and ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)


def share_and_hang(folder: Path) -> None:
    """The second worker hangs in the end; the first one learns it from gloo, it itself from what watches a GPU."""
    process_group.STEP_TIMEOUT = timedelta(seconds=6)
    workers = join_workers(FP32.device)
    batches, model = small_batches(folder / f"corpus{workers.rank}"), Transformer(NO_DROPOUT, 50).eval()
    rows = batches.passes(batches.plan(0)[0], padded=True)

    def nlls(some: list[Any]) -> list[float]:
        return [batch_nll(model, batches.collate(rows)) for rows in some]

    workers.broadcast_parameters(model)
    found = workers.map(nlls, rows[:3])
    assert found == (nlls(rows[:3]) if workers.first else [])

    def faulty(some: list[int], rank: int) -> list[int]:
        if workers.rank == rank:
            raise NotFiniteError
        return some

    for rank in range(2):
        with pytest.raises(NotFiniteError):
            workers.map(partial(faulty, rank=rank), [1, 2, 3])
    assert workers.map(partial(faulty, rank=2), [5, 6, 7]) == ([5, 6, 7] if workers.first else [])

    if workers.first:
        with pytest.raises(OtherWorkerEnded, match=r"have not answered for 0\.1 minutes: one of them hangs"):
            workers.all_reduce_(torch.ones(9))
    workers.broadcast("it has hung")
    workers.gather(None)
    if not workers.first:
        process_group.STEP_TIMEOUT = timedelta(seconds=0.3)
        with Deadline().running():
            time.sleep(60)


@pytest.mark.slow
def test_work_is_shared_and_a_worker_that_does_not_answer_is_reported_in_one_line(run_two):
    first, other = run_two("share_and_hang", statuses=(0, 1))
    assert not first, first
    line = "heed: the other workers have not answered for 0.005 minutes: one of them hangs, or the network between them"
    assert [said.startswith(line) for said in other.splitlines()] == [True], other
