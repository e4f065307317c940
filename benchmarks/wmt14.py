"""Parts of benchmarks/wmt14.sh: a made corpus of WMT14's form for its rehearsal, scores, and the record of the run.

    python benchmarks/wmt14.py score --hyp newstest2014.hyp --ref newstest2014.de

The paper's BLEU is that of tensor2tensor's get_ende_bleu.sh: Moses's tokenizer, compounds split at their hyphens, then
multi-bleu.perl. The tokenizer is sacremoses here; BLEU of tokens is sacrebleu's with `tok:none`, the same number.
"""

import argparse
import csv
import json
import re
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib import import_module, resources
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu_parts import versions
from large_corpus import write_corpus

from heed.data.reading.pairs import read_pairs
from heed.errors import HeedError
from heed.evaluation.bleu import Score, bleu, chrf
from heed.runtime.manifest import sha256_of

MADE = "wmt14-made"
PUBLISHED = {"base": 27.3, "big": 28.4}  # Table 2, newstest2014
MAX_GAP_SECONDS = 60  # between two samples of power; a longer one is time in which the script did not run
N_HELD_OUT = 200  # sentences of the made dev and test sets, as large_corpus.py writes them


def check() -> None:
    """Exits, before days of work, if what the last stage needs is missing."""
    for name in ("sacremoses", "sacrebleu"):
        try:
            import_module(name)
        except ImportError:
            raise SystemExit(f"{name} is missing: pip install '.[benchmarks]'") from None


# ----------------------------------------------------------------------------------------------------------------------
# The rehearsal's corpus.


def make_corpus(folder: Path, n_pairs: int) -> None:
    """Writes FOLDER/wmt14-made.toml, for `heed data add`, and archives with the names and members of WMT14's.

    The pairs are large_corpus.py's, in parts of the three corpora's shares. A folder that is complete is left as it is.
    """
    target = folder / f"{MADE}.toml"
    if target.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        write_corpus(work, n_pairs)
        members = defaultdict[str, list[tuple[str, Path]]](list)  # by archive: each member's name and its text
        for side in ("en", "de"):
            shares = {"europarl-v7": 0.43, "commoncrawl": 0.53, "news-commentary-v9": 0.04}
            for (part, path), archive in zip(
                _split(work / f"train.{side}", n_pairs, shares),
                (
                    "training-parallel-europarl-v7.tgz",
                    "training-parallel-commoncrawl.tgz",
                    "training-parallel-nc-v9.tgz",
                ),
                strict=True,
            ):
                inner = f"{part}.de-en.{side}"
                members[archive].append((inner if part == "commoncrawl" else f"training/{inner}", path))
            members["dev.tgz"].append((f"dev/newstest2013.{side}", work / f"dev.{side}"))
            kind = "ref" if side == "en" else "src"
            members["dev.tgz"].append((f"dev/newstest2014-deen-{kind}.{side}.sgm", _sgm(work / f"dev.{side}")))
        for archive, texts in members.items():
            with tarfile.open(folder / archive, "w:gz", compresslevel=1) as tar:
                for inner, path in texts:
                    tar.add(path, inner)
    # The catalogue's entry with the hashes of these archives, so that both are verified in the same way.
    text = (resources.files("heed.data.corpora") / "wmt14-en-de.toml").read_text(encoding="utf-8")

    def with_hash(match: re.Match[str]) -> str:
        return f'{match["address"]}\nsha256 = "{sha256_of(folder / match["archive"])}"'

    text = re.sub(r'(?P<address>url = "[^"]*/(?P<archive>[^"/]+)")\nsha256 = "[0-9a-f]+"', with_hash, text)
    target.write_text(text, encoding="utf-8")


