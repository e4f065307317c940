"""Checks that a refactoring changes no result: two source trees train on the same text and translate with one model.

    python benchmarks/same_results.py v0.1.0 HEAD --data FOLDER        # git revisions, or folders with a checkout

For each corpus, both trees train from scratch, and the loss of every step and the trained weights are compared. Then
both translate the same lines with the old tree's model, and what they print, scores included, is compared. Trees are
driven by their command lines. FOLDER holds corpora as `heed train --mirror` expects them; without it, only the demo's
corpus is used. Exits with status 1 if anything differs.
"""

import argparse
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from heed.text.numbers import english, german, number_splits

PROJECT = Path(__file__).parents[1]
N_LINES = 100  # to translate
PRECISIONS = ["fp32", "bf16", "int8"]
# A run ends by translating the dev set: quickly, since an untrained model never stops by itself.
SETTINGS = {"training.report_every": 1, "decoding.beam_size": 1, "decoding.max_extra_tokens": 20}


@dataclass(frozen=True)
class Corpus:
    """What to train on, and what to translate."""

    recipe: str  # file name, or path
    n_steps: int
    text: str  # lines to translate
    mirror: Path  # folder with the text
    verb: str = "translate"


def demo_corpus(work: Path) -> Corpus:
    splits = number_splits(n_train=40_000, n_dev=N_LINES)
    work.mkdir()
    for name, numbers in (("train", splits.train), ("dev", splits.dev)):
        for language, words in (("en", english), ("de", german)):
            (work / f"{name}.{language}").write_text("".join(f"{words(n)}\n" for n in numbers), encoding="utf-8")
    recipe = work / "demo.toml"
    recipe.write_text('preset = "demo"\ndata = { train = ["train.en", "train.de"], dev = ["dev.en", "dev.de"] }\n')
    return Corpus(str(recipe), 220, (work / "dev.en").read_text(encoding="utf-8"), work)


def gum_corpus(data: Path, work: Path) -> Corpus:
    """GUM with fewer dev trees, whose parses would take long."""
    trees = head(data / "gum" / "dev.ptb.gz")
    (work / "gum").mkdir(parents=True)
    (work / "gum" / "train.ptb.gz").symlink_to(data / "gum" / "train.ptb.gz")
    (work / "gum" / "dev.ptb.gz").write_bytes(gzip.compress(trees.encode()))
    sentences = [" ".join(re.findall(r" ([^\s()]+)\)", tree)) for tree in trees.splitlines()]
    return Corpus("parsing-gum.toml", 20, "\n".join(sentences), work, verb="parse")


def head(path: Path) -> str:
    return "".join(gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)[:N_LINES])


class Tree:
    """A checkout, or a revision of this repository unpacked in `work`. Exits if its code is not what runs."""

    def __init__(self, name: str, work: Path):
        work.mkdir()
        self.root, self.work = Path(name).resolve(), work
        if not (self.root / "src" / "heed").is_dir():
            self.root = work / "tree"
            subprocess.run(["git", "-C", PROJECT, "archive", "-o", work / "tree.tar", name], check=True)
            shutil.unpack_archive(work / "tree.tar", self.root, filter="data")
        (file,) = self.python("-c", "import heed; print(heed.__file__)")
        if not Path(file).is_relative_to(self.root):
            raise SystemExit(f"{name}: expected heed to be imported from {self.root}, found {file}.")

    def python(self, *arguments: object, text: str = "") -> list[str]:
        """Lines of standard output of Python with this tree's code."""
        command, environment = [sys.executable, *map(str, arguments)], os.environ | {"PYTHONPATH": f"{self.root}/src"}
        done = subprocess.run(command, cwd=self.work, env=environment, input=text.encode(), capture_output=True)
        if done.returncode:
            raise SystemExit(f"{self.root}: {' '.join(command)} failed:\n{done.stderr.decode()}")
        return done.stdout.decode().splitlines()

    def train(self, corpus: Corpus, precision: str, n_steps: int) -> Path:
        """The run folder."""
        run = self.work / f"{Path(corpus.recipe).stem}-{precision}"
        places = [self.root / folder / corpus.recipe for folder in ("recipes", "src/heed/runs/recipes")]
        path = next(path for path in places if path.is_file())
        settings = {**SETTINGS, "training.max_steps": n_steps, "training.precision": precision}
        changes = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        folders = ["--run", run, "--dir", self.work / "corpora", "--mirror", corpus.mirror]
        self.python("-m", "heed", "train", path, *changes, *folders)
        return run


def losses(run: Path) -> list[str]:
    """Of each training step and of the validation."""
    entries = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [repr(entry["loss"]) for entry in entries if entry["kind"] in ("train", "validation")]


def verdict(old: list[str], new: list[str]) -> str:
    """That all lines are equal, or how many differ and by how much the numbers in them."""
    if len(old) != len(new):
        return f"DIFFERENT: {len(old)} before, {len(new)} after"
    pairs = [[re.findall(r"-?\d+\.\d+(?:e-?\d+)?", line) for line in pair] for pair in zip(old, new, strict=True)]
    largest = max((abs(float(x) - float(y)) for pair in pairs for x, y in zip(*pair, strict=False)), default=0.0)
    n_different = sum(a != b for a, b in zip(old, new, strict=True))
    return f"DIFFERENT: {n_different} of {len(old)}, by up to {largest:.3g}" if n_different else f"equal ({len(old)})"


def comparisons(corpus: Corpus, old: Tree, new: Tree, arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """What was compared, and the verdict."""
    for precision in ["fp32", *{"bf16"}.intersection(arguments.precision)]:
        runs = [tree.train(corpus, precision, arguments.steps or corpus.n_steps) for tree in (old, new)]
        yield f"losses, {precision}", verdict(*map(losses, runs))
        weights = [(run / "model" / "model.safetensors").read_bytes() for run in runs]
        yield f"weights, {precision}", "equal" if weights[0] == weights[1] else "DIFFERENT"
    for precision in arguments.precision:
        command = ["-m", "heed", corpus.verb, runs[0] / "model", "--beam", 4, "--precision", precision, "--json"]
        yield f"{corpus.verb}, {precision}", verdict(*(tree.python(*command, text=corpus.text) for tree in (old, new)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="a git revision, or the folder of a checkout")
    parser.add_argument("new", help="the same")
    parser.add_argument("--data", type=Path, help="folder with multi30k/ and gum/")
    parser.add_argument("--steps", type=int, help="of training. Default: 200 for the demo, 20 for the others")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="fp32 is always trained")
    arguments = parser.parse_args()
    same = True
    with tempfile.TemporaryDirectory() as folder:
        old, new = (Tree(getattr(arguments, side), Path(folder) / side) for side in ("old", "new"))
        corpora = {"demo": demo_corpus(Path(folder) / "demo")}
        if data := arguments.data and arguments.data.resolve():
            corpora["Multi30k"] = Corpus("multi30k-en-de.toml", 20, head(data / "multi30k/val.lc.norm.tok.en.gz"), data)
            corpora["GUM"] = gum_corpus(data, Path(folder) / "gum")
        print("| corpus | compared | result |\n|---|---|---|")
        for name, corpus in corpora.items():
            for what, result in comparisons(corpus, old, new, arguments):
                print(f"| {name} | {what} | {result} |", flush=True)
                same &= result.startswith("equal")
    sys.exit(not same)


if __name__ == "__main__":
    main()
