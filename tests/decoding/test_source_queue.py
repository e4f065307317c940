"""Sources enter a search as memory allows and as they come; results leave in the order of the input."""

import random
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heed.decoding import source_queue
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.decoding.source_queue import SearchMemory, Source, SourceQueue, maximum_length, search_in_order
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.text.prefix import Prefix
from tests.conftest import SPECIAL
from tests.decoding.searches import MODEL, search


def test_a_target_is_as_long_as_the_settings_say_but_never_shorter_than_its_source_demands():
    options = DecodingSettings(max_extra_tokens=3, max_tokens=6)
    assert maximum_length(Source(0, [5] * 2), options) == 5  # 2 + 3
    assert maximum_length(Source(0, [5] * 9), options) == 6  # max_tokens
    assert maximum_length(Source(0, [5] * 9, length=1), options) == 4  # 1 + 3
    assert maximum_length(Source(0, [5], prefix=Prefix.of_ids([7] * 8)), options) == 9  # the prefix and eos
    assert maximum_length(Source(0, [5], min_limit=11), options) == 11
    assert maximum_length(Source(0, []), DecodingSettings(max_extra_tokens=0)) == 1


def test_the_queue_hands_out_what_fits_and_a_longer_source_only_alone():
    options = DecodingSettings(max_extra_tokens=0)
    sources = [Source(0, [5] * 4), Source(1, [5] * 4), None, Source(2, [5] * 100), Source(3, [5])]
    queue = SourceQueue(sources, options, SearchMemory([MODEL], options, None))
    assert [source.number for source in queue.take(5, 10, idle=True)] == [0, 1]
    assert queue.take(5, 10, idle=False) == []  # 100 do not fit beside others
    assert [source.number for source in queue.take(5, 10, idle=True)] == [2] and not queue.exhausted
    assert [source.number for source in queue.take(5, 10, idle=False)] == [3] and queue.exhausted


@given(st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=100), st.randoms(use_true_random=False))
def test_results_come_in_the_order_of_the_items_whatever_the_order_of_the_search(items, order: random.Random):
    """An item n has n sources; a search that holds some of them and finishes them in any order."""

    def sources_of(window):
        return [[Source(next(numbers), [5] * order.randint(0, 9)) for _ in range(n)] for n in window]

    def shuffled(sources):
        held: list[Source] = []
        for source in sources:
            held += [] if source is None else [source]
            order.shuffle(held)
            yield None
            while len(held) > 5:
                yield held[-1].number, held.pop()
        yield from ((source.number, source) for source in held)

    numbers = iter(range(10_000))
    found = list(search_in_order(iter(items), sources_of, shuffled, size=lambda n: 1))
    assert [n for n, _ in found] == [n for n in items if n is not None]
    assert [source.number for _, sources in found for source in sources] == list(range(sum(n for n, _ in found)))


def test_a_search_continues_while_no_other_source_is_at_hand():
    """None says "not yet": what was given is finished before the next is asked for in earnest."""
    given_out = []

    def arriving():
        for number, ids in enumerate(([5, 6], [7, 8, 9], [4])):
            yield Source(number, ids)
            while len(given_out) <= number:
                yield None

    for result in search([MODEL], arriving(), SPECIAL, DecodingSettings(max_tokens=6)):
        if result is not None:
            given_out.append(result[0])
    assert given_out == [0, 1, 2]


def test_what_a_refusal_proposes_fits():
    arch = Architecture(n_layers=1, d_model=8, d_ff=8, n_heads=16, d_k=4096, d_v=4096)  # a megabyte a position
    model, sources = Transformer(arch, 50).eval(), [Source(0, [5] * 9000)]
    options = DecodingSettings(beam_size=1000, max_tokens=9000)
    with pytest.raises(HeedError) as refused:
        next(search([model], sources, SPECIAL, options))
    (beam,) = re.findall(r"a beam of ([\d,]+) or", str(refused.value)) or ["0"]
    (max_tokens,) = re.findall(r"max_tokens=(\d+)", str(refused.value))
    for changes in ({"beam_size": int(beam.replace(",", "")) * 9 // 10}, {"max_tokens": int(max_tokens) * 9 // 10}):
        if min(changes.values()) >= 1:
            fitting = options.model_copy(update=changes)
            memory = SearchMemory([model], fitting, None)
            memory.check(fitting.max_tokens, required=1)


def test_usual_searches_keep_their_number_of_sentences_and_large_beams_get_fewer(monkeypatch):
    monkeypatch.setattr(source_queue, "free_memory", lambda: 1.6e10)
    with torch.device("meta"):
        base = Transformer(Architecture(), 37_000)
    for beam in (1, 4, 21):
        memory = SearchMemory([base], DecodingSettings(beam_size=beam), None)
        assert memory.max_sentences(64) == 64
        assert memory.max_tokens() == source_queue.MAX_LIVE_TOKENS
    for sampling in (None, SamplingSettings()):
        memory = SearchMemory([base], DecodingSettings(beam_size=1000), sampling)
        assert memory.max_sentences(64) < 4
        assert memory.max_tokens() < 200
