"""Memory of this process and of its device, and how the C library and the kernel hand it out."""

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

import torch

from heed.runtime.device import Machine


def memory_of(machine: Machine) -> int:
    """Bytes of memory that the device has."""
    if machine.device.type == "cuda":
        return int(torch.cuda.get_device_properties(machine.device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def reset_peak_memory() -> int:
    """Bytes of memory that this process has, what it freed given back and its peak forgotten: see `peak_memory`."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # else what is freed would be taken again unseen
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


def release_library_pages() -> None:
    """Unmaps the code of libraries; what is run again comes back from the system's cache of files, without the disk.

    Importing PyTorch touches 80 to 140 MB of its code, most of it once. Linux only; elsewhere nothing happens.
    """
    dont_need = 4
    with suppress(OSError, AttributeError, ValueError):
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            addresses, rights, _, _, _, *path = line.split(maxsplit=5)
            if rights == "r-xp" and path and path[0].startswith("/"):  # nobody writes there, so nothing is lost
                start, end = (int(address, 16) for address in addresses.split("-"))
                madvise(start, end - start, dont_need)


def keep_freed_memory() -> None:
    """Lets the C library keep freed blocks for the next tensor instead of giving them back to the system.

    Training frees and takes the same large blocks thousands of times a second; without this every one is mapped anew,
    page fault by page fault. glibc only; elsewhere nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_threshold, largest = -1, -3, 2**31 - 1
    mallopt(mmap_threshold, 1 << 25)  # the most that glibc accepts: 32 MiB
    mallopt(trim_threshold, largest)
