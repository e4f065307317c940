"""The OpenMP library whose threads run the kernels: one for the whole process, PyTorch's where that is installed.

Loaded before the kernels, whether or not PyTorch is imported, then or later, so that there is one set of threads.
"""

import ctypes
import functools
import platform
from contextlib import suppress
from pathlib import Path

from heed.runtime.process_tuning import torch_folder

PREBUILT = Path(__file__).parent / "prebuilt"  # what came with Heed; a checkout has none


@functools.cache
def load_openmp() -> None:
    """Loads the library for all others: PyTorch's, else the system's, else the one that came with Heed.

    OSError if there is none.
    """
    is_macos, folder = platform.system() == "Darwin", torch_folder()
    name = "libomp.dylib" if is_macos else "libgomp.so.1"
    candidates = [] if folder is None else sorted((folder / "lib").glob("libomp.dylib" if is_macos else "libgomp*.so*"))
    for candidate in (*map(str, candidates), name, str(PREBUILT / name)):
        with suppress(OSError):
            ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
            return
    raise OSError(f"no OpenMP library: install {name}")
