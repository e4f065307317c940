"""The processes that train one model together: those that torchrun starts, and those that Heed starts on a CPU.

Nothing that one worker sends another is ever unpickled. Workers that Heed starts communicate over inherited socket
pairs and anonymous memory, which have no name or port by which another user could reach them. Those of torchrun
(process_group.py) use torch.distributed, which trusts whoever reaches its ports (SECURITY.md).
"""

import ctypes
import functools
import json
import mmap
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from heed.config import shown
from heed.errors import HeedError, Stopped
from heed.runtime.signals import overdue_signal
from heed.training.process_group import ProcessGroup, end_with_torchrun, join_process_group

# Environment variable of a spawned worker: rank, number of workers, threads, descriptors of its socket and the memory.
SPAWNED = "HEED_SPAWNED_WORKER"
ANOTHER_ENDED = "another worker has ended"
MAX_MESSAGE_BYTES = 2**24
POLL_SECONDS = 0.5  # between two checks for signals while a worker waits
GRACE_SECONDS = 8.0  # that a worker waits, once asked to stop, for another to finish its step
T = TypeVar("T")


class OtherWorkerEnded(HeedError):
    """A worker cannot continue, since another one has ended."""


class UnresponsiveWorker(Stopped):
    """A signal asked to stop while another worker hangs: nothing since the last checkpoint is saved."""


class Communicator(Protocol):
    """A worker's collectives. All workers make the same calls, in the same order, with the same shapes."""

    device: torch.device  # where tensors must be

    def all_reduce_(self, x: Tensor) -> None:
        """Replaces x by the sum of all workers' x, the same on each of them."""

    def broadcast_(self, x: Tensor) -> None:
        """Replaces x by the first worker's."""

    def broadcast_bytes(self, message: bytes) -> bytes:
        """The first worker's message."""


@dataclass(frozen=True)
class Workers:
    """The processes that train together, of which this is number `rank`."""

    rank: int = 0
    n: int = 1
    threads_of_all: int | None = None  # where they share one CPU's threads
    communicator: Communicator | None = field(default=None, repr=False)

    @property
    def first(self) -> bool:
        """Whether this worker writes and reports for all."""
        return self.rank == 0

    def shard(self, micro_batches: Sequence[NDArray[Any]], *, merged: bool = False) -> list[NDArray[Any]]:
        """This worker's rows of each micro-batch: every n-th, so that all have some of each length.

        In each of them another worker comes first, so that over n of them all have as many rows.

        merged: its parts of n micro-batches form one, of about as many tokens as one of them.
        """
        parts = [rows[(self.rank - i) % self.n :: self.n] for i, rows in enumerate(micro_batches)]
        if merged:
            parts = [np.concatenate(parts[i : i + self.n]) for i in range(0, len(parts), self.n)]
        return [rows for rows in parts if len(rows)]

    def all_reduce_(self, x: Tensor) -> None:
        """Replaces every worker's numbers by the sum of all workers'. OtherWorkerEnded if one of them has."""
        if self.communicator is not None:
            with _broken_connection_is_an_ended_worker():
                self.communicator.all_reduce_(x)

    def any(self, flag: bool) -> bool:
        """Whether the flag of any worker is set."""
        if self.communicator is None:
            return flag
        flags = torch.full((1,), float(flag), device=self.communicator.device)
        self.all_reduce_(flags)
        return bool(flags > 0)

    def broadcast(self, value: T) -> T:
        """The first worker's value, anything that JSON can write; the others wait for it."""
        if self.communicator is None:
            return value
        with _broken_connection_is_an_ended_worker():
            message = self.communicator.broadcast_bytes(json.dumps(value).encode() if self.first else b"")
        received: T = value if self.first else json.loads(message)
        return received

    @torch.no_grad()
    def broadcast_parameters(self, model: torch.nn.Module) -> None:
        """Gives every worker's model the first one's weights."""
        if self.communicator is not None:
            with _broken_connection_is_an_ended_worker():
                for parameter in model.parameters():
                    self.communicator.broadcast_(parameter.data)

    @contextmanager
    def all_threads(self) -> Iterator[None]:
        """Gives this worker the threads of all while it computes alone and the others wait."""
        own = torch.get_num_threads()
        torch.set_num_threads(self.threads_of_all or own)
        try:
            yield
        finally:
            torch.set_num_threads(own)


@contextmanager
def _broken_connection_is_an_ended_worker() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, OSError) as error:
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        # gloo's begins with a place in its source and ends with advice to its own developers.
        fault = re.sub(r"^\[[^]]*\] ", "", first_line).partition(". ")[0].removesuffix(".")
        raise OtherWorkerEnded(f"{ANOTHER_ENDED}; its own message says why ({fault}).") from None


