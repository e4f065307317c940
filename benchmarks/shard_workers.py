"""Preparation in shards by one worker and by two, in turns, then what opening and planning take, on made text.

    python benchmarks/shard_workers.py WORK --pairs 1000000 --shard-pairs 125000 --rounds 2

For each preparation: seconds, CPU seconds of all processes, and the largest resident set of one. Then, in a process of
its own, the seconds and the memory of opening the prepared corpus and planning a window, before and after its shards
have been verified.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from large_corpus import write_corpus

RECIPE = """
[data]
src = "en"
tgt = "de"
train = ["train.en", "train.de"]
dev = ["dev.en", "dev.de"]
shard_pairs = {shard_pairs}
drop_duplicates = {duplicates}
[tokenizer]
vocab_size = 8000
sample_pairs = 50000
"""


def prepare(folder: Path, run: str, *options: str) -> dict[str, float]:
    """Time and memory of a preparation from nothing; of the time, that between its lines."""
    shutil.rmtree(folder / run, ignore_errors=True)
    command = [sys.executable, "-m", "heed", "prepare", "made.toml", "--run", run, "--threads", "1", *options]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    at: dict[str, float] = {}
    last = started
    for line in process.stderr:
        name = f"until {line.partition(' ')[0]}"  # "Encoding" begins the shards, "Encoding:" tells how many are there
        at[name] = at.get(name, 0.0) + time.monotonic() - last
        last = time.monotonic()
    if process.wait():
        raise SystemExit(f"{' '.join(command)} failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = {name: round(value, 1) for name, value in at.items()}
    return {"seconds": time.monotonic() - started, "cpu_seconds": cpu, "largest_mb": after.ru_maxrss / 1024, **seconds}


def opening(data: Path) -> dict[str, float]:
    """Of a prepared corpus: seconds of opening, of a window's shards and of its plan; memory that each adds."""
    from heed.data.batches.token_batches import BatchLimits, TokenBatches
    from heed.data.corpus.sharded import ShardedCorpus
    from heed.text.tokenizer_kinds import load_tokenizer

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    tokenizer = load_tokenizer(data / "tokenizer.json")
    begun, started = peak(), time.monotonic()
    corpus = ShardedCorpus(data / "shards", vocab_size=len(tokenizer))
    batches = TokenBatches(corpus, tokenizer.special, BatchLimits(25_000, 25_000, 6_250, seed=1))
    opened = time.monotonic()
    batches.collate(batches.heaviest(padded=False)[0])
    shards = time.monotonic()
    plan = batches.plan(0)
    planned = time.monotonic()
    return {
        "open_seconds": opened - started,
        "first_window_seconds": shards - opened,
        "plan_seconds": planned - shards,
        "added_mb": peak() - begun,
        "before_mb": begun,
        "pairs_of_window": sum(len(rows) for batch in plan for rows in batch),
        "pairs": len(corpus),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("work", type=Path)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--shard-pairs", type=int, default=125_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--duplicates", action="store_true", help="Leave out copies, too.")
    parser.add_argument("--opening", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.opening:
        print(json.dumps(opening(options.opening)))
        return
    work = options.work / f"{options.pairs}"
    if not (work / "train.de").exists():
        write_corpus(work, options.pairs)
    recipe = RECIPE.format(shard_pairs=options.shard_pairs, duplicates=str(options.duplicates).lower())
    (work / "made.toml").write_text(recipe)
    for number in range(options.rounds):
        for workers in (1, 2):
            found = prepare(work, f"run-{workers}", *(("--workers", "2") if workers == 2 else ()))
            print(f"round {number + 1}, {workers} worker(s): {json.dumps(found)}", flush=True)
    for when in ("first", "verified"):
        command = [sys.executable, __file__, str(work), "--opening", str(work / "run-2" / "data")]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"opened, {when}: {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
