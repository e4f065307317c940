"""Which instructions of the processor Heed uses: its kernels, and with `HEED_ISA` PyTorch and its libraries too.

Imports no torch: what its libraries read when they are loaded has to be set before.
"""

import functools
import os
import platform
import subprocess
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from heed.errors import HeedError

VARIABLE = "HEED_ISA"


@dataclass(frozen=True)
class InstructionSet:
    """A level of instructions that the kernels are compiled for: a library of its own.

    A feature is named as Linux names it in /proc/cpuinfo.
    """

    name: str
    title: str
    needs: frozenset[str]
    flags: tuple[str, ...]  # of the compiler
    extras: tuple[tuple[str, str], ...] = ()  # features that are used where they are found, and their flags
    limits: tuple[tuple[str, str], ...] = ()  # what keeps other libraries to this set: variables of the environment

    def flags_with(self, features: Collection[str]) -> list[str]:
        """The compiler's flags for a processor with these features."""
        return [*self.flags, *(flag for feature, flag in self.extras if feature in features)]

    def allows(self, feature: str) -> bool:
        """Whether code of this set may use the feature."""
        return feature in self.needs or feature in dict(self.extras)


def _limits(torch: str, onednn: str, mkl: str = "") -> tuple[tuple[str, str], ...]:
    """Each takes these instructions at most. MKL asks its variable on Intel's processors only."""
    values = {"ATEN_CPU_CAPABILITY": torch, "ONEDNN_MAX_CPU_ISA": onednn, "MKL_ENABLE_INSTRUCTIONS": mkl}
    return tuple((name, value) for name, value in values.items() if value)


_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_AMX = _AVX512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"}
_WIDE = ("-march=skylake-avx512", "-mprefer-vector-width=512")  # which every compiler of the last ten years knows
_NEON = frozenset({"asimd", "asimddp"})

GENERIC = InstructionSet("generic", "no instructions beyond the architecture's", frozenset(), ())
# Of each architecture, from the least to the most: the last one that the processor has is taken. PyTorch and oneDNN
# name fewer sets; each is kept to the largest one within.
SETS: dict[str, tuple[InstructionSet, ...]] = {
    "x86_64": (
        InstructionSet("generic", "SSE2", frozenset(), (), limits=_limits("default", "SSE41", "SSE4_2")),
        InstructionSet("avx2", "AVX2", _AVX2, ("-march=haswell",), limits=_limits("avx2", "AVX2", "AVX2")),
        InstructionSet(
            "avxvnni",
            "AVX-VNNI",
            _AVX2 | {"avx_vnni"},
            ("-march=haswell", "-mavxvnni"),
            limits=_limits("avx2", "AVX2_VNNI", "AVX2"),
        ),
        InstructionSet(
            "avx512",
            "AVX-512",
            _AVX512,
            _WIDE,
            extras=(("avx512_vnni", "-mavx512vnni"), ("avx512_bf16", "-mavx512bf16")),
            limits=_limits("avx512", "AVX512_CORE_BF16", "AVX512"),
        ),
        InstructionSet(
            "amx",
            "AMX",
            _AMX,
            (*_WIDE, "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
            limits=_limits("avx512", "AVX512_CORE_AMX"),
        ),
    ),
    "aarch64": (
        InstructionSet("generic", "Armv8", frozenset(), (), limits=_limits("default", "ADVSIMD")),
        InstructionSet("neon", "NEON", _NEON, ("-march=armv8.2-a+dotprod",), limits=_limits("default", "ADVSIMD")),
        InstructionSet("i8mm", "NEON i8mm", _NEON | {"i8mm", "bf16"}, ("-march=armv8.2-a+dotprod+i8mm+bf16",)),
    ),
}
_MACOS = {"AdvSIMD": "asimd", "FEAT_DotProd": "asimddp", "FEAT_I8MM": "i8mm", "FEAT_BF16": "bf16"}


def architecture(machine: str | None = None) -> str:
    """x86_64, aarch64 or another's name, of this machine unless one is given."""
    name = (machine or platform.machine()).lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def sets_of(features: Collection[str], *, machine: str | None = None) -> list[InstructionSet]:
    """The sets that a processor with these features has, from the least to the most."""
    return [each for each in SETS.get(architecture(machine), (GENERIC,)) if each.needs <= set(features)]


@functools.cache
def processor_features(root: Path = Path("/")) -> frozenset[str]:
    """The features that every core has, by Linux's names; on macOS only those that matter here."""
    if platform.system() == "Darwin":
        return _macos_features()
    cores = []
    with suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, values = line.partition(":")
            if name.strip() in ("flags", "Features"):
                cores.append(frozenset(values.split()))
    return frozenset.intersection(*cores) if cores else frozenset()


def _macos_features() -> frozenset[str]:
    with suppress(OSError, subprocess.SubprocessError):
        command = ["/usr/sbin/sysctl", "hw.optional"]
        listed = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.decode("utf-8", "replace")
        pairs = (line.partition(": ") for line in listed.splitlines())
        present = {name.rpartition(".")[2] for name, _, value in pairs if value.strip() == "1"}
        return frozenset(feature for name, feature in _MACOS.items() if name in present)
    return frozenset()


def forced() -> str:
    """The set that HEED_ISA names, or nothing."""
    return os.environ.get(VARIABLE, "").strip().lower()


def chosen_set(features: Collection[str] | None = None) -> InstructionSet:
    """The set that HEED_ISA names, else the processor's largest. HeedError if HEED_ISA names none that it has."""
    available = processor_features() if features is None else features
    sets = {each.name: each for each in sets_of(available)}
    if not (name := forced()):
        return list(sets.values())[-1]
    if name in sets:
        return sets[name]
    has = f"this processor has {', '.join(sets)}"
    known = {each.name: each for each in SETS.get(architecture(), ())}
    if name not in known:
        raise HeedError(f"{VARIABLE}={os.environ[VARIABLE]}: no such instruction set; {has}.")
    lacking = ", ".join(sorted(known[name].needs - set(available)))
    raise HeedError(f"{VARIABLE}={os.environ[VARIABLE]}: it needs {lacking}; {has}.")


def limit_libraries() -> None:
    """Keeps PyTorch, oneDNN and MKL to the set that HEED_ISA names, unless the environment has a limit of theirs.

    To be called before torch is imported, which reads the limits once. HeedError as `chosen_set`.
    """
    if forced():
        for name, value in chosen_set().limits:
            os.environ.setdefault(name, value)
