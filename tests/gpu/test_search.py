"""Search in slots on an emulated GPU: graphs, allocations, and how often the CPU waits."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from heed.backends.dispatch import search_backend_for
from heed.backends.gpu.beams import FP32_COLUMNS
from heed.backends.gpu.capture import RECORDING
from heed.backends.gpu.graphs import StepGraphs
from heed.backends.gpu.search import GpuSearchBackend, GpuSearchState, _half_of_free_memory
from heed.backends.reference_search import ReferenceSearchBackend
from heed.decoding.beam import Hypothesis
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.decoding.source_queue import Source, _free_bytes
from heed.errors import HeedError
from heed.model.transformer import Transformer
from heed.text.prefix import Prefix
from tests.conftest import SPECIAL, sharp_model
from tests.decoding.searches import search
from tests.gpu.conftest import architecture
from tests.gpu.emulation import CUDA, emulated_cuda
from tests.gpu.waits import CHOICE, JOINED, ONCE, SLOTS

N_TOKENS = 14  # of every target, eos included: so many steps in any case
FORCED = DecodingSettings(beam_size=3, min_tokens=N_TOKENS - 1, max_tokens=N_TOKENS)
SOURCES = [Source(number, [3 + number, 7, 9][: 1 + number % 3]) for number in range(10)]


def random_model(vocab_size: int = 50, **changes: object) -> Transformer:
    return sharp_model(architecture(**{"n_layers": 1, "d_model": 16, "d_ff": 16} | changes), vocab_size, seed=1)


def found_by(model: Transformer, settings: DecodingSettings = FORCED, sources=SOURCES, **options: Any):
    """The hypotheses of all sources, few of which are searched at a time."""
    with torch.inference_mode():
        options = {"n_sentences": 4} | options
        found = dict(filter(None, search([model], sources, SPECIAL, settings, **options)))
    return [found[number] for number in range(len(found))]


def assert_alike(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[h.ids for h in some] for some in found] == [[h.ids for h in some] for some in expected]
    scores, others = ([h.score for some in one for h in some] for one in (found, expected))
    assert scores == pytest.approx(others, rel=1e-5)  # the order of sums in fp32


@pytest.fixture
def shapes(monkeypatch) -> Counter[Any]:
    """How many steps were run of each shape."""
    counted: Counter[Any] = Counter()
    run = StepGraphs.run

    def count(self, shape, step):
        counted[shape] += 1
        run(self, shape, step)

    monkeypatch.setattr(StepGraphs, "run", count)
    return counted


def test_the_cpu_waits_once_in_four_steps_and_graphs_follow_memory_that_moves(gpu, shapes):
    """Sentences enter a few at a time, each at a position of its own, so that the places grow while some are taken."""
    settings = DecodingSettings(beam_size=3, max_tokens=20)  # ends are wherever the model puts them

    def sources() -> Iterator[Source | None]:
        yield from (*SOURCES[:2], None, *SOURCES[2:])

    expected = found_by(random_model(), settings, sources(), n_sentences=6)
    with gpu() as cuda:
        model = random_model().to(CUDA)
        cuda.forget()
        found = found_by(model, settings, sources(), n_sentences=6)
        waits = Counter({place: n for wait, n in cuda.waits.items() for place in [(wait.file, wait.function)]})
        assert waits.keys() == (ONCE | SLOTS).keys()
        n_steps = shapes.total()
        assert waits["backends/gpu/search.py", "GpuSearchState._look"] <= -(-n_steps // 4) + 1  # the end's
        if hasattr(cuda, "graphs"):
            # When the places grow from 4 to 6, all graphs are captured anew; the first step of each is no graph yet.
            assert {places for places, _ in shapes} == {4, 6} and cuda.n_recordings == len(shapes) + 1 == 5
            assert cuda.n_replays == n_steps - 5
    assert_alike(found, expected)


@contextmanager
def counted_steps(device) -> Iterator[list[tuple[int, int]]]:
    """Of each call of take_steps: what was allocated meanwhile, the graphs that were captured."""
    counted: list[tuple[int, int]] = []
    take_steps = GpuSearchState.take_steps

    def count(self, *words: Any) -> Any:
        before = device.n_allocations, device.n_recordings
        done = take_steps(self, *words)
        counted.append((device.n_allocations - before[0], device.n_recordings - before[1]))
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GpuSearchState, "take_steps", count)
        yield counted


def test_steps_between_admissions_allocate_nothing(emulated):
    """All ten enter at once; their first call captures the step, and the rest replays it."""
    model = random_model().to(CUDA)
    with counted_steps(emulated) as calls:
        found_by(model, n_sentences=10)
    assert [n_graphs for _, n_graphs in calls] == [1, 0, 0, 0] and calls[0][0] > 0
    assert [n_allocations for n_allocations, _ in calls[1:]] == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_logits_are_the_only_numbers_as_wide_as_the_vocabulary(emulated, dtype):
    """Of each step that is launched one by one (the first) or captured (the second)."""
    vocab_size = 2 * FP32_COLUMNS + 100
    model = random_model(vocab_size).to(CUDA, dtype)
    emulated.forget()
    found_by(model, sources=SOURCES[:4])
    n_logits = 4 * FORCED.beam_size * vocab_size
    assert {key: n for key, n in emulated.allocated.items() if key[1] > n_logits / 2} == {(dtype, n_logits): 2}
    assert all(n < n_logits / 100 for kind, n in emulated.allocated if kind == torch.float64)


def test_a_step_that_cannot_be_captured_runs_without_a_graph_and_one_line_says_so(emulated, monkeypatch, caplog):
    @contextmanager
    def refuse(*_: object, **__: object) -> Iterator[None]:
        raise RuntimeError("CUDA error: operation not supported\nmore")
        yield

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    found = found_by(random_model().to(CUDA))
    assert [line for line in caplog.messages if "graph" in line] == [
        "The search runs without CUDA graphs, more slowly: capturing a step failed (CUDA error: operation not "
        "supported)."
    ]
    assert_alike(found, found_by(random_model()))


def test_graphs_captured_anew_lie_in_another_pool_and_a_search_has_its_own_stream(emulated):
    x = torch.zeros(4, device=CUDA)
    one, other = StepGraphs(CUDA), StepGraphs(CUDA)
    for graphs in (one, one, other):
        graphs.forget()
        for shape in ("a", "b"):
            for _ in range(3):
                graphs.run(shape, lambda: x.add_(1))
    assert x.tolist() == [18.0] * 4
    pools, streams = ([getattr(graph, name) for graph in emulated.graphs] for name in ("pool", "stream"))
    assert pools[0] is pools[1] is not None and pools[2] is pools[3] and len(set(pools)) == 3
    assert len(set(streams[:4])) == 1 and len(set(streams)) == 2 and None not in streams


def test_steps_are_captured_one_at_a_time_on_their_device(emulated):
    seen = []

    def step() -> None:
        if emulated.capturing is not None:
            with ThreadPoolExecutor(1) as other:
                free = other.submit(RECORDING.acquire, blocking=False).result()
            seen.append((free, emulated.guarded))

    graphs = StepGraphs(CUDA)
    for _ in range(3):
        graphs.run("a", step)
    assert seen == [(False, 1)] and emulated.guarded == 0


def test_steps_whose_ids_the_cpu_chooses_are_graphs_too(emulated):
    model, sampling = random_model(), SamplingSettings(seed=2)
    expected = found_by(model, sampling=sampling)
    found = found_by(model.to(CUDA), sampling=sampling)
    assert_alike(found, expected)
    assert emulated.n_replays > emulated.n_recordings > 0


def test_a_search_plans_with_what_the_device_has_free_once_unused_memory_is_given_back(emulated, monkeypatch):
    """What PyTorch's allocator keeps for recorded passes is no search's to use."""
    free = [0]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.append(1000))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free.pop(), 10_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 8000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 0)
    assert _free_bytes(str(CUDA)) == 1000 and _half_of_free_memory(CUDA) == 500


def test_memory_that_does_not_hold_the_slots_is_one_clear_line(emulated):
    model = random_model().to(CUDA)
    emulated.largest_allocation = 10_000
    with pytest.raises(HeedError, match=r"^the GPU's memory does not hold a search of 4 sentences .*beam_size.*$"):
        found_by(model)


def test_a_source_with_a_prefix_may_join_others(gpu):
    def sources() -> Iterator[Source | None]:
        yield from SOURCES[:3]
        yield None
        yield Source(3, [5, 6], Prefix.of_ids([9, 12]))
        yield from SOURCES[4:]

    expected = found_by(random_model(), sources=sources())
    assert [h.ids[:2] for h in expected[3]] == [(9, 12)] * len(expected[3])
    with gpu() as cuda:
        found = found_by(random_model().to(CUDA), sources=sources())
        assert JOINED.keys() < cuda.places() <= (ONCE | SLOTS | CHOICE | JOINED).keys()
    assert_alike(found, expected)


def test_one_setting_gives_the_plain_search_back_and_a_cpu_has_no_other(monkeypatch):
    model = random_model()
    monkeypatch.delenv("HEED_KERNELS", raising=False)
    assert not isinstance(search_backend_for(model), GpuSearchBackend)
    with emulated_cuda():
        model = model.to(CUDA)
        assert type(search_backend_for(model)) is GpuSearchBackend
        monkeypatch.setenv("HEED_KERNELS", "0")
        assert type(search_backend_for(model)) is ReferenceSearchBackend
