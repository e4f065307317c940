"""Switches of the whole process, which belong to a program and not to a library: Heed's commands set them.

Imports no torch: what its libraries read when they are loaded has to be set before.
"""

import ctypes
import gc
import importlib
import importlib.util
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from heed.runtime.instruction_sets import limit_libraries

VARIABLES = (
    "HEED_DEBUG",
    "HEED_DEVICE",
    "HEED_ISA",
    "HEED_KERNELS",
    "HEED_LOCKS",
)  # of the environment, for people to set


def tune_process() -> None:
    """Sets this process up for speed as Heed's commands do. Call it once, before torch is imported.

    - Threads that wait for each other give their core up sooner (`GOMP_SPINCOUNT`), and equally soon in every thread
      that searches (`OMP_WAIT_POLICY`), unless the environment already says how they wait. After torch is loaded this
      has no effect.
    - PyTorch, oneDNN and MKL are kept to the instruction set that `HEED_ISA` names. HeedError if there is no such set,
      or the processor lacks it.
    - Freed memory is kept for the next tensor (`keep_freed_memory`).
    """
    limit_libraries()
    # A thread that waits for the others spins, by GCC's default for a third of a millisecond and more. If other
    # programs want the same cores, this takes time from the very threads it waits for: docs/explain/performance.md.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        if sys.platform.startswith("linux"):
            # Else GCC's threads hardly spin once two threads have teams of their own, such as one that has loaded a
            # model and one that searches, idle or not. LLVM's would spin forever: its default is kept for them.
            os.environ.setdefault("KMP_BLOCKTIME", "200")
            os.environ["OMP_WAIT_POLICY"] = "active"
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Lets the C library keep freed blocks for the next tensor instead of giving them back to the system.

    Training frees and takes the same large blocks thousands of times a second; without this every one is mapped anew,
    page fault by page fault. glibc only; elsewhere nothing happens.
    """
    trim_threshold, mmap_threshold, largest = -1, -3, 2**31 - 1
    _mallopt(mmap_threshold, 1 << 25)  # the most that glibc accepts: 32 MiB
    _mallopt(trim_threshold, largest)


def share_freed_memory() -> None:
    """Lets all threads that start from now on take memory from one heap, so that one uses what another has freed.

    glibc only; elsewhere nothing happens.
    """
    arena_max = -8
    _mallopt(arena_max, 1)


def give_back_freed_memory() -> None:
    """Returns freed memory to the system, where the C library is glibc.

    Blocks of many sizes leave gaps that few others fit into.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _mallopt(parameter: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(parameter, value)


def release_library_pages() -> None:
    """Unmaps the code of libraries; what runs again is read from the system's file cache, not from the disk.

    Importing PyTorch touches 80 to 140 MB of its code, most of it once.
    Linux only; elsewhere nothing happens.
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


def torch_folder() -> Path | None:
    """Where PyTorch is installed, or None; it is not imported."""
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.origin:
            return Path(spec.origin).parent
    return None


class _Postponed(ModuleType):
    """Stands for a module that is imported when something in it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system itself asks for
            raise AttributeError(name)
        sys.modules.pop(self.__name__, None)
        return getattr(importlib.import_module(self.__name__), name)


def forget_shapes() -> None:
    """Lets oneDNN remember how to multiply matrices of few shapes. Call it before torch is imported.

    By default it keeps code for a thousand, at some 250 KB each: a server that meets sentences of all lengths would
    grow by a third.
    """
    for variable in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(variable, "16")


def import_torch() -> None:
    """Imports torch in two thirds of its time: for commands that search, whose user waits for the first line.

    Leaves out what only tensors without content need (a quarter of a second), collects no garbage meanwhile, and
    unmaps the code that ran once.
    """
    sys.modules.setdefault("torch._meta_registrations", _Postponed("torch._meta_registrations"))
    gc.disable()
    importlib.import_module("torch")
    gc.enable()
    gc.freeze()  # modules stay: no later collection needs to look at them
    release_library_pages()


def import_torch_for_training() -> None:
    """Imports torch without its compiler: for commands that train, where making an optimizer would import it.

    Four methods of torch's optimizers, once called, import all of `torch._dynamo` (a second and a half) in order to be
    left out when something that calls them is compiled, which no optimizer of Heed's is.
    """
    optimizer = importlib.import_module("torch").optim.Optimizer
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        method = getattr(getattr(optimizer, name, None), "__wrapped__", None)
        if method is not None and not hasattr(method, "__dynamo_disable"):
            setattr(method, "__dynamo_disable", method)  # where torch keeps what it calls instead
