"""The settings that the machine decides: device, precision, threads.

Only this file, instruction_sets.py, process_tuning.py, training/distributed.py and training/process_group.py read
environment variables that say how Heed computes.
"""

import logging
import os
import platform
import re
import shlex
import stat
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from heed.errors import HeedError
from heed.runtime import cores
from heed.runtime.files import base_folder
from heed.runtime.instruction_sets import chosen_set, forced
from heed.runtime.process_tuning import torch_folder

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)
Precision = Literal["auto", "fp32", "bf16"]
DecodingPrecision = Literal["fp32", "bf16", "int8"]
DecodingPrecisionChoice = Literal["auto", "fp32", "bf16", "int8"]
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # NVIDIA's, AMD's, the one of Windows in its Linux
DEVICES = ("cpu", "cuda", "xpu")  # PyTorch has others, such as meta, that cannot compute, or mps, without fp64


@dataclass(frozen=True)
class Machine:
    """Where to compute and in which precision, with the reason, for the user to read."""

    device: "torch.device"
    dtype: "torch.dtype"
    why: str

    def __str__(self) -> str:
        return f"{self.device.type}, {self.precision} ({self.why})"

    @property
    def precision(self) -> Literal["fp32", "bf16"]:
        """The precision as the user names it."""
        return "bf16" if str(self.dtype) == "torch.bfloat16" else "fp32"


def choose_machine(precision: Precision = "auto", *, device: str | None = None) -> Machine:
    """The fastest device at hand, or `device`, and the precision it is fast at. HeedError if it does not exist."""
    import torch

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
        fast, instruction = _has_fast_bf16()
    else:
        fast, instruction = False, f"not tried on {chosen.type}"
    return Machine(chosen, torch.bfloat16 if fast else torch.float32, instruction)


def search_device(device: str | None = None) -> str:
    """The device of a search, such as cpu or cuda:0: `device`, HEED_DEVICE, or the fastest one available.

    PyTorch is imported only where a GPU's driver is there, or another device is asked for. HeedError if it does not
    exist.
    """
    return str(choose_machine("fp32", device=device).device) if may_need_torch(device) else "cpu"


def may_need_torch(device: str | None) -> bool:
    """Whether PyTorch decides on which device a search runs."""
    kind = device or os.environ.get("HEED_DEVICE")
    return kind != "cpu" if kind else torch_folder() is not None and any(map(os.path.exists, GPU_DRIVERS))


def _has_fast_bf16() -> tuple[bool, str]:
    """Whether the processor multiplies bf16, with what or without what; else it is emulated, and slower than fp32."""
    import torch

    features: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    instructions = ("amx_bf16", "avx512_bf16")
    present = [name for name in instructions if features.get(name) and (not forced() or chosen_set().allows(name))]
    return bool(present), present[0] if present else "neither amx_bf16 nor avx512_bf16"


def cache_folder() -> Path:
    """A folder of this user's own, which no other can write to, where what can be made again is kept between runs.

    $XDG_CACHE_HOME/heed, ~/.cache/heed or, where neither can be had, one in the folder of temporary files. OSError if
    none of them can.
    """
    places = []
    with suppress(RuntimeError):
        places.append(base_folder("XDG_CACHE_HOME", ".cache"))
    refused = []
    for folder in (*(place / "heed" for place in places), Path(tempfile.gettempdir(), f"heed-{os.geteuid()}")):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = folder.lstat()
        except OSError as error:
            refused.append(f"{folder}: {error.strerror}")
            continue
        if stat.S_ISLNK(state.st_mode):  # which another user may have made, to a folder of ours that others are to read
            refused.append(f"{folder} is a symbolic link")
        elif state.st_uid == os.geteuid() and not state.st_mode & 0o022:
            folder.chmod(0o700)
            return folder
        else:
            refused.append(f"{folder} belongs to another user or can be written by one")
        log.warning("%s, so it is not used.", refused[-1])
    raise OSError("; ".join(refused))


def native_kernels() -> Literal["fast", "forced", "sanitized", "none"]:
    """Which kernels HEED_KERNELS asks for: 0 for the plain network alone, also on a GPU, 1 for the kernels also where
    they are slower, sanitize for ones that check memory.

    HeedError if it asks for something else.
    """
    match _words("HEED_KERNELS"):
        case []:
            return "fast"
        case ["1"]:
            return "forced"
        case ["0"]:
            return "none"
        case ["sanitize"]:
            return "sanitized"
        case [flag, *_] if flag.startswith("-"):
            return "fast"
        case ["1", flag, *_] if flag.startswith("-"):
            return "forced"
    raise HeedError(
        f"HEED_KERNELS={os.environ['HEED_KERNELS']}: expected 0, 1, sanitize, or flags that begin with a dash."
    )


def compiles_layers() -> bool:
    """Whether training on a GPU may compile the network's layers; HEED_COMPILE=0 forbids it.

    HeedError if it is set to anything but 0 or 1.
    """
    value = os.environ.get("HEED_COMPILE", "1")
    if value not in ("0", "1"):
        raise HeedError(f"HEED_COMPILE={value}: expected 0 or 1.")
    return value == "1"


def kernel_flags() -> list[str]:
    """More flags for the kernels' compiler: those in HEED_KERNELS, alone or after a 1."""
    words = _words("HEED_KERNELS")
    return words if words[:1] and words[0].startswith("-") else words[1:]


def cpp_compiler() -> list[str]:
    """The C++ compiler that CXX names, with its arguments; empty if it names none."""
    return _words("CXX")


def _words(variable: str) -> list[str]:
    """Returns an environment variable's words, split as a shell does. HeedError if a quotation mark is missing."""
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise HeedError(f"{variable}={os.environ[variable]}: {error}.") from None


def n_threads() -> int:
    """Threads that a CPU computation uses; OMP_NUM_THREADS sets them."""
    torch = sys.modules.get("torch")
    return cores.n_threads() if torch is None else int(torch.get_num_threads())


def set_n_threads(n: int) -> None:
    """Makes computations on the CPU use `n` threads, in kernels that are loaded later too."""
    cores.choose_threads(n)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(n)


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


def micro_batch_tokens(device: "torch.device") -> int:
    """Tokens a side that one pass may hold if the recipe does not say.

    4,096 on a CPU: more is no faster, fewer leave matrix products short. On a GPU what half its memory holds of base's
    activations, about 1 MiB a token.
    """
    if device.type != "cuda":
        return 4096
    import torch

    return max(1024, torch.cuda.get_device_properties(device).total_memory // 2**21)


def matrix_product_rate(machine: Machine, *, seconds: float = 0.1) -> float:
    """Operations a second of a large matrix product in the machine's precision: what the device can sustain."""
    import torch

    shapes = ((2048, 1024), (1024, 1024)) if machine.device.type == "cpu" else ((8192, 8192), (8192, 8192))
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
