"""What the machine decides: device, precision, threads, memory allocator. The only reader of environment variables."""

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from heed.config import HeedError

Precision = Literal["auto", "fp32", "bf16"]
DecodingPrecision = Literal["fp32", "bf16", "int8"]


@dataclass(frozen=True)
class Machine:
    """Where to compute and in which precision, with the reason, for the user to read."""

    device: torch.device
    dtype: torch.dtype
    why: str

    def __str__(self) -> str:
        return f"{self.device.type}, {self.precision} ({self.why})"

    @property
    def precision(self) -> Literal["fp32", "bf16"]:
        """As the user names it."""
        return "bf16" if self.dtype == torch.bfloat16 else "fp32"


def choose_machine(precision: Precision = "auto", *, device: str | None = None) -> Machine:
    """The fastest device at hand, or `device`, and the precision it is fast at. HeedError if it does not exist."""
    kind = device or os.environ.get("HEED_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(kind)
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise HeedError(f"device {kind} cannot be used: {str(error).splitlines()[0]}") from None
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
    """Where what can be made again is kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heed"


def native_kernels_wanted() -> bool:
    """False where HEED_KERNELS=0 asks for PyTorch's operations alone."""
    return os.environ.get("HEED_KERNELS") != "0"


def n_threads() -> int:
    """Threads that a CPU computation uses; OMP_NUM_THREADS sets them."""
    return torch.get_num_threads()


def micro_batch_tokens(device: torch.device) -> int:
    """Target tokens that one pass may hold if the recipe does not say.

    4,096 on a CPU: more is no faster, fewer leave matrix products short. On a GPU what its memory holds of base:
    about 1 MiB of activations a token.
    """
    if device.type != "cuda":
        return 4096
    return max(1024, torch.cuda.get_device_properties(device).total_memory // 2**21)


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
