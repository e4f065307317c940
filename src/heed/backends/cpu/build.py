"""Compiles the C++ kernels with the system's compiler, loads them, and passes arrays to them.

There is a library for each instruction set. The one that this machine takes may have come with Heed, as in the wheels
for Linux on x86-64; else it is compiled when it is first used.

A compiled library is code. It is followed by its hash, and loaded only if that still holds. One that was compiled here
is kept in a folder that belongs to this user alone; one that came with Heed may be written by nobody who may not write
Heed's Python files.
"""

import functools
import hashlib
import logging
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from heed.backends.cpu.declarations import FOLDER, KINDS, MISSING_SYMBOL, PARAMETERS, Address, address, constants, ffi
from heed.backends.cpu.openmp import PREBUILT, load_openmp
from heed.backends.cpu.preference import any_wins
from heed.errors import HeedError
from heed.runtime.cores import FastCores, fast_cores, n_threads
from heed.runtime.device import cache_folder, cpp_compiler, kernel_flags, native_kernels
from heed.runtime.files import whole_file
from heed.runtime.instruction_sets import InstructionSet, chosen_set, forced, processor_features
from heed.runtime.locks import NoLocks, locked
from heed.runtime.process_tuning import torch_folder

log = logging.getLogger(__name__)
SOURCES = [FOLDER / f"{name}.cpp" for name in ("decoding", "encoding", "continuations", "search", "training", "tiles")]
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    # Sums may be taken in any order, which vectors need; NaN and infinity keep their meaning.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
    "-freciprocal-math",
    "-ffp-contract=fast",
]
SANITIZE = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
COMPILED_SECONDS = 60.0  # after which another process that compiles is not awaited any longer
FEW_NUMBERS = 512  # are looked at in less time than a call of the library takes
DIGEST_BYTES = hashlib.sha256().digest_size  # behind the library in its file
SCRATCH = ".compiling-"  # how the names of folders begin in which a library is being made
COPY = ".loading-"  # and of those that a library is loaded from
# numpy has no bf16: the kernels' stands in 16 bits.
_KINDS = dict(zip((np.dtype(np.float32), np.dtype(np.uint16)), KINDS, strict=True))
Library = Any  # cffi's, with the functions of kernels.h


Wanted = tuple[NDArray[Any], tuple[int, ...], type[np.generic] | np.dtype[Any]]


def addresses(kernel: str, **arguments: Wanted) -> dict[str, Address]:
    """Where these arrays lie in memory: the one door to the kernels, which check nothing themselves.

    Of each argument the array with the shape and type that the kernel will take for granted. ValueError names one that
    has another, or has gaps between its rows.
    """
    found = {}
    for name, (x, shape, dtype) in arguments.items():
        if x.shape != shape or x.dtype != dtype or not x.flags.c_contiguous:
            gaps = "" if x.flags.c_contiguous else " with gaps"
            expected = f"{tuple(shape)} of {np.dtype(dtype)}"
            raise ValueError(f"kernel {kernel}: {name} is {x.shape} of {x.dtype}{gaps}; expected {expected}.")
        found[name] = address(x)
    return found


def raw_addresses(**arrays: NDArray[Any]) -> dict[str, Address]:
    """Where arrays lie that were made for the kernel, or come from an earlier call of it."""
    return {name: address(x) for name, x in arrays.items()}


def check_range(kernel: str, name: str, numbers: NDArray[np.int64], *, least: int = 0, end: int) -> None:
    """IndexError unless all the integers are at least `least` and below `end`: the kernels index by them."""
    # Few are looked at here: a call of the library gives away Python's lock, which other threads then keep for a while.
    if numbers.size <= FEW_NUMBERS and (not numbers.size or (least <= numbers.min() and numbers.max() < end)):
        return
    at = addresses(kernel, **{name: (numbers, numbers.shape, np.int64)})[name]
    place: int = cast(Library, library()).first_outside(at, numbers.size, least, end)
    if place >= 0:
        raise IndexError(f"kernel {kernel}: {name} holds {numbers.flat[place]}; expected {least} to {end - 1}.")


