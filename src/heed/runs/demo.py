"""The demo: a small Transformer learns to translate number words that Heed makes itself."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heed.config import validated
from heed.data.corpora.download import Corpora, Report
from heed.data.reading.pairs import FilePair
from heed.data.reading.text_files import TextFiles
from heed.decoding.translator import Translator
from heed.evaluation.bleu import exact_matches
from heed.runs.context import RunContext
from heed.runs.folder import open_run_folder
from heed.runs.recipe import Recipe, read_preset
from heed.runs.train import train_files
from heed.runtime.device import choose_machine
from heed.runtime.files import whole_file
from heed.text.numbers import english, german, number_splits
from heed.training.distributed import Workers

TRAINING_PAIRS = 40_000  # of a million; 2,000 others are held out for the test
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
    corpus = Path(os.path.realpath(run)) / "corpus"
    pairs = {name: (corpus / f"{name}.en", corpus / f"{name}.de") for name in vars(splits)}
    recipe = _recipe(pairs)
    with open_run_folder(recipe, run, report=report):
        for name, numbers in vars(splits).items():
            _write_pair(pairs[name], numbers)
        files = TextFiles(train=(pairs["train"],), dev=pairs["dev"])  # the test set is translated once, below
        machine = choose_machine(recipe.training.precision)
        train_files(RunContext(recipe, run, Corpora(report=report), machine, Workers()), files)
    translator = Translator.load(run / "model")
    sources, references = [[words(number) for number in splits.test] for words in (english, german)]
    texts = [translation.text for translation in translator.translate(sources)]
    right = [text == reference for text, reference in zip(texts, references, strict=True)]
    samples = list(zip(sources, texts, right, strict=True))[:N_SAMPLES]
    return DemoResult(exact_matches(texts, references), len(texts), samples, run / "model")


def _recipe(pairs: dict[str, FilePair]) -> Recipe:
    """The preset demo, with these files."""
    values = read_preset("demo", where="heed demo")
    values["data"] |= {
        "train": [str(path) for path in pairs["train"]],
        "dev": [str(path) for path in pairs["dev"]],
        "tests": {"test": [str(path) for path in pairs["test"]]},
    }
    return validated(Recipe, values, where="heed demo")


def _write_pair(pair: FilePair, numbers: Sequence[int]) -> None:
    for path, words in zip(pair, (english, german), strict=True):
        if not path.exists():
            with whole_file(path) as temporary:
                temporary.write_text("".join(f"{words(number)}\n" for number in numbers), encoding="utf-8")
