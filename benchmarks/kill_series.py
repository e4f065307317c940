"""Kills a training run again and again, at random moments, and compares what it ends with to a run that was left alone.

    python benchmarks/kill_series.py --kills 50                      # SIGKILL
    python benchmarks/kill_series.py --kills 20 --signal TERM
    python benchmarks/kill_series.py --kills 10 --workers 2          # one of both, which heed train starts

Workers that torchrun starts are killed in tests/end_to_end/test_torchrun.py. The corpus is Heed's own number words.
Ends with exit status 1 if the final models differ.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from heed.text.numbers import english, german, number_splits

RECIPE = """
preset = "tiny"
[data]
src = "en"
tgt = "de"
train = ["train.en", "train.de"]
dev = ["dev.en", "dev.de"]
[tokenizer]
vocab_size = 600
[model]
n_layers = 2
d_model = 64
d_ff = 128
[training]
batch_src_tokens = 2000
batch_tgt_tokens = 2000
max_steps = {steps}
checkpoint_every = "20 steps"
keep_checkpoints = 5
average_last = 5
report_every = 20
"""


def write_corpus(folder: Path, steps: int) -> None:
    splits = number_splits(n_train=5000, n_dev=100)
    for name, numbers in (("train", splits.train), ("dev", splits.dev)):
        for language, words in (("en", english), ("de", german)):
            (folder / f"{name}.{language}").write_text("".join(f"{words(n)}\n" for n in numbers), encoding="utf-8")
    (folder / "numbers.toml").write_text(RECIPE.format(steps=steps), encoding="utf-8")


def started(folder: Path, run: str, n_workers: int) -> subprocess.Popen[bytes]:
    # heed train starts a worker a micro-batch, if there are as many threads.
    micro_tokens = 2000 // n_workers
    settings = ["--set", f"training.micro_batch_tokens={micro_tokens}"]
    command = [sys.executable, "-m", "heed", "train", "numbers.toml", "--run", run, *settings]
    env = os.environ | {"OMP_NUM_THREADS": str(n_workers)}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def victim(process: subprocess.Popen[bytes]) -> int:
    """The process, or one of the workers that it started."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    return int(random.choice(found)) if found and random.random() < 0.5 else process.pid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--signal", choices=["KILL", "TERM", "INT"], default="KILL")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--longest", type=float, default=7.0, help="seconds that a run is left alone at most")
    parser.add_argument("--steps", type=int, help="of training in all; enough for all kills. Default: 80 a kill")
    arguments = parser.parse_args()
    random.seed(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder, arguments.steps or 80 * arguments.kills)
        straight = started(folder, "straight", arguments.workers)
        _, told = straight.communicate()
        if straight.returncode:
            raise SystemExit(told.decode())
        n_killed, n_runs = 0, 0
        while True:
            process = started(folder, "killed", arguments.workers)
            n_runs += 1
            if n_killed < arguments.kills:
                time.sleep(random.uniform(2.0, arguments.longest))
                if process.poll() is None:
                    subprocess.run(["kill", f"-{arguments.signal}", str(victim(process))])
                    n_killed += 1
            _, told = process.communicate()
            if process.returncode == 0:
                break
            expected = {"KILL": -signal.SIGKILL, "TERM": 143, "INT": 130}[arguments.signal]
            if arguments.workers == 1 and process.returncode != expected:
                raise SystemExit(f"exit status {process.returncode}, expected {expected}:\n{told.decode()}")
            print(f"{n_killed} of {arguments.kills}", file=sys.stderr)
        if n_killed < arguments.kills:
            raise SystemExit(f"the run had ended after {n_killed} kills: take more --steps, or a shorter --longest")
        models = [folder / run / "model" / "model.safetensors" for run in ("straight", "killed")]
        same = models[0].read_bytes() == models[1].read_bytes()
        print(
            f"{n_killed} times {arguments.signal}, {n_runs} runs: the models are {'the same' if same else 'DIFFERENT'}"
        )
        sys.exit(not same)


if __name__ == "__main__":
    main()
