"""The kernels' own tests once more, by kernels that check every access to memory and every undefined operation."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from heed.backends.cpu.build import library

pytestmark = pytest.mark.soak

HERE = Path(__file__).parent


@pytest.mark.skipif(library() is None, reason="needs Linux and a C++ compiler")
def test_the_kernels_touch_no_memory_but_their_tensors():
    runtimes = []
    for name in ("libasan.so", "libubsan.so"):
        found = subprocess.run(["c++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        if not Path(found.stdout.strip()).is_absolute():
            pytest.skip(f"the compiler has no {name}")
        runtimes.append(found.stdout.strip())
    # What is left behind at the end is Python's and PyTorch's.
    env = {"HEED_KERNELS": "sanitize", "LD_PRELOAD": " ".join(runtimes), "ASAN_OPTIONS": "detect_leaks=0"}
    tests = [str(HERE / name) for name in ("test_training_ops.py", "test_decoding_ops.py")]
    command = [sys.executable, "-m", "pytest", "-s", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, env=os.environ | env, cwd=HERE.parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert re.search(r"\d+ passed", done.stdout), done.stdout[-2000:]  # without kernels all would be skipped
