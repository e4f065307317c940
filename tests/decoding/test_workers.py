"""Several workers find what one search finds, and end with it."""

import itertools
import threading

import pytest
import torch
from tests.conftest import SPECIAL

from heed.decoding.search import DecodingSettings, Source, search
from heed.decoding.workers import search_by_workers
from heed.kernels.library import has_int8, library
from heed.model.inference import packed

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler: Heed's kernels are not at hand")
needs_int8 = pytest.mark.skipif(not has_int8(), reason="no AVX-512 VNNI")
SETTINGS = DecodingSettings(max_extra_tokens=6)


@pytest.fixture(autouse=True)
def three_threads():
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3 and threading.active_count() == 1
    torch.set_num_threads(1)


@pytest.fixture
def model(small_model):
    return packed(small_model, "fp32")


def source(number: int) -> Source:
    draw = torch.Generator().manual_seed(number)
    return Source(number, torch.randint(3, 50, (1 + number % 11,), generator=draw).tolist())


def test_the_workers_find_what_one_search_finds(model):
    sources = [source(number) for number in range(300)]
    expected = dict(search([model], sources, SPECIAL, SETTINGS, n_best=2))
    options = {"n_best": 2, "n_sentences": 8}
    found = search_by_workers([model], iter(sources), SPECIAL, SETTINGS, **options)
    assert dict(result for result in found if result) == expected


def test_a_stream_that_pauses_and_is_left_stops_all_workers(model):
    endless = (source(number) if number % 3 else None for number in itertools.count())
    found = search_by_workers([model], endless, SPECIAL, SETTINGS, n_sentences=8)
    assert len(list(itertools.islice(filter(None, found), 100))) == 100
    found.close()


def test_what_was_read_before_a_fault_is_found_then_the_fault_is_raised(model):
    def faulty():
        yield from map(source, range(50))
        raise ValueError("line 51")

    found = []
    with pytest.raises(ValueError, match="line 51"):
        for result in search_by_workers([model], faulty(), SPECIAL, SETTINGS, n_sentences=4):
            found += [result[0]] if result else []
    assert sorted(found) == list(range(50))


@pytest.mark.parametrize("precision", ["fp32", pytest.param("int8", marks=needs_int8)])
def test_threads_that_share_one_search_find_what_one_finds(small_model, precision):
    model = packed(small_model, precision)
    sources = [source(number) for number in range(200)]
    together = [dict(search([model], sources, SPECIAL, SETTINGS, n_sentences=n)) for n in (2, 64)]
    torch.set_num_threads(1)
    alone = dict(search([model], sources, SPECIAL, SETTINGS))
    torch.set_num_threads(3)
    assert together == [alone, alone]
