"""What holds for every search: it does not depend on the batch, ends early without loss, obeys what is asked of it."""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.backends.choice import prepack
from heed.backends.cpu.build import has_int8, has_tiles, library
from heed.backends.cpu.search import CpuSearchBackend
from heed.backends.cpu.search_state import CpuSearchState
from heed.data.batches.batch import make_batch
from heed.data.batches.padded import PaddedBatch
from heed.decoding.beam import FEW_STEPS, MANY_STEPS, Hypothesis, beam_search
from heed.decoding.scoring import length_penalty
from heed.decoding.settings import DecodingSettings
from heed.decoding.source_queue import Source
from tests.conftest import SPECIAL, n_examples
from tests.decoding.searches import (
    MODEL,
    SHORT,
    SOURCE,
    SPELLINGS,
    VOCAB_SIZE,
    hypotheses_of,
    search,
    sharp_model,
)

needs_kernels = pytest.mark.skipif(library() is None, reason="no C++ compiler: Heed's kernels are not at hand")
SOURCE_IDS = [5, 6, 7]
needs_int8 = pytest.mark.skipif(not has_int8(), reason="no 8-bit products here")
PRECISIONS = ("fp32", *("bf16",) * has_tiles(), *("int8",) * has_int8())
MODELS = {
    "narrow": MODEL,
    "many words": sharp_model(vocab_size=1003, d_model=64),  # panels of the output that need not be looked at
    # Heads of 64 and rows of whole tiles, as users' models have them: vectors and AMX take other roads there.
    "usual": sharp_model(vocab_size=1003, n_layers=1, d_model=256, d_ff=512),
}
READY = {
    (name, precision): prepack(model, precision)
    for name, model in (MODELS.items() if library() else ())
    for precision in PRECISIONS
}
in_fp32_and_int8 = pytest.mark.parametrize("precision", ["fp32", pytest.param("int8", marks=needs_int8)])
in_two_widths = pytest.mark.parametrize("width", ["narrow", "usual"])


@pytest.mark.slow
@needs_kernels
@in_fp32_and_int8
@in_two_widths
@given(
    sources=st.lists(st.tuples(SOURCE, st.text("abc", max_size=6)), min_size=1, max_size=12),
    order=st.randoms(use_true_random=False),
    n_sentences=st.integers(1, 9),
    beam_size=st.integers(1, 5),
)
@settings(max_examples=n_examples(15))
def test_a_translation_has_the_same_bits_whatever_is_translated_beside_it(
    width, precision, sources, order, n_sentences, beam_size
):
    model = READY[width, precision]
    options = DecodingSettings(beam_size=beam_size, max_tokens=12)
    sources = [*sources, sources[0]]  # a duplicate

    def found(places: list[int]) -> list[list[Hypothesis]]:
        ids, texts = zip(*(sources[i] for i in places), strict=True)
        prefixes = [SPELLINGS.prefix(text) for text in texts]
        return hypotheses_of(model, ids, options, prefixes=prefixes, n_best=2, n_sentences=n_sentences)

    alone = [found([i])[0] for i in range(len(sources))]
    places = list(range(len(sources)))
    order.shuffle(places)
    for place, hypotheses in zip(places, found(places), strict=True):
        assert hypotheses == alone[place]  # ids, scores and all: equal, not close


@pytest.mark.slow
@needs_kernels
@in_fp32_and_int8
@in_two_widths
def test_threads_that_share_a_search_find_what_one_finds(width, precision):
    draw = torch.Generator().manual_seed(3)
    sources = [torch.randint(3, VOCAB_SIZE, (1 + n % 11,), generator=draw).tolist() for n in range(200)]
    options = DecodingSettings(max_extra_tokens=6)
    model = READY[width, precision]
    alone = hypotheses_of(model, sources, options, n_best=2)
    torch.set_num_threads(3)
    try:
        for n_sentences in (2, 64):  # too few for each thread to take its own, and enough
            assert hypotheses_of(model, sources, options, n_best=2, n_sentences=n_sentences) == alone
    finally:
        torch.set_num_threads(1)


@pytest.mark.slow
@needs_kernels
def test_searches_at_the_same_time_each_by_several_threads_do_not_disturb_each_other():
    draw = torch.Generator().manual_seed(5)
    sources = [torch.randint(3, VOCAB_SIZE, (1 + n % 11,), generator=draw).tolist() for n in range(60)]
    options = DecodingSettings(max_extra_tokens=6)
    alone = hypotheses_of(READY["narrow", "fp32"], sources, options, n_best=2, n_sentences=6)

    def found(n_threads: int) -> list[list[Hypothesis]]:
        CpuSearchBackend().use_threads(n_threads)
        return hypotheses_of(READY["narrow", "fp32"], sources, options, n_best=2, n_sentences=6)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(found, [2, 3, 2])) == [alone] * 3


@pytest.mark.slow
@needs_kernels
def test_a_search_heeds_numbers_of_threads_that_differ_by_level():
    program = """
        from tests.decoding.searches import MODEL, hypotheses_of
        from heed.backends.choice import prepack
        from heed.decoding.settings import DecodingSettings
        print(hypotheses_of(prepack(MODEL, "fp32"), [[5, 6, 7], [8]], DecodingSettings(max_tokens=9), n_best=2))
    """

    def printed(n_threads: str) -> str:
        command = [sys.executable, "-c", textwrap.dedent(program)]
        environment = os.environ | {"OMP_NUM_THREADS": n_threads, "PYTHONPATH": "."}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    assert printed("2,1") == printed("1")


