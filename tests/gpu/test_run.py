"""The commands' functions on a GPU: training, checkpoints, resuming, averaging, scores; where they wait for it."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from heed.backends.reference_search import ReferenceSearchBackend
from heed.config import validated
from heed.data.corpora.download import Corpora
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.model_folder import read_weights
from heed.runs.average import average_run
from heed.runs.recipe import Recipe
from heed.runs.tasks.evaluation import evaluate_translations
from heed.runs.train import train_recipe
from heed.text.numbers import english, german, number_splits
from tests.gpu.emulation import Wait, emulated_cuda
from tests.gpu.waits import LOADING, ONCE, SCORING, SEARCH, TRAINING

LOGGED = ("loss", "perplexity", "greedy_bleu", "bleu", "chrf")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The table `data` of a recipe: words of numbers, 400 pairs to train on, 6 to validate by and to test on."""
    folder = tmp_path_factory.mktemp("texts")
    splits = number_splits(n_train=400, n_dev=6, n_test=6)
    files = {}
    for name, numbers in vars(splits).items():
        files[name] = [str(folder / f"{name}.{language}") for language in ("en", "de")]
        for path, words in zip(files[name], (english, german), strict=True):
            Path(path).write_text("".join(f"{words(number)}\n" for number in numbers), encoding="utf-8")
    return files


