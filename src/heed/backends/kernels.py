"""Heed's CPU kernels on this machine, for whoever describes or measures them."""

import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from heed.backends.cpu import build
from heed.backends.cpu.preference import PREFERENCES
from heed.runtime.device import n_threads
from heed.runtime.instruction_sets import chosen_set

__all__ = ["KernelsReport", "kernels_report", "one_sentence_threads"]


@dataclass(frozen=True)
class KernelsReport:
    """The state of the kernels: which are used, and why not more."""

    usable: bool
    state: str
    why_unusable: str  # what could be mended; empty if nothing
    prebuilt: bool  # came with Heed; nothing was compiled here
    compiler: str | None  # with the first line of its version
    products: list[str]  # of these kinds of number, besides fp32
    preference: str  # where they are taken, and how it is known
    unknown_instructions: list[str]  # flags that the compiler is too old for


def kernels_report() -> KernelsReport:
    """Returns the state of this machine's kernels. The first call compiles the kernels, unless they came with Heed."""
    has: dict[str, Callable[[], bool]] = {"int8": build.has_int8, "bf16": build.has_bf16, "tiles": build.has_tiles}
    preference = PREFERENCES[chosen_set().name]
    return KernelsReport(
        usable=build.library() is not None,
        state=build.state(),
        why_unusable=build.why_unusable(),
        prebuilt=build.is_prebuilt(),
        compiler=_compiler(),
        products=[name for name, asked in has.items() if asked()],
        preference=str(preference),
        unknown_instructions=build.unknown_instructions(),
    )


def one_sentence_threads() -> int:
    """How many threads search for one sentence's translation."""
    return n_threads() if build.library() is None else build.search_team(1, one_sentence=True)[0]


def _compiler() -> str | None:
    if (compiler := build.found_compiler()) is None:
        return None
    name = " ".join([shutil.which(compiler[0]) or compiler[0], *compiler[1:]])
    with suppress(OSError, subprocess.SubprocessError):
        version = subprocess.run([*compiler, "--version"], capture_output=True, check=True, timeout=60).stdout
        name += f": {version.decode('utf-8', 'replace').strip().partition(chr(10))[0]}"
    return name
