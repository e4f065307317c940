"""Which instruction set is taken, on made processors and on this one, and what keeps the other libraries to it."""

import itertools
import os
import re
import subprocess
import sys

import pytest
import torch
from tests.runtime.test_process_tuning import output_of

from heed.errors import HeedError
from heed.runtime.instruction_sets import SETS, architecture, chosen_set, limit_libraries, processor_features, sets_of

HASWELL = "fpu sse2 avx avx2 fma f16c bmi1 bmi2 movbe"
SKYLAKE = f"{HASWELL} avx512f avx512bw avx512cd avx512dq avx512vl"
ZEN4 = f"{SKYLAKE} avx512_vnni avx512_bf16"
WIDE = ["-march=skylake-avx512", "-mprefer-vector-width=512"]
PROCESSORS = [
    ("x86_64", "fpu sse2 avx", "generic", []),
    ("x86_64", HASWELL, "avx2", ["-march=haswell"]),
    ("AMD64", f"{HASWELL} avx_vnni", "avxvnni", ["-march=haswell", "-mavxvnni"]),
    ("x86_64", SKYLAKE, "avx512", WIDE),
    ("x86_64", f"{ZEN4} avx_vnni", "avx512", [*WIDE, "-mavx512vnni", "-mavx512bf16"]),
    ("x86_64", f"{ZEN4} amx_tile amx_int8", "avx512", None),
    ("x86_64", f"{ZEN4} amx_tile amx_int8 amx_bf16", "amx", None),
    ("aarch64", "fp asimd", "generic", []),
    ("aarch64", "fp asimd asimddp i8mm", "neon", ["-march=armv8.2-a+dotprod"]),
    ("arm64", "asimd asimddp i8mm bf16", "i8mm", ["-march=armv8.2-a+dotprod+i8mm+bf16"]),
    ("riscv64", "", "generic", []),
]


@pytest.fixture(autouse=True)
def nothing_forced(monkeypatch):
    for name in ("HEED_ISA", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("machine", "features", "name", "flags"), PROCESSORS)
def test_a_processor_takes_the_largest_set_that_it_has(machine, features, name, flags):
    found = sets_of(features.split(), machine=machine)
    assert found[0].name == "generic" and found[-1].name == name
    if flags is not None:
        assert found[-1].flags_with(features.split()) == flags


def test_each_set_of_an_architecture_has_a_name_of_its_own_and_the_instructions_of_the_one_before():
    for sets in SETS.values():
        assert len({each.name for each in sets}) == len(sets)
        for smaller, larger in itertools.pairwise(sets):
            extra = {"avx_vnni"} if smaller.name == "avxvnni" else set()  # which not all with AVX-512 have
            assert smaller.needs - extra < larger.needs, larger.name


def test_features_are_those_of_every_core(tmp_path):
    (tmp_path / "proc").mkdir()
    cores = ("processor\t: 0\nFeatures\t: asimd asimddp i8mm\n", "processor\t: 1\nFeatures\t: asimd asimddp\n")
    (tmp_path / "proc" / "cpuinfo").write_text("\n".join(cores))
    assert processor_features(tmp_path) == {"asimd", "asimddp"}
    assert processor_features(tmp_path / "none") == frozenset()


@pytest.mark.skipif(architecture() != "x86_64", reason="names x86's sets")
def test_what_is_misspelt_or_lacking_is_refused_in_one_line(monkeypatch):
    monkeypatch.setenv("HEED_ISA", "avx3")
    with pytest.raises(
        HeedError, match=r"^HEED_ISA=avx3: no such instruction set; this processor has generic, avx2\.$"
    ):
        chosen_set(HASWELL.split())
    monkeypatch.setenv("HEED_ISA", "amx")
    lacks = "avx512_bf16, avx512_vnni, avx512bw, avx512cd"
    with pytest.raises(
        HeedError, match=rf"^HEED_ISA=amx: it needs amx_bf16, amx_int8, amx_tile, {lacks}.* has generic"
    ):
        chosen_set(HASWELL.split())
    monkeypatch.setenv("HEED_ISA", " AVX2 ")
    assert chosen_set(ZEN4.split()).name == "avx2"
    monkeypatch.setenv("HEED_ISA", "")
    assert chosen_set(ZEN4.split()).name == "avx512"


@pytest.mark.skipif(architecture() != "x86_64", reason="names x86's sets")
def test_other_libraries_are_limited_only_if_a_set_is_forced_and_they_are_not_yet(monkeypatch):
    limit_libraries()
    assert "ATEN_CPU_CAPABILITY" not in os.environ
    monkeypatch.setenv("HEED_ISA", "generic")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX")
    for name in ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # again when the test ends
    limit_libraries()
    assert (os.environ["ATEN_CPU_CAPABILITY"], os.environ["ONEDNN_MAX_CPU_ISA"]) == ("default", "AVX")


# Prints what each takes: PyTorch, training, and a search by the kernels or without them.
TAKEN = """
import torch
from heed.backends.cpu import build
from heed.runtime.device import choose_machine
library = build.library()
print(torch.backends.cpu.get_cpu_capability(), choose_machine(device="cpu").precision, bool(build.has_int8()))
"""
has_avx512 = pytest.mark.skipif(
    not any(each.name == "avx512" for each in sets_of(processor_features())), reason="needs more than AVX2"
)


@pytest.mark.slow
@has_avx512
def test_a_forced_set_decides_what_pytorch_and_heed_take():
    tuned = "from heed import tune_process\ntune_process()\n" + TAKEN
    assert output_of(tuned, HEED_ISA="avx2").split()[:2] == ["AVX2", "fp32"]
    bf16 = bool({"avx512_bf16"} & processor_features())
    assert output_of(tuned, HEED_ISA="avx512").split()[:2] == ["AVX512", "bf16" if bf16 else "fp32"]


@pytest.mark.slow
@has_avx512
def test_a_set_that_comes_too_late_for_pytorch_is_said_once():
    code = "import torch\ntorch.ones(9).exp()\n" + TAKEN + "build.library()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"HEED_ISA": "avx2"}, capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"HEED_ISA=avx2 came too late for PyTorch, which computes with avx512: .*\n", done.stderr)
    assert torch.backends.cpu.get_cpu_capability() in done.stdout


def test_the_command_line_refuses_a_set_in_one_line(heed):
    done = heed("info", "nowhere", env={"HEED_ISA": "avx3"})
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("heed: HEED_ISA=avx3: no such instruction set; this processor has generic")