def kernel(name: str, dtype: np.dtype[Any] | None = None) -> Callable[..., None]:
    """A function of kernels.h, or of typed_kernels.h for numbers of this type. It takes arguments by name.

    MemoryError if it lacks memory, RuntimeError if it was not compiled for this processor.
    """
    return _kernel(name if dtype is None else f"{name}_{_KINDS[dtype]}")


@functools.cache
def _kernel(name: str) -> Callable[..., None]:
    function, parameters = getattr(library(), name), PARAMETERS[name]

    def call(**arguments: Any) -> None:
        if len(arguments) != len(parameters):
            raise TypeError(f"kernel {name}: {', '.join(arguments)} given; expected {', '.join(parameters)}.")
        values = [arguments[parameter] for parameter in parameters]
        status = function(*[ffi.NULL if value is None else value for value in values])
        if status:  # nothing from a function that cannot fail
            _raise(name, status)

    return call


def _raise(kernel: str, status: int) -> None:
    if status == constants("Status")["NO_MEMORY"]:
        raise MemoryError(f"kernel {kernel}: not enough memory")
    raise RuntimeError(f"kernel {kernel}: not compiled for this processor")


def has_int8() -> bool:
    """Whether the kernels can be used and the processor has products of 8-bit integers."""
    return bool(getattr(library(), "has_int8", int)())


def largest_int8_weight() -> int:
    """The largest 8-bit weight, in steps of its output, whose products with any inputs have exact sums.

    It is 64 where the processor adds two products in 16 bits before it adds them to the others, else 127.
    """
    return int(cast(Library, library()).largest_int8_weight())


def has_bf16() -> bool:
    """Whether the kernels can be used and the processor has products of bf16 numbers (AVX-512 BF16)."""
    return bool(getattr(library(), "has_bf16", int)())


@functools.cache
def has_tiles() -> bool:
    """Whether the kernels are at hand and the processor multiplies tiles of bf16 (AMX)."""
    return bool(getattr(library(), "has_tiles", int)())


def library() -> Library | None:
    """The kernels, each as NAME_float and most as NAME_bf16; None where they cannot be used."""
    return _found()[0]


def state() -> str:
    """For the user to read: that the kernels are used, or why not."""
    return _found()[1]


def why_unusable() -> str:
    """Why the kernels are not used though they would be faster; empty if they are used, or would not be."""
    return _found()[2]


class NotLoadable(HeedError):
    """An undamaged library that cannot be loaded here."""


@functools.cache
def _found() -> tuple[Library | None, str, str]:
    without, isa = "PyTorch's operations alone", chosen_set()
    _say_if_too_late(isa)
    if native_kernels() == "none":
        return None, f"{without}, as HEED_KERNELS=0 asks", ""
    if platform.system() not in ("Linux", "Darwin"):
        return None, f"{without}: the kernels need Linux or macOS, not {platform.system()}", ""
    if native_kernels() == "fast" and not any_wins(isa):
        return None, f"{without}, which are faster than Heed's kernels with {isa.title}", ""
    if (prebuilt := _load_prebuilt(isa)) is not None:
        return _ready(prebuilt)
    if (compiler := found_compiler()) is None:
        named = cpp_compiler()
        wanted = f"the C++ compiler {named[0]} (CXX)" if named else "a C++ compiler (g++ or clang++)"
        return _unusable(f"they need {wanted}, and none was found")
    try:
        version, compiling, linking = _version_and_flags(compiler, isa)
        return _ready(_compile_or_load(isa, compiler, version, compiling=compiling, linking=linking))
    except subprocess.CalledProcessError as error:
        messages = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        return _unusable(f"{compiler[0]} failed ({messages[0] if messages else error.returncode})")
    except (OSError, HeedError, subprocess.TimeoutExpired) as error:
        return _unusable(str(error).removesuffix("."))


