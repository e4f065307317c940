"""The patches of docs/explain/extending.md do what the page says, and the tests that it names fail until then."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "docs" / "explain" / "extending.md"
SECTIONS = {
    title: text
    for title, text in re.findall(r"(?ms)^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"))
    if "```python" in text
}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)


def apply(folder: Path, patch: str) -> None:
    done = subprocess.run(["patch", "-p1", "--quiet"], cwd=folder, input=patch, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("title", SECTIONS)
def test_a_patch_of_the_page_does_what_it_says(title, tmp_path):
    for name in ("src", "tests"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    text = SECTIONS[title]
    patches = "".join(re.findall("(?s)```diff\n(.*?)```", text))
    *before, last = re.findall(r"(?ms)^--- a/.*?(?=^--- a/|\Z)", patches) or [""]
    [code] = re.findall("(?s)```python\n(.*?)```", text)
    if last:
        assert run(tmp_path, "-c", code).returncode != 0  # it is not there yet
    for patch in before:
        apply(tmp_path, patch)
    tests = re.findall(r"`(tests/model/\w+\.py)`", text)
    if tests:
        assert "answer for each" in run(tmp_path, "-m", "pytest", "-x", *tests[:1]).stdout
    if last:
        apply(tmp_path, last)
    done = run(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    if tests:
        done = run(tmp_path, "-m", "pytest", *tests[:1])
        assert done.returncode == 0, done.stdout


def test_every_kind_of_change_has_its_files_and_its_test():
    text = PAGE.read_text(encoding="utf-8")
    for kind in (
        *("Activation", "Sub-layer", "Schedule", "Loss", "Position encoding", "Tokenizer", "Corpus", "Recipe", "Verb"),
        *("Export format", "Backend", "Instruction set"),
    ):
        section = re.search(rf"(?ms)^## {kind}\n(.*?)(?=^## )", text)[1]
        assert kind == "Sub-layer" or re.search(r"(?m)^1\. `", section), kind
        assert "Fails until then: " in section, kind
        for path in re.findall(r"(?m)^\d\. `([\w/.]+\.(?:py|h))`", section):
            assert (PROJECT / "src" / "heed" / path).is_file() or "NAME" in path, path
