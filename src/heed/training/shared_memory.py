"""The collectives of workers that Heed starts on a CPU: sums in anonymous memory, messages by inherited sockets."""

import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

import torch
from jaxtyping import Float
from torch import Tensor

from heed.errors import Stopped
from heed.runtime.signals import overdue_signal

MAX_MESSAGE_BYTES = 2**24
POLL_SECONDS = 0.5  # between two checks for signals while a worker waits
GRACE_SECONDS = 8.0  # that a worker waits, once asked to stop, for another to finish its step


class UnresponsiveWorker(Stopped):
    """A signal asked to stop while another worker hangs: nothing since the last checkpoint is saved."""


class SharedMemory:
    """Collectives over anonymous memory, with sockets as barriers.

    channels: the first worker's to each other one, in the order of their ranks; another worker's to the first. The
    memory holds a slot of floats for each worker and one more for results.
    """

    device, beside = torch.device("cpu"), False

    def __init__(self, rank: int, n: int, channels: Sequence[socket.socket], memory: int):
        self._rank, self._n, self._channels, self._memory = rank, n, channels, memory
        self._slots = torch.empty(n + 1, 0)
        for channel in channels:
            channel.settimeout(POLL_SECONDS)

    def start_all_reduce_(self, x: Float[Tensor, "*shape"]) -> Callable[[], object]:
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
        return lambda: None

    def deadline(self) -> AbstractContextManager[None]:
        return nullcontext()  # `_receive` notices

    def broadcast_(self, x: Float[Tensor, "*shape"]) -> None:
        sent = self._slots_for(x)[0]
        if self._rank == 0:
            sent.copy_(x.flatten())
        self._barrier()
        x.copy_(sent.view_as(x))
        self._barrier()  # until all have read it

    def broadcast_bytes(self, message: bytes) -> bytes:
        if self._rank == 0:
            for channel in self._channels:
                self._send(channel, message)
            return message
        return self._receive_message(self._channels[0])

    def gather_bytes(self, message: bytes) -> list[bytes]:
        if self._rank == 0:
            return [message, *map(self._receive_message, self._channels)]
        self._send(self._channels[0], message)
        return []

    def _send(self, channel: socket.socket, message: bytes) -> None:
        """Sends it to a worker that may be busy for long."""
        left = memoryview(struct.pack("<I", len(message)) + message)
        while left:
            with suppress(TimeoutError):
                left = left[channel.send(left) :]

    def _receive_message(self, channel: socket.socket) -> bytes:
        # The other worker may validate or prepare text meanwhile, for as long as that takes; a signal can wait.
        (size,) = struct.unpack("<I", self._receive(channel, 4, patient=True))
        if size > MAX_MESSAGE_BYTES:
            raise OSError(f"a message of {size:,} bytes")
        return self._receive(channel, size, patient=True)

    def _slots_for(self, x: Float[Tensor, "*shape"]) -> Tensor:
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
