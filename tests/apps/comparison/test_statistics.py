"""Comparisons: the tests are sacrebleu's, but ties are no evidence; each breakdown counts every line and word."""

import random
import re
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest
from tests.conftest import n_examples

from heed.apps.comparison.statistics import MAX_SENTENCES, MAX_TER_WORDS, check_number, compare, statements
from heed.errors import HeedError

WORDS = "the a dog cat man runs sees sleeps under over house tree red small quickly , .".split()
lines = st.lists(st.sampled_from([*WORDS, "", "ß", "<b>"]), max_size=6).map(" ".join)
pairs = st.lists(st.tuples(lines, lines, lines), min_size=1, max_size=12)


@pytest.fixture
def few_trials(monkeypatch):
    """Enough for what holds with any number of them."""
    monkeypatch.setattr(PairedTest, "_DEFAULT_SAMPLES", {"bs": 20})
    monkeypatch.setattr("heed.apps.comparison.statistics.N_TRIALS", 20)


def corpus(n_lines: int) -> list[str]:
    generator = random.Random(1)
    return [" ".join(generator.choices(WORDS, k=generator.randint(4, 14))) for _ in range(n_lines)]


def spoiled(texts: list[str], share: float, seed: int) -> list[str]:
    """The lines without this share of their words."""
    generator = random.Random(seed)
    return [" ".join(word for word in text.split() if generator.random() >= share) for text in texts]


def test_scores_and_p_values_are_those_of_sacrebleus_paired_test(monkeypatch):
    monkeypatch.setattr(PairedTest, "_DEFAULT_SAMPLES", {"bs": 200, "ar": 1000})
    monkeypatch.setattr("heed.apps.comparison.statistics.N_TRIALS", 1000)
    references = corpus(60)
    systems = [(name, spoiled(references, share, seed)) for name, share, seed in
               (("first", 0.2, 2), ("near", 0.19, 3), ("better", 0.05, 4), ("worse", 0.4, 5))]  # fmt: skip
    comparison = compare(systems, references)
    metrics = {"BLEU": BLEU(), "chrF2": CHRF(), "TER": TER()}
    for kind, name in (("bs", "p_bootstrap"), ("ar", "p_randomisation")):
        signatures, results = PairedTest(systems, metrics, [references], test_type=kind)()
        for metric in metrics:
            for system, expected in zip(comparison.systems, results[metric], strict=True):
                score = system.scores[metric]
                assert score.score == expected.score
                if (metric, kind) == ("TER", "ar") and system is not comparison.systems[0]:
                    assert expected.p_value <= score.p_randomisation <= expected.p_value + 0.1  # with ties
                else:
                    assert getattr(score, name) == expected.p_value
                if kind == "bs":
                    assert (score.mean, score.half_width) == (expected.mean, expected.ci)
            assert set(str(signatures[metric]).split("|")) < set(comparison.signatures[metric].split("|"))
    assert comparison.seed == "12345" and "seed:12345" in comparison.signatures["BLEU"]
    verdicts = {s.name: {metric: score.verdict for metric, score in s.scores.items()} for s in comparison.systems}
    assert verdicts["better"] == dict.fromkeys(metrics, "better")
    assert verdicts["worse"] == dict.fromkeys(metrics, "worse")  # though its TER is higher
    assert verdicts["near"] == dict.fromkeys(metrics, "not significant")
    assert verdicts["first"] == dict.fromkeys(metrics)
    assert statements(comparison) == [
        "near does not differ significantly from first by BLEU, chrF2 and TER.",
        "better is significantly better than first by BLEU, chrF2 and TER: p < 0.05.",
        "worse is significantly worse than first by BLEU, chrF2 and TER: p < 0.05.",
    ]
    for group in comparison.lengths:
        own = [i for i, line in enumerate(references) if group.shortest <= len(line.split()) <= group.longest]
        expected = [BLEU().corpus_score([t[i] for i in own], [[references[i] for i in own]]) for _, t in systems]
        assert group.n_sentences == len(own) and group.bleu == [score.score for score in expected]
    chrf = [[CHRF().sentence_score(t, [r]).score for t, r in zip(own, references, strict=True)] for _, own in systems]
    for system, own in zip(comparison.systems, chrf, strict=True):
        better, worse = (sum(sign * b > sign * a for a, b in zip(chrf[0], own, strict=True)) for sign in (1, -1))
        assert (system.n_better, system.n_worse) == (better, worse)
    for i, sentences in enumerate(comparison.sentences, start=1):
        gains = [sentence.difference for sentence in sentences if sentence.difference > 0]
        losses = [sentence.difference for sentence in sentences if sentence.difference < 0]
        assert gains == sorted(gains, reverse=True) and losses == sorted(losses)
        assert len(gains) + len(losses) == len(sentences) <= 20
        for sentence in sentences:
            first, own = (CHRF().sentence_score(t, [sentence.reference]).score for t in sentence.translations)
            assert sentence.chrf == (first, own) and sentence.difference == own - first
            place = sentence.line - 1
            assert sentence.translations == (systems[0][1][place], systems[i][1][place])
            assert sentence.reference == references[place]