class SharedMemory:
    """Collectives over anonymous memory, with sockets as barriers.

    channels: the first worker's to each other one, in the order of their ranks; another worker's to the first. The
    memory holds a slot of floats for each worker and one more for results.
    """

    device = torch.device("cpu")

    def __init__(self, rank: int, n: int, channels: Sequence[socket.socket], memory: int):
        self._rank, self._n, self._channels, self._memory = rank, n, channels, memory
        self._slots = torch.empty(n + 1, 0)
        for channel in channels:
            channel.settimeout(POLL_SECONDS)

    def all_reduce_(self, x: Tensor) -> None:
        slots = self._slots_for(x)
        slots[self._rank].copy_(x.flatten())
        self._barrier()
        # Each worker sums a part of the numbers.
        part = slice(*(x.numel() * rank // self._n for rank in (self._rank, self._rank + 1)))
        total = slots[-1][part]
        torch.add(slots[0][part], slots[1][part], out=total)
        for other in slots[2:-1]:
            total += other[part]
        self._barrier()  # until all parts are summed; nobody writes to results before the next barrier
        x.copy_(slots[-1].view_as(x))

    def broadcast_(self, x: Tensor) -> None:
        sent = self._slots_for(x)[0]
        if self._rank == 0:
            sent.copy_(x.flatten())
        self._barrier()
        x.copy_(sent.view_as(x))
        self._barrier()  # until all have read it

    def broadcast_bytes(self, message: bytes) -> bytes:
        if self._rank == 0:
            for channel in self._channels:
                channel.sendall(struct.pack("<I", len(message)) + message)
            return message
        # The first worker may validate or prepare text meanwhile, for as long as that takes; a signal can wait.
        (size,) = struct.unpack("<I", self._receive(self._channels[0], 4, patient=True))
        if size > MAX_MESSAGE_BYTES:
            raise OSError(f"a message of {size:,} bytes")
        return self._receive(self._channels[0], size, patient=True)

    def _slots_for(self, x: Tensor) -> Tensor:
        """(n + 1, numbers of x): every worker's slot and that of results; the memory grows if need be."""
        assert x.dtype == torch.float32
        if x.numel() > self._slots.shape[1]:
            self._barrier()  # until all have read what is there
            n_bytes = 4 * (self._n + 1) * x.numel()
            os.ftruncate(self._memory, n_bytes)
            self._slots = torch.frombuffer(mmap.mmap(self._memory, n_bytes), dtype=torch.float32)
            self._slots = self._slots.view(self._n + 1, -1)
        return self._slots[:, : x.numel()]

    def _barrier(self) -> None:
        if self._rank == 0:
            for channel in self._channels:
                self._receive(channel, 1)
            for channel in self._channels:
                channel.sendall(b"\0")
        else:
            self._channels[0].sendall(b"\0")
            self._receive(self._channels[0], 1)

    def _receive(self, channel: socket.socket, n_bytes: int, *, patient: bool = False) -> bytes:
        """The next bytes of a channel. UnresponsiveWorker, unless patient, if a signal has waited too long for them."""
        received, started = b"", time.monotonic()
        while len(received) < n_bytes:
            try:
                part = channel.recv(n_bytes - len(received))
            except TimeoutError:
                waited = time.monotonic() - started
                if not patient and waited >= GRACE_SECONDS and (number := overdue_signal(GRACE_SECONDS)):
                    raise UnresponsiveWorker(number) from None
                continue
            if not part:
                raise ConnectionResetError("its connection is closed")
            received += part
        return received


def join_workers(device: torch.device) -> Workers:
    """The workers that torchrun or `spawn_workers` has started, this process among them."""
    if is_spawned():
        try:
            rank, n, threads, channel, memory = map(int, os.environ[SPAWNED].split())
        except ValueError:
            raise HeedError(
                f"{SPAWNED} is {shown(os.environ[SPAWNED])} in the environment, where Heed sets it itself for its "
                "workers: unset it."
            ) from None
        torch.set_num_threads(threads)
        for inherited in (channel, memory):
            os.set_inheritable(inherited, False)
        return Workers(rank, n, communicator=SharedMemory(rank, n, [socket.socket(fileno=channel)], memory))
    end_with_torchrun()
    n, rank = _place_by_torchrun()
    if n == 1:
        return Workers()
    if not distributed.is_initialized():  # not yet, or a user's script has left it
        _process_group.cache_clear()
    with _broken_connection_is_an_ended_worker():
        return Workers(rank, n, communicator=_process_group(device, rank, n))


@functools.cache  # a run's teachers are trained by the same processes as the run itself
def _process_group(device: torch.device, rank: int, n: int) -> ProcessGroup:
    return join_process_group(device, rank=rank, n=n)


def _place_by_torchrun() -> tuple[int, int]:
    """The number of workers and this one's. HeedError if WORLD_SIZE stands alone in the environment."""
    if os.environ.get("WORLD_SIZE", "") in ("", "1"):
        return 1, 0
    try:
        n, rank, _ = (int(os.environ[name]) for name in ("WORLD_SIZE", "RANK", "MASTER_PORT"))
        if not os.environ.get("MASTER_ADDR"):
            raise KeyError
    except (KeyError, ValueError):
        raise HeedError(
            f"WORLD_SIZE is {shown(os.environ['WORLD_SIZE'])} in the environment, but RANK, MASTER_ADDR and "
            "MASTER_PORT are not as torchrun sets them: start with torchrun, or unset WORLD_SIZE."
        ) from None
    return n, rank


def is_spawned() -> bool:
    """Whether `spawn_workers` has started this process."""
    return SPAWNED in os.environ


def may_spawn() -> bool:
    """Whether this process may start workers: it is none itself, and nobody else has placed processes or threads."""
    settled = (SPAWNED, "WORLD_SIZE", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY")
    return sys.platform == "linux" and not distributed.is_initialized() and not any(map(os.environ.get, settled))


@contextmanager
def spawn_workers(
    n: int, arguments: Sequence[str], *, report: Callable[[str], None], program: Sequence[str] = ("-m", "heed")
) -> Iterator[Workers]:
    """Starts n - 1 workers, `heed` or another program, that share a CPU's threads with this process.

    They end with the block, whatever happens in it; HeedError if one ends earlier. If the system has no memory to
    share, this process works alone and reports it.
    """
    # Without memory to share there is one worker.
    all_threads = torch.get_num_threads()
    memory = _anonymous_memory(report) if n > 1 else None
    if memory is None:
        yield Workers()
        return
    # -P and PYTHONPATH: modules from where this process has them, not from the folder that it happens to be in.
    command = [sys.executable, "-P", *program, *arguments]
    modules = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with ExitStack() as at_the_end:
        # Undone in the reverse order when the block ends: workers are killed, then waited for.
        at_the_end.callback(os.close, memory)
        quiet = subprocess.DEVNULL
        spawned, channels = [], []
        for rank in range(1, n):
            # Each worker inherits one end of a socket pair and the memory, and nothing else.
            messages = at_the_end.enter_context(TemporaryFile())
            ours, theirs = socket.socketpair()
            channels.append(at_the_end.enter_context(ours))
            with theirs:
                inherited = (theirs.fileno(), memory)
                env = os.environ | modules | {SPAWNED: f"{rank} {n} {all_threads // n} {inherited[0]} {memory}"}
                worker = subprocess.Popen(
                    command, env=env, stdin=quiet, stdout=quiet, stderr=messages, pass_fds=inherited
                )
            at_the_end.callback(worker.wait)
            at_the_end.callback(worker.kill)
            spawned.append((worker, messages))
        # This process is the first worker.
        at_the_end.callback(torch.set_num_threads, all_threads)
        torch.set_num_threads(all_threads // n)
        try:
            yield Workers(0, n, threads_of_all=all_threads, communicator=SharedMemory(0, n, channels, memory))
        except OtherWorkerEnded:
            raise HeedError(_why_one_ended(spawned)) from None


def _anonymous_memory(report: Callable[[str], None]) -> int | None:
    try:
        if hasattr(os, "memfd_create"):
            return os.memfd_create("heed")
        # A Python that was built on an older system lacks it, as conda's does; the C library need not.
        close_on_exec = 1
        if (descriptor := ctypes.CDLL(None, use_errno=True).memfd_create(b"heed", close_on_exec)) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(descriptor)
    except (OSError, AttributeError) as error:
        report(f"Workers cannot share memory ({error}); training with one process.")
        return None


def _why_one_ended(spawned: Sequence[tuple[subprocess.Popen[bytes], IO[bytes]]]) -> str:
    """The last message of the first worker that did not end because of another one."""
    for worker, messages in spawned:
        with suppress(subprocess.TimeoutExpired):
            status = worker.wait(timeout=5)
            messages.seek(0)
            lines = messages.read().decode("utf-8", "replace").strip().splitlines()
            if status < 0:
                return f"a worker was ended by signal {-status}; the same command resumes."
            if status > 0 and lines and ANOTHER_ENDED not in lines[-1]:
                return f"a worker has ended: {lines[-1].removeprefix('heed: ')}"
    return "the connection to a worker broke; the same command resumes."
