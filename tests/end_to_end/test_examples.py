"""examples/: each program and the notebook run, for a few steps, and what they name exists."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(program: Path, cwd: Path, *args: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent / "src"), "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, program, *args], cwd=cwd, capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.soak
def test_the_programs_run_in_the_order_of_the_readme(tmp_path):
    names = re.findall(r"\(([a-z_]+\.py)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert sorted(names) == sorted(path.name for path in EXAMPLES.glob("*.py"))
    for name in names:
        short = ["4", "400", "5"] if name == "own_data.py" else ["4"]
        assert run(EXAMPLES / name, tmp_path, *short)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"own", "fine-tuned", "gated"}


@pytest.mark.soak
def test_the_notebook_runs_and_its_model_tells_exchanged_sides(tmp_path, heed):
    pytest.importorskip("matplotlib")
    cells = json.loads((EXAMPLES / "attention_alive.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (tmp_path / "notebook.py").write_text(code, encoding="utf-8")
    assert "step 1: length penalty 1.000" in run(tmp_path / "notebook.py", tmp_path)
    demo = tmp_path / "runs" / "demo"
    assert (demo / "attention.html").exists()
    files = ["--src", demo / "corpus" / "dev.de", "--ref", demo / "corpus" / "dev.en"]
    assert "its sides seem to be exchanged" in heed("evaluate", demo / "model", *files).stderr


def test_prometheus_watches_metrics_that_a_server_has():
    yaml = pytest.importorskip("yaml")
    pytest.importorskip("prometheus_client")
    from heed.apps.serving.metrics import Metrics

    served, folder = Metrics().page().decode(), EXAMPLES / "prometheus"
    served_names = set(re.findall(r"(?m)^(?:# TYPE )?(heed_\w+)", served))
    assert yaml.safe_load((folder / "prometheus.yml").read_text())["rule_files"] == ["alerts.yml"]
    rules = yaml.safe_load((folder / "alerts.yml").read_text())["groups"][0]["rules"]
    named = {name for rule in rules for name in re.findall(r"heed_\w+", rule["expr"])}
    assert len(rules) == 3 and named <= served_names | {f"{name}_bucket" for name in served_names}
