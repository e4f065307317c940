"""Which heads the figures show, on weights made by hand; the commands, on a model with random ones."""

import json
import re

import numpy as np
import pytest
import torch
from tests.end_to_end.test_command_line import assert_one_clear_line

from heed.apps.paper import table1
from heed.apps.paper.figures import KINDS, equal_weights, head_weights, most_different, surest_heads
from heed.apps.paper.index import write_all
from heed.apps.paper.result_page import Page
from heed.apps.visualization.trace import Attention
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model

WORDS = ("a", "b", "c", "d", "e", "f", "g", "h", "</s>")
N = len(WORDS)


def shifted(by: int) -> np.ndarray:
    """A head whose words give all to the word so far ahead, or to themselves where there is none."""
    weights = np.zeros((N, N), np.float32)
    for i in range(N):
        weights[i, i + by if 0 <= i + by < N else i] = 1
    return weights


EQUAL = np.full((N, N), 1 / N, np.float32)
HEADS = Attention(np.stack([shifted(1), shifted(-1), shifted(0), EQUAL])[None], WORDS, WORDS)


@pytest.mark.parametrize(("what", "head"), [("next word", 0), ("previous word", 1), ("same word", 2)])
def test_a_head_has_the_name_of_what_it_does(what, head):
    weights = head_weights(HEADS, what)
    assert weights.shape == (1, 4) and weights.argmax() == head
    assert weights[0, head] == pytest.approx(1)
    assert weights[0, 3] == pytest.approx(1 / N)


def test_long_distance_is_the_surest_word_that_lies_far_and_not_the_end():
    weights = np.stack([EQUAL, np.eye(N, dtype=np.float32), shifted(-1)])
    weights[2, [6, 7, 8]] = np.eye(N)[0]  # the far ones of word 6, 7 and the end, which 0 and 1 do not look at
    far = head_weights(Attention(weights[None], WORDS, WORDS), "long distance")[0]
    assert far == pytest.approx([1 / N, 0, 3 / 5])  # words 0, 1, 6, 7, 8 have far ones


@pytest.mark.parametrize("what", KINDS)
def test_equal_weights_give_what_chance_gives(what):
    causal = KINDS[what] == "decoder"
    chance = head_weights(equal_weights(HEADS, causal=causal), what)[0, 0]
    if what == "word before":  # one of the 2, 3, … words that each sees
        assert chance == pytest.approx(np.mean([1 / n for n in range(2, N + 1)]))
    elif what == "beginning":
        assert chance == pytest.approx(np.mean([1 / n for n in range(1, N + 1)]))
    else:
        assert chance == pytest.approx(1 / N)


def test_a_short_sentence_has_no_long_distance():
    short = Attention(HEADS.weights[..., :3, :3], WORDS[:3], WORDS[:3])
    assert head_weights(short, "long distance") is None and head_weights(short, "next word") is not None


def test_the_surest_head_points_to_one_word_beyond_the_neighbours():
    weights = np.stack([shifted(1), EQUAL, shifted(0)])
    weights[2, 2] = np.eye(N)[6]
    weights[0, 2] = np.eye(N)[8]
    assert surest_heads(Attention(weights[None], WORDS, WORDS), 0, 2)[:2] == [2, 1]


def test_the_most_different_heads_are_found_among_the_sure():
    sure = [np.eye(N), np.roll(np.eye(N), 1, axis=1)]
    assert set(most_different(np.stack([EQUAL, EQUAL, *sure]))) == {2, 3}
    with pytest.raises(HeedError, match="this model's layers have one each"):
        most_different(np.stack([EQUAL]))
    assert set(most_different(np.stack([EQUAL, sure[0], sure[0], sure[1], EQUAL, EQUAL]))) in ({1, 3}, {2, 3})


def random_model(tmp_path, number_tokenizer, n_heads=4):
    torch.manual_seed(1)
    model = Transformer(Architecture(n_layers=2, d_model=32, d_ff=32, n_heads=n_heads), len(number_tokenizer))
    folder = tmp_path / f"model{n_heads}"
    save_model(folder, model, number_tokenizer, ModelCard("en", "de", decoding={"max_extra_tokens": 0}))
    return folder