@pytest.mark.slow
def test_a_difference_that_only_one_test_finds_significant_is_called_so():
    """The bootstrap's p is one-sided, so that a small gain passes it alone."""
    references = corpus(60)
    first = spoiled(references, 0.2, 2)
    for n_better in range(1, 20):
        comparison = compare([("a", first), ("b", references[:n_better] + first[n_better:])], references)
        score = comparison.systems[1].scores["BLEU"]
        if score.verdict == "the tests disagree":
            break
    assert (score.p_bootstrap < 0.05) != (score.p_randomisation < 0.05)
    assert any(
        re.fullmatch(r"b may differ from a by .*BLEU.*: only one of the two tests has p < 0\.05\.", line)
        for line in statements(comparison)
    )


def test_ties_are_no_evidence_where_sacrebleu_counts_only_what_is_larger(monkeypatch):
    monkeypatch.setattr(PairedTest, "_DEFAULT_SAMPLES", {"bs": 200, "ar": 2000})
    monkeypatch.setattr("heed.apps.comparison.statistics.N_TRIALS", 2000)
    references = corpus(40)
    first = spoiled(references, 0.2, 2)
    three_better = references[:3] + first[3:]
    raw = PairedTest([("a", first), ("b", three_better)], {"BLEU": BLEU()}, [references], test_type="ar")()[1]
    assert raw["BLEU"][1].p_value < 0.001
    score = compare([("a", first), ("b", three_better)], references).systems[1].scores["BLEU"]
    assert score.p_randomisation == pytest.approx(2 / 8, abs=0.03)  # two of the eight ways to exchange three lines
    assert score.verdict not in ("better", "worse")
    # By TER "b" has one error less in seven lines and one more in an eighth; in the others both have one, not the same.
    a = [f"A {line}" for line in references]
    b = references[:7] + [f"A B {references[7]}"] + [f"B {line}" for line in references[8:]]
    raw = PairedTest([("a", a), ("b", b)], {"TER": TER()}, [references], test_type="ar")()[1]
    assert raw["TER"][1].p_value < 0.02
    score = compare([("a", a), ("b", b)], references).systems[1].scores["TER"]
    assert score.p_randomisation == pytest.approx(2 * (1 + 8) / 2**8, abs=0.02)  # at most one of eight against the rest
    assert score.verdict not in ("better", "worse")


@pytest.mark.usefixtures("few_trials")
@settings(max_examples=n_examples(25))
@given(pairs)
def test_a_system_equals_itself_and_every_line_and_word_is_counted_once(rows):
    references, a, b = (list(column) for column in zip(*rows, strict=True))
    comparison = compare([("a", a), ("b", b), ("a", a)], references, tokenize="none")
    same = comparison.systems[2]
    for metric, score in same.scores.items():
        assert (score.difference, score.p_bootstrap, score.p_randomisation) == (0, 1, 1)
        assert score.verdict == "not significant"
        assert score.score == comparison.systems[0].scores[metric].score
        p_values = comparison.systems[1].scores[metric]
        assert 0 < p_values.p_bootstrap <= 1 and 0 < p_values.p_randomisation <= 1
    assert (same.n_better, same.n_worse, comparison.sentences[1]) == (0, 0, [])
    assert sum(group.n_sentences for group in comparison.lengths) == len(rows)
    places = [n for group in comparison.lengths for n in (group.shortest, group.longest)]
    assert places == sorted(places) and len(comparison.lengths) <= 5
    assert sum(group.n_words for group in comparison.frequencies) == sum(len(line.split()) for line in references)
    for group in comparison.frequencies:
        assert all(0 <= share <= 1 for share in (*group.recall, *group.f1))
    swapped = compare([("b", b), ("a", a)], references, tokenize="none")
    for metric, score in swapped.systems[1].scores.items():
        assert score.difference == -comparison.systems[1].scores[metric].difference


