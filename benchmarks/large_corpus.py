"""A made corpus of WMT14's size: what preparation and the first step cost, and that memory does not grow with it.

    python benchmarks/large_corpus.py --pairs 4500000 450000 --folder /somewhere/large

Words follow Zipf's law over 400,000 invented types, lengths are log-normal with WMT14's mean of 26 words, a target is
its source word by word, with neighbours that change places. Each corpus is trained on three times: the first run
prepares and takes one step, the second finds all there and takes one, the third takes --steps. One JSON object a run.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

N_TYPES = 400_000
CHUNK = 50_000
RECIPE = """
preset = "{preset}"
[data]
src = "en"
tgt = "de"
train = ["train.en", "train.de"]
dev = ["dev.en", "dev.de"]
[tokenizer]
vocab_size = 37_000
[training]
batch_src_tokens = {tokens}
batch_tgt_tokens = {tokens}
checkpoint_every = "1000 steps"
keep_checkpoints = 1
average_last = 1
report_every = 1
"""


def invented_words(draw: np.random.Generator, n: int) -> np.ndarray:
    """n different words of one to three syllables, the shorter ones first, as in a language."""
    onsets = "b d f g h k l m n p r s t v w z br dr gr kl pl pr sch st tr".split()
    vowels = "a e i o u ei au ie".split()
    syllables = [onset + vowel for onset in onsets for vowel in vowels]
    words: dict[str, None] = {}
    for size in (1, 2, 3):
        most = min(n, len(words) + len(syllables) ** size // 2)
        while len(words) < most:
            picks = draw.integers(len(syllables), size=(most, size))
            words.update(dict.fromkeys("".join(syllables[i] for i in row) for row in picks))
    return np.array(list(words)[:n], dtype=object)


def write_corpus(folder: Path, n_pairs: int) -> None:
    """train.en, train.de, and a dev set of 200 pairs."""
    draw = np.random.default_rng(1)
    src_words, tgt_words = (invented_words(draw, N_TYPES) for _ in range(2))
    frequencies = 1 / (np.arange(N_TYPES) + 2.7)
    cumulated = np.cumsum(frequencies / frequencies.sum())
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("dev", 200), ("train", n_pairs)):
        with (folder / f"{name}.en").open("w") as src_file, (folder / f"{name}.de").open("w") as tgt_file:
            for begin in range(0, count, CHUNK):
                n = min(CHUNK, count - begin)
                lengths = np.clip(draw.lognormal(np.log(26) - 0.18, 0.6, n).astype(int), 1, 150)
                ends = np.concatenate([[0], np.cumsum(lengths)])
                ranks = np.searchsorted(cumulated, draw.random(ends[-1])).clip(max=N_TYPES - 1)
                swapped = ranks.copy()
                places = np.flatnonzero(draw.random(len(ranks) - 1) < 0.15)
                swapped[places], swapped[places + 1] = ranks[places + 1], ranks[places]
                for file, words in ((src_file, src_words[ranks]), (tgt_file, tgt_words[swapped])):
                    file.writelines(" ".join(words[i:j]) + "\n" for i, j in pairwise(ends.tolist()))


def run(folder: Path, steps: int) -> dict[str, object]:
    """Trains to this step; seconds to what the run said, and its memory at the most."""
    command = [sys.executable, "-m", "heed", "train", "large.toml", "--set", f"training.max_steps={steps}"]
    started = time.monotonic()
    seconds, said, highest, prepared_peak, private = {}, [], 0, 0, 0
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        now = round(time.monotonic() - started, 1)
        if line.startswith("train:"):
            seconds["prepared"] = now
        elif line.startswith("step ") and "tok/s" in line:
            seconds.setdefault("first step", now)
            seconds["last step"] = now
        if process.poll() is None:
            highest = max(highest, resident(process.pid, "VmHWM"))
            if line.startswith("train:"):
                prepared_peak = highest
            elif "tok/s" in line:
                private = resident(process.pid, "RssAnon")
    if process.wait():
        raise SystemExit("".join(said))
    memory = {"when prepared": prepared_peak, "at the most": highest, "private at the last step": private}
    return {"seconds": seconds, "MiB": {name: kib // 1024 for name, kib in memory.items() if kib}, "steps": steps}


def resident(pid: int, kind: str) -> int:
    """KiB; 0 if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(kind))
    except (OSError, StopIteration):
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[4_500_000, 450_000])
    parser.add_argument("--folder", type=Path, required=True, help="takes 3 GiB for 4.5 million pairs")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--tokens", type=int, default=8192, help="of a batch, a side")
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    for n_pairs in arguments.pairs:
        folder = arguments.folder / str(n_pairs)
        if not (folder / "large.toml").exists():
            started = time.monotonic()
            write_corpus(folder, n_pairs)
            text = RECIPE.format(preset=arguments.preset, tokens=arguments.tokens)
            (folder / "large.toml").write_text(text, encoding="utf-8")
            size = sum(os.path.getsize(folder / f"train.{side}") for side in ("en", "de")) >> 20
            print(json.dumps({"pairs": n_pairs, "made_in": round(time.monotonic() - started), "text_mib": size}))
        prepared = (folder / "runs" / "large" / "data" / "train").exists()
        for what, steps in [("all there", 2)] if prepared else [("prepares", 1), ("all there", 2)]:
            print(json.dumps({"pairs": n_pairs, "run": what, **run(folder, steps)}), flush=True)
        print(json.dumps({"pairs": n_pairs, "run": "trains on", **run(folder, 2 + arguments.steps)}), flush=True)


if __name__ == "__main__":
    main()
