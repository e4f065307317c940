"""Scores carry how they were made."""

import pytest
from sacrebleu import corpus_bleu, corpus_chrf

from heed.errors import HeedError
from heed.evaluation.bleu import bleu, chrf, exact_matches
from heed.evaluation.tokenization import check_tokenization


def test_bleu_worked_out_by_hand():
    # 5 tokens against 5: matches 4/5, 3/4, 2/3, 1/2; the same length, so no brevity penalty.
    # (4/5 · 3/4 · 2/3 · 1/2) ^ (1/4) = 0.2 ^ 0.25 = 0.668740
    score = bleu(["the cat sat down now"], ["the cat sat down then"], tokenize="none")
    assert score.value == pytest.approx(66.8740, abs=1e-3)
    assert "tok:none" in score.signature and "version:" in score.signature
    assert str(score).startswith("BLEU 66.87 (nrefs:1|case:mixed")


def test_tokenisation_matters_and_the_signature_says_which():
    hypothesis, reference = ["A dog, running fast."], ["A dog , running fast ."]
    detokenised, tokenised = bleu(hypothesis, reference), bleu(hypothesis, reference, tokenize="none")
    assert detokenised.value > tokenised.value
    assert "tok:13a" in detokenised.signature


@pytest.mark.parametrize("score", [bleu, chrf, exact_matches])
def test_single_texts_are_not_lists_of_characters(score):
    for given, named in ((("a b", "a b"), "hypotheses"), ((["a b"], "a b"), "references")):
        with pytest.raises(HeedError, match=f"{named} is one text; expected a list of texts: write .text. for"):
            score(*given)


def test_several_references_are_scored_as_sacrebleu_scores_them():
    hypotheses, first, second = ["the cat sat here ."], ["a cat sat there ."], ["the cat was here ."]
    assert bleu(hypotheses, first, second).value == pytest.approx(corpus_bleu(hypotheses, [first, second]).score)
    assert bleu(hypotheses, first, second).value > bleu(hypotheses, first).value
    assert chrf(hypotheses, first, second).value == pytest.approx(corpus_chrf(hypotheses, [first, second]).score)
    assert "nrefs:2" in bleu(hypotheses, first, second).signature
    with pytest.raises(HeedError, match="1 hypotheses, 2 references"):
        bleu(hypotheses, first, second * 2)


def test_a_blank_reference_is_none_wherever_it_stands():
    hypotheses = ["one two three four", "a dog runs over the grass"]
    first = ["one two three four five six seven eight", "a dog runs over the lawn"]
    for blank in ("", " ", "\N{NO-BREAK SPACE}"):
        second = [blank, "the dog runs over the grass"]
        for references in ((first, second), (second, first)):
            score = bleu(hypotheses, *references)
            expected = corpus_bleu(hypotheses, [first, [None, second[1]]])
            assert score.value == pytest.approx(expected.score) and expected.bp < 1
            assert "nrefs:var" in score.signature
            assert chrf(hypotheses, *references).value == pytest.approx(corpus_chrf(hypotheses, [first, second]).score)
    # A sentence without any reference still counts, as with sacrebleu.
    for others in ([], [["", " "]]):
        assert bleu(["a", "b"], ["a", ""], *others).value == pytest.approx(corpus_bleu(["a", "b"], [["a", ""]]).score)


def test_faulty_input_is_refused():
    for score in (bleu, chrf, exact_matches):
        with pytest.raises(HeedError, match="2 hypotheses, 1 references"):
            score(["a", "b"], ["a"])
        with pytest.raises(HeedError, match="no line to score"):
            score([], [])
    with pytest.raises(HeedError, match="unknown tokenisation 'moses'; known: 13a, none"):
        check_tokenization("moses")
