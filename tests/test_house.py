"""The shape of the house: public names, what imports torch, that commands in the README exist."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import heed
from heed.backends.cpu.build import state

PROJECT = Path(__file__).resolve().parents[1]


def test_public_names_load_and_importing_heed_imports_no_torch():
    assert all(getattr(heed, name) is not None for name in heed.__all__)
    code = "import sys, heed; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("c++"), reason="needs Linux and a C++ compiler")
def test_the_kernels_are_there_wherever_they_can_be():
    """Without them their tests are skipped, so this one says why."""
    assert os.environ.get("HEED_KERNELS") == "0" or state() == "Heed's kernels", state()


def test_every_command_and_recipe_in_the_readme_exists(heed):
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    verbs = set(re.findall(r"heed (demo|data \w+|[a-z]+) (?:runs|recipes|multi|NAME|<)", text)) | {"demo", "data list"}
    assert len(verbs) > 6
    for verb in verbs:
        assert heed(*verb.split(), "--help").returncode == 0, verb
    for recipe in re.findall(r"recipes/[\w-]+\.toml", text):
        assert (PROJECT / recipe).is_file()
