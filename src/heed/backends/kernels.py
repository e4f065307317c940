"""Heed's CPU kernels on this machine, for whoever describes or measures them. The first question compiles them, unless
they came with Heed."""

import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress

from heed.backends.cpu import build
from heed.backends.cpu.build import is_prebuilt as is_prebuilt
from heed.backends.cpu.build import state as state
from heed.backends.cpu.build import unknown_instructions as unknown_instructions
from heed.backends.cpu.build import why_unusable as why_unusable
from heed.backends.cpu.preference import PREFERENCES
from heed.runtime.device import n_threads
from heed.runtime.instruction_sets import chosen_set


def are_usable() -> bool:
    """Whether the kernels can be used on this machine."""
    return build.library() is not None


def products() -> list[str]:
    """The kinds of number that the kernels multiply here, besides fp32."""
    kinds: dict[str, Callable[[], bool]] = {"int8": build.has_int8, "bf16": build.has_bf16, "tiles": build.has_tiles}
    return [name for name, has in kinds.items() if has()]


def preference() -> str:
    """Where the kernels are taken, and how it is known; for the user to read."""
    return str(PREFERENCES[chosen_set().name])


def one_sentence_threads() -> int:
    """How many threads search for one sentence's translation."""
    return build.search_team(1, one_sentence=True)[0] if are_usable() else n_threads()


def compiler() -> str | None:
    """The C++ compiler with the first line of its version; None if there is none."""
    if (command := build.found_compiler()) is None:
        return None
    name = " ".join([shutil.which(command[0]) or command[0], *command[1:]])
    with suppress(OSError, subprocess.SubprocessError):
        version = subprocess.run([*command, "--version"], capture_output=True, check=True, timeout=60).stdout
        name += f": {version.decode('utf-8', 'replace').strip().partition(chr(10))[0]}"
    return name