def _split(path: Path, n_lines: int, shares: dict[str, float]) -> Iterable[tuple[str, Path]]:
    """The lines of a file in consecutive parts, each a file of its own; the last one takes the rest."""
    with path.open(encoding="utf-8") as lines:
        for number, (name, share) in enumerate(shares.items(), start=1):
            part = path.with_name(f"{name}{path.suffix}")
            with part.open("w", encoding="utf-8") as out:
                for i, line in enumerate(lines, start=1):
                    out.write(line)
                    if i == int(n_lines * share) and number < len(shares):
                        break
            yield name, part


def _sgm(path: Path) -> Path:
    target = path.with_name(f"{path.name}.sgm")
    segments = (f'<seg id="{i}">{line}</seg>' for i, line in enumerate(path.read_text().splitlines(), start=1))
    target.write_text('<srcset setid="made" srclang="any">\n<doc>\n' + "\n".join(segments) + "\n</doc>\n</srcset>\n")
    return target


# ----------------------------------------------------------------------------------------------------------------------
# Scores.


def split_compounds(tokens: str) -> str:
    """ "rich-text format" → "rich ##AT##-##AT## text format", for comparison with GNMT and ConvS2S."""
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokens)


def paper_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU as get_ende_bleu.sh computes it: higher than sacrebleu's by one to two points."""
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer("de")

    def tokens(lines: Sequence[str]) -> list[str]:
        return [split_compounds(tokenizer.tokenize(line, return_str=True)) for line in lines]

    score = bleu(tokens(hypotheses), tokens(references), tokenize="none")
    how = f"{score.signature}|before:moses-de+split-compounds|sacremoses:{version('sacremoses')}"
    return Score("tokenised BLEU, compounds split", score.value, how)


def scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Each score by its key, with its signature."""
    found = {
        "paper_bleu": paper_bleu(hypotheses, references),
        "bleu": bleu(hypotheses, references, tokenize="13a"),
        "chrf": chrf(hypotheses, references),
    }
    values: dict[str, Any] = {"lines": len(references)}
    for key, score in found.items():
        values |= {key: score.value, f"{key}_signature": score.signature}
    return values


# ----------------------------------------------------------------------------------------------------------------------
# The record.


def print_files(run: Path, directory: Path, mirror: str | None) -> None:
    """Prints dev and the test sets, a line each: name, source and reference file, separated by tabs."""
    from heed.data.corpora.download import Corpora
    from heed.runs.recipe import read_recipe
    from heed.runs.tasks.task import task_of

    files = task_of(read_recipe(run)).text_files(run, Corpora(directory, mirror))
    for name, (src, ref) in files.evaluation_sets.items():
        print(name, src, ref, sep="\t")


def record(out: Path, *, rehearsal: bool) -> dict[str, Any]:
    """What the run in OUT/run did: data, steps, time, energy, scores."""
    from heed.model_folder import read_config
    from heed.runs.recipe import read_recipe
    from heed.training.checkpoint import checkpoint_steps, read_train_state
    from heed.training.logbook import read_entries

    run = out / "run"
    recipe = read_recipe(run)
    state = read_train_state(run / "checkpoints" / str(checkpoint_steps(run / "checkpoints")[-1]))
    entries = list(read_entries(run / "metrics.jsonl"))
    starts = [json.loads(line) for line in (out / "starts.jsonl").read_text().splitlines()]
    with (out / "files.tsv").open(encoding="utf-8", newline="") as file:
        sets = {name: Path(ref) for name, _, ref in csv.reader(file, delimiter="\t")}
    return {
        "model": "big" if recipe.model.d_model > 512 else "base",
        "rehearsal": rehearsal,
        "versions": versions() | {"sacrebleu": version("sacrebleu"), "sacremoses": version("sacremoses")},
        "recipe": recipe.model_dump(),
        "card": read_config(run / "model").card.trained_on,
        "steps": state.step,
        "target_tokens": state.n_tgt_tokens,
        "training_seconds": state.seconds,
        "target_tokens_per_second": state.n_tgt_tokens / state.seconds,
        "wall_seconds": entries[-1]["time"] - starts[0]["time"],  # interruptions and the preparation included
        "processes": starts[-1]["processes"],
        "starts": starts,
        "energy": energy(out / "power.csv"),
        "scores": {name: scores(*_texts(out / f"{name}.hyp", ref)) for name, ref in sets.items()},
        "during_training": [entry for entry in entries if entry["kind"] in ("validation", "test")],
    }


def _texts(hyp: Path, ref: Path) -> tuple[list[str], list[str]]:
    hypotheses, references = map(list, zip(*read_pairs((hyp, ref)), strict=True))
    return hypotheses, references


def energy(path: Path) -> dict[str, float] | None:
    """Integral of all GPUs' power over the samples of a file of (epoch seconds, index, watts); None if it has none."""
    samples = defaultdict[str, list[tuple[float, float]]](list)
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                seconds, index, watts = line.split(", ")
                sample = float(seconds), float(watts)
            except ValueError:  # "[N/A]", or a line that was cut off
                continue
            samples[index].append(sample)
    joules = covered = 0.0
    for of_gpu in samples.values():
        for (start, before), (end, after) in pairwise(of_gpu):
            if 0 < end - start <= MAX_GAP_SECONDS:
                joules += (before + after) / 2 * (end - start)
                covered += end - start
    if not covered:
        return None
    return {
        "gpus": len(samples),
        "kwh": joules / 3.6e6,
        "mean_watts_per_gpu": joules / covered,
        "hours": covered / 3600,
    }


