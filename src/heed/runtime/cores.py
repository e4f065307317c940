"""The processor's cores where they are not alike: which are the fast ones."""

import os
import platform
import subprocess
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Of the largest core's capacity: what a core must have to count as a fast one. Arm's middle cores do, its small ones
# have a third.
FAST_CAPACITY = 0.75
_chosen: dict[str, int] = {}  # by `choose_threads`


@dataclass(frozen=True)
class FastCores:
    """Cores for performance, where others for efficiency stand beside them."""

    n: int  # of them, however many threads each runs
    cpus: frozenset[int]  # as the system numbers what runs a thread; none where a thread cannot be held to them


def n_cores() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_threads(n: int) -> None:
    """Sets `n_threads` for this process."""
    _chosen["threads"] = n


def n_threads() -> int:
    """Threads for a computation on the CPU: those that were chosen, OMP_NUM_THREADS, else one for each core that this
    process may use."""
    if "threads" in _chosen:
        return _chosen["threads"]
    with suppress(ValueError):
        return max(1, int(os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]))
    if not hasattr(os, "sched_getaffinity"):
        return n_cores()
    return len({_core_of(Path("/sys/devices"), cpu) for cpu in os.sched_getaffinity(0)})


def fast_cores(root: Path = Path("/"), *, allowed: Collection[int] | None = None) -> FastCores | None:
    """The fast cores that this process may use; None if all are alike, or all that it may use.

    From Linux' files below `root`: Intel's two kinds (cpu_core, cpu_atom), or capacities (Arm). From sysctl on macOS.
    allowed: CPUs that the process may use, by default those that the system says.
    """
    if platform.system() == "Darwin":
        return _on_macos()
    if allowed is None:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    devices = root / "sys/devices"
    fast = _intel_fast_cpus(devices) or _large_cpus(devices / "system/cpu")
    mine = frozenset(allowed) & fast
    if not mine or mine == frozenset(allowed):
        return None
    return FastCores(len({_core_of(devices, cpu) for cpu in mine}), mine)


def _intel_fast_cpus(devices: Path) -> frozenset[int]:
    with suppress(OSError, ValueError):
        if _numbers(devices / "cpu_atom/cpus"):
            return _numbers(devices / "cpu_core/cpus")
    return frozenset()


def _large_cpus(cpus: Path) -> frozenset[int]:
    capacities = {}
    for path in cpus.glob("cpu[0-9]*/cpu_capacity"):
        with suppress(OSError, ValueError):
            capacities[int(path.parent.name.removeprefix("cpu"))] = int(path.read_text())
    least = FAST_CAPACITY * max(capacities.values(), default=0)
    return frozenset(cpu for cpu, capacity in capacities.items() if capacity >= least)


def _core_of(devices: Path, cpu: int) -> frozenset[int]:
    """The CPUs that share this one's core."""
    with suppress(OSError, ValueError):
        return _numbers(devices / f"system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return frozenset({cpu})


def _numbers(path: Path) -> frozenset[int]:
    """Returns the numbers of a list such as 0-3,8."""
    numbers: set[int] = set()
    for part in path.read_text(encoding="ascii").strip().split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _on_macos() -> FastCores | None:
    names = ("hw.nperflevels", "hw.perflevel0.physicalcpu")
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        command = ["/usr/sbin/sysctl", "-n", *names]
        levels, n = map(int, subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.split())
        return FastCores(n, frozenset()) if levels > 1 else None
    return None
