"""The processes that train one model together: those that torchrun starts, and those that Heed starts on a CPU.

Nothing that one worker sends another is ever unpickled. Workers that Heed starts communicate over inherited socket
pairs and anonymous memory (shared_memory.py), which have no name or port by which another user could reach them. Those
of torchrun (process_group.py) use torch.distributed, which trusts whoever reaches its ports (SECURITY.md).
"""

import ctypes
import functools
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, distributed

from heed.backends.protocol import NotFiniteError
from heed.config import shown
from heed.errors import HeedError
from heed.runtime.python_process import python_command, python_environment
from heed.training.process_group import ProcessGroup, end_with_torchrun, join_process_group, unanswered
from heed.training.shared_memory import SharedMemory

# Environment variable of a spawned worker: rank, number of workers, threads, descriptors of its socket and the memory.
SPAWNED = "HEED_SPAWNED_WORKER"
ANOTHER_ENDED = "another worker has ended"
Sharing = Literal["rows", "merged", "whole"]  # how workers share a step: see `Workers.shard`
S = TypeVar("S")
T = TypeVar("T")


class OtherWorkerEnded(HeedError):
    """A worker cannot continue, since another one has ended."""


class Communicator(Protocol):
    """A worker's collectives. All workers make the same calls, in the same order, with the same shapes."""

    device: torch.device  # where tensors must be
    beside: bool  # whether workers compute beside each other; else they share one CPU's threads

    def start_all_reduce_(self, x: Float[Tensor, "*shape"]) -> Callable[[], object]:
        """Starts to replace x by the sum of all workers' x, the same on each of them; the result waits for it."""

    def broadcast_(self, x: Float[Tensor, "*shape"]) -> None:
        """Replaces x by the first worker's."""

    def broadcast_bytes(self, message: bytes) -> bytes:
        """The first worker's message."""

    def gather_bytes(self, message: bytes) -> list[bytes]:
        """On the first worker all workers' messages, in the order of their ranks; on the others nothing."""

    def deadline(self) -> AbstractContextManager[None]:
        """In the block this worker waits for the others' computation; a wait without end becomes an error."""


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

    def shard(self, micro_batches: Sequence[NDArray[Any]], sharing: Sharing = "rows") -> list[NDArray[Any]]:
        """This worker's part of a step.

        rows: every n-th row of each micro-batch, so that all workers have some of each length. In each of them another
        worker comes first, so that over n of them all have as many rows.
        merged: the same, with its rows of n micro-batches in one, of about as many tokens as one of them.
        whole: every n-th micro-batch, none of which is longer than planned; rows of the last ones, fewer than n.
        """
        n_whole = len(micro_batches) // self.n * self.n if sharing == "whole" else 0
        whole = list(micro_batches[self.rank : n_whole : self.n])
        parts = [rows[(self.rank - i) % self.n :: self.n] for i, rows in enumerate(micro_batches[n_whole:])]
        if sharing == "merged":
            parts = [np.concatenate(parts[i : i + self.n]) for i in range(0, len(parts), self.n)]
        return whole + [rows for rows in parts if len(rows)]

    @property
    def beside(self) -> bool:
        """Whether there are others, each with a processor of its own."""
        return self.communicator is not None and self.communicator.beside

    def all_reduce_(self, x: Float[Tensor, "*shape"]) -> None:
        """Replaces every worker's numbers by the sum of all workers'. OtherWorkerEnded if one of them has."""
        self.start_all_reduce_(x)()

    def start_all_reduce_(self, x: Float[Tensor, "*shape"]) -> Callable[[], None]:
        """Starts what `all_reduce_` does; x may be used once the result, which waits for it, has been called."""
        if self.communicator is None:
            return lambda: None
        with _broken_connection_is_an_ended_worker():
            wait = self.communicator.start_all_reduce_(x)

        def finish() -> None:
            with _broken_connection_is_an_ended_worker():
                wait()

        return finish

    @contextmanager
    def deadline(self) -> Iterator[None]:
        """In the block this worker waits for numbers that depend on the others' computation."""
        if self.communicator is None:
            yield
            return
        with self.communicator.deadline():
            yield

    def any(self, flag: bool) -> bool:
        """Whether the flag of any worker is set."""
        if self.communicator is None:
            return flag
        flags = torch.full((1,), float(flag), device=self.communicator.device)
        with self.deadline():
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

    def gather(self, value: T) -> list[T]:
        """On the first worker all workers' values, in the order of their ranks; on the others nothing.

        A value is anything that JSON can write.
        """
        if self.communicator is None:
            return [value]
        with _broken_connection_is_an_ended_worker():
            return [json.loads(message) for message in self.communicator.gather_bytes(json.dumps(value).encode())]

    def map(self, function: Callable[[list[S]], list[T]], items: Sequence[S]) -> list[T]:
        """On the first worker function(items), of which each computes every n-th; on the others nothing.

        Where they share one CPU's threads, the first one computes all. A result is anything that JSON can write.
        NotFiniteError on all that compute if one has met it.
        """
        if not self.beside:
            return function(list(items)) if self.first else []
        mine: list[T] | None = None
        with suppress(NotFiniteError):
            mine = function(list(items[self.rank :: self.n]))
        parts = self.gather(mine)
        # All take the same way from here on, or one would wait for another that has left.
        if not self.broadcast(None not in parts):
            raise NotFiniteError
        results: dict[int, T] = {}
        for rank, part in enumerate(parts):
            results |= dict(zip(range(rank, len(items), self.n), part or [], strict=True))
        return [results[i] for i in range(len(results))]

    @torch.no_grad()
    def broadcast_parameters(self, model: torch.nn.Module) -> None:
        """Gives every worker's model the first one's weights."""
        if self.communicator is not None:
            with _broken_connection_is_an_ended_worker(), self.deadline():  # the first contact of all GPUs
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


ALONE = Workers()


@contextmanager
def _broken_connection_is_an_ended_worker() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, OSError) as error:
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        if "Timed out waiting" in first_line:  # as gloo says of a worker that lives
            raise OtherWorkerEnded(unanswered()) from None
        # gloo's begins with a place in its source and ends with advice to its own developers.
        fault = re.sub(r"^\[[^]]*\] ", "", first_line).partition(". ")[0].removesuffix(".")
        raise OtherWorkerEnded(f"{ANOTHER_ENDED}; its own message says why ({fault}).") from None


def join_workers(device: torch.device) -> Workers:
    """The workers that torchrun or `spawn_workers` has started, this process among them."""
    if is_spawned():
        try:
            rank, n, threads, descriptor, memory = map(int, os.environ[SPAWNED].split())
            channel, shared = socket.socket(fileno=descriptor), os.fstat(memory)
            if not (0 < rank < n and threads > 0 and channel.family == socket.AF_UNIX and shared.st_nlink == 0):
                raise ValueError
        except (ValueError, OverflowError, OSError):
            raise HeedError(
                f"{SPAWNED} is {shown(os.environ[SPAWNED])} in the environment, where Heed sets it itself for its "
                "workers: unset it."
            ) from None
        torch.set_num_threads(threads)
        for inherited in (descriptor, memory):
            os.set_inheritable(inherited, False)
        return Workers(rank, n, communicator=SharedMemory(rank, n, [channel], memory))
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
    command = python_command(*program, *arguments)
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
                env = python_environment(**{SPAWNED: f"{rank} {n} {all_threads // n} {inherited[0]} {memory}"})
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
