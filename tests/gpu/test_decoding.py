"""Searches, scores, attention and parses on a GPU: the CPU's results, and where they wait for the device."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heed.data.reading.lines import read_lines
from heed.decoding.settings import SamplingSettings
from heed.decoding.translation import Translation
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.evaluation.bleu import bleu
from heed.model_folder import ModelCard, save_model
from heed.parsing.parser import Parse, Parser
from heed.parsing.trees import LinearisationSettings
from heed.text.numbers import english, german
from heed.text.tokenizer import Tokenizer, TokenizerSettings, train_tokenizer
from tests.conftest import OTHERS, sharp_model
from tests.gpu.conftest import Gpu, architecture
from tests.gpu.emulation import emulated_cuda
from tests.gpu.waits import (
    ATTENTION,
    CHOICE,
    FURTHER_MODELS,
    LOADING,
    ONCE,
    PLAIN_SEARCH,
    SCORING,
    SEARCH,
    SLOTS,
    Places,
)

NUMBERS = (7, 42, 305, 90_011, 123_456, 800_000)
SOURCES, TARGETS = [[words(number) for number in NUMBERS] for words in (english, german)]
SENTENCE = "the dog runs in Zürich .".split()
MODELS = {
    "base": {},
    "learned positions": {"positions": "learned", "share": "none"},
    "radius": {"radius": 2, "d_k": 5, "d_v": 7},
    "other Transformers'": OTHERS,
}
# Settings of the search, how many models search together, how they translate.
SEARCHES: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "beam": ({}, 1, {}),
    "greedy": ({"beam_size": 1}, 1, {}),
    "n-best": ({"beam_size": 7}, 1, {"n_best": 3}),
    "ensemble": ({}, 2, {}),
    "prefix": ({}, 1, {"prefix": "ein"}),
    "min_tokens": ({"min_tokens": 6}, 1, {}),
    "sampling": ({}, 1, {"n_best": 4, "sampling": SamplingSettings(seed=3, top_k=40, top_p=0.9, temperature=0.8)}),
}


def save(folder: Path, tokenizer: Tokenizer, seed: int, parsing: dict[str, Any] | None = None, **options: Any) -> Path:
    """A model folder with random weights, made sharper, so that hypotheses differ clearly in probability."""
    model = sharp_model(architecture(**options), len(tokenizer), seed=seed)
    save_model(folder, model, tokenizer, ModelCard("en", "de", parsing=parsing or {}))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, number_tokenizer: Tokenizer) -> dict[str, Path]:
    """A model folder for each of MODELS, and a second one of base."""
    folder = tmp_path_factory.mktemp("models")
    options = MODELS | {"second": {}}
    return {
        name: save(folder / str(seed), number_tokenizer, seed, **changes)
        for seed, (name, changes) in enumerate(options.items(), start=1)
    }


def on_both(gpu: Gpu, work: Callable[[str], Any], allowed: Places) -> tuple[Any, Any]:
    """What `work` returns on the CPU and on a GPU, where it waits in the allowed places alone."""
    expected = work("cpu")
    with gpu() as cuda:
        found = work("cuda")
        places = cuda.places()
    assert places and not places - (ONCE | LOADING | allowed).keys()
    return expected, found


def texts_and_scores(translations: list[Translation]) -> tuple[list[list[str]], list[float]]:
    """The n best texts of every line, and all their log-probabilities."""
    alternatives = [translation.alternatives for translation in translations]
    return [[x.text for x in some] for some in alternatives], [x.log_prob for some in alternatives for x in some]


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "n_models", "options"), SEARCHES.values(), ids=SEARCHES)
def test_every_search_finds_what_the_cpu_finds(gpu, folders, settings, n_models, options):
    chosen = [folders["base"], folders["second"]][:n_models]

    def search(device: str) -> list[Translation]:
        return Translator.load(*chosen, device=device, precision="fp32", max_tokens=8, **settings).translate(
            SOURCES, **options
        )

    expected, found = map(texts_and_scores, on_both(gpu, search, SEARCH | FURTHER_MODELS))
    assert found[0] == expected[0] and len(found[0][0]) == options.get("n_best", 1)
    assert found[1] == pytest.approx(expected[1], rel=1e-5)  # the order of sums in fp32


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_translates_and_scores_as_on_the_cpu(gpu, folders, name):
    def search(device: str) -> tuple[list[Translation], list[list[float]]]:
        translator = Translator.load(folders[name], device=device, precision="fp32", max_tokens=6)
        return translator.translate(SOURCES), translator.log_probs(SOURCES, TARGETS)

    expected, found = on_both(gpu, search, SEARCH | SCORING)
    texts, scores = texts_and_scores(found[0])
    expected_texts, expected_scores = texts_and_scores(expected[0])
    assert texts == expected_texts
    assert scores == pytest.approx(expected_scores, rel=1e-5)
    for line, expected_line in zip(found[1], expected[1], strict=True):
        assert line == pytest.approx(expected_line, rel=1e-5, abs=1e-6)


def test_scores_in_bf16_are_near_those_of_the_cpu_and_int8_is_refused(gpu, folders):
    """A number has 8 significant bits: log-probabilities around 10 are 1/16 apart, and each may be off by a few."""

    def scores(device: str) -> list[list[float]]:
        precision = "fp32" if device == "cpu" else "bf16"  # which on a CPU is slower
        translator = Translator.load(folders["base"], device=device, precision=precision, max_tokens=6)
        assert len(translator.translate(SOURCES)) == len(SOURCES)
        return translator.log_probs(SOURCES, TARGETS)

    expected, found = on_both(gpu, scores, SEARCH | SCORING)
    for line, expected_line in zip(found, expected, strict=True):
        assert line == pytest.approx(expected_line, abs=4 / 16)
    with gpu(), pytest.raises(HeedError, match="int8 needs Heed's kernels"):
        Translator.load(folders["base"], device="cuda", precision="int8")


@pytest.mark.soak
@pytest.mark.skipif("HEED_TRAINED" not in os.environ, reason="HEED_TRAINED names no English-German model of Multi30k")
def test_bf16_costs_a_trained_model_no_bleu(gpu, data_folder):
    """Beam 4, Multi30k's 1,014 tokenised dev pairs. `--log-cli-level=info` shows the scores."""
    src, references = (list(read_lines(data_folder / f"multi30k/val.lc.norm.tok.{side}.gz")) for side in ("en", "de"))
    scores = {}
    for precision in ("fp32", "bf16"):
        with gpu():
            translator = Translator.load(os.environ["HEED_TRAINED"], device="cuda", precision=precision)
            texts = [found.text for found in translator.translate(src)]
        scores[precision] = bleu(texts, references, tokenize="none").value
    logging.getLogger(__name__).info("BLEU by precision: %s", scores)
    assert scores["fp32"] > 10 and abs(scores["bf16"] - scores["fp32"]) <= 0.1


