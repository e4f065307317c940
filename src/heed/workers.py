"""The processes that train one model together: those that torchrun starts, and those that Heed starts on a CPU."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from tempfile import TemporaryFile
from typing import IO, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from heed.config import HeedError

# A worker that `helped` started finds here its rank, how many there are, its threads, and where the first one waits.
HELPER = "HEED_HELPER"
INTERFACE = "GLOO_SOCKET_IFNAME"
LOOPBACK = "lo"
ANOTHER_ENDED = "another worker has ended"
# Who waits a day for another gives up: the first one may prepare for hours, and when one fails all are ended.
PATIENCE = timedelta(days=1)
T = TypeVar("T")


class OtherWorkerEnded(HeedError):
    """A worker cannot go on, since another one is gone."""


@dataclass(frozen=True)
class Workers:
    """The processes that train together, of which this is number `rank`."""

    rank: int = 0
    n: int = 1
    threads_of_all: int | None = None  # where they share one CPU's threads

    @property
    def first(self) -> bool:
        """Whether this one writes and reports for all."""
        return self.rank == 0

    def shares(self, micro_batches: Sequence[NDArray], *, merged: bool = False) -> list[NDArray]:
        """This worker's rows of each micro-batch: every n-th, so that all have some of each length.

        merged: its parts of n micro-batches make one, of about as many tokens as one of them.
        """
        mine = [rows[self.rank :: self.n] for rows in micro_batches]
        if merged:
            mine = [np.concatenate(mine[i : i + self.n]) for i in range(0, len(mine), self.n)]
        return [rows for rows in mine if len(rows)]

    def add_up(self, sums: Tensor) -> None:
        """Replaces every worker's numbers by the sum of all workers'. OtherWorkerEnded if one of them has."""
        if self.n > 1:
            with _others_at_work():
                distributed.all_reduce(sums)

    def any(self, flag: bool) -> bool:
        """Whether any worker says so."""
        if self.n == 1:
            return flag
        flags: list[bool] = [False] * self.n
        with _others_at_work():
            distributed.all_gather_object(flags, flag)
        return any(flags)

    def told(self, value: T) -> T:
        """The first worker's value, which all wait for."""
        if self.n == 1:
            return value
        box = [value]
        with _others_at_work():
            distributed.broadcast_object_list(box)
        return box[0]

    @contextmanager
    def others_wait(self) -> Iterator[None]:
        """What the first one does alone meanwhile, it does on the threads of all."""
        mine = torch.get_num_threads()
        torch.set_num_threads(self.threads_of_all or mine)
        try:
            yield
        finally:
            torch.set_num_threads(mine)


@contextmanager
def _others_at_work() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        first_line = str(error).splitlines()[0]
        raise OtherWorkerEnded(f"{ANOTHER_ENDED}; its own message says why ({first_line}).") from None


def join_workers(device: torch.device) -> Workers:
    """The processes that torchrun or `helped` has started, joined; connected by gloo on CPUs, by NCCL on GPUs."""
    if HELPER in os.environ:
        rank, n, threads, port = map(int, os.environ[HELPER].split())
        torch.set_num_threads(threads)
        with _others_at_work():
            store = distributed.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30))
            store.set_timeout(PATIENCE)
            store.set(f"{rank} is here", "")
            distributed.init_process_group("gloo", store=store, rank=rank, world_size=n, timeout=PATIENCE)
        return Workers(rank, n)
    n = int(os.environ.get("WORLD_SIZE", "1"))
    if n > 1 and not distributed.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(device)
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    return Workers(int(os.environ.get("RANK", "0")), n)


def may_be_helped() -> bool:
    """Whether `helped` may start others: nobody has said how many workers there are, or which cores threads take."""
    said = (HELPER, "WORLD_SIZE", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY")
    return sys.platform == "linux" and not distributed.is_initialized() and not any(map(os.environ.get, said))


@contextmanager
def helped(n: int, arguments: Sequence[str], *, report: Callable[[str], None]) -> Iterator[Workers]:
    """This process and n - 1 others, `heed` with these arguments, joined on a CPU whose threads they share.

    They end with the block, whatever happens in it; HeedError if one has ended before. Where they could not reach each
    other this process stays alone, and says so.
    """
    all_threads = torch.get_num_threads()
    store = _meeting_place(report) if n > 1 else None
    if store is None:
        yield Workers()
        return
    # -P and PYTHONPATH: modules from where this process has them, not from the folder that it happens to be in.
    command = [sys.executable, "-P", "-m", "heed", *arguments]
    modules = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    nothing = subprocess.DEVNULL
    with ExitStack() as at_the_end:
        at_the_end.enter_context(_only_this_machine())
        helpers = []
        for rank in range(1, n):
            messages = at_the_end.enter_context(TemporaryFile())
            told = os.environ | modules | {HELPER: f"{rank} {n} {all_threads // n} {store.port}"}
            helper = subprocess.Popen(command, env=told, stdin=nothing, stdout=nothing, stderr=messages)
            at_the_end.callback(helper.wait)
            at_the_end.callback(helper.kill)
            helpers.append((helper, messages))
        try:
            while not store.check([f"{rank} is here" for rank in range(1, n)]):
                if any(helper.poll() is not None for helper, _ in helpers):
                    raise OtherWorkerEnded
                time.sleep(0.02)
            with _others_at_work():
                distributed.init_process_group("gloo", store=store, rank=0, world_size=n, timeout=PATIENCE)
            at_the_end.callback(distributed.destroy_process_group)
            at_the_end.callback(torch.set_num_threads, all_threads)
            torch.set_num_threads(all_threads // n)
            yield Workers(0, n, threads_of_all=all_threads)
        except OtherWorkerEnded:
            raise HeedError(_why_one_ended(helpers)) from None


@contextmanager
def _only_this_machine() -> Iterator[None]:
    """Within the block gloo connects by loopback."""
    before = os.environ.get(INTERFACE)
    os.environ[INTERFACE] = LOOPBACK
    try:
        yield
    finally:
        os.environ.pop(INTERFACE)
        if before is not None:
            os.environ[INTERFACE] = before


def _meeting_place(report: Callable[[str], None]) -> "distributed.TCPStore | None":
    """Where workers of this machine find each other; None, and a line about it, where that cannot be."""
    try:
        # By itself the store would listen to the whole network.
        with socket.create_server(("127.0.0.1", 0)) as listening:
            host, port = listening.getsockname()
            with socket.create_connection((host, port), timeout=5), listening.accept()[0]:
                pass  # a store that cannot be reached would be tried for minutes
            return distributed.TCPStore(
                host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
            )
    except (OSError, RuntimeError) as error:
        report(f"Workers cannot be connected ({str(error).splitlines()[0]}); this process trains alone.")
        return None


def _why_one_ended(helpers: Sequence[tuple[subprocess.Popen, IO[bytes]]]) -> str:
    """The last words of the first helper that did not end because of another one."""
    for helper, messages in helpers:
        with suppress(subprocess.TimeoutExpired):
            status = helper.wait(timeout=5)
            messages.seek(0)
            lines = messages.read().decode("utf-8", "replace").strip().splitlines()
            if status < 0:
                return f"a worker was ended by signal {-status}; the same command goes on from the last checkpoint."
            if status > 0 and lines and ANOTHER_ENDED not in lines[-1]:
                return f"a worker has ended: {lines[-1].removeprefix('heed: ')}"
    return "the connection to a worker broke; the same command goes on from the last checkpoint."
