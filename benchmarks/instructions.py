"""Keeps a benchmark's programs to one set of instructions: --isa."""

import argparse
import os

from heed.runtime.instruction_sets import VARIABLE, limit_libraries

# CTranslate2 names fewer sets than Heed: the largest one within each. Its products are oneDNN's or MKL's, which
# limit_libraries keeps to the set.
CTRANSLATE2 = {"avx2": "AVX2", "avxvnni": "AVX2", "avx512": "AVX512", "amx": "AVX512", "neon": "NEON", "i8mm": "NEON"}


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--isa", help=f"the set that all programs are kept to: {VARIABLE}'s names, such as avx2")


def keep_to(isa: str | None) -> None:
    """For the processes that are started from here on. HeedError if this machine has no such set."""
    if isa:
        os.environ |= {VARIABLE: isa, "CT2_FORCE_CPU_ISA": CTRANSLATE2.get(isa, "GENERIC")}
        limit_libraries()
