"""A real NVIDIA GPU, where there is one: the emulated device's account of waits, kept by PyTorch's own report of them.

PyTorch reports each blocking copy and each operation whose result the CPU must know (`set_sync_debug_mode`); waits for
an event or for the whole device are counted here.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests.gpu.emulation import HEED, WaitCounter

REPORT = "called a synchronizing CUDA operation"


@contextmanager
def real_cuda(*, watched: Path = HEED) -> Iterator[WaitCounter]:
    """Within the block the first GPU's waits are counted."""
    device = WaitCounter(watched)

    class Event(torch.cuda.Event):
        def synchronize(self) -> None:
            device.wait("event")
            super().synchronize()

    synchronize_all, show = torch.cuda.synchronize, warnings.showwarning

    def synchronize(which: Any = None) -> None:
        device.wait("torch.cuda.synchronize")
        synchronize_all(which)

    def report(message: Any, *others: Any, **more: Any) -> None:
        if REPORT in str(message):
            device.wait("blocking operation")
        else:
            show(message, *others, **more)

    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=f".*{REPORT}.*")
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        with (
            patch.object(warnings, "showwarning", report),
            patch.object(torch.cuda, "Event", Event),
            patch.object(torch.cuda, "synchronize", synchronize),
        ):
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield device
            finally:
                torch.cuda.set_sync_debug_mode(mode)
