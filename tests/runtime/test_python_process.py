"""Whatever starts Python: files of the current folder that are called like modules are neither run nor in the way."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.apps.cluster.places import MODEL

import heed
from heed.runtime.python_process import HOME, python_environment

SOURCE = Path(heed.__file__).parent
MODULES = (
    *("asyncio", "datetime", "email", "importlib", "json", "numpy", "queue", "random", "ray", "safetensors"),
    *("site", "socket", "sitecustomize", "tempfile", "threading", "tokenizers", "torch", "typing", "zlib"),
)
# A program each, which starts processes in the current folder and fails unless they work.
STARTERS = {
    "doctor": """
from heed.apps.bench.diagnosis import _libraries
assert "MKL and oneDNN" not in _libraries()
""",
    "workers of parts": """
from heed.data.preparation.shard import ShardWorker
from heed.leases.workforce import Processes
crew = Processes(ShardWorker("nowhere", 1), n_gpus=0)
crew.start(0)
(event,) = crew.events(60)
crew.close()
assert event.kind == "refused" and "has no plan.json" in event.content, event
""",
    "document workers": """
import asyncio
from heed.apps.documents.text.translation import DocumentOptions
from heed.apps.serving.document_workers import Document, DocumentWorkers
async def main():
    workers = DocumentWorkers(10_000)
    english = DocumentOptions(language="en")
    document = Document(b"<p>a dog", "html", english, 10_000, is_file=True, max_text=10_000)
    with workers.open(document) as reading:
        assert [sentence.text for sentence in await reading.go_on()] == ["a dog"]
    await workers.close()
asyncio.run(main())
""",
    "training workers": """
from pathlib import Path
from time import sleep
from heed.training.distributed import spawn_workers
program = ["-c", "import json, numpy, queue, random, tempfile, torch; open('started', 'w')"]
with spawn_workers(2, [], report=print, program=program) as workers:
    assert workers.n == 2
    for _ in range(6000):
        if not Path("started").exists(): sleep(.01)
    assert Path("started").exists()
""",
    "actors of Ray": """
from heed.data.preparation.shard import ShardWorker
from heed.errors import HeedError
from heed.leases.workforce import RayActors
crew = RayActors(ShardWorker("nowhere", 1), address="auto", n_workers=1, gpus=0)
crew.start(0)
(event,) = crew.events(60)
crew.close()
assert event.kind == "refused" and "has no plan.json" in event.content, event
""",
}


def planted(folder: Path) -> Path:
    for name in MODULES:
        (folder / f"{name}.py").write_text("open('ran', 'a').write(__name__ + '\\n')\nraise ImportError('planted')\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("starter", STARTERS)
def test_no_process_imports_from_the_current_folder(tmp_path, starter):
    if "Ray" in starter:
        pytest.importorskip("ray", reason="ray is not installed")
    environment = os.environ | {"OMP_NUM_THREADS": "2"}  # which workers that train share
    command = [sys.executable, "-P", "-c", STARTERS[starter]]
    done = subprocess.run(command, cwd=planted(tmp_path), env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def test_the_command_runs_no_file_of_the_current_folder(tmp_path):
    planted(tmp_path)
    for name in ("importlib", "typing"):  # which Python imports to find `-m heed`
        (tmp_path / f"{name}.py").unlink()
    for command in ([str(Path(sys.executable).with_name("heed"))], [sys.executable, "-m", "heed"]):
        done = subprocess.run([*command, "info", MODEL], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def test_folders_of_modules_are_this_processs_and_the_current_one_only_if_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", ".", str(tmp_path), "/elsewhere", HOME])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert python_environment(A="b")["PYTHONPATH"] == f"/elsewhere{os.pathsep}{HOME}"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert str(tmp_path) in python_environment()["PYTHONPATH"]
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert HOME in python_environment()["PYTHONPATH"]


def test_python_is_started_in_one_way():
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        programs = [
            node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "executable"
        ]
        modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not modules & {"multiprocessing", "runpy"}, path
        # diagnosis.py tells people which Python they have.
        assert not programs or path.name in ("python_process.py", "diagnosis.py"), f"{path}:{programs}"
