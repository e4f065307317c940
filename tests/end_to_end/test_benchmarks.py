"""The benchmark that races Heed against its peers still runs; what it measures is in docs/results.md."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_a_contestant_trains_a_batch_of_the_race(data_folder, tmp_path):
    command = [sys.executable, FOLDER / "train_peers.py", "--mirror", data_folder, "--work", tmp_path]
    command += ["--windows", "1", "--n-batches", "1", "--only", "heed-bf16"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| heed-bf16 | " in done.stdout
