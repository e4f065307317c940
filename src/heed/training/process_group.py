"""The collectives of workers that torchrun starts, on one machine or several: gloo on CPUs, NCCL on GPUs.

What they need besides tensors goes through torchrun's key-value store: how they find each other, the first worker's
messages, and its heartbeat, by which the others know that it is still at work on what it does alone. A wait for a
message may therefore last for hours, one for the slowest worker's step only STEP_TIMEOUT, and neither occupies a GPU.

Faults are RuntimeErrors, as torch.distributed's own are, or OSErrors.
"""

import atexit
import functools
import os
import secrets
import signal
import threading
import time
from datetime import timedelta

import torch
from torch import Tensor, distributed
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

JOIN_TIMEOUT = timedelta(minutes=10)  # until all workers have found each other
STEP_TIMEOUT = timedelta(minutes=10)  # that a worker waits for the others to compute a step, or to write a checkpoint
HEARTBEAT_SECONDS = 10.0
SILENCE_SECONDS = 300.0  # without a heartbeat, after which the first worker is given up
POLL_SECONDS = 1.0  # between two looks for signals, and for heartbeats, while a worker waits for a message
ORPHAN_SECONDS = 30.0  # that a worker has to save its state after torchrun's process has ended


class ProcessGroup:
    """Sums and broadcasts by torch.distributed. Only of tensors: its collectives of objects unpickle.

    Messages go through the store, which takes bytes.
    """

    def __init__(self, device: torch.device, store: Store, *, first: bool):
        self.device = device
        self._store, self._first, self._n_messages = store, first, 0

    def all_reduce_(self, x: Tensor) -> None:
        distributed.all_reduce(x)

    def broadcast_(self, x: Tensor) -> None:
        distributed.broadcast(x, src=0)

    def broadcast_bytes(self, message: bytes) -> bytes:
        self._n_messages += 1
        key = f"message/{self._n_messages}"
        if self._first:
            self._store.set(key, message.decode("ascii"))
            return message
        heartbeat, heard = b"", time.monotonic()
        while True:
            try:
                self._store.wait([key], timedelta(seconds=POLL_SECONDS))
                return bytes(self._store.get(key))
            except DistStoreError:  # not yet
                latest = self._store.get("heartbeat")
            if latest != heartbeat:
                heartbeat, heard = latest, time.monotonic()
            if time.monotonic() - heard > SILENCE_SECONDS:
                raise RuntimeError(f"nothing was heard of the first worker for {SILENCE_SECONDS:.0f} s")


def join_process_group(device: torch.device, *, rank: int, n: int) -> ProcessGroup:
    """Meets the other workers at the address in torchrun's environment variables."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, _, _ = next(iter(rendezvous("env://", timeout=JOIN_TIMEOUT)))
    while isinstance(store, PrefixStore):  # by the number of restarts, which need not be the same on all machines
        store = store.underlying_store
    store = PrefixStore(f"heed/{_agreed_name(store, rank=rank, n=n)}", store)
    if rank == 0:
        _send_heartbeats(store)
    if not distributed.is_initialized():  # else by a user's script
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore("torch", store),
            rank=rank,
            world_size=n,
            timeout=STEP_TIMEOUT,
        )
    if device.type == "cpu":
        atexit.register(leave_process_group)
    return ProcessGroup(device, store, first=rank == 0)


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
    if rank > 0:
        store.set(f"heed/joining/{rank}", name)
        store.wait([f"heed/answer/{name}"], JOIN_TIMEOUT)
        agreed = bytes(store.get(f"heed/answer/{name}")).decode()
        store.set(f"heed/{agreed}/joined/{rank}", "")
        return agreed
    deadline = time.monotonic() + JOIN_TIMEOUT.total_seconds()
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


def _send_heartbeats(store: Store) -> None:
    """Writes another number to the store every few seconds, until this process ends."""
    store.set("heartbeat", "0")
    ended = threading.Event()

    def send() -> None:
        n_sent = 0
        while not ended.wait(HEARTBEAT_SECONDS):
            n_sent += 1
            try:
                store.set("heartbeat", str(n_sent))
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