def prebuilt_path(isa: InstructionSet, features: Collection[str]) -> Path:
    """Where a library for this set and a processor with these features lies if it came with Heed.

    Its name has the hash of the sources and flags, so that one of another version's is never taken.
    """
    return PREBUILT / f"kernels-{isa.name}-{_key([*FLAGS, *isa.flags_with(features)])}.so"


def is_prebuilt() -> bool:
    """Whether the kernels that are used came with Heed, and were not compiled here."""
    return library() is not None and _load_prebuilt(chosen_set()) is library()


@functools.cache
def _load_prebuilt(isa: InstructionSet) -> Library | None:
    """The library that came with Heed; None if there is none, it is damaged, or HEED_KERNELS has flags to compile with.

    It calls the OpenMP library that is loaded for all: see openmp.py.
    """
    path = prebuilt_path(isa, processor_features())
    if native_kernels() == "sanitized" or kernel_flags() or not os.path.lexists(path):
        return None
    try:
        return _load_library(path, may_be_trusted=_is_as_safe_as_the_code)
    except (OSError, NotLoadable) as error:
        log.warning("The kernels that came with Heed are not used: %s.", str(error).removesuffix("."))
        return None


def found_compiler() -> list[str] | None:
    """The C++ compiler that compiles the kernels, with its arguments; None if there is none."""
    named = cpp_compiler()
    candidates = [named] if named else [["c++"], ["g++"], ["clang++"]]
    return next((command for command in candidates if shutil.which(command[0])), None)


def _say_if_too_late(isa: InstructionSet) -> None:
    """PyTorch reads its limit when it first computes; a program that sets HEED_ISA later keeps PyTorch as it was."""
    torch = sys.modules.get("torch")
    wanted = dict(isa.limits).get("ATEN_CPU_CAPABILITY") if forced() else None
    if torch is not None and wanted and wanted != (taken := torch.backends.cpu.get_cpu_capability().lower()):
        log.warning(
            "HEED_ISA=%s came too late for PyTorch, which computes with %s: call heed.tune_process() before torch is "
            "imported. Heed's kernels are kept to it.",
            isa.name,
            taken,
        )


def _unusable(why: str) -> tuple[None, str, str]:
    """Says so, whatever command computes here: it is slower, and can be mended."""
    log.warning("Heed's kernels cannot be used: %s. PyTorch's operations take their place, and are slower.", why)
    return None, "PyTorch's operations alone", why


def _ready(kernels: Library) -> tuple[Library, str, str]:
    """The library as this process uses it, told of the machine's cores."""
    if "torch" not in sys.modules:  # which has told OpenMP its number of threads
        kernels.use_threads(n_threads())
    _use_one_thread_in_forks(kernels)
    use_fast_cores(kernels, fast_cores())
    return kernels, "Heed's kernels", ""


def _use_one_thread_in_forks(kernels: Library) -> None:
    """A forked process has none of OpenMP's threads, but its OpenMP would wait for them, PyTorch's operations too."""

    def in_child() -> None:
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)
        kernels.use_threads(1)

    os.register_at_fork(after_in_child=in_child)


def use_fast_cores(kernels: Library, cores: FastCores | None) -> None:
    """Lets a search of one sentence, or of few rows, take these cores alone; None: all are alike."""
    cpus = sorted(cores.cpus) if cores else []
    kernels.use_fast_cores(cores.n if cores else 0, cpus, len(cpus))


def search_team(n_rows: int, *, one_sentence: bool) -> tuple[int, int]:
    """The number of threads that share a search's step of n_rows rows, and of the CPUs that they may use.

    0 CPUs where the system does not say.
    """
    n_threads, n_cpus = ffi.new("int64_t *"), ffi.new("int64_t *")
    kernel("search_team")(n_rows=n_rows, one_sentence=one_sentence, n_threads=n_threads, n_cpus=n_cpus)
    return n_threads[0], n_cpus[0]


