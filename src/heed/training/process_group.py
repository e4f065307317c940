"""The collectives of workers that torchrun starts, on one machine or several: gloo on CPUs, NCCL on GPUs.

What they need besides tensors goes through torchrun's key-value store: how they find each other, messages, and each
one's heartbeat, by which the others know that it is still at work on what it does alone. A wait for a message may
therefore last for hours, and does not occupy a GPU; one for the slowest worker's step lasts only STEP_TIMEOUT.

Faults are RuntimeErrors, as torch.distributed's own are, or OSErrors.
"""

import atexit
import functools
import math
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta

import torch
from jaxtyping import Float
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from heed.runtime.signals import overdue_signal

JOIN_TIMEOUT = timedelta(minutes=10)  # until all workers have found each other
STEP_TIMEOUT = timedelta(minutes=10)  # that a worker waits for the others to compute a step, or to write a checkpoint
NCCL_TIMEOUT = STEP_TIMEOUT + timedelta(minutes=2)  # later than `Deadline`, which says more in fewer lines
HEARTBEAT_SECONDS = 2.0
SILENCE_SECONDS = 300.0  # without a heartbeat, after which a worker is given up
STOPPING_SILENCE_SECONDS = 8.0  # the same, once a signal has asked to stop
FIRST_PAUSE, POLL_SECONDS = 0.002, 0.25  # between two looks for a message or heartbeat; they grow
ORPHAN_SECONDS = 30.0  # that a worker has to save its state after torchrun's process has ended


class ProcessGroup:
    """Sums and broadcasts by torch.distributed. Only of tensors: its collectives of objects unpickle.

    Messages go through the store, which takes bytes.
    """

    beside = True

    def __init__(self, device: torch.device, store: Store, *, rank: int, n: int):
        self.device = device
        self._store, self._rank, self._n = store, rank, n
        self._n_broadcast = self._n_gathered = 0
        self._deadline = Deadline() if device.type == "cuda" else None

    def start_all_reduce_(self, x: Float[Tensor, "*shape"]) -> Callable[[], object]:
        work = distributed.all_reduce(x, async_op=True)
        assert work is not None  # as it is for processes outside of the group
        wait: Callable[[], object] = work.wait
        return wait

    def broadcast_(self, x: Float[Tensor, "*shape"]) -> None:
        distributed.broadcast(x, src=0)

    def broadcast_bytes(self, message: bytes) -> bytes:
        self._n_broadcast += 1
        key = f"message/{self._n_broadcast}"
        if self._rank == 0:
            self._store.set(key, message.decode("ascii"))
            return message
        return self._await(key, sender=0)

    def gather_bytes(self, message: bytes) -> list[bytes]:
        self._n_gathered += 1
        keys = [f"gathered/{self._n_gathered}/{rank}" for rank in range(self._n)]
        if self._rank > 0:
            self._store.set(keys[self._rank], message.decode("ascii"))
            return []
        messages = [message, *(self._await(key, sender=rank) for rank, key in enumerate(keys[1:], start=1))]
        for key in keys[1:]:  # they may be a whole dev set's translations
            self._store.delete_key(key)
        return messages

    def deadline(self) -> AbstractContextManager[None]:
        return nullcontext() if self._deadline is None else self._deadline.running()  # gloo has its own

    def _await(self, key: str, *, sender: int) -> bytes:
        """The message of this key, which the sender writes for as long as it lives.

        The store is asked again and again: it warns whenever it has waited in vain.
        """
        heartbeat, heard, pause = b"", time.monotonic(), FIRST_PAUSE
        while not self._store.check([key]):
            time.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS)
            beating = f"heartbeat/{sender}"
            latest = bytes(self._store.get(beating)) if self._store.check([beating]) else b""
            if latest != heartbeat:
                heartbeat, heard = latest, time.monotonic()
            # torchrun tells all workers to stop if one has ended, and kills them soon.
            patience = STOPPING_SILENCE_SECONDS if overdue_signal(STOPPING_SILENCE_SECONDS) else SILENCE_SECONDS
            if (silent := time.monotonic() - heard) > patience:
                name = "the first worker" if sender == 0 else f"worker {sender}"
                raise RuntimeError(f"nothing was heard of {name} for {silent:.0f} s")
        return bytes(self._store.get(key))


