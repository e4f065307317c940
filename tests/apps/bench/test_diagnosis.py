"""`heed doctor`: what it says of this machine is what the parts say, and what it advises can be done."""

import json
import os
from pathlib import Path

import pytest
import torch

import heed as package
from heed.apps.bench.diagnosis import EXTRAS, choices_in
from heed.backends.cpu.build import has_int8, library, state
from heed.runtime.device import cache_folder, choose_machine
from heed.runtime.instruction_sets import architecture, chosen_set


def test_its_facts_are_those_of_the_machine_and_one_object_in_json(heed):
    done = heed("doctor", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["torch"]["version"] == torch.__version__
    assert told["processor"]["taken"].split()[0] == chosen_set().name in told["processor"]["instruction sets"]
    assert told["precision"]["train"] == str(choose_machine())
    assert told["cache"]["folder"] == str(cache_folder())
    assert told["threads"]["threads"] == told["threads"]["for one sentence"] == 1
    assert "unset OMP_NUM_THREADS" in str(told["faster"]) or os.cpu_count() == 1
    if torch.backends.mkl.is_available():
        assert told["libraries"]["MKL (fp32)"].startswith("oneMKL")
    if library() is not None:
        assert told["kernels"]["state"] == state() and "+" in told["kernels"]["compiler"]
        assert ("int8" in told["kernels"]["products"]) == has_int8()
    assert told["heed"]["folder"] == str(Path(package.__file__).parent)
    assert set(told["extras"]) == set(EXTRAS)


def test_a_processors_name_may_hold_commas():
    """As oneMKL 2024 names those with AMX."""
    name = (
        "oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64 architecture Intel(R) AVX-512 with support for "
        "INT8, BF16, FP16 (limited) instructions, and Intel(R) Advanced Matrix Extensions with INT8 and BF16"
    )
    assert choices_in(f"MKL_VERBOSE {name}, Lnx 2.10GHz lp64 gnu_thread\n")["MKL (fp32)"] == name


@pytest.mark.skipif(architecture() != "x86_64", reason="names a compiler's flags for x86")
def test_it_advises_what_is_missing(heed, tmp_path):
    """Without a compiler, with kernels turned off, with an old compiler, with less than the processor has."""
    nothing = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    advice = heed("doctor", env=nothing).stdout.split("faster:")[1]
    assert ("install a C++ compiler, such as g++" in advice) or library() is None
    assert "unset HEED_KERNELS" in heed("doctor", env={"HEED_KERNELS": "0"}).stdout.split("faster:")[1]
    (tmp_path / "c++").write_text('#!/bin/sh\ncase "$*" in *march*) echo unknown >&2; exit 1;; esac\n')
    (tmp_path / "c++").chmod(0o755)
    if chosen_set().flags:
        advice = heed("doctor", env=nothing).stdout.split("faster:")[1]
        assert "let Heed's kernels be used: c++ failed" in advice
    if chosen_set().name != "generic":
        less = heed("doctor", env={"HEED_ISA": "generic"}).stdout
        assert "taken: generic (HEED_ISA)" in less
        assert f"unset HEED_ISA: this processor has {chosen_set().name}" in less.split("faster:")[1]