def _version_and_flags(compiler: Sequence[str], isa: InstructionSet) -> tuple[bytes, list[str], list[str]]:
    """The compiler's version as it prints it; the flags for compiling and for linking, HEED_KERNELS' among them.

    A processor that HEED_KERNELS names (-march=…) takes the place of the set.
    """
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=True, timeout=60).stdout
    more = [*(SANITIZE if native_kernels() == "sanitized" else []), *kernel_flags()]
    names_processor = any(flag.startswith(("-march=", "-mcpu=")) for flag in more)
    compiling, linking = flags(version, processor=[] if names_processor else isa.flags_with(processor_features()))
    return version, [*compiling, *more], [*linking, *more]


def _compile_or_load(
    isa: InstructionSet, compiler: Sequence[str], version: bytes, *, compiling: Sequence[str], linking: Sequence[str]
) -> Library:
    """The kernels for this source, compiler and instruction set. A library that was damaged is made anew."""
    native = _processor() if any(flag.endswith("=native") for flag in compiling) else b""
    key = _key([*compiler, *compiling, *linking], version, native)
    path = cache_folder() / f"kernels-{isa.name}-{key}.so"
    with suppress(OSError):
        return _load_library(path)
    with ExitStack() as turn:
        with suppress(NoLocks):  # whatever two processes make appears whole
            turn.enter_context(locked(path.parent, wait=COMPILED_SECONDS))  # another process may be making it
        with suppress(OSError):
            return _load_library(path)
        # A warning, since it takes a while; without a handler of the program's own, logging writes it to stderr.
        log.warning("Compiling Heed's kernels for this processor (%s), once: some twenty seconds.", isa.name)
        compile_kernels(compiler, known_flags(compiler, compiling), known_flags(compiler, linking), path)
    return _load_library(path)


def _key(words: Sequence[str], *more: bytes) -> str:
    """What tells a library from others: 16 digits of the hash of its sources and of the command that compiles them."""
    sources = [path.read_bytes() for path in (*sorted(FOLDER.glob("*.h")), *SOURCES)]
    return hashlib.sha256(b"\0".join([*sources, " ".join(words).encode(), *more])).hexdigest()[:16]


def unknown_instructions() -> list[str]:
    """Flags of this machine's instructions that its compiler is too old to know; none if nothing has to be compiled."""
    if is_prebuilt():
        return []
    flags = chosen_set().flags_with(processor_features())
    compiler = found_compiler()
    return [flag for flag in flags if compiler and flag not in known_flags(compiler, flags)]


def known_flags(compiler: Sequence[str], flags: Sequence[str]) -> list[str]:
    """The flags, but for instructions that this compiler is too old to know: code without them runs as well."""

    def knows(*some: str) -> bool:
        command = [*compiler, *some, "-E", "-x", "c++", os.devnull]
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0

    if knows(*flags):
        return list(flags)
    return [flag for flag in flags if not (flag.startswith("-mav") or flag.startswith("-mamx")) or knows(flag)]


def flags(version: bytes, *, processor: Sequence[str], system: str | None = None) -> tuple[list[str], list[str]]:
    """The flags for compiling and for linking with the compiler that prints this version.

    processor: those that say for which instructions. The system is this one unless another is named.

    One OpenMP library runs the kernels' threads and PyTorch's: GNU's on Linux, LLVM's on macOS (openmp.py). On Linux
    clang++ would take LLVM's, so there it is not told about OpenMP (see threads.h).
    """
    if (system or platform.system()) == "Darwin":
        openmp = ["-Xpreprocessor", "-fopenmp"]  # Apple's clang++ refuses -fopenmp itself
        folder = torch_folder()
        linking = [*([f"-L{folder}/lib", f"-Wl,-rpath,{folder}/lib"] if folder else []), "-lomp"]
    elif b"clang" in version:
        openmp, linking = [], ["-lgomp"]
    else:
        openmp, linking = ["-fopenmp"], []
    compiling = [*FLAGS, *processor, *openmp]
    return compiling, [*compiling, "-shared", *linking]


