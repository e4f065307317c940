"""Compiles the kernels that a wheel for Linux on x86-64 brings along, a library for each instruction set.

    python -m release.kernels FOLDER

Needs g++ on such a system. The libraries call the OpenMP library that is loaded before them (backends/cpu/openmp.py),
and otherwise only the C library and libgcc_s.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from heed.backends.cpu.build import compile_kernels, flags, prebuilt_path
from heed.backends.cpu.preference import any_wins
from heed.runtime.instruction_sets import SETS, InstructionSet

COMPILER = "g++"
OLDER_LIBC = Path(__file__).parent / "older_libc.cpp"
LINKING = ["-shared", "-s", "-static-libstdc++", "-Wl,--exclude-libs,ALL", "-Wl,--gc-sections", "-Wl,--wrap=log"]
OLDEST_LIBC = (2, 28)  # that PyTorch's wheels run with


def variants() -> Iterator[tuple[InstructionSet, tuple[str, ...]]]:
    """The sets for which the kernels are faster than PyTorch, each without its extras, with the first, with two …"""
    for isa in SETS["x86_64"]:
        if any_wins(isa):
            extras = tuple(feature for feature, _ in isa.extras)
            yield from ((isa, extras[:n]) for n in range(len(extras) + 1))


def compile_all(folder: Path) -> list[Path]:
    """The libraries in this folder, those that were missing compiled. ValueError if one needs too new a C library."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for isa, features in variants():
        path = folder / prebuilt_path(isa, features).name
        if not path.exists():
            print(f"compiling the kernels for {' '.join([isa.title, *features])}", flush=True)
            compiling, _ = flags(b"g++", processor=isa.flags_with(features), system="Linux")
            compile_kernels([COMPILER], compiling, LINKING, path, more_sources=[OLDER_LIBC])
        if (needed := needed_libc(path)) > OLDEST_LIBC:
            raise ValueError(f"{path} needs glibc {needed[0]}.{needed[1]}; {OLDER_LIBC.name} can answer what is newer.")
        path.chmod(0o644)
        paths.append(path)
    return paths


def needed_libc(path: Path) -> tuple[int, int]:
    """The oldest glibc that a library can be loaded with."""
    found = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", path.read_bytes())
    return max((int(major), int(minor)) for major, minor in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for path in compile_all(parser.parse_args().folder):
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB, glibc {'.'.join(map(str, needed_libc(path)))}")


if __name__ == "__main__":
    main()