def test_the_commands_write_their_pages(heed, tmp_path, number_tokenizer):
    folder = random_model(tmp_path, number_tokenizer)
    for number, n_pictures in ((3, 1), (4, 2), (5, 2)):
        done = heed("paper", f"figure{number}", "--model", folder, "--lower", "--out", tmp_path / "out")
        assert done.returncode == 0, done.stderr
        assert len(list((tmp_path / "out").glob(f"figure{number}-*.svg"))) == n_pictures
        made_by = f"heed paper figure{number} --model {folder} --lower --out {tmp_path / 'out'}`"
        assert made_by in (tmp_path / "out" / f"figure{number}.md").read_text()
    own = ["--sentence", "forty two", "--word", "two", "--out", tmp_path / "own"]
    heed("paper", "figure3", "--model", folder, *own)
    assert "--sentence 'forty two' --word two --out" in (tmp_path / "own" / "figure3.md").read_text()
    for number, options, part in (
        (3, ["--sentence", "forty two"], "say which of the sentence's with --word"),
        (5, ["--word", "its"], "draws whole heads"),
        (5, ["--sentence", ""], "no sentence to look at"),
    ):
        assert_one_clear_line(heed("paper", f"figure{number}", "--model", folder, *options), part)
    (tmp_path / "some.en").write_text("forty-two\nseven hundred twenty-one thousand three hundred forty-two\n")
    done = heed("paper", "heads", "--model", folder, "--src", tmp_path / "some.en", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    printed = heed("paper", "heads", "--model", folder, "--src", tmp_path / "some.en", "--json")
    assert all(head["weight"] > head["equal"] > 0 for head in json.loads(printed.stdout))
    both = heed("paper", "heads", "--model", folder, "--src", tmp_path / "some.en", "--json", "--out", tmp_path / "o")
    assert_one_clear_line(both, "--out writes a page, --json prints its numbers")
    (tmp_path / "short.en").write_text("forty two\n")
    short = heed("paper", "heads", "--model", folder, "--src", tmp_path / "short.en", "--out", tmp_path / "short")
    assert short.returncode == 0, short.stderr
    assert "Nowhere in these sentences: long distance." in (tmp_path / "short" / "heads.md").read_text()
    text = (tmp_path / "out" / "heads.md").read_text()
    assert all(what in text for what in KINDS) and f"--src {tmp_path / 'some.en'}" in text


@pytest.mark.soak
def test_the_index_names_all_pages_and_what_is_missing(tmp_path, number_tokenizer):
    folder = random_model(tmp_path, number_tokenizer)
    (tmp_path / "some.en").write_text("seven hundred twenty-one thousand three hundred forty-two\n")
    sizes = (16, 32, 64, 128)
    said = []

    def layers() -> Page:
        said.append("measuring")
        return table1.page(table1.measured(sizes, sizes, budget=0), table1.model_costs(sizes, budget=0))

    out = tmp_path / "all"
    options = {"lower": True, "vocab_size": 37_000, "runs": tmp_path, "report": said.append}
    index = write_all(out, layers=layers, model=folder, src=tmp_path / "some.en", **options).read_text()
    missing = ("Table 2, wmt14-en-de", "at a laptop's size, 20 of 20 rows:", "Table 4 on the WSJ", "Table 4 on GUM")
    assert all(line in index for line in missing) and "Figures 3 to 5" not in index
    assert f"heed paper all --model {folder} --src" in index
    pages = re.findall(r"\]\((\w+\.md)\)", index)
    plots = [name for page in pages for name in re.findall(r"\((\S+\.svg)\)", (out / page).read_text())]
    assert len(pages) == 9 == len(said) - 1 and said[0] == "measuring" and len(plots) > 15
    assert all((out / name).is_file() for name in (*pages, *plots))

    def no_layers() -> Page:
        return Page("table1", "text\n", "heed paper all")

    assert (
        "Heads with a recognisable function: `heed paper all"
        in write_all(tmp_path / "no model", layers=no_layers, model=None, src=None, **options).read_text()
    )
    (tmp_path / "long.en").write_text("forty-two\n" + "one " * 2000 + "\n")
    index = write_all(
        tmp_path / "long", layers=no_layers, model=folder, src=tmp_path / "long.en", **options
    ).read_text()
    assert re.search(r"- Heads with a recognisable function: the sentence .one one .* tokens; 1,000 can be", index)
    one = random_model(tmp_path, number_tokenizer, n_heads=1)
    index = write_all(tmp_path / "one", layers=no_layers, model=one, src=None, **options).read_text()
    assert "- figure5: Figure 5 shows two heads of a layer" in index and "[figure3](figure3.md)" in index
    said.clear()
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(HeedError, match=r"model\.safetensors: damaged"):  # before anything is measured
        write_all(out, layers=layers, model=folder, src=None, **options)
    assert not said
