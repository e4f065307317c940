"""Memory of this process and of its device."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from heed.runtime.device import Machine
from heed.runtime.process_tuning import give_back_freed_memory

if TYPE_CHECKING:
    import torch


def memory_of(machine: Machine) -> int:
    """Bytes of memory that the device has."""
    if machine.device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(machine.device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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


def free_memory(root: Path = Path("/")) -> float:
    """Bytes that this process may still take: what the machine has free, or what the limit of a control group leaves.

    ∞ if the system does not say. root: the folder that holds /proc and /sys.
    """
    free = float("inf")
    with suppress(OSError, ValueError, StopIteration):
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemAvailable"))
    return min([free, *(_free_in(group, names) for group, names in _control_groups(root))])


def free_gpu_memory(device: "torch.device | str") -> int:
    """Bytes that this process may still take on a GPU, whose allocator's unused memory it gives back.

    The allocator's own account would also count what recorded passes of training keep, which nothing else can use.
    """
    import torch

    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


class _Names(NamedTuple):
    """Names in a version of control groups: two files, and keys of memory.stat.

    page_cache: counts as taken, and is given back when somebody needs it.
    """

    limit: str
    taken: str
    page_cache: tuple[str, str]


_VERSION_1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))
_VERSION_2 = _Names("memory.max", "memory.current", ("active_file", "inactive_file"))


def _control_groups(root: Path) -> Iterator[tuple[Path, _Names]]:
    """The control groups of this process and those around them, whose limits hold too.

    In a container the topmost folder is the container's own group, whatever its path is on the host.
    """
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            group, names = root / "sys/fs/cgroup", _VERSION_2
            if "memory" in controllers.split(","):
                group, names = group / "memory", _VERSION_1
            elif controllers:
                continue
            yield group, names
            for name in Path(path).parts[1:]:
                group /= name
                yield group, names


def _free_in(group: Path, names: _Names) -> float:
    """Bytes that a control group's limit leaves; ∞ if it has none."""
    try:
        limit, taken = (int((group / name).read_text()) for name in (names.limit, names.taken))
        kinds = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return float(limit - taken + sum(int(kinds.get(key, 0)) for key in names.page_cache))
    except (OSError, ValueError):  # version 2 writes "max" for no limit
        return float("inf")