def row(found: dict[str, Any]) -> str:
    """The record's main figures as a row of a table: model, machine, steps, time, rate, energy, both BLEU scores."""
    test = found["scores"]["newstest2014"]
    devices = [device["name"] for device in found["versions"]["devices"]]
    machine = f"{found['processes']} × {devices[0]}" if devices else f"{found['processes']} processes on a CPU"
    watts = found["energy"]
    cells = [
        f"`wmt14-en-de-{found['model']}`" + (", **a rehearsal**" if found["rehearsal"] else ""),
        f"{machine}, {found['versions']['commit']}",
        f"{found['steps']:,}",
        f"{found['training_seconds'] / 3600:.1f} h",
        f"{found['target_tokens_per_second']:,.0f}",
        f"{watts['kwh']:.2f} kWh" if watts else "not told",
        f"{test['paper_bleu']:.2f} ({PUBLISHED[found['model']]})",
        f"{test['bleu']:.2f}",
    ]
    return "| " + " | ".join(cells) + " |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("check", help="that what the last stage needs is installed")
    make = parts.add_parser("make-corpus", help="the rehearsal's corpus")
    make.add_argument("folder", type=Path)
    make.add_argument("--pairs", type=int, required=True)
    files = parts.add_parser("files", help="the files to translate and to compare with")
    files.add_argument("run", type=Path)
    files.add_argument("--dir", type=Path, default=Path("corpora"))
    files.add_argument("--mirror")
    score = parts.add_parser("score", help="the scores of translations")
    score.add_argument("--hyp", type=Path, required=True)
    score.add_argument("--ref", type=Path, required=True)
    written = parts.add_parser("record", help="writes OUT/record.json and OUT/row.md")
    written.add_argument("out", type=Path)
    written.add_argument("--rehearsal", action="store_true")
    arguments = parser.parse_args()
    try:
        match arguments.part:
            case "check":
                check()
            case "make-corpus":
                make_corpus(arguments.folder, arguments.pairs)
            case "files":
                print_files(arguments.run, arguments.dir, arguments.mirror)
            case "score":
                print(json.dumps(scores(*_texts(arguments.hyp, arguments.ref)), indent=1))
            case "record":
                found = record(arguments.out, rehearsal=arguments.rehearsal)
                (arguments.out / "row.md").write_text(row(found), encoding="utf-8")
                (arguments.out / "record.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    except HeedError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
