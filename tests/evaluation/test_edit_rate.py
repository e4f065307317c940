"""The translation edit rate is sacrebleu's."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import lib_ter
from tests.conftest import n_examples

from heed.evaluation.edit_rate import translation_edit_rate

LETTERS = st.sampled_from("ab") | st.sampled_from("abcdefghij")


def shuffled(drawn: tuple[list[str], list[str], list[int]]) -> tuple[list[str], list[str]]:
    """A hypothesis that has parts of the reference, in another order."""
    reference, other, cuts = drawn
    parts = [reference[cut : cut + 7] for cut in cuts]
    return [letter for part in (*parts, other) for letter in part], reference


texts = st.lists(LETTERS, max_size=45)
cuts = st.lists(st.integers(0, 40), max_size=7)
pairs = st.tuples(texts, texts) | st.tuples(texts, st.lists(LETTERS, max_size=4), cuts).map(shuffled)


@given(pairs)
@settings(max_examples=n_examples(60))
@example((list("ab") * 40, list("ba") * 40))  # as many shifts as sacrebleu tries
@example((list("abcde" * 16), list("badce" * 8 + "xyz" * 10)))  # half the letters are wrong
@example((["a"] * 3, list("bcdefa" * 15)))  # far more letters: a wider band
@example((list("bcdefa" * 15), ["a"] * 2))
def test_edits_are_those_of_sacrebleu(pair):
    hypothesis, reference = pair
    assert translation_edit_rate(hypothesis, reference) == lib_ter.translation_edit_rate(hypothesis, reference)


def test_edits_worked_out_by_hand():
    # "c d" is shifted before "a b", then x is deleted.
    assert translation_edit_rate("a b x c d".split(), "c d a b".split()) == (2, 4)
    assert translation_edit_rate(["a"], []) == (1, 0)