@needs_kernels
@pytest.mark.parametrize(("n_waiting", "first_call"), [(None, FEW_STEPS), (1, FEW_STEPS), (0, MANY_STEPS)])
def test_a_search_returns_from_its_steps_early_only_if_a_source_waits(n_waiting, first_call):
    n_steps = []
    take_steps = CpuSearchState.take_steps

    def counted(state, account, *arguments):
        before = account.lengths.max()
        done = take_steps(state, account, *arguments)
        n_steps.append(account.lengths.max() - before)
        return done

    def starving():
        yield Source(0, SOURCE_IDS)
        while True:
            yield None

    options = DecodingSettings(min_tokens=MANY_STEPS + 1, max_tokens=MANY_STEPS + 2)
    waiting = None if n_waiting is None else np.array([n_waiting])
    with patch.object(CpuSearchState, "take_steps", counted):
        assert next(search([READY["narrow", "fp32"]], starving(), SPECIAL, options, n_waiting=waiting)) is not None
    assert n_steps[0] == first_call


@needs_kernels
def test_more_than_one_number_of_waiting_sources_is_refused():
    waiting = np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="n_waiting"):
        list(
            search(
                [READY["narrow", "fp32"]], [Source(0, SOURCE_IDS), None], SPECIAL, DecodingSettings(), n_waiting=waiting
            )
        )


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize("width", ["narrow", "many words"])
@pytest.mark.parametrize("precision", PRECISIONS)
@given(
    sources=st.lists(st.tuples(SHORT, st.text("abc", max_size=6)), min_size=1, max_size=9),
    n_sentences=st.integers(1, 9),
    options=st.builds(
        DecodingSettings,
        beam_size=st.integers(1, 5),
        max_extra_tokens=st.integers(1, 40),
        min_tokens=st.integers(0, 4),
        early_stopping=st.booleans(),
    ),
    n_best=st.integers(1, 3),
)
@settings(max_examples=n_examples(60))
def test_steps_taken_many_at_a_time_find_what_single_steps_find(
    precision, width, sources, n_sentences, options, n_best
):
    model = READY[width, precision]
    numbered = [Source(number, ids, SPELLINGS.prefix(text)) for number, (ids, text) in enumerate(sources)]

    def found() -> dict[int, list[Hypothesis]]:
        results = search([model], numbered, SPECIAL, options, n_best=n_best, n_sentences=n_sentences)
        return dict(result for result in results if result is not None)

    with patch.object(CpuSearchState, "take_steps", lambda *_, **__: None):
        expected = found()
    with patch.object(CpuSearchState, "logits", side_effect=AssertionError("a single step")):
        many = found()
    assert many.keys() == expected.keys()
    for number, hypotheses in expected.items():
        assert [(h.ids, h.ended) for h in many[number]] == [(h.ids, h.ended) for h in hypotheses]
        for one, other in zip(many[number], hypotheses, strict=True):  # exponentials are added in another order
            assert one.log_prob == pytest.approx(other.log_prob, rel=1e-5, abs=1e-5)


def exhausted_beam(model, source, options, n_best):
    """The same search written with lists, every step from the whole prefix.

    It runs on to the maximum length, or with early_stopping until beam_size hypotheses have ended.
    """
    alpha, form = options.length_penalty, options.length_penalty_form
    beams, ended = [((), 0.0)], []
    limit = max(1, len(source) + options.max_extra_tokens)
    for _ in range(limit):
        grown = []
        for ids, total in beams:
            rows = PaddedBatch.of(make_batch([(source, list(ids))], SPECIAL))
            with torch.no_grad():
                log_probs = torch.log_softmax(model(rows.src, rows.src_mask, rows.tgt_in)[0, -1], dim=-1)
            for i, log_prob in enumerate(log_probs.tolist()):
                if i not in (SPECIAL.pad, SPECIAL.bos):
                    grown.append(((*ids, i), total + log_prob))
        grown.sort(key=lambda pair: -pair[1])
        for ids, total in grown[: options.beam_size]:
            if ids[-1] == SPECIAL.eos:
                ended.append((ids[:-1], total / length_penalty(len(ids), alpha, form)))
        beams = [pair for pair in grown if pair[0][-1] != SPECIAL.eos][: options.beam_size]
        if len(ended) >= options.beam_size and (options.early_stopping or options.beam_size == 1):
            break
    if not ended:
        ended = [(ids, total / length_penalty(len(ids), alpha, form)) for ids, total in beams]
    return sorted(ended, key=lambda pair: -pair[1])[:n_best]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["paper", "average", "none"])
@given(
    source=SHORT,
    beam_size=st.integers(1, 4),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 1.4]),
    early=st.booleans(),
    seed=st.integers(0, 3),
)
@settings(max_examples=n_examples(40))
def test_the_search_ends_where_no_hypothesis_can_win_or_as_early_as_it_is_told_to(
    form, source, beam_size, alpha, early, seed
):
    model = sharp_model(seed)
    options = DecodingSettings(
        beam_size=beam_size,
        length_penalty=alpha,
        length_penalty_form=form,
        max_extra_tokens=max(1, 7 - len(source)),
        early_stopping=early,
    )
    n_best = min(2, beam_size)
    (found,) = beam_search(model, [source], SPECIAL, options, n_best=n_best)
    expected = exhausted_beam(model, source, options, n_best)
    assert [h.score for h in found] == pytest.approx([score for _, score in expected], abs=1e-4)
    assert [h.ids for h in found] == [ids for ids, _ in expected]
