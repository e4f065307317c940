"""A real NVIDIA GPU, where there is one: the emulated device's account of waits, kept by PyTorch's own report of them.

PyTorch reports each blocking copy and each operation whose result the CPU must know (`set_sync_debug_mode`); waits for
an event or for the whole device are counted here.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests.gpu.emulation import HEED, Wait

REPORT = "called a synchronizing CUDA operation"


class RealCuda:
    """The waits of a real GPU: see `EmulatedCuda`."""

    def __init__(self, watched: Path) -> None:
        self._watched = str(watched)
        self.forget()

    def forget(self) -> None:
        """Starts the account anew."""
        self.waits: Counter[Wait] = Counter()

    def places(self) -> set[tuple[str, str]]:
        """(file, function) of all waits."""
        return {(wait.file, wait.function) for wait in self.waits}

    def wait(self, cause: str) -> None:
        """Counts a wait for the innermost of the watched functions that are being executed."""
        frame = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(self._watched):
            frame = frame.f_back
        if frame is not None:  # else a test looks at numbers
            file = Path(frame.f_code.co_filename).relative_to(self._watched).as_posix()
            function = getattr(frame.f_code, "co_qualname", frame.f_code.co_name).partition(".<locals>")[0]
            self.waits[Wait(file, function, cause)] += 1


@contextmanager
def real_cuda(*, watched: Path = HEED) -> Iterator[RealCuda]:
    """Within the block the first GPU's waits are counted."""
    device = RealCuda(watched)

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
