"""A sentence can be taken out of a search; the others never notice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.backends.choice import fastest_precision
from heed.backends.cpu.search import usable
from heed.decoding.loading import prepack_models
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.decoding.source_queue import Source
from tests.conftest import SPECIAL, n_examples
from tests.decoding.searches import MODEL, SOURCE, hypotheses_of, search

KERNELS = usable()
INT8 = KERNELS and fastest_precision(MODEL, "cpu")[0] == "int8"
PRECISIONS = ["fp32", *(["int8"] if INT8 else [])] if KERNELS else []
MODELS = {name: prepack_models(MODEL, name, copy=True)[0] for name in PRECISIONS}


def results_with_cancellations(model, sources, options, when, *, sampling=None, n_sentences=64):
    """The results of those that remain; sentence n is cancelled at the when[n]-th question."""
    asked, live = {}, set()

    def cancelled(number: int) -> bool:
        asked[number] = asked.get(number, -1) + 1
        live.add(number)
        if number in when and asked[number] >= when[number]:
            live.discard(number)
            return True
        return False

    numbered = [Source(number, ids) for number, ids in enumerate(sources)]
    found = {}
    for result in search(
        [model], numbered, SPECIAL, options,
        n_best=2, n_sentences=n_sentences, sampling=sampling, cancelled=cancelled,
    ):  # fmt: skip
        assert len(live) <= n_sentences + 1  # those that are searched, and one that is read ahead
        if result is not None:
            live.discard(result[0])
            found[result[0]] = result[1]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("precision", MODELS)
@settings(max_examples=n_examples(25))
@given(
    st.lists(SOURCE.map(lambda ids: ids[:12]), min_size=1, max_size=12),
    st.dictionaries(st.integers(0, 11), st.integers(0, 9)),
    st.sampled_from([1, 3, 64]),
    st.booleans(),
)
def test_cancelled_sentences_never_change_the_others(precision, sources, when, n_sentences, drawn):
    """Bit for bit, whenever they leave, and also in a search that holds fewer sentences than there are."""
    options, sampling = DecodingSettings(beam_size=3, max_tokens=12), SamplingSettings() if drawn else None
    model = MODELS[precision]
    expected = hypotheses_of(model, sources, options, n_best=2, sampling=sampling)
    found = results_with_cancellations(model, sources, options, when, sampling=sampling, n_sentences=n_sentences)
    assert {n for n in range(len(sources)) if n not in when} <= set(found)
    assert not {n for n, step in when.items() if step == 0} & set(found)
    assert all(hypotheses == expected[number] for number, hypotheses in found.items())


def test_a_cancelled_sentence_leaves_the_plain_network_too(without_kernels):
    sources, options = [[5, 6, 7], [8, 9], [10, 11, 12, 13]], DecodingSettings(beam_size=2, max_tokens=10)
    (model,) = prepack_models(MODEL, "fp32", copy=True)
    expected = hypotheses_of(model, sources, options, n_best=2)
    found = results_with_cancellations(model, sources, options, {1: 2})
    assert set(found) == {0, 2}
    for number, hypotheses in found.items():
        assert [h.ids for h in hypotheses] == [h.ids for h in expected[number]]


def test_a_cancelled_sentence_makes_room_at_once():
    """One place: the second sentence starts as soon as the first, which would take 50 steps, has left."""
    asked = []
    options = DecodingSettings(beam_size=2, max_tokens=50, min_tokens=49)
    sources = [Source(0, [5, 6, 7]), Source(1, [8, 9])]

    def cancelled(number: int) -> bool:
        asked.append(number)
        return number == 0 and len(asked) >= 4

    (model,) = prepack_models(MODEL, "fp32", copy=True)
    (result,) = search([model], sources, SPECIAL, options, n_sentences=1, cancelled=cancelled)
    assert result is not None and result[0] == 1
    assert asked[:4] == [0, 0, 0, 0] and 0 not in asked[4:]
