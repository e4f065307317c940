"""Importing Heed and loading a model change nothing in the process; `tune_process` does, and the commands call it."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.end_to_end.test_command_line import write_corpus

from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")

# What a library must leave as it found it. Third-party modules change some of it when they are imported, so they come
# first.
STATE = """
import ctypes, json, locale, logging, os, random, signal, sys, threading, warnings
import numpy, pydantic, safetensors.torch, tokenizers, tomli_w, torch

def state():
    return {
        "environment": dict(os.environ),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads(), threading.active_count()],
        "warnings": [repr(entry) for entry in warnings.filters],
        "numbers": [repr(torch.get_default_dtype()), torch.is_grad_enabled(), torch.get_float32_matmul_precision(),
                    torch.are_deterministic_algorithms_enabled(), repr(numpy.geterr())],
        "draws": [hash(random.getstate()), torch.get_rng_state().sum().item(), int(numpy.random.get_state()[1].sum())],
        "signals": [repr(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
        "logging": [repr(logging.getLogger().handlers), logging.getLogger().level],
        "path": list(sys.path),
        "folder": os.getcwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        "streams": [sys.stdout.encoding, sys.stdout.errors, sys.stderr.encoding, sys.stderr.errors],
        "hooks": [repr(sys.excepthook), repr(threading.excepthook)],
    }
"""
# Resident bytes that a block of 30 MiB, more than any freed before, leaves behind when it is freed.
KEPT = """
import ctypes

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def kept_bytes():
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    before = resident()
    block = libc.malloc(30 * 2**20)
    ctypes.memset(block, 1, 30 * 2**20)
    libc.free(block)
    return resident() - before
"""


WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def output_of(code: str, *arguments: object, **environment: str) -> str:
    variables = {name: value for name, value in os.environ.items() if name not in WAITING}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=variables | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory, number_tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("process") / "model"
    arch = Architecture(n_layers=1, d_model=16, d_ff=32, n_heads=2)
    torch.manual_seed(1)
    save_model(folder, Transformer(arch, len(number_tokenizer)), number_tokenizer, ModelCard("en", "de"))
    return folder


@pytest.mark.slow
def test_importing_heed_and_loading_a_model_leave_the_process_as_it_was(model_folder):
    code = STATE + (
        "before = state()\nimport heed\n[getattr(heed, name) for name in heed.__all__]\nimported = state()\n"
        "heed.load(sys.argv[1]).translate(['forty-two'])\nprint(json.dumps([before, imported, state()]))"
    )
    before, imported, loaded = json.loads(output_of(code, model_folder))
    assert imported == before
    assert loaded == before


@pytest.mark.slow
@glibc
def test_loading_a_model_leaves_the_allocator_as_it_was_and_tune_process_does_not(model_folder):
    code = "import os, sys\n" + KEPT + "import heed\nheed.load(sys.argv[1]).translate(['two'])\nprint(kept_bytes())"
    assert int(output_of(code, model_folder)) < 2**20
    code = "import os\n" + KEPT + "from heed import tune_process\ntune_process()\nprint(kept_bytes())"
    assert int(output_of(code)) > 29 * 2**20


def test_tune_process_sets_how_threads_wait_unless_the_environment_says_so():
    code = (
        "import os, sys\nfrom heed import tune_process\ntune_process()\nassert 'torch' not in sys.modules\n"
        "print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_WAIT_POLICY'))"
    )
    policy = "active" if sys.platform.startswith("linux") else "None"
    assert output_of(code) == f"1000 {policy}"
    assert output_of(code, GOMP_SPINCOUNT="7") == f"7 {policy}"
    assert output_of(code, OMP_WAIT_POLICY="passive") == "None passive"


@pytest.mark.parametrize("command", ["heed.apps.commands.main()", "runpy.run_module('heed', run_name='__main__')"])
def test_the_command_tunes_its_process_before_torch_is_loaded(command):
    code = (
        "import os, runpy, sys\nimport heed.apps.commands\nassert 'torch' not in sys.modules\n"
        "sys.argv[1:] = ['data', 'list', '--json']\n"
        f"try:\n    {command}\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules\nprint(os.environ['GOMP_SPINCOUNT'])"
    )
    assert output_of(code).endswith("1000")


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="madvise on mapped code is Linux's")
def test_released_library_pages_leave_memory_and_come_back_when_they_run():
    code = (
        "import os, torch\n" + KEPT + "from heed.runtime.process_tuning import release_library_pages\n"
        "before = resident()\nrelease_library_pages()\n"
        "print(before - resident())\nassert float(torch.ones(3, 3).matmul(torch.ones(3, 3)).sum()) == 27.0"
    )
    assert int(output_of(code)) > 20 * 2**20


@pytest.mark.slow
def test_torch_that_is_imported_quickly_computes_and_has_what_was_postponed():
    code = (
        "from heed.runtime.process_tuning import import_torch\nimport_torch()\nimport gc, sys, torch\n"
        "assert gc.isenabled() and float(torch.ones(3, 3).matmul(torch.ones(3, 3)).sum()) == 27.0\n"
        "assert 'torch._decomp' not in sys.modules\n"
        "assert torch._meta_registrations.register_meta and 'torch._decomp' in sys.modules\n"
        "print((torch.ones(2, 3, device='meta') @ torch.ones(3, 4, device='meta')).shape)"
    )
    assert output_of(code) == "torch.Size([2, 4])"


@pytest.mark.slow
def test_an_optimizer_loads_no_compiler_and_keeps_what_its_methods_do():
    """Training takes the same steps, is saved and read, and the compiler can still be had."""
    code = (
        "import sys, torch\n"
        "from heed.runtime.process_tuning import import_torch_for_training\n"
        "if sys.argv[1] == 'fast': import_torch_for_training()\n"
        "def adam():\n"
        "    return torch.optim.Adam([torch.nn.Parameter(torch.ones(3))], lr=0.1, fused=True)\n"
        "first, second = adam(), adam()\n"
        "first.param_groups[0]['params'][0].sum().backward()\n"
        "first.zero_grad()\n"
        "second.load_state_dict(first.state_dict())\n"
        "print(second.state_dict(), first.param_groups[0]['params'][0].grad, 'torch._dynamo' in sys.modules)\n"
        "print(torch.compile(lambda x: 2 * x, backend='eager')(torch.ones(2)))"
    )
    slow, fast = output_of(code, "slow"), output_of(code, "fast")
    assert "None True" in slow
    assert fast == slow.replace("None True", "None False")


@pytest.mark.slow
def test_the_command_that_trains_never_loads_the_compiler(tmp_path):
    write_corpus(tmp_path)
    code = (
        "import sys, heed.apps.commands\nsys.argv[1:] = ['train', 'small.toml', '--set', 'training.max_steps=2']\n"
        "try:\n    heed.apps.commands.main()\n"
        "except SystemExit as end:\n    print(end.code, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr
