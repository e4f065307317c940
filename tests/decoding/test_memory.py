"""The memory of a search follows what lives, and a search that cannot fit is refused before it starts."""

import random
import re
import subprocess
import sys

import pytest
import torch

from heed.backends.choice import prepack
from heed.backends.cpu import search_state
from heed.backends.cpu.build import has_int8, has_tiles, library
from heed.decoding.beam import beam_search
from heed.decoding.settings import DecodingSettings
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model
from heed.text.tokenizer import TokenizerSettings, train_tokenizer
from tests.conftest import SPECIAL

needs_kernels = pytest.mark.skipif(library() is None, reason="no C++ compiler: Heed's kernels are not at hand")
linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="memory is measured in kilobytes on Linux alone"
)
PRECISIONS = [
    "fp32",
    pytest.param("bf16", marks=pytest.mark.skipif(not has_tiles(), reason="no AMX")),
    pytest.param("int8", marks=pytest.mark.skipif(not has_int8(), reason="no 8-bit products here")),
]

MEASURED = (  # a process of its own, so that no other child of the tests counts
    "import resource, subprocess, sys\n"
    "done = subprocess.run([sys.executable, '-m', 'heed', *sys.argv[1:]])\n"
    "sys.stderr.write(f'peak {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 // 10**6}')\n"
    "sys.exit(done.returncode)"
)


def measured(*args: object, stdin: str) -> tuple[str, int]:
    """(output, peak memory in megabytes) of a heed command, the import of PyTorch included."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, args)], input=stdin, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, int(done.stderr.rpartition("peak ")[2])


@pytest.fixture(scope="module")
def tokenizer_of_base():
    """37,000 ids."""
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(4, 7))) for _ in range(25_000)]
    return words, train_tokenizer([" ".join(words)], TokenizerSettings(vocab_size=37_000, min_frequency=1))


@pytest.mark.slow
@linux
@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
def test_base_translates_a_long_line_within_700_megabytes(tokenizer_of_base, tmp_path, precision):
    words, tokenizer = tokenizer_of_base
    assert len(tokenizer) == 37_000
    torch.manual_seed(1)
    save_model(tmp_path / "base", Transformer(Architecture(), len(tokenizer)), tokenizer, ModelCard("en", "de"))
    n_words = next(n for n in range(50, 400) if len(tokenizer.encode(" ".join(words[:n]))) >= 200)
    text, peak = measured(
        *("translate", tmp_path / "base", "--beam", 4, "--min-tokens", 210, "--max-tokens", 220),
        *("--precision", precision),
        stdin=" ".join(words[:n_words]) + "\n",
    )
    assert len(tokenizer.encode(text.strip("\n"))) > 150
    assert peak < 700


@pytest.mark.slow
@linux
@needs_kernels
def test_a_long_prefix_takes_memory_for_what_lives_alone(number_tokenizer, tmp_path):
    torch.manual_seed(1)
    model = Transformer(Architecture(n_layers=3, d_model=128, d_ff=256, n_heads=4), len(number_tokenizer))
    save_model(tmp_path / "model", model, number_tokenizer, ModelCard("en", "de"))
    prefix = "".join(random.Random(1).choices("qxyzj", k=2000))  # caches of 64 such sentences would be 800 MB
    text, peak = measured("translate", tmp_path / "model", "--prefix", prefix, stdin="seven\n")
    assert text.startswith(prefix)
    assert peak < 500


def wide_model(vocab_size: int) -> Transformer:
    """Few weights, but a megabyte of keys and values a position."""
    return Transformer(Architecture(n_layers=1, d_model=8, d_ff=8, n_heads=16, d_k=4096, d_v=4096), vocab_size)


def test_a_search_that_cannot_fit_is_refused_in_one_line(number_tokenizer, tmp_path, heed):
    save_model(tmp_path / "model", wide_model(len(number_tokenizer)), number_tokenizer, ModelCard("en", "de"))
    done = heed("translate", tmp_path / "model", "--beam", 1000, "--max-tokens", 10_000, stdin="seven " * 9000)
    assert done.returncode == 1 and done.stdout == ""
    assert re.search(
        r"a beam of 1,000 with outputs of up to \S+ tokens may need \S+ GB, \S+ GB are free; ", done.stderr
    )


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
def test_moving_sentences_while_the_caches_grow_changes_nothing(small_arch, precision, monkeypatch):
    torch.manual_seed(3)
    model = prepack(Transformer(small_arch, 50), precision)
    draw = torch.Generator().manual_seed(3)
    sources = [torch.randint(3, 50, (n,), generator=draw).tolist() for n in (3, 200, 5, 90, 1, 150, 40, 8, 8)]
    settings = DecodingSettings(min_tokens=40)
    if precision == "bf16":  # whose sums depend on the batch
        expected = beam_search(model, sources[1:2], SPECIAL, settings, n_best=4)
        sources = sources[1:2]
    else:
        expected = beam_search(model, sources, SPECIAL, settings, n_best=4)
    monkeypatch.setattr(search_state, "MAX_CACHES", 2**20)  # for two sentences at first, for one that is long
    assert beam_search(model, sources, SPECIAL, settings, n_best=4) == expected


@pytest.mark.slow
def test_a_beam_of_1000_without_kernels_is_searched(small_model, without_kernels):
    found = beam_search(small_model, [[5, 6]] * 100, SPECIAL, DecodingSettings(beam_size=1000, max_tokens=4), n_best=3)
    assert [[h.ids for h in one] for one in found] == [[h.ids for h in found[0]]] * 100