class Deadline:
    """Ends this process, with one line, if it waits too long for a GPU that waits for the others.

    Nothing else can: such a wait is inside CUDA, where no signal is heard. PyTorch's own watchdog aborts the process
    with pages of addresses, and comes later (NCCL_TIMEOUT).
    """

    def __init__(self) -> None:
        self._ends = math.inf
        threading.Thread(target=self._watch, name="deadline", daemon=True).start()

    @contextmanager
    def running(self) -> Iterator[None]:
        """The block must end in time."""
        self._ends = time.monotonic() + STEP_TIMEOUT.total_seconds()
        try:
            yield
        finally:
            self._ends = math.inf

    def _watch(self) -> None:
        while time.monotonic() < self._ends:
            time.sleep(POLL_SECONDS)
        sys.stderr.write(f"heed: {unanswered()}\n")
        sys.stderr.flush()
        os._exit(1)


def unanswered() -> str:
    """For the user to read: that a step has waited in vain."""
    return (
        f"the other workers have not answered for {STEP_TIMEOUT.total_seconds() / 60:.3g} minutes: one of them hangs, "
        "or the network between them is broken. The same command resumes."
    )


def join_process_group(device: torch.device, *, rank: int, n: int) -> ProcessGroup:
    """Meets the other workers at the address in torchrun's environment variables."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, _, _ = next(iter(rendezvous("env://", timeout=JOIN_TIMEOUT)))
    while isinstance(store, PrefixStore):  # by the number of restarts, which need not be the same on all machines
        store = store.underlying_store
    store = PrefixStore(f"heed/{_agreed_name(store, rank=rank, n=n)}", store)
    _send_heartbeats(store, f"heartbeat/{rank}")
    if not distributed.is_initialized():  # else by a user's script
        backend, timeout = ("nccl", NCCL_TIMEOUT) if device.type == "cuda" else ("gloo", STEP_TIMEOUT)
        place = PrefixStore("torch", store)
        distributed.init_process_group(backend, store=place, rank=rank, world_size=n, timeout=timeout)
    if device.type == "cpu":
        atexit.register(leave_process_group)
    return ProcessGroup(device, store, rank=rank, n=n)


def leave_process_group() -> None:
    """Ends gloo's threads: a process that ends while they run may abort (std::terminate)."""
    if distributed.is_initialized():  # a user's script may have left it already
        distributed.destroy_process_group()


def _agreed_name(store: Store, *, rank: int, n: int) -> str:
    """A name that just these n processes have agreed on, for the keys that they write.

    torchrun's store outlives the workers, so that those of a restart find the addresses of the dead ones in it, at
    which gloo would wait for an answer. Every process therefore draws a name of its own. The first one answers to each
    name that another process has given, with its own; only who still lives reads that and confirms it.
    """
    name = secrets.token_hex(8)
    deadline = time.monotonic() + JOIN_TIMEOUT.total_seconds()
    if rank > 0:
        store.set(f"heed/joining/{rank}", name)
        while not store.check([f"heed/answer/{name}"]):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the first worker has not answered within {JOIN_TIMEOUT}")
            time.sleep(0.02)
        agreed = bytes(store.get(f"heed/answer/{name}")).decode()
        store.set(f"heed/{agreed}/joined/{rank}", "")
        return agreed
    missing = set(range(1, n))
    answered: set[bytes] = set()
    while missing:
        for other in missing.copy():
            joining = f"heed/joining/{other}"
            if store.check([f"heed/{name}/joined/{other}"]):
                missing.remove(other)
            elif store.check([joining]) and (given := store.get(joining)) not in answered:
                store.set(f"heed/answer/{given.decode()}", name)
                answered.add(given)
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {n - len(missing)} of {n} workers have joined within {JOIN_TIMEOUT}")
        time.sleep(0.02)
    return name


def _send_heartbeats(store: Store, key: str) -> None:
    """Writes another number to the store every few seconds, until this process ends."""
    store.set(key, "0")
    ended = threading.Event()

    def send() -> None:
        n_sent = 0
        while not ended.wait(HEARTBEAT_SECONDS):
            n_sent += 1
            try:
                store.set(key, str(n_sent))
            except RuntimeError:  # the store has gone, and with it the training
                return

    thread = threading.Thread(target=send, name="heartbeat", daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    atexit.register(end)


@functools.cache  # one thread is enough
def end_with_torchrun() -> None:
    """Ends this process, with its state saved if that is possible, once the torchrun that started it has ended.

    If that was killed, nothing else ends its workers; they would keep the run folder locked for those that come next.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="watch torchrun", daemon=True).start()
