"""The demo: a small Transformer learns to translate number words that Heed makes itself."""

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heed.config import validated
from heed.data.corpora.download import Corpora, Report
from heed.data.reading.pairs import FilePair, read_sides
from heed.data.reading.text_files import TextFiles
from heed.decoding.translator import Translator
from heed.evaluation.bleu import exact_matches
from heed.runs.context import RunContext
from heed.runs.recipe import Recipe, read_preset
from heed.runs.run_folder import open_run_folder
from heed.runs.train import train_files
from heed.runtime.device import choose_machine
from heed.runtime.files import whole_file
from heed.text.numbers import number_splits, spelled
from heed.training.distributed import Workers

SPELLINGS_OF_SMALL = {1: 1500, 100: 60, 1000: 12, 10_000: 1}  # of each number below
TRAINING_PAIRS = 70_000  # of a million; 2,000 others are held out for the test
N_SAMPLES = 5


@dataclass(frozen=True)
class DemoResult:
    """The share of held-out numbers that are translated exactly right, and some of them as samples."""

    accuracy: float  # 0 to 1
    n_tested: int
    samples: list[tuple[str, str, bool]]  # (source, translation, whether it is right)
    model: Path


def demo(run: Path, *, report: Report) -> DemoResult:
    """Trains in a run folder, in one process, and translates the held-out numbers. Called again, it resumes."""
    splits = number_splits(n_train=TRAINING_PAIRS)
    draw = random.Random(1)
    texts = {name: [spelled(number, draw) for number in numbers] for name, numbers in vars(splits).items()}
    # Of small numbers there are few, so each is there in several spellings.
    texts["train"] += [
        spelled(number, draw)
        for below, times in SPELLINGS_OF_SMALL.items()
        for number in splits.train
        if number < below
        for _ in range(times)
    ]
    corpus = Path(os.path.realpath(run)) / "corpus"
    pairs = {name: (corpus / f"{name}.en", corpus / f"{name}.de") for name in vars(splits)}
    recipe = _recipe(pairs)
    with open_run_folder(recipe, run, report=report):
        for name in pairs:
            _write_pair(pairs[name], texts[name])
        files = TextFiles(train=(pairs["train"],), dev=pairs["dev"])  # the test set is translated once, below
        machine = choose_machine(recipe.training.precision)
        train_files(RunContext(recipe, run, Corpora(report=report), machine, Workers()), files)
    translator = Translator.load(run / "model")
    sources, references = read_sides(pairs["test"])  # of an earlier version's run, what that learned to spell
    translations = [translation.text for translation in translator.translate(sources)]
    right = [text == reference for text, reference in zip(translations, references, strict=True)]
    samples = list(zip(sources, translations, right, strict=True))[:N_SAMPLES]
    return DemoResult(exact_matches(translations, references), len(translations), samples, run / "model")


def _recipe(pairs: dict[str, FilePair]) -> Recipe:
    """The preset demo, with these files."""
    values = read_preset("demo", where="heed demo")
    values["data"] |= {
        "train": [str(path) for path in pairs["train"]],
        "dev": [str(path) for path in pairs["dev"]],
        "tests": {"test": [str(path) for path in pairs["test"]]},
    }
    return validated(Recipe, values, where="heed demo")


def _write_pair(pair: FilePair, texts: Sequence[tuple[str, str]]) -> None:
    for path, lines in zip(pair, zip(*texts, strict=True), strict=True):
        if not path.exists():
            with whole_file(path) as temporary:
                temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