@pytest.mark.usefixtures("few_trials")
def test_word_frequencies_worked_out_by_hand():
    references = ["a dog sees a cat", "a bird sings"]
    systems = [("one", ["a dog sees the dog", "a bird"]), ("two", ["a a a cat", "bird sings a"])]
    groups = compare(systems, references).frequencies
    # In the reference "a" occurs 3 times, the other five words once.
    assert [(group.span, group.n_words) for group in groups] == [("1", 5), ("2–4", 3)]
    # Once: "one" has dog, sees and bird of them and offers dog twice: 3 of 5 words, of 4 offered.
    # "two" has cat, bird and sings: 3 of 5, of 3 offered.
    assert groups[0].recall == [3 / 5, 3 / 5]
    assert groups[0].f1 == [2 * 3 / (5 + 4), 2 * 3 / (5 + 3)]
    # "a": "one" has 2 of 3 and offers 2; "two" has 2 of the first sentence, 1 of the second, and offers 4.
    assert groups[1].recall == [2 / 3, 1.0]
    assert groups[1].f1 == [2 * 2 / (3 + 2), 2 * 3 / (3 + 4)]
    counted = compare(systems, references, training_text=iter(["a a cat", "the dog", *["bird"] * 1000]))
    assert counted.counted == "training text"
    spans = [(group.span, group.n_words) for group in counted.frequencies]
    assert spans == [("0", 2), ("1", 2), ("2–4", 3), ("1,000+", 1)]


@pytest.mark.usefixtures("few_trials")
def test_faulty_input_is_refused(monkeypatch):
    for systems, references, message in (
        ([("a", ["x"])], ["x"], "at least two"),
        ([("a", ["x"]), ("b", ["x", "y"])], ["x"], "b: 2 lines, 1 references"),
        ([("a", []), ("b", [])], [], "no line to score"),
    ):
        with pytest.raises(HeedError, match=message):
            compare(systems, references)
    with pytest.raises(HeedError, match="training text is empty"):
        compare([("a", ["x"]), ("b", ["x"])], ["x"], training_text=[])
    with pytest.raises(HeedError, match=r"20,001 sentences: .* at most 20,000"):
        check_number(MAX_SENTENCES + 1)
    for seed in ("0", "-1", "x", "9" * 5000):
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        with pytest.raises(HeedError, match="SACREBLEU_SEED=.*an integer of 1 or more"):
            compare([("a", ["x"]), ("b", ["x"])], ["x"])
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    systems = [("a", ["x y", "z"]), ("b", ["x", "z z"])]
    comparison = compare(systems, ["x y", "z"])
    assert comparison.seed == "7" and "seed:7" in comparison.signatures["TER"]
    assert asdict(comparison) == asdict(compare(systems, ["x y", "z"]))


def test_ter_leaves_out_what_would_take_forever(few_trials):
    said: list[str] = []
    references = corpus(3)
    systems = [("a", spoiled(references, 0.2, 1)), ("b", spoiled(references, 0.3, 2))]
    assert "TER" in compare(systems, references, report=said.append).signatures
    assert not said
    long = "x " * MAX_TER_WORDS
    assert "TER" in compare([("a", [long]), ("b", [long])], [long]).signatures
    systems[1][1][2] = long + "x"
    compared = compare(systems, references, report=said.append)
    assert list(compared.signatures) == ["BLEU", "chrF2"]
    assert said == ["TER is left out: b, line 3, has 301 words, more than 300, for which it takes too long; split it."]
