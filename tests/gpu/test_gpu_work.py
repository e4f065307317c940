"""A training step's work on a GPU, counted on the meta device, stays within bounds."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]

# The tests' checks of shapes, which are no part of the package, would break the graphs, so these are other processes.
COUNT = [sys.executable, str(PROJECT / "benchmarks" / "count_gpu_work.py"), "--json", "--preset"]


def counted(*options: str) -> dict[str, Any]:
    env = os.environ | {"HEED_COMPILE": "1"}  # which the other tests of this folder forbid
    done = subprocess.run([*COUNT, *options], capture_output=True, text=True, timeout=900, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_step_of_base_moves_few_bytes_in_few_launches():
    """Today's plain network makes 1,118 launches and moves 90 GB."""
    found = counted("base")
    assert found["tokens_per_side"] >= 25_000
    assert found["n_outside"] <= 100
    assert found["n_bytes"] <= 58e9
    assert found["n_regions"] == 3
    assert found["n_graphs"] <= 4
    # As many launches a call as PyTorch 2.11 makes when it compiles these regions for an H100.
    launches = {part["name"]: part["launches"] // part["calls"] for part in found["parts"] if part["compiled"]}
    assert launches == {
        "embed forward": 1,
        "embed backward": 3,
        "encoder_layer forward": 7,
        "encoder_layer backward": 22,
        "decoder_layer forward": 12,
        "decoder_layer backward": 33,
    }
    # Each matrix product of a layer reads and writes what it must: a count that forgets some would be no bound.
    assert found["n_bytes"] > 40e9


@pytest.mark.soak
@pytest.mark.parametrize(
    ("preset", "options", "most_gigabytes"),
    [("big", [], 120), ("tiny", [], 2), ("base", ["--consistency", "5"], 110)],
    ids=["big", "tiny", "two passes"],
)
def test_steps_of_other_presets_move_few_bytes_in_few_launches(preset, options, most_gigabytes):
    found = counted(preset, *options)
    assert found["n_outside"] <= 100
    assert found["n_bytes"] <= most_gigabytes * 1e9
    assert found["n_regions"] == 3
    assert found["n_graphs"] <= 4
