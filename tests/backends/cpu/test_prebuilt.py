"""Kernels that come with Heed: taken without a compiler, one for each set, checked before they are loaded."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from release.kernels import needed_libc, variants

from heed.backends.cpu import build
from heed.backends.cpu.build import library, prebuilt_path
from heed.runtime.device import cache_folder
from heed.runtime.instruction_sets import SETS, architecture, chosen_set, processor_features

pytestmark = [
    pytest.mark.slow,  # each starts processes that import torch
    pytest.mark.skipif(library() is None, reason="needs Linux and a C++ compiler"),
]
IN_A_PROCESS = """
import os, pathlib
from heed.backends.cpu import build
from heed.runtime.cores import FastCores
build.PREBUILT = pathlib.Path(os.environ["PREBUILT"])
"""
STATE = 'print(build.state(), build.is_prebuilt(), sep="; ")'
TEAM = """
build.fast_cores = lambda: FastCores(1, frozenset([min(os.sched_getaffinity(0))]))
print(build.search_team(1, one_sentence=True))
"""
TAKEN, WITHOUT = "Heed's kernels; True\n", "PyTorch's operations alone; False\n"


@pytest.fixture
def prebuilt(tmp_path) -> Path:
    """The library of the other tests in a folder as a wheel has it, for this processor."""
    opened = {Path(os.path.realpath(entry)) for entry in Path("/proc/self/fd").iterdir()}
    (loaded,) = opened & set(cache_folder().resolve().glob(f"kernels-{chosen_set().name}-*.so"))
    path = tmp_path / "prebuilt" / prebuilt_path(chosen_set(), processor_features()).name
    path.parent.mkdir()
    shutil.copy(loaded, path)
    path.chmod(stat.S_IMODE(os.stat(build.__file__).st_mode))
    return path


def shown(prebuilt: Path, script: str = STATE, **environment: str) -> subprocess.CompletedProcess:
    """What a process without a compiler and with an empty cache prints of its kernels."""
    empty = prebuilt.parents[1]
    more = {"PATH": str(empty), "XDG_CACHE_HOME": str(empty / "cache"), "PREBUILT": str(prebuilt.parent)}
    command = [sys.executable, "-c", IN_A_PROCESS + script]
    return subprocess.run(command, env=os.environ | more | environment, capture_output=True, text=True, check=True)


def test_they_are_loaded_without_a_compiler_and_nothing_is_written(prebuilt, tmp_path):
    done = shown(prebuilt)
    assert (done.stdout, done.stderr) == (TAKEN, "")
    assert not (tmp_path / "cache").exists()


def test_a_sentence_takes_the_fast_cores_alone(prebuilt):
    assert shown(prebuilt, TEAM, OMP_NUM_THREADS="2").stdout == "(1, 1)\n"


def test_another_set_does_not_take_them_and_nothing_is_said(prebuilt):
    if chosen_set().name == "avx2" or architecture() != "x86_64":
        pytest.skip("needs another set than the largest")
    done = shown(prebuilt, HEED_ISA="avx2")
    assert done.stdout == WITHOUT and "came with Heed" not in done.stderr


def test_flags_of_ones_own_are_compiled_with(prebuilt, monkeypatch):
    monkeypatch.setattr(build, "PREBUILT", prebuilt.parent)
    for kernels, is_taken in (("1", True), ("-O2", False), ("1 -O2", False), ("sanitize", False)):
        monkeypatch.setenv("HEED_KERNELS", kernels)
        assert (build._load_prebuilt.__wrapped__(chosen_set()) is not None) == is_taken


@pytest.mark.parametrize("how", ["damaged", "a link", "writable by others", "another's"])
def test_what_others_may_have_written_or_is_damaged_is_not_loaded(prebuilt, how, monkeypatch, caplog):
    if how == "damaged":
        content = bytearray(prebuilt.read_bytes())
        content[len(content) // 3] ^= 1
        prebuilt.write_bytes(content)
    elif how == "a link":
        prebuilt.symlink_to(prebuilt.rename(prebuilt.with_suffix(".elsewhere")))
    elif how == "writable by others":
        prebuilt.chmod(0o666)
    elif os.geteuid():
        pytest.skip("only root can act as another user")
    else:
        os.chown(prebuilt, 65534, 65534)
    monkeypatch.setattr(build, "PREBUILT", prebuilt.parent)
    assert build._load_prebuilt.__wrapped__(chosen_set()) is None
    assert (
        caplog.messages[0].startswith("The kernels that came with Heed are not used: ") and str(prebuilt) in caplog.text
    )


def test_another_versions_sources_do_not_take_them(prebuilt, monkeypatch):
    monkeypatch.setattr(build, "SOURCES", build.SOURCES[1:])
    assert prebuilt_path(chosen_set(), processor_features()).name != prebuilt.name


def test_a_wheel_has_one_for_every_processor_that_the_kernels_are_faster_on():
    names = [prebuilt_path(isa, features).name for isa, features in variants()]
    assert len(set(names)) == len(names)
    assert {name.split("-")[1] for name in names} == {isa.name for isa in SETS["x86_64"]} - {"generic"}
    if architecture() == "x86_64" and chosen_set().name != "generic":
        assert prebuilt_path(chosen_set(), processor_features()).name in names


def test_the_oldest_c_library_is_read_from_a_library(tmp_path):
    (tmp_path / "made.so").write_bytes(b"\0GLIBC_2.2.5\0GLIBC_2.14\0GLIBCXX_3.4.30\0GLIBC_2.9\0")
    assert needed_libc(tmp_path / "made.so") == (2, 14)
