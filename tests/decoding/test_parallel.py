"""Searches side by side give what one search gives, keep no source waiting, and end together."""

import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.backends.choice import fastest_precision, search_backend
from heed.backends.cpu.search import usable
from heed.decoding import parallel
from heed.decoding.beam import SearchPlan
from heed.decoding.distinct import distinct_search
from heed.decoding.loading import prepack_models
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.decoding.source_queue import Source
from heed.errors import HeedError
from tests.conftest import SPECIAL, n_examples
from tests.decoding.searches import MODEL, SHORT, search, sharp_model

pytestmark = pytest.mark.skipif(not usable(), reason="no kernels here")
INT8 = fastest_precision(MODEL, "cpu")[0] == "int8"
MODELS = {name: prepack_models(MODEL, name, copy=True)[0] for name in ("fp32", *(["int8"] if INT8 else []))}
OPTIONS = DecodingSettings(beam_size=3, max_extra_tokens=4)


def parallel_search(model, sources, settings=OPTIONS, **options):
    return parallel.parallel_search(SearchPlan([model], SPECIAL, settings, **options), sources, text_of=None)


@pytest.fixture(autouse=True)
def three_threads_and_few_are_many(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(parallel, "MANY", 6)
    yield
    torch.set_num_threads(before)


def others() -> int:
    """Threads besides those that the tests' own library keeps."""
    return sum(thread.name.endswith("(work)") for thread in threading.enumerate())


@pytest.mark.parametrize("precision", MODELS)
@settings(max_examples=n_examples(20))
@given(st.lists(st.one_of(st.none(), SHORT), max_size=60), st.booleans())
def test_the_results_are_those_of_one_search_bit_for_bit(precision, stream, drawn):
    sources = [None if ids is None else Source(i, ids) for i, ids in enumerate(stream)]
    sampling = SamplingSettings() if drawn else None
    asked = [source for source in sources if source is not None]
    expected = dict(search([MODELS[precision]], asked, SPECIAL, OPTIONS, n_best=2, sampling=sampling))
    found = [
        result
        for result in parallel_search(MODELS[precision], sources, n_best=2, sampling=sampling)
        if result is not None
    ]
    assert len(found) == len(expected) and dict(found) == expected
    assert others() == 0


def test_many_sources_are_divided_and_few_are_not(monkeypatch):
    searching: list[str] = []

    def watched(plan, sources, **options):
        searching.append(threading.current_thread().name)
        return distinct_search(plan, sources, **options)

    monkeypatch.setattr(parallel, "distinct_search", watched)
    few = [Source(i, [5, 6]) for i in range(5)]
    assert len(list(parallel_search(MODELS["fp32"], few))) == 5
    assert searching == [threading.current_thread().name]
    searching.clear()
    many = [Source(i, [5, 6]) for i in range(40)]
    assert len(list(parallel_search(MODELS["fp32"], many))) == 40
    assert len(searching) == 3 and threading.current_thread().name not in searching
    with_radius = sharp_model(radius=2)
    assert search_backend(with_radius).search_threads(with_radius) == 1


def test_a_line_that_arrives_alone_is_searched_while_the_next_is_awaited():
    """After many at once come single ones, each only when the one before has been translated."""
    done: list[int] = []

    def stream():
        yield from (Source(i, [5, 6]) for i in range(20))
        for i in range(20, 24):
            while i - 1 not in done:
                yield None
            yield Source(i, [7])

    for result in parallel_search(MODELS["fp32"], stream(), wait=lambda: time.sleep(0.001)):
        if result is not None:
            done.append(result[0])
    assert sorted(done) == list(range(24))


def test_what_the_stream_raises_ends_all_searches():
    def broken():
        yield from (Source(i, [5, 6]) for i in range(30))
        raise HeedError("the disk is gone.")

    with pytest.raises(HeedError, match="the disk is gone"):
        list(parallel_search(MODELS["fp32"], broken()))
    assert others() == 0


def test_what_one_search_raises_ends_all_searches(monkeypatch):
    damaged = prepack_models(MODEL, "fp32", copy=True)[0]
    damaged.tgt_embedding.fill(float("nan"))
    many = [Source(i, [5, 6]) for i in range(40)]
    with pytest.raises(HeedError, match="not finite"):
        list(parallel_search(damaged, many))
    with pytest.raises(IndexError, match="id 4000"):
        list(parallel_search(MODELS["fp32"], [*many, Source(40, [4000])]))
    assert others() == 0


def test_who_stops_listening_stops_all_searches():
    endless = (Source(i, [5] * 50) for i in range(10**9))
    results = parallel_search(MODELS["fp32"], endless, DecodingSettings(beam_size=3))
    next(results)
    assert others() == 3
    results.close()
    assert others() == 0
    assert torch.get_num_threads() == 3
