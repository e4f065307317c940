"""Workers under torchrun find each other in a store that holds what dead ones left, and notice a silent first one."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from heed.training import process_group
from heed.training.process_group import ProcessGroup, _agreed_name

CPU = torch.device("cpu")


def clients(n: int) -> list[Store]:
    """Connections to a store, as that of torchrun's own process; the first one keeps it alive."""
    first = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return [first, *(TCPStore("127.0.0.1", first.port, is_master=False) for _ in range(n))]


@pytest.mark.parametrize("n", [2, 4])
def test_every_restart_agrees_on_a_name_of_its_own(n):
    _, *stores = clients(n)
    names = []
    for late in (*range(n), 0):  # another one comes last each time
        with ThreadPoolExecutor(n) as pool:

            def join(rank: int, late: int = late) -> str:
                time.sleep(0.1 if rank == late else 0.0)
                return _agreed_name(stores[rank], rank=rank, n=n)

            found = set(pool.map(join, range(n)))
        assert len(found) == 1
        names += found
    assert len(set(names)) == len(names)


def test_dead_workers_that_had_not_finished_joining_are_not_counted(monkeypatch):
    _, first, other = clients(2)
    first.set("heed/joining/1", "a worker that was killed")
    with ThreadPoolExecutor(1) as pool:
        agreed = pool.submit(_agreed_name, first, rank=0, n=2)
        with pytest.raises(TimeoutError):
            agreed.result(timeout=0.3)
        assert _agreed_name(other, rank=1, n=2) == agreed.result(timeout=60)
    monkeypatch.setattr(process_group, "JOIN_TIMEOUT", process_group.JOIN_TIMEOUT * 0)
    with pytest.raises(RuntimeError, match="only 1 of 2 workers have joined"):
        _agreed_name(PrefixStore("another", first), rank=0, n=2)


@pytest.mark.slow
def test_a_message_is_awaited_while_the_first_worker_is_alive_and_no_longer(monkeypatch):
    monkeypatch.setattr(process_group, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(process_group, "SILENCE_SECONDS", 2.0)
    _, first, other = clients(2)
    sender, receiver = (ProcessGroup(CPU, store, rank=rank, n=2) for rank, store in enumerate((first, other)))
    first.set("heartbeat/0", "0")
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(receiver.broadcast_bytes, b"")
        for n_sent in range(25):  # longer than it would wait in silence
            time.sleep(0.1)
            first.set("heartbeat/0", str(n_sent))
        sender.broadcast_bytes(b"the first message")
        assert received.result(timeout=60) == b"the first message"
        sender.broadcast_bytes(b"the second one")
        assert receiver.broadcast_bytes(b"") == b"the second one"
        with pytest.raises(RuntimeError, match="nothing was heard of the first worker"):
            receiver.broadcast_bytes(b"")
