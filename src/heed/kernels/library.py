"""Compiles the kernels with the system's C++ compiler, once a machine, and loads it."""

import ctypes
import functools
import hashlib
import logging
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heed.runtime import cache_folder, native_kernels_wanted

log = logging.getLogger(__name__)
FOLDER = Path(__file__).parent
SOURCES = [FOLDER / "training.cpp", FOLDER / "tiles.cpp", FOLDER / "decoding.cpp"]
FLAGS = [
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",  # PyTorch's own copy of the library serves both, so there is one set of threads
    "-shared",
    "-fPIC",
    # Sums may be taken in any order, which vectors need; NaN and infinity keep their meaning.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-freciprocal-math",
    "-mprefer-vector-width=512",
]
P, N, F, SEED, FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_uint64, ctypes.c_int32
SIGNATURES = {
    "add_norm": [P, P, P, P, P, P, P, P, N, N, F, SEED, F],
    "add_norm_backward": [P, P, P, P, P, P, P, P, P, N, N, F, SEED],
    "bias_relu": [P, P, N, N],
    "bias_relu_backward": [P, P, P, P, N, N],
    "embed": [P, P, P, P, P, N, N, F, F, SEED],
    "embed_backward": [P, P, P, N, N, F, F, SEED],
    "smoothed_loss": [P, P, P, P, N, N, F],
    "attend": [P, P, P, P, P],
    "attend_backward": [P, P, P, P, P, P, P, P],
    "attend_to_past": [P, P, P, P],
    "attend_to_source": [P, P, P, P],
    "best_continuations": [P, P, P, P, P, P, P, P, N, N, N, N, N, N],
    "int8_product": [P, P, P, N, ctypes.c_int32],
    "decoder_step": [P, P],
}
FP32_SIGNATURES = {  # for float alone
    "panel_product": [P, P, P, N, ctypes.c_int32],
    "int8_best_continuations": [P, P, P, P, P, P, P, P, P, N, N, N, N, N],
}
TILE_PRODUCT: list[Any] = [P, N, FLAG, P, N, FLAG, P, N, FLAG, P, N, N, N]  # for bf16 alone, with AMX

_KINDS = {torch.float32: "float", torch.bfloat16: "bf16"}


def ready(x: Tensor) -> bool:
    """Whether the kernels take tensors of this device and type on this machine."""
    return x.is_cpu and x.dtype in _KINDS and library() is not None


def kernel(name: str, like: Tensor) -> Callable[..., None]:
    """The kernel of this name for tensors of this type."""
    function: Callable[..., None] = getattr(library(), f"{name}_{_KINDS[like.dtype]}")
    return function


def has_int8() -> bool:
    """Whether the kernels are at hand and the processor multiplies 8-bit integers in vectors (AVX-512 VNNI)."""
    return bool(getattr(library(), "has_int8", int)())


@functools.cache
def has_tiles() -> bool:
    """Whether the kernels are at hand and the processor multiplies tiles of bf16 (AMX)."""
    return bool(getattr(library(), "has_tiles", int)())


def library() -> ctypes.CDLL | None:
    """The kernels, each as NAME_float and most as NAME_bf16; None where they cannot be used."""
    return _found()[0]


def state() -> str:
    """For the user to read: that the kernels are used, or why not."""
    return _found()[1]


@functools.cache
def _found() -> tuple[ctypes.CDLL | None, str]:
    if not native_kernels_wanted():
        return None, "PyTorch's operations alone, as HEED_KERNELS=0 asks"
    if platform.system() != "Linux":
        return None, f"PyTorch's operations alone: the kernels need Linux, not {platform.system()}"
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return (
            None,
            "PyTorch's operations alone, which are slower: the kernels need a C++ compiler (g++), and none was found",
        )
    try:
        return _made(compiler), "Heed's kernels"
    except subprocess.CalledProcessError as error:
        told = error.stderr.decode("utf-8", "replace").strip().splitlines()
        return None, f"PyTorch's operations alone: {compiler} failed ({told[0] if told else error.returncode})"
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"PyTorch's operations alone: the kernels could not be made ({error})"


def _made(compiler: str) -> ctypes.CDLL:
    path = _compiled(compiler)
    try:
        return _loaded(path)
    except OSError:  # damaged since it was made
        path.unlink()
        return _loaded(_compiled(compiler))


def _compiled(compiler: str) -> Path:
    """The shared library for this source, compiler and processor; another process may be making it too."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=60).stdout
    sources = [path.read_bytes() for path in (*sorted(FOLDER.glob("*.h")), *SOURCES)]
    key = hashlib.sha256(b"\0".join([*sources, " ".join(FLAGS).encode(), version, _processor()]))
    folder = cache_folder()
    target = folder / f"kernels-{key.hexdigest()[:16]}.so"
    if not target.exists():
        # A warning, since it takes a while; without a handler of the program's own, logging writes it to stderr.
        log.warning("Compiling Heed's kernels for this processor, once: some twenty seconds.")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch, ThreadPoolExecutor(len(SOURCES)) as pool:

            def compile_to(made: Path, *arguments: str | Path) -> Path:
                command = [compiler, *FLAGS, *map(str, arguments), "-o", str(made)]
                subprocess.run(command, capture_output=True, check=True, timeout=300)
                return made

            objects = pool.map(lambda source: compile_to(Path(scratch, f"{source.stem}.o"), "-c", source), SOURCES)
            compile_to(Path(scratch, target.name), *objects).replace(target)
    return target


def _processor() -> bytes:
    """What decides which instructions -march=native takes: a home folder may be shared by different machines."""
    lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    told = [line for line in lines if line.startswith((b"model name", b"flags", b"Features", b"CPU part"))]
    return b"\n".join(sorted(set(told)))


def _loaded(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    exported = {f"{name}_{kind}": arguments for name, arguments in SIGNATURES.items() for kind in ("float", "bf16")}
    exported |= {f"{name}_float": arguments for name, arguments in FP32_SIGNATURES.items()}
    for name, arguments in exported.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, None
    if loaded.has_tiles():
        loaded.tile_product.argtypes = TILE_PRODUCT
        loaded.tile_product.restype = None
    return loaded
