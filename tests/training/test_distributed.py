"""What workers send each other arrives, in each the same; and nobody else can send them anything."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import n_examples

from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.training import shared_memory
from heed.training.distributed import OtherWorkerEnded, Sharing, Workers, _anonymous_memory, join_workers
from heed.training.shared_memory import SharedMemory, UnresponsiveWorker

PROJECT = Path(__file__).resolve().parents[2]


@contextmanager
def joined(n: int) -> Iterator[list[Workers]]:
    """n workers by real sockets and memory, though in one process."""
    pairs = [socket.socketpair() for _ in range(n - 1)]
    memory = os.memfd_create("test")
    first = SharedMemory(0, n, [ours for ours, _ in pairs], memory)
    others = [SharedMemory(rank, n, [theirs], memory) for rank, (_, theirs) in enumerate(pairs, start=1)]
    yield [Workers(rank, n, communicator=communicator) for rank, communicator in enumerate([first, *others])]
    os.close(memory)
    for both in pairs:
        for end in both:
            end.close()


@given(n=st.integers(2, 4), sizes=st.lists(st.sampled_from([1, 2, 7, 1000, 100_000]), min_size=1, max_size=8))
@settings(max_examples=n_examples(25))
def test_all_workers_have_the_sum_in_the_order_of_ranks_and_the_first_ones_values(n, sizes):
    numbers = [[torch.randn(size) for size in sizes] for _ in range(n)]

    def rounds(workers: Workers) -> list:
        received: list = []
        for i, mine in enumerate(numbers[workers.rank]):
            total = mine.clone()
            workers.all_reduce_(total)
            received.append(total)
            layer = torch.nn.Linear(1, len(mine))
            with torch.no_grad():
                layer.bias.copy_(mine)
            workers.broadcast_parameters(layer)
            received.append(layer.bias.detach())
            received.append(workers.broadcast({"rank": workers.rank, "loss": float("inf"), "x": 0.1 * i, "y": None}))
            received.append((workers.any(workers.rank == n - 1), workers.any(False)))
            received.append(workers.gather([workers.rank, "é" * (50_000 if i == 0 else 1)]))
        return received

    with joined(n) as workers, ThreadPoolExecutor(n) as pool:
        for rank_of_these, received in enumerate(pool.map(rounds, workers)):
            for i in range(len(sizes)):
                total, bias, value, flags, gathered = received[5 * i : 5 * i + 5]
                expected = numbers[0][i]
                for rank in range(1, n):
                    expected = expected + numbers[rank][i]
                assert torch.equal(total, expected) and torch.equal(bias, numbers[0][i])
                assert value == {"rank": 0, "loss": float("inf"), "x": 0.1 * i, "y": None}
                assert flags == (True, False)
                assert gathered == [[rank, "é" * (50_000 if i == 0 else 1)] for rank in range(n) if rank_of_these == 0]


def test_a_worker_whose_connection_breaks_is_noticed():
    with joined(2) as (first, other):
        other.communicator._channels[0].close()
        with pytest.raises(OtherWorkerEnded, match="another worker has ended"):
            first.all_reduce_(torch.zeros(3))


def test_a_signal_waits_for_what_the_first_worker_does_alone_but_not_for_a_step(monkeypatch):
    """As from a terminal during a long validation: the first worker decides, once it is done."""
    monkeypatch.setattr(shared_memory, "overdue_signal", lambda seconds: signal.SIGINT)
    monkeypatch.setattr(shared_memory, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(shared_memory, "GRACE_SECONDS", 0.05)
    with joined(2) as (first, other), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.broadcast, None)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        first.broadcast("the loss")
        assert waiting.result() == "the loss"
        with pytest.raises(UnresponsiveWorker):
            other.all_reduce_(torch.zeros(3))


@pytest.mark.parametrize("rubbish", ["", "yes", "1 2 1 0 1", "0 2 1 98 99", "1 2 1 -1 -5", f"1 2 1 {2**70} 3"])
def test_rubbish_in_the_variable_of_spawned_workers_is_one_line(monkeypatch, rubbish):
    monkeypatch.setenv("HEED_SPAWNED_WORKER", rubbish)
    with pytest.raises(HeedError, match=r"^HEED_SPAWNED_WORKER is '.*' in the environment, .*: unset it\.$"):
        join_workers(torch.device("cpu"))


def test_a_python_without_memfd_create_shares_memory_all_the_same(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    said: list[str] = []
    memory = _anonymous_memory(said.append)
    assert memory is not None and not said
    os.ftruncate(memory, 4096)
    assert os.fstat(memory).st_size == 4096 and not os.get_inheritable(memory)
    os.close(memory)


def test_nothing_in_heed_unpickles():
    """Collectives of objects unpickle what the other processes send; pickle, shelve and torch.load what a file says."""
    paths = list((PROJECT / "src").rglob("*.py"))
    assert paths
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if path.name == "guarded_weights.py":  # tensors alone, of others' pickles: tests/apps/exchange/test_hostile.py
            assert text.count("pickle.") == text.count("pickle.UnpicklingError")
            load = "torch.load(file, map_location=device, weights_only=True)"
            for allowed in ("import pickle\n", "import pickletools\n", load):
                text = text.replace(allowed, "", 1)
        for name in ("gather_object", "object_list", "import pickle", "shelve", "torch.load(", "allow_pickle=True"):
            assert name not in text, f"{path}: {name}"


INITIAL_WEIGHTS = """
import hashlib, sys, torch
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
ballast = [object() for _ in range(int(sys.argv[1]))]  # other addresses
for share in ("all", "tgt", "none"):
    for positions in ("sinusoid", "learned"):
        for widths in ({}, {"d_k": 5, "d_v": 7}):
            torch.manual_seed(1)
            arch = Architecture(n_layers=2, d_model=16, d_ff=8, n_heads=2, share=share, positions=positions, **widths)
            digest = hashlib.sha256()
            for name, tensor in Transformer(arch, 300).state_dict().items():
                digest.update(name.encode() + tensor.numpy().tobytes())
            print(share, positions, len(widths), digest.hexdigest())
