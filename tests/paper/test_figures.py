"""Which heads the figures show, on weights made by hand; the commands, on a model with random ones."""

import numpy as np
import pytest
import torch

from heed.model.transformer import Architecture, Transformer
from heed.model_folder import ModelCard, save_model
from heed.paper.figures import KINDS, head_weights, most_different, surest_heads
from heed.visualization.trace import Attention

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


def test_long_distance_is_what_lies_far_and_not_the_end():
    # Word 0 has 6 and 7 more than five words away, 1 has 7; 6 has 0, 7 has 0 and 1, 8 has 0, 1 and 2.
    far = {0: 2, 1: 1, 6: 1, 7: 2, 8: 3}
    assert head_weights(HEADS, "long distance")[0, 3] == pytest.approx(sum(far.values()) / N / len(far))


def test_a_short_sentence_has_no_long_distance():
    short = Attention(HEADS.weights[..., :3, :3], WORDS[:3], WORDS[:3])
    assert head_weights(short, "long distance") is None and head_weights(short, "next word") is not None


def test_the_surest_head_points_to_one_word_beyond_the_neighbours():
    weights = np.stack([shifted(1), EQUAL, shifted(0)])
    weights[2, 2] = np.eye(N)[6]
    weights[0, 2] = np.eye(N)[8]
    assert surest_heads(Attention(weights[None], WORDS, WORDS), 0, 2)[:2] == [2, 1]


def test_the_most_different_heads_are_found():
    assert set(most_different(np.stack([EQUAL, EQUAL, np.eye(N), np.roll(np.eye(N), 1, axis=1)]))) == {2, 3}


def test_the_commands_write_their_pages(heed, tmp_path, number_tokenizer):
    torch.manual_seed(1)
    model = Transformer(Architecture(n_layers=2, d_model=32, d_ff=32, n_heads=4), len(number_tokenizer))
    folder = tmp_path / "model"
    save_model(folder, model, number_tokenizer, ModelCard("en", "de", decoding={"max_extra_tokens": 0}))
    for number, n_pictures in ((3, 1), (4, 2), (5, 2)):
        done = heed("paper", f"figure{number}", "--model", folder, "--lower", "--out", tmp_path / "out")
        assert done.returncode == 0, done.stderr
        assert len(list((tmp_path / "out").glob(f"figure{number}-*.svg"))) == n_pictures
        assert f"heed paper figure{number}" in (tmp_path / "out" / f"figure{number}.md").read_text()
    (tmp_path / "some.en").write_text("forty-two\nseven hundred twenty-one thousand three hundred forty-two\n")
    done = heed("paper", "heads", "--model", folder, "--src", tmp_path / "some.en", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert all(what in (tmp_path / "out" / "heads.md").read_text() for what in KINDS)
