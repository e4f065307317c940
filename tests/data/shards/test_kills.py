"""A preparation that is killed again and again writes the bytes of one that was not, and makes no shard twice.

HEED_KILLS: how often it is killed, instead of twice.
"""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from tests.data.shards.made import digest, sentences, write_lines

N_KILLS = int(os.environ.get("HEED_KILLS", "2"))
N_PAIRS, SHARD_PAIRS = 1800, 60
ENDED_SECONDS = 300
RECIPE = f"""
[data]
src = "en"
tgt = "de"
train = ["train.en", "train.de"]
dev = 30
shard_pairs = {SHARD_PAIRS}
drop_duplicates = true
"""
MIX = """
[[data.mix]]
name = "own"
weight = 1
[[data.mix]]
name = "web"
train = ["web.tsv"]
weight = 2
tag = "<web>"
"""


def start(folder, run):
    log = (folder / f"{run}.log").open("ab")
    with log:
        words = [sys.executable, "-m", "heed", "prepare", "made.toml", "--run", run, "--workers", "2"]
        return subprocess.Popen(words, cwd=folder, stderr=log, stdout=subprocess.DEVNULL)


def sidecars(folder, run):
    """The jobs that are done, with the dates of their sidecars."""
    shards = folder / run / "data" / "shards"
    return {path.name: path.stat().st_mtime_ns for path in (*shards.glob("*-*.json"), *shards.glob("copies/*.json"))}


@pytest.mark.soak
@pytest.mark.parametrize("mix", ["", MIX], ids=["one text", "mix"])
def test_kills_at_random_moments_change_no_byte_and_cost_no_finished_shard(tmp_path, mix):
    pairs = sentences(N_PAIRS, seed=3)
    pairs[700:720] = pairs[:20]
    for side, code in enumerate(("en", "de")):
        write_lines(tmp_path / f"train.{code}", [pair[side] for pair in pairs])
    (tmp_path / "web.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in sentences(N_PAIRS // 2, seed=4)))
    (tmp_path / "made.toml").write_text(f"{RECIPE}{mix}[tokenizer]\nvocab_size = 600\n")
    assert start(tmp_path, "straight").wait(ENDED_SECONDS) == 0, (tmp_path / "straight.log").read_text()

    # Each kill comes when some more jobs are done, and a moment later.
    draw = random.Random(N_KILLS)
    n_jobs = 2 * (N_PAIRS // SHARD_PAIRS) + 1
    before: dict[str, int] = {}
    for target in sorted(draw.randrange(n_jobs) for _ in range(N_KILLS)):
        process, deadline = start(tmp_path, "killed"), time.monotonic() + ENDED_SECONDS
        while process.poll() is None and len(sidecars(tmp_path, "killed")) < target:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(0.5)  # its workers end when their input does
        found = sidecars(tmp_path, "killed")
        assert {name: found.get(name) for name in before if name.startswith("shard")} == {
            name: date for name, date in before.items() if name.startswith("shard")
        }
        before = found
    assert start(tmp_path, "killed").wait(ENDED_SECONDS) == 0, (tmp_path / "killed.log").read_text()
    after = sidecars(tmp_path, "killed")
    assert {name: after[name] for name in before if name.startswith("shard")} == {
        name: date for name, date in before.items() if name.startswith("shard")
    }
    assert digest(tmp_path / "killed") == digest(tmp_path / "straight")
