"""Lists of different texts begin with what a plain search finds; wider beams fill them, within bounds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.backends.cpu.search import usable
from heed.decoding import distinct
from heed.decoding.beam import SearchPlan
from heed.decoding.distinct import distinct_search
from heed.decoding.loading import prepack_models
from heed.decoding.parallel import parallel_search
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.decoding.source_queue import SearchMemory, Source
from tests.conftest import SPECIAL, n_examples
from tests.decoding import searches
from tests.decoding.searches import SHORT, hypotheses_of

pytestmark = pytest.mark.skipif(not usable(), reason="no kernels here")
(MODEL,) = prepack_models(searches.MODEL, "fp32", copy=True)  # as a translator has it: the same bits for every batching
SOURCES = [[5, 6, 7], [], [30, 4], [9], [21, 22, 23, 24], [11, 12]]


def first_ids(n: int):
    """A spelling that many hypotheses share: the first n ids alone."""
    return lambda hypothesis: str(hypothesis.ids[:n])


def lists_of(sources, options, *, n_best, text_of, searching=distinct_search, **changes):
    numbered = [Source(number, ids) for number, ids in enumerate(sources)]
    plan = SearchPlan([MODEL], SPECIAL, options, n_best=n_best, **changes)
    found = dict(filter(None, searching(plan, numbered, text_of=text_of)))
    return [found[number] for number in range(len(sources))]


@given(
    sources=st.lists(SHORT, min_size=1, max_size=3),
    beam_size=st.integers(2, 5),
    n_ids=st.integers(1, 12),
    early_stopping=st.booleans(),
    form=st.sampled_from(["paper", "average", "none"]),
)
@settings(max_examples=n_examples(20))
def test_a_list_holds_each_text_once_and_begins_as_a_plain_search_does(sources, beam_size, n_ids, early_stopping, form):
    options = DecodingSettings(
        beam_size=beam_size, max_extra_tokens=8, early_stopping=early_stopping, length_penalty_form=form
    )
    text_of = first_ids(n_ids)
    plain = hypotheses_of(MODEL, sources, options)
    narrow = hypotheses_of(MODEL, sources, options, n_best=beam_size)
    for (first,), before, found in zip(
        plain, narrow, lists_of(sources, options, n_best=beam_size, text_of=text_of), strict=True
    ):
        texts = [text_of(hypothesis) for hypothesis in found]
        assert found[0] == first
        assert len(set(texts)) == len(texts) <= beam_size
        assert len(texts) >= len({text_of(hypothesis) for hypothesis in before})
        scores = [hypothesis.score for hypothesis in found]
        assert scores == sorted(scores, reverse=True)
        best = {}  # a text's score is its best hypothesis's
        for hypothesis in before:
            best.setdefault(text_of(hypothesis), hypothesis.score)
        assert all(best.get(text, score) <= score for text, score in zip(texts, scores, strict=True))


def test_too_short_lists_are_searched_again_twice_at_most_and_alone(monkeypatch):
    searched: list[tuple[int, list[int]]] = []

    def watched(plan, sources):
        sources = list(sources)
        searched.append((plan.settings.beam_size, [source.number for source in sources]))
        return search(plan, sources)

    search = distinct.search
    monkeypatch.setattr(distinct, "search", watched)
    options = DecodingSettings(beam_size=3, max_extra_tokens=6)
    one_text = lists_of(SOURCES, options, n_best=3, text_of=lambda hypothesis: "")
    assert one_text == hypotheses_of(MODEL, SOURCES, options)
    assert [beam_size for beam_size, _ in searched] == [3, 6, 12]
    searched.clear()
    found = lists_of(SOURCES, options, n_best=3, text_of=first_ids(2))
    of_all, *again = [numbers for _, numbers in searched]
    assert 0 < len(again[0]) < len(of_all)
    # Each sentence's list is the same alone, and where lists do not wait for each other.
    assert found == [lists_of([source], options, n_best=3, text_of=first_ids(2))[0] for source in SOURCES]
    monkeypatch.setattr(distinct, "MANY_SHORT", 1)
    assert found == lists_of(SOURCES, options, n_best=3, text_of=first_ids(2))
    for plainly in ({"n_best": 1}, {"n_best": 3, "sampling": SamplingSettings()}):
        searched.clear()
        assert lists_of(SOURCES, options, text_of=lambda hypothesis: "", **plainly) == hypotheses_of(
            MODEL, SOURCES, options, **plainly
        )
        assert len(searched) == 1


def test_a_list_waits_for_no_source_that_has_not_arrived():
    options = DecodingSettings(beam_size=2, max_extra_tokens=4)

    def sources():
        yield Source(0, [5, 6])
        while not arrived:
            yield None
        yield Source(1, [7])

    arrived: list[int] = []
    plan = SearchPlan([MODEL], SPECIAL, options, n_best=2)
    for result in distinct_search(plan, sources(), text_of=lambda hypothesis: ""):
        if result is not None:
            arrived.append(result[0])
    assert arrived == [0, 1]


def test_a_beam_that_memory_does_not_hold_is_not_tried(monkeypatch):
    monkeypatch.setattr(SearchMemory, "holds", lambda memory, limit: memory._beam_size <= 3)
    options = DecodingSettings(beam_size=3, max_extra_tokens=6)
    found = lists_of(SOURCES, options, n_best=3, text_of=first_ids(2))
    assert all(found) and min(map(len, found)) < 3


def test_a_cancelled_sentence_is_not_searched_again():
    gone: set[int] = set()

    def text_of(hypothesis):  # asked once a search has ended
        gone.add(1)
        return ""

    options = DecodingSettings(beam_size=2, max_extra_tokens=4)
    sources = [Source(number, ids) for number, ids in enumerate([[5], [6] * 8])]
    plan = SearchPlan([MODEL], SPECIAL, options, n_best=2, cancelled=lambda number: number in gone)
    results = distinct_search(plan, sources, text_of=text_of)
    assert [number for number, _ in filter(None, results)] == [0]


@pytest.mark.slow
def test_several_searches_at_a_time_find_the_same_lists():
    options = DecodingSettings(beam_size=3, max_extra_tokens=6)
    sources = [[5 + i % 30, 6 + i % 7] for i in range(150)]
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = lists_of(sources, options, n_best=3, text_of=first_ids(2), searching=parallel_search)
    finally:
        torch.set_num_threads(before)
    assert found == lists_of(sources, options, n_best=3, text_of=first_ids(2))
