"""Memory of this process and of its device."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

import torch

from heed.runtime.device import Machine


def memory_of(machine: Machine) -> int:
    """Bytes of memory that the device has."""
    if machine.device.type == "cuda":
        return int(torch.cuda.get_device_properties(machine.device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def give_back_freed_memory() -> None:
    """Returns freed memory to the system, where the C library is glibc.

    Blocks of many sizes leave gaps that few others fit into.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak_memory() -> int:
    """Bytes of memory that this process has, what it freed given back and its peak forgotten: see `peak_memory`."""
    give_back_freed_memory()  # else it would be taken again unseen
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def peak_memory() -> int:
    """The most bytes that this process had since; 0 where the system does not say (it is Linux that does)."""
    return _memory("VmHWM")


def _memory(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
    except (OSError, ValueError, StopIteration):
        return 0


def free_memory() -> float:
    """Bytes that this process may still take, of the machine's or of its control group's; ∞ where nobody says."""
    free = float("inf")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemAvailable"))
        group = Path("/sys/fs/cgroup")
        most, taken, kinds = ((group / f"memory.{name}").read_text() for name in ("max", "current", "stat"))
        # Pages of files count as taken there, and are given back when somebody needs them.
        of_files = next(int(line.split()[1]) for line in kinds.splitlines() if line.startswith("file "))
        free = min(free, float(int(most) - int(taken) + of_files))
    except (OSError, ValueError, StopIteration):
        pass
    return free