@pytest.mark.parametrize("name", ["base", "radius"])
def test_attention_is_that_of_the_cpu(gpu, folders, name):
    def weights(device: str) -> dict[str, torch.Tensor]:
        traced = Translator.load(folders[name], device=device, precision="fp32").attention(SOURCES[3], TARGETS[3])
        return {kind: tensor.cpu() for kind, tensor in vars(traced).items()}

    expected, found = on_both(gpu, weights, ATTENTION)
    assert found.keys() == {"encoder", "decoder", "cross"}
    for kind, tensor in found.items():
        assert torch.allclose(tensor, expected[kind], atol=1e-6), kind


@pytest.fixture(scope="module")
def parsers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model folder of a parser for each kind of leaves."""
    symbols = ["(NP", ")NP", "(S", ")S", "(VP", ")VP", "DT", "NN", "VB", "."]
    tokenizer = train_tokenizer([" ".join(SENTENCE)] * 3, TokenizerSettings(vocab_size=600), symbols)
    folder = tmp_path_factory.mktemp("parsers")
    return {
        leaves: save(folder / leaves, tokenizer, 1, LinearisationSettings(leaves=leaves).model_dump())
        for leaves in ("tags", "words")
    }


@pytest.mark.parametrize("leaves", ["tags", "words"])
@pytest.mark.parametrize("constrained", [True, False], ids=["constrained", "unconstrained"])
def test_parses_are_those_of_the_cpu(gpu, parsers, leaves, constrained):
    sentences = [SENTENCE[:n] for n in (1, 3, 6)]

    def parse(device: str) -> list[Parse]:
        changes = {"beam_size": 3, "max_extra_tokens": 6}
        return Parser.load(parsers[leaves], device=device, precision="fp32", constrained=constrained, **changes).parse(
            sentences
        )

    expected, found = on_both(gpu, parse, SEARCH)
    assert [x.tree for x in found] == [x.tree for x in expected]
    assert [x.log_prob for x in found] == pytest.approx([x.log_prob for x in expected], rel=1e-5)
    if constrained:
        assert [x.tree.words() for x in found] == sentences


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["", "0"], ids=["slots", "HEED_KERNELS=0"])
def test_every_allowed_place_is_waited_at(folders, parsers, monkeypatch, kernels):
    """Else the list could hide a wait that comes back."""
    monkeypatch.setenv("HEED_KERNELS", kernels)
    with emulated_cuda() as cuda:
        translator = Translator.load(folders["base"], device="cuda", beam_size=3, min_tokens=2, max_tokens=9)
        parser = Parser.load(parsers["tags"], device="cuda", beam_size=1)
        assert cuda.places() == LOADING.keys()
        cuda.forget()
        translator.translate(SOURCES)
        assert kernels or cuda.places() == (ONCE | SLOTS).keys()
        translator.translate(SOURCES, prefix="ein")
        translator.translate(SOURCES, sampling=SamplingSettings())
        parser.parse([SENTENCE])
        assert cuda.places() == (ONCE | CHOICE | (PLAIN_SEARCH if kernels else SLOTS)).keys()
        cuda.forget()
        translator.log_probs(SOURCES, TARGETS)
        assert cuda.places() == SCORING.keys()
        cuda.forget()
        translator.attention(SOURCES[0], TARGETS[0])
        assert cuda.places() == ATTENTION.keys()


def test_masks_of_a_search_are_built_once_for_all_layers(tmp_path, number_tokenizer):
    n_operations = []
    for n_layers in (1, 3):
        folder = save(tmp_path / str(n_layers), number_tokenizer, 1, n_layers=n_layers)
        with emulated_cuda() as cuda:
            translator = Translator.load(folder, device="cuda", min_tokens=3, max_tokens=3)  # so many steps in any case
            cuda.forget()
            translator.translate(SOURCES)
            n_operations.append(cuda.mask_operations.copy())
    assert n_operations[0] and n_operations[0] == n_operations[1]
