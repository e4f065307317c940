"""The search in slots against the plain one, on the CPU's tensors: what it computes does not depend on the device."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.test_equivalence import (
    CASES,
    LOGITS_ALIKE,
    LOGITS_ERROR,
    OPERATIONS,
    assert_rounded_alike,
    assert_same_hypotheses,
    batch_of,
    found_by,
    log_probs_of,
    model_of,
    plain_search,
    step_logits,
    true_logits,
)
from tests.conftest import SPECIAL
from tests.decoding.searches import search
from tests.golden.make import LINES

from heed.backends.gpu import search as gpu_search
from heed.backends.gpu.search import GpuSearchBackend, GpuSearchState
from heed.backends.protocol import NotFiniteError, say_once
from heed.backends.reference_search import ReferenceSearchBackend, ReferenceSearchState
from heed.decoding.beam import Hypothesis
from heed.decoding.settings import DecodingSettings
from heed.decoding.source_queue import Source
from heed.decoding.translator import Translator
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.text.prefix import NO_PREFIX, Prefix

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
Use = Callable[[ReferenceSearchBackend], None]


@pytest.fixture
def use(monkeypatch) -> Use:
    """Chooses the backend of all searches."""

    def choose(backend: ReferenceSearchBackend) -> None:
        monkeypatch.setattr("heed.backends.cpu.search.usable", lambda: False)
        monkeypatch.setattr("heed.backends.dispatch.search_backend_for", lambda model: backend)

    return choose


# A beam of 7, a window, all other settings; the rest is soaked.
FEW = [CASES[i] for i in (3, 13, 31)]
MANY = [pytest.param(one, marks=pytest.mark.soak) for one in CASES if one not in FEW]


@pytest.mark.parametrize("case", [*FEW, *MANY], ids=str)
def test_a_search_in_slots_finds_in_fp32_what_the_plain_one_finds(use, case):
    expected = plain_search(case)
    use(GpuSearchBackend())
    assert_same_hypotheses(found_by(model_of(case), case), expected)


SMALL = Transformer(Architecture(n_layers=1, d_model=16, d_ff=16, n_heads=2, dropout=0.0), 40).eval()
with torch.no_grad():
    generator = torch.Generator().manual_seed(5)
    for parameter in SMALL.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)


def arriving(sources: Sequence[Source], gaps: Sequence[bool]) -> Iterator[Source | None]:
    """A stream in which some sources have not arrived when they are first asked for."""
    for source, is_late in zip(sources, gaps, strict=True):
        if is_late:
            yield None
        yield source


@settings(max_examples=8)
@given(st.data())
def test_streams_with_prefixes_and_gaps_have_the_hypotheses_of_the_plain_search(data):
    """A prefix is chosen by the CPU, so the account goes there and back when a source with one joins others."""
    ids = st.lists(st.integers(3, 39), max_size=12)
    prefix = st.one_of(st.just(NO_PREFIX), st.lists(st.integers(4, 39), min_size=1, max_size=3).map(Prefix.of_ids))
    drawn = data.draw(st.lists(st.tuples(ids, prefix, st.booleans()), min_size=1, max_size=9))
    options = {
        "beam_size": data.draw(st.sampled_from([1, 4])),
        "min_tokens": data.draw(st.sampled_from([0, 3])),
        "early_stopping": data.draw(st.booleans()),
        "max_extra_tokens": data.draw(st.integers(0, 8)),
    }
    n_best, n_sentences = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([1, 3, 64]))
    sources = [Source(number, own, begins_with) for number, (own, begins_with, _) in enumerate(drawn)]

    def found_with(backend: ReferenceSearchBackend) -> list[list[Hypothesis]]:
        stream = arriving(sources, [is_late for *_, is_late in drawn])
        with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
            patch.setattr("heed.backends.cpu.search.usable", lambda: False)
            patch.setattr("heed.backends.dispatch.search_backend_for", lambda model: backend)
            results = search(
                [SMALL], stream, SPECIAL, DecodingSettings(**options), n_best=n_best, n_sentences=n_sentences
            )
            by_number = dict(filter(None, results))
        return [by_number[number] for number in range(len(sources))]

    assert_same_hypotheses(found_with(GpuSearchBackend()), found_with(ReferenceSearchBackend()))


def test_a_sentence_that_is_cancelled_leaves_the_others_as_they_are(use):
    sources = [Source(number, [3 + number] * (2 + number)) for number in range(6)]

    def found(backend: ReferenceSearchBackend, **options: object) -> dict[int, list[Hypothesis]]:
        use(backend)
        with torch.inference_mode():
            options = {"n_sentences": 3, "n_best": 2} | options
            return dict(filter(None, search([SMALL], sources, SPECIAL, DecodingSettings(), **options)))

    asked: list[int] = []

    def cancelled(number: int) -> bool:
        asked.append(number)
        return number in (1, 4) and asked.count(number) > 2

    expected, ours = found(ReferenceSearchBackend()), found(GpuSearchBackend(), cancelled=cancelled)
    assert ours.keys() == {0, 2, 3, 5}
    assert_same_hypotheses([ours[i] for i in ours], [expected[i] for i in ours])


def test_a_long_sentence_that_is_cancelled_stops(use):
    """It would grow beyond the room that the shorter ones need, as nobody takes its place."""
    torch.manual_seed(3)
    model = Transformer(Architecture(n_layers=1, d_model=8, d_ff=8, n_heads=1, output_bias=True), 20).eval()
    with torch.no_grad():
        model.output.bias[SPECIAL.eos] = -50  # no target ends before its limit
    settings, n_asked = DecodingSettings(beam_size=2, max_extra_tokens=30), Counter[int]()

    def cancelled(number: int) -> bool:
        n_asked[number] += 1
        return number == 0 and n_asked[number] > 15

    def sources() -> Iterator[Source | None]:
        yield Source(0, [5, 6], length=300)
        yield from [None] * 14  # in each of which it takes four steps
        yield from (Source(number, [number]) for number in (3, 4, 5))

    def found(
        backend: ReferenceSearchBackend, stream: Iterator[Source | None], **options: Any
    ) -> dict[int, list[Hypothesis]]:
        use(backend)
        with torch.inference_mode():
            return dict(filter(None, search([model], stream, SPECIAL, settings, n_sentences=4, **options)))

    ours = found(GpuSearchBackend(), sources(), cancelled=cancelled)
    expected = found(ReferenceSearchBackend(), (source for source in sources() if source is not None and source.number))
    assert ours.keys() == expected.keys() == {3, 4, 5} and n_asked[0] == 16
    assert_same_hypotheses([ours[i] for i in (3, 4, 5)], [expected[i] for i in (3, 4, 5)])


@pytest.mark.parametrize("case", [CASES[3], pytest.param(CASES[29], marks=pytest.mark.soak)], ids=str)
def test_a_search_in_bf16_adds_up_logits_that_are_as_exact_as_their_arithmetic(use, case, monkeypatch):
    """Bounds as of the CPU's search in low precision (test_equivalence.py)."""
    model = _copy(model_of(case)).bfloat16()
    use(GpuSearchBackend())
    ours = step_logits(model, batch_of(case), beam=2)
    rounded, exact = (true_logits(case, *arithmetic).repeat(2, 1) for arithmetic in ((OPERATIONS["bf16"],), ()))
    assert_rounded_alike(ours.float(), rounded, exact, LOGITS_ALIKE)
    lengths, differences = log_probs_of(found_by(model, case), case, partial(step_logits, model, beam=1))
    assert (differences.abs() < 3 * 3 * LOGITS_ERROR["bf16"] * lengths.sqrt()).all()


