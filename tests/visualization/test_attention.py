"""Traces sum to one and name their words; pictures and pages show them, the page in a real browser."""

import re
import shutil
import subprocess

import numpy as np
import pytest
import torch

from heed.config import HeedError
from heed.decoding.translator import Translator
from heed.model.transformer import Architecture, Transformer
from heed.model_folder import ModelCard, save_model
from heed.visualization.render import write_page, write_picture
from heed.visualization.trace import VIEWS, trace, word_place, word_starts

SENTENCE = "three hundred twenty-one"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory, number_tokenizer):
    torch.manual_seed(1)
    model = Transformer(Architecture(n_layers=2, d_model=32, d_ff=32, n_heads=4), len(number_tokenizer))
    folder = tmp_path_factory.mktemp("model") / "model"
    save_model(folder, model, number_tokenizer, ModelCard("en", "de", decoding={"max_extra_tokens": 5}))
    return folder


@pytest.fixture(scope="module")
def translator(model_folder):
    return Translator.load(model_folder)


@pytest.mark.parametrize("whole_words", [False, True])
def test_every_query_gives_one_in_all(translator, whole_words):
    found = trace(translator, SENTENCE, target="drei hundert", whole_words=whole_words)
    for name in VIEWS:
        attention = found.view(name)
        assert attention.weights.shape == (2, 4, len(attention.queries), len(attention.keys))
        assert np.allclose(attention.weights.sum(-1), 1, atol=1e-5)
    assert found.decoder.queries[0] == "<s>" and found.cross.queries[-1] == "</s>" == found.encoder.keys[-1]
    assert not np.triu(found.decoder.weights, 1).any()
    if whole_words:
        assert found.encoder.keys == ("three", "hundred", "twenty", "-", "one", "</s>")
        assert found.cross.queries == ("drei", "hundert", "</s>")


def test_pieces_of_a_word_are_joined_by_sum_and_mean(translator):
    pieces = trace(translator, "supercalifragilistic ox", target="x").encoder
    words = trace(translator, "supercalifragilistic ox", target="x", whole_words=True).encoder
    assert words.keys == ("supercalifragilistic", "ox", "</s>")
    n = next(n for n in range(len(pieces.keys)) if "".join(pieces.keys[:n]).strip("␣") == words.keys[0])
    assert np.allclose(words.weights[..., 0, 0], pieces.weights[..., :n, :n].sum(-1).mean(-1), atol=1e-6)


def test_words_begin_where_a_reader_sees_them():
    assert word_starts(["<s>", " a", " dog", "s", " 's", ".", "</s>"]) == [0, 1, 2, 4, 5, 6]
    assert word_starts([" ", "o", "x", " 7", "0", "%"]) == [0, 3, 5]
    assert word_place(["a", "dog"], "dog") == 1 == word_place(["a", "dog"], "2")
    with pytest.raises(HeedError, match="no word 'cat' there; the words are: a dog"):
        word_place(["a", "dog"], "cat")


def test_pictures_are_written_the_same_each_time(translator, tmp_path):
    attention = trace(translator, SENTENCE).encoder
    for name in ("a.svg", "b.svg", "a.png"):
        write_picture(tmp_path / name, attention, layer=1, heads=[0, 3], word=2)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "three" in (tmp_path / "a.svg").read_text()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
def test_the_page_follows_its_reader_without_a_network(translator, tmp_path):
    found = trace(translator, f"{SENTENCE} </script>")
    path = tmp_path / "page.html"
    write_page(path, found)
    assert "http" not in path.read_text().replace("http-equiv", "")

    def lines(address: str) -> int:
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"{path.as_uri()}{address}"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
        assert ">three</button>" in shown
        return int(re.search(r'data-lines="(\d+)"', shown)[1])

    def expected(name: str, layer: int, heads: list[int], word: int | None) -> int:
        weights = np.round(found.view(name).weights[layer, heads] * 255)
        return int(((weights if word is None else weights[:, [word]]) >= 3).sum())

    assert lines("") == expected("encoder", 1, [0, 1, 2, 3], None)
    assert lines("#view=cross&layer=1") == expected("cross", 0, [0, 1, 2, 3], None)
    assert lines("#view=encoder&layer=2&heads=2&word=3") == expected("encoder", 1, [1], 2)


def test_the_command_says_what_it_cannot_draw(model_folder, heed, tmp_path):
    done = heed("attention", model_folder, SENTENCE, "--out", tmp_path / "x.svg", "--layer", 2, "--from-word", "three")
    assert done.returncode == 0, done.stderr
    for words, part in (
        (["--out", tmp_path / "x.pdf"], ".html, .svg or .png"),
        (["--out", tmp_path / "x.svg", "--layer", 3], "--layer 3: the model has 2."),
        (["--out", tmp_path / "x.svg", "--view", "all"], "encoder, decoder, cross"),
        (["--out", tmp_path / "x.svg", "--from-word", "four"], "no word 'four' there"),
    ):
        done = heed("attention", model_folder, SENTENCE, *words)
        assert done.returncode == 1 and part in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
