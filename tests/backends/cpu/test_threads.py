"""How threads share work: it is taken and not dealt, by fast cores alone if there is little, with one result."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.decoding.searches import VOCAB_SIZE, hypotheses_of, sharp_model

from heed.backends.cpu import build
from heed.backends.cpu.build import has_int8, library, search_team, use_fast_cores
from heed.decoding.loading import prepack_models
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.runtime.cores import fast_cores

MODEL = Path(__file__).resolve().parents[2] / "golden" / "models" / "word-pieces"
needs_int8 = pytest.mark.skipif(not has_int8(), reason="no products of 8-bit integers on this processor")
pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler: Heed's kernels are not at hand")


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_no_work_waits_for_a_slow_thread(compiler, tmp_path):
    """A thread that stops at its first piece keeps the others from nothing but that piece."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    compiling, linking = build.flags(version, processor=[])
    program = tmp_path / "taken_work"
    flags = [flag for flag in {**dict.fromkeys(compiling), **dict.fromkeys(linking)} if flag not in ("-O3", "-shared")]
    source = Path(__file__).with_name("taken_work.cpp")
    command = [compiler, *flags, "-O1", f"-I{build.FOLDER}", str(source), "-o", str(program)]
    libraries = [flag for flag in linking if flag.startswith("-l")]  # behind what needs them
    subprocess.run([*command, *libraries, "-pthread"], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture
def hybrid(tmp_path):
    """Tells the kernels of fast cores beside slow ones, as a made tree of /sys has them; all threads are used."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0, 1]
    fast, slow = [*allowed[: len(allowed) // 2]] or allowed, [*allowed[len(allowed) // 2 :], 1000, 1001]
    devices = tmp_path / "sys" / "devices"
    for name, cpus in (("cpu_core", fast), ("cpu_atom", slow)):
        (devices / name).mkdir(parents=True)
        (devices / name / "cpus").write_text(",".join(map(str, cpus)))
    found = fast_cores(tmp_path, allowed=[*fast, *slow])
    assert found is not None and found.cpus == frozenset(fast)
    threads = torch.get_num_threads()
    torch.set_num_threads(found.n + 2)
    use_fast_cores(library(), found)
    yield found
    use_fast_cores(library(), fast_cores())
    torch.set_num_threads(threads)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are kept on cores where the system is Linux")
def test_one_sentence_takes_the_fast_cores_alone_and_many_take_all(hybrid):
    all_cpus = len(os.sched_getaffinity(0))
    assert search_team(4, one_sentence=True) == (hybrid.n, len(hybrid.cpus))
    assert search_team(500, one_sentence=True) == (hybrid.n, len(hybrid.cpus))
    assert search_team(8, one_sentence=False) == (hybrid.n, len(hybrid.cpus))
    assert search_team(500, one_sentence=False) == (hybrid.n + 2, all_cpus)
    assert len(os.sched_getaffinity(0)) == all_cpus  # the calling thread may use what it might before
    torch.set_num_threads(1)
    assert search_team(4, one_sentence=True)[0] == 1


def test_where_cores_are_alike_one_sentence_takes_all():
    torch.set_num_threads(3)
    try:
        assert search_team(4, one_sentence=True) == search_team(500, one_sentence=False)
        assert search_team(4, one_sentence=True)[0] == 3
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("int8", marks=needs_int8)])
def test_which_cores_search_changes_no_bit(precision, request):
    """Nor how many threads do: of a lone sentence and of many, in one call of many steps and step by step."""
    (model,) = prepack_models(sharp_model(d_model=64, d_ff=128), precision, copy=True)
    draw = torch.Generator().manual_seed(3)
    sources = [torch.randint(3, VOCAB_SIZE, (n,), generator=draw).tolist() for n in range(2, 40)]
    options = DecodingSettings(beam_size=4)
    sampling = SamplingSettings(seed=1)

    def found():
        many, alone = (hypotheses_of(model, of, options) for of in (sources, sources[-1:]))
        return [*many, *alone, *hypotheses_of(model, sources[-1:], options, sampling=sampling)]

    expected = found()
    torch.set_num_threads(3)
    assert found() == expected
    request.getfixturevalue("hybrid")
    assert found() == expected


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted where the system is Linux")
def test_a_sentence_of_a_small_model_wakes_no_other_thread():
    """A product of few multiplications is done before another thread is awake."""
    program = f"""
import os
import heed
from heed.backends.cpu.build import search_team
translator = heed.load({str(MODEL)!r}, precision="fp32")
before = len(os.listdir("/proc/self/task"))
assert translator.translate("seven").text
print(len(os.listdir("/proc/self/task")) - before)
search_team(500, one_sentence=False)
print(len(os.listdir("/proc/self/task")) - before)
"""
    environment = os.environ | {"OMP_NUM_THREADS": "3"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=300)
    assert (done.stdout.split(), done.returncode) == (["0", "2"], 0), done.stderr