"""


@pytest.mark.slow
def test_the_same_seed_gives_the_same_first_weights_in_every_process(heed):
    cold = subprocess.run([sys.executable, "-c", INITIAL_WEIGHTS, "0"], capture_output=True, text=True, check=True)
    said = {cold.stdout, heed(1009, code=INITIAL_WEIGHTS).stdout}
    assert len(said) == 1 and len(set(said.pop().splitlines())) == 12
    assert {"share", "positions", "d_k", "d_v"} <= set(Architecture.model_fields)  # those that decide about weights


SHARINGS = st.sampled_from(get_args(Sharing))


@given(n_workers=st.integers(1, 5), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=7), sharing=SHARINGS)
def test_workers_share_all_rows_of_a_step(n_workers, sizes, sharing):
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    micro_batches = [np.arange(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    shards = [Workers(rank, n_workers).shard(micro_batches, sharing) for rank in range(n_workers)]
    assert sorted(row for shard in shards for rows in shard for row in rows) == list(range(sum(sizes)))
    n_whole, n_rest = divmod(len(sizes), n_workers)
    most = {"rows": len(sizes), "merged": n_whole + (n_rest > 0), "whole": n_whole + n_rest}
    assert all(len(shard) <= most[sharing] for shard in shards)
    if sharing == "whole":  # none is longer than its micro-batch, and those that can be are whole
        for rank, shard in enumerate(shards):
            for i, rows in enumerate(shard[:n_whole]):
                assert np.array_equal(rows, micro_batches[i * n_workers + rank])


@pytest.mark.parametrize(("n_workers", "n_rows"), [(2, 1), (2, 7), (4, 6), (8, 5)])
def test_workers_have_as_many_rows_over_as_many_micro_batches(n_workers, n_rows):
    micro_batches = list(np.arange(n_workers * n_rows).reshape(n_workers, n_rows))
    for rank in range(n_workers):
        (rows,) = Workers(rank, n_workers).shard(micro_batches, "merged")
        assert len(rows) == n_rows
