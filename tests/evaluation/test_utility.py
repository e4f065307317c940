"""Utilities of minimum Bayes risk decoding are sacrebleu's scores of single sentences, and their weighted mean."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from heed.evaluation import utility
from heed.evaluation.utility import bleu_scores, chrf_scores, mean_utilities

WORDS = st.lists(
    st.sampled_from(["a", "ab", "the", "dog,", "x.", "3.5", "(", "猫", "é", "aa aa", "\u3000"]), max_size=9
)
TEXTS = st.lists(WORDS.map(" ".join) | st.text(max_size=20), min_size=1, max_size=6)


@given(TEXTS)
@example(["", "", "a"])
@example(["a a a a b", "a a b b", "b"])
@example(["abc " * 40, "cab " * 33, "bc a"])
def test_scores_of_all_pairs_are_sacrebleus(texts):
    chrf, bleu = CHRF(), BLEU(effective_order=True)
    for scores, metric in ((chrf_scores(texts), chrf), (bleu_scores(texts), bleu)):
        expected = [[metric.sentence_score(hyp, [ref]).score for ref in texts] for hyp in texts]
        np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-9)


def test_an_expected_utility_is_the_mean_over_weighted_references():
    texts, weights = ["a dog runs", "a dog ran", "cats"], [3.0, 2.0, 5.0]
    metric = CHRF()
    for text, found in zip(texts, mean_utilities(texts, weights, "chrf"), strict=True):
        scores = [metric.sentence_score(text, [other]).score for other in texts]
        assert found == pytest.approx(sum(w * s for w, s in zip(weights, scores, strict=True)) / 10)


def test_many_ngrams_are_counted_in_blocks(monkeypatch):
    texts = ["the dog runs away", "the dogs ran", "a dog, away"]
    whole = chrf_scores(texts), bleu_scores(texts)
    monkeypatch.setattr(utility, "BLOCK", 3)
    for one, other in zip(whole, (chrf_scores(texts), bleu_scores(texts)), strict=True):
        assert np.array_equal(one, other)