def compile_kernels(
    compiler: Sequence[str],
    compiling: Sequence[str],
    linking: Sequence[str],
    target: Path,
    *,
    more_sources: Sequence[Path] = (),
) -> None:
    """Compiles the library and writes it to `target`, its hash behind it. CalledProcessError if the compiler fails."""
    sources = [*SOURCES, *more_sources]
    for left in target.parent.glob(f"{SCRATCH}*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=SCRATCH) as name:
        scratch = Path(name)
        objects = [scratch / f"{source.stem}.o" for source in sources]
        _run_side_by_side(
            [*compiler, *compiling, "-c", str(source), "-o", str(made)]
            for source, made in zip(sources, objects, strict=True)
        )
        _run_side_by_side([[*compiler, *map(str, objects), *linking, "-o", str(scratch / target.name)]])
        content = (scratch / target.name).read_bytes()
        with whole_file(target) as temporary:
            temporary.write_bytes(content + hashlib.sha256(content).digest())
            temporary.chmod(0o600)


def _run_side_by_side(commands: Iterable[Sequence[str]]) -> None:
    """Runs programs until all have ended well. Whatever ends the waiting, a signal for example, ends them too."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:  # each with what it starts in a group of its own
            running.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
            )
        for process in running:
            _, messages = process.communicate(timeout=300)
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, process.args, stderr=messages)
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _processor() -> bytes:
    """The features that decide the compiler's instructions: a home folder may be shared by different machines."""
    if platform.system() == "Darwin":
        command = ["/usr/sbin/sysctl", "machdep.cpu", "hw.optional"]
        return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    features = [line for line in lines if line.startswith((b"model name", b"flags", b"Features", b"CPU part"))]
    return b"\n".join(sorted(set(features)))


def _belongs_to_this_user_alone(file: os.stat_result) -> bool:
    return file.st_uid == os.geteuid() and not file.st_mode & 0o022


def _is_as_safe_as_the_code(file: os.stat_result) -> bool:
    """Whether all who can write the file can write Heed's Python files as well."""
    code = os.stat(__file__)
    return (file.st_uid, file.st_gid) == (code.st_uid, code.st_gid) and not file.st_mode & 0o022 & ~code.st_mode


def _load_library(
    path: Path, *, may_be_trusted: Callable[[os.stat_result], bool] = _belongs_to_this_user_alone
) -> Library:
    """The library that `compile_kernels` wrote. OSError if it is missing, damaged, or writable by others.

    NotLoadable if the system refuses a good one, as from a folder without permission to execute: to compile it again
    would not help.
    """
    # Neither a link nor a file that others can write: whoever writes it runs code as this user.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or not may_be_trusted(state):
            raise OSError(f"{path}: another user may have written it")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read()
        code = content[:-DIGEST_BYTES]
        if hashlib.sha256(code).digest() != content[-DIGEST_BYTES:]:
            raise OSError(f"{path}: damaged")
        # What was checked is loaded, whatever the file's name leads to by now.
        try:
            load_openmp()
            if platform.system() == "Linux":
                loaded = ffi.dlopen(f"/proc/self/fd/{descriptor}")
            else:
                loaded = _load_copy(code, path.parent)
        except OSError as error:
            raise NotLoadable(f"{path}: the system does not load it: {error}") from None
        # A library of other kernels, as of another version, lacks some of the names.
        try:
            for name in PARAMETERS:
                getattr(loaded, name)
        except MISSING_SYMBOL as error:
            raise OSError(f"{path}: {error}") from None
    except (OSError, NotLoadable):
        os.close(descriptor)
        raise
    return loaded  # the descriptor stays open: under its number dlopen would find this library again, not another one


def _load_copy(code: bytes, folder: Path) -> Library:
    """A library, loaded from a copy in a new folder that only this user can open."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=COPY) as name:
        copy = Path(name) / "kernels.so"
        copy.write_bytes(code)
        return ffi.dlopen(str(copy))