def _copy(model: Transformer) -> Transformer:
    copied = Transformer(model.arch, model.vocab_size, model.src_vocab_size).eval()
    copied.load_state_dict(model.state_dict())
    return copied


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
@pytest.mark.parametrize("beam_size", [pytest.param(1, marks=pytest.mark.soak), 4])
def test_golden_models_translate_as_on_the_plain_road(use, name, beam_size):
    results = []
    for backend in (ReferenceSearchBackend(), GpuSearchBackend()):
        use(backend)
        translator = Translator.load(GOLDEN / name, device="cpu", precision="fp32", beam_size=beam_size)
        results.append(translator.translate(LINES, n_best=min(3, beam_size)))
    texts, expected = ([[x.text for x in found.alternatives] for found in some] for some in reversed(results))
    assert texts == expected
    scores, others = ([x.score for found in some for x in found.alternatives] for some in results)
    assert scores == pytest.approx(others, abs=1e-4)


def test_numbers_that_are_not_finite_end_the_search(use):
    use(GpuSearchBackend())
    damaged = _copy(SMALL)
    damaged.decoder[0].feed_forward.outer.weight.data[3, 4] = torch.nan
    with pytest.raises(NotFiniteError), torch.inference_mode():
        list(search([damaged], [Source(0, [5, 6])], SPECIAL, DecodingSettings()))


def test_what_the_slots_do_not_cover_takes_the_plain_network(caplog):
    say_once.cache_clear()
    backend = GpuSearchBackend()
    for _ in range(2):
        state = backend.search_state(SMALL, n_sentences=2, beam_size=gpu_search.MAX_BEAM + 1)
        assert isinstance(state, ReferenceSearchState)
    assert len(caplog.messages) == 1 and "beams up to 64" in caplog.messages[0]
    assert isinstance(backend.search_state(SMALL, n_sentences=2, beam_size=4), GpuSearchState)
    changed = _copy(SMALL)
    assert backend.covers(changed) is None
    changed.register_forward_hook(lambda *_: None)
    assert backend.covers(changed) == "a hook at Transformer"


def test_memory_decides_how_many_sentences_are_searched_at_a_time(monkeypatch):
    """Twice the positions, half the sentences; one always fits."""
    state = GpuSearchState(SMALL, n_sentences=100, beam_size=4)
    assert state.n_free == 100
    for share, expected in ((20, 20), (1, 1), (0, 1)):
        monkeypatch.setattr(gpu_search, "MAX_BYTES", share * state._slots.bytes_a_place(64))
        assert GpuSearchState(SMALL, n_sentences=100, beam_size=4).n_free == expected
