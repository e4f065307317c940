"""What the machine decides: device, precision, threads, memory allocator.

With workers.py the only reader of environment variables, but for the one that heed/__init__.py sets before torch is
loaded and HEED_DEBUG, which the command itself reads.
"""

import ctypes
import logging
import os
import platform
import re
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from heed.errors import HeedError
from heed.workers import Workers

log = logging.getLogger(__name__)
Precision = Literal["auto", "fp32", "bf16"]
DecodingPrecision = Literal["fp32", "bf16", "int8"]
DEVICES = ("cpu", "cuda", "mps", "xpu")  # PyTorch has others, such as meta, that cannot compute or that nobody tried


@dataclass(frozen=True)
class Machine:
    """Where to compute and in which precision, with the reason, for the user to read."""

    device: torch.device
    dtype: torch.dtype
    why: str
    workers: Workers = field(default_factory=Workers)

    def __str__(self) -> str:
        return f"{self.device.type}, {self.precision} ({self.why})"

    @property
    def precision(self) -> Literal["fp32", "bf16"]:
        """As the user names it."""
        return "bf16" if self.dtype == torch.bfloat16 else "fp32"


def choose_machine(precision: Precision = "auto", *, device: str | None = None) -> Machine:
    """The fastest device at hand, or `device`, and the precision it is fast at. HeedError if it does not exist."""
    kind = device or os.environ.get("HEED_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda":  # torchrun numbers the workers of a machine: each has a GPU of its own
        kind = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    if kind.partition(":")[0] not in DEVICES:
        raise HeedError(f"device {kind}: expected {', '.join(DEVICES)}, or one of several, such as cuda:1.")
    try:
        chosen = torch.device(kind)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        first_sentence = str(error).partition("\n")[0].partition(". ")[0]
        raise HeedError(f"device {kind} cannot be used: {first_sentence.removesuffix('.')}.") from None
    if precision != "auto":
        return Machine(chosen, torch.float32 if precision == "fp32" else torch.bfloat16, "as set")
    if chosen.type == "cuda":
        fast, instruction = torch.cuda.get_device_capability(chosen)[0] >= 8, "compute capability 8 or newer"
    elif chosen.type == "cpu":
        # Elsewhere bf16 is emulated, and slower than fp32.
        features: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
        found = [name for name in ("amx_bf16", "avx512_bf16") if features.get(name)]
        fast, instruction = bool(found), found[0] if found else "neither amx_bf16 nor avx512_bf16"
    else:
        fast, instruction = False, f"not tried on {chosen.type}"
    return Machine(chosen, torch.bfloat16 if fast else torch.float32, instruction)


def cache_folder() -> Path:
    """A folder of this user's own, which no other can write to, where what can be made again is kept between runs.

    $XDG_CACHE_HOME/heed, ~/.cache/heed or, where neither can be had, one in the folder of temporary files. OSError if
    none of them can.
    """
    places = []
    if os.environ.get("XDG_CACHE_HOME"):
        places.append(Path(os.environ["XDG_CACHE_HOME"]))
    else:
        with suppress(RuntimeError):  # no HOME, and a user whom the system does not know
            places.append(Path.home() / ".cache")
    refused = []
    for folder in (*(place / "heed" for place in places), Path(tempfile.gettempdir(), f"heed-{os.geteuid()}")):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = folder.stat()
        except OSError as error:
            refused.append(f"{folder}: {error.strerror}")
            continue
        if state.st_uid == os.geteuid() and not state.st_mode & 0o022:
            folder.chmod(0o700)
            return folder
        refused.append(f"{folder} belongs to another user or can be written by one")
        log.warning("%s, so it is not used.", refused[-1])
    raise OSError("; ".join(refused))


def native_kernels() -> Literal["fast", "sanitized", "none"]:
    """Which kernels HEED_KERNELS asks for: 0 for PyTorch's operations alone, sanitize for ones that check memory."""
    wanted: dict[str | None, Literal["sanitized", "none"]] = {"0": "none", "sanitize": "sanitized"}
    return wanted.get(os.environ.get("HEED_KERNELS"), "fast")


def n_threads() -> int:
    """Threads that a CPU computation uses; OMP_NUM_THREADS sets them."""
    return torch.get_num_threads()


def memory_of(machine: Machine) -> int:
    """Bytes of memory that the device has."""
    if machine.device.type == "cuda":
        return int(torch.cuda.get_device_properties(machine.device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def processor() -> str:
    """The CPU's name and its caches, as far as the system tells."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        name = names[0] if names else name
    caches = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        with suppress(OSError):
            level, kind, size = ((index / part).read_text().strip() for part in ("level", "type", "size"))
            if kind != "Instruction":
                caches.append(f"L{level} {size}")
    return ", ".join([name, *caches])


def micro_batch_tokens(device: torch.device) -> int:
    """Target tokens that one pass may hold if the recipe does not say.

    4,096 on a CPU: more is no faster, fewer leave matrix products short. On a GPU what its memory holds of base:
    about 1 MiB of activations a token.
    """
    if device.type != "cuda":
        return 4096
    return max(1024, torch.cuda.get_device_properties(device).total_memory // 2**21)


def matrix_product_rate(machine: Machine, *, seconds: float = 0.3) -> float:
    """Operations a second of a large matrix product in the machine's precision: what the device can sustain."""
    shapes = ((4096, 1024), (1024, 2048)) if machine.device.type == "cpu" else ((8192, 8192), (8192, 8192))
    x, y = (torch.ones(shape, dtype=machine.dtype, device=machine.device) for shape in shapes)

    def timed(n: int) -> float:
        if machine.device.type == "cuda":
            torch.cuda.synchronize(machine.device)
        started = time.perf_counter()
        for _ in range(n):
            torch.mm(x, y)
        if machine.device.type == "cuda":
            torch.cuda.synchronize(machine.device)
        return time.perf_counter() - started

    timed(1)
    n = max(1, round(seconds / timed(1)))
    return 2.0 * n * shapes[0][0] * shapes[0][1] * shapes[1][1] / timed(n)


def memory_before_a_peak() -> int:
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


def forget_library_pages() -> None:
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