@dataclass
class Run:
    """A run's folder, and what was said."""

    folder: Path
    lines: list[str]

    def logged(self, kind: str) -> list[dict[str, float]]:
        """Losses and scores of all entries of a kind."""
        entries = map(json.loads, (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        return [{k: v for k, v in entry.items() if k in LOGGED} for entry in entries if entry["kind"] == kind]

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        return read_weights(self.folder / name / "model.safetensors")


@pytest.fixture
def run(texts, tmp_path, monkeypatch) -> Callable[..., Run]:
    """Calls what `heed train` calls, on the device at hand; the settings are those of a recipe's tables."""
    # A product of a size that tells what a GPU sustains takes minutes here.
    monkeypatch.setattr("heed.runs.train.matrix_product_rate", lambda machine: 1e12)

    def train(name: str, *, model: dict = {}, report: Callable[[str], None] = lambda line: None, **training) -> Run:  # noqa: B006
        values = {
            "data": {"src": "en", "tgt": "de", "train": texts["train"], "dev": texts["dev"]}
            | {"tests": {"test": texts["test"]}},
            "tokenizer": {"vocab_size": 600},
            "model": {"n_layers": 1, "d_model": 32, "d_ff": 64, "n_heads": 4} | model,
            "training": {
                "batch_src_tokens": 600,
                "batch_tgt_tokens": 600,
                "micro_batch_tokens": 300,
                "warmup_steps": 10,
                "max_steps": 4,
                "checkpoint_every": "2 steps",
                "keep_checkpoints": 2,
                "average_last": 2,
                "report_every": 1,
            }
            | training,
            "decoding": {"min_tokens": 3, "max_tokens": 3},  # the same number of steps whatever the weights
            "evaluation": {"tokenize": "char"},
        }
        done = Run(tmp_path / name, [])

        def said(line: str) -> None:
            done.lines.append(line)
            report(line)

        recipe = validated(Recipe, values, where="test")
        train_recipe(recipe, done.folder, Corpora(tmp_path, None, said))
        return done

    return train


def evaluation(folder: Path, texts: dict[str, list[str]], device: str) -> dict[str, float]:
    """What `heed evaluate` finds."""
    sources, references = (Path(path).read_text(encoding="utf-8").splitlines() for path in texts["test"])
    translator = Translator.load(folder, device=device)
    found = evaluate_translations(translator, sources, references, name="test", tokenize="char", max_tokens=256)
    return {name: value for name, value in found.numbers().items() if name in LOGGED}


@pytest.mark.slow
def test_a_run_has_the_numbers_of_the_cpu_and_waits_in_known_places_alone(gpu, run, texts, monkeypatch):
    """From the corpus to the average's scores, all in fp32. Without dropout, whose random numbers would be others."""
    options = {"precision": "fp32", "model": {"dropout": 0.0}}
    monkeypatch.setattr(ReferenceSearchBackend, "fastest_precision", lambda self, device: ("fp32", "test"))
    with monkeypatch.context() as patch:
        patch.setenv("HEED_DEVICE", "cpu")
        expected = run("cpu", **options)
    with gpu() as cuda:
        found = run("gpu", **options)
        decoding = ONCE | LOADING | SEARCH | SCORING
        assert cuda.places() - decoding.keys() == TRAINING.keys()
        again = average_run(found.folder, last=1, out=found.folder.parent / "last", report=lambda line: None)
        scores = evaluation(again, texts, "cuda")
    assert any(line.startswith("Computing on cuda, fp32") for line in found.lines)
    assert any(line.startswith("Computing on cpu, fp32") for line in expected.lines)
    for path in (expected.folder / "data" / "tokenizer.json", *(expected.folder / "data" / "train").glob("*.[bn]*")):
        assert path.read_bytes() == (found.folder / path.relative_to(expected.folder)).read_bytes(), path.name
    for kind, n_entries in (("train", 4), ("validation", 2), ("test", 4)):
        entries = found.logged(kind)
        assert len(entries) == n_entries
        for entry, other in zip(entries, expected.logged(kind), strict=True):
            assert entry == pytest.approx(other, rel=1e-6)  # the order of sums
    assert scores == pytest.approx(found.logged("test")[-1], rel=1e-6)  # of the last checkpoint, on the test set


@pytest.mark.slow
def test_three_more_steps_of_a_run_wait_three_times_for_the_step_before_and_for_nothing_else(gpu, run):
    options = {"model": {"dropout": 0.1}, "report_every": 100, "checkpoint_every": "100 steps", "average_last": 1}
    waits = []
    for n_steps in (2, 5):
        with gpu() as cuda:
            run(f"{n_steps} steps", max_steps=n_steps, **options)
            waits.append(cuda.waits)
    assert waits[1] - waits[0] == {Wait("training/step.py", "QueuedStep.wait", "event"): 3}
    assert not waits[0] - waits[1]


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(gpu, run):
    """In bf16, which a new GPU is trained in unless the recipe says otherwise, with dropout."""
    options = {"model": {"dropout": 0.1}}
    with gpu():
        straight = run("straight", **options)
        run("stopped", max_steps=2, average_last=1, **options)
        resumed = run("stopped", **options)
    assert any(line.startswith("Computing on cuda, bf16 (compute capability 8 or newer)") for line in straight.lines)
    assert any(line.startswith("Resumed from step 2 ") for line in resumed.lines)
    for name in ("checkpoints/4", "model"):
        expected = straight.weights(name)
        assert all(torch.equal(tensor, expected[key]) for key, tensor in resumed.weights(name).items())
    assert resumed.logged("train") == straight.logged("train") and len(straight.logged("train")) == 4


@pytest.mark.slow
def test_a_step_that_is_not_finite_is_left_out_of_a_run(gpu, run):
    with gpu(), pytest.raises(HeedError, match="not finite 3 steps in a row"):
        run("faulty", learning_rate_factor=1e30, warmup_steps=1, max_steps=20, checkpoint_every="20 steps")


@pytest.mark.slow
def test_memory_that_runs_out_after_the_probe_is_one_clear_line_and_loses_no_step(run, monkeypatch):
    """Another program may take the memory, or fragments may fill it. Passes that are recorded allocate none."""
    monkeypatch.setenv("HEED_KERNELS", "0")

    with emulated_cuda() as cuda:

        def fill_memory(line: str) -> None:
            if line.startswith("step 3/"):
                cuda.largest_allocation = 2**20

        with pytest.raises(HeedError, match=r"^[^\n]*memory[^\n]*training\.micro_batch_tokens[^\n]*$"):
            run("full", report=fill_memory)
        cuda.largest_allocation = math.inf
        resumed = run("full", micro_batch_tokens=150)
    assert any(re.match("Resumed from step 3 ", line) for line in resumed.lines)
