"""A mix: its shares come true, its order is fixed by seed and what was drawn before, and a stage ends at its step."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import SPECIAL

from heed.data.batches.mixed_batches import MixedBatches
from heed.data.batches.token_batches import BatchLimits, Drawn, EpochState, PlanPart
from heed.data.corpus.shard import ParallelCorpus, write_corpus
from heed.data.mix import Mix, MixPart

OWN = MixPart(name="own", weight=1.0)


def part(name: str, weight=None, tag=None) -> MixPart:
    return MixPart(name=name, train=["a", "b"], weight=weight, tag=tag)


def corpus_of(*parts: list[int]) -> ParallelCorpus:
    """A corpus of a file for each part, whose pairs have these lengths on both sides."""
    lengths = [length for of_part in parts for length in of_part]
    return write_corpus(
        Path(tempfile.mkdtemp()) / "c",
        [([5] * length, [6] * length) for length in lengths],
        vocab_size=100,
        texts=[(f"{i}", len(of_part)) for i, of_part in enumerate(parts)],
    )


def batches_of(corpus, mix, *, limit=1000, micro=None, seed=1) -> MixedBatches:
    limits = BatchLimits(limit, limit, micro or limit, seed)
    return MixedBatches(corpus, SPECIAL, limits, mix=mix, n_files=[1] * len(mix.parts))


def steps(batches: MixedBatches, n: int, *, begin: int = 0, epoch: int = 0, drawn: Drawn | None = None):
    """(step, epoch, batch of the epoch, drawn, micro-batches) of n steps, as training takes them."""
    step = begin
    while step < n:
        plan = batches.plan(epoch, EpochState(drawn=drawn))
        for number, micro_batches in enumerate(plan):
            yield step, epoch, number, drawn, micro_batches
            step += 1
            if step == n:
                return
        epoch, drawn = epoch + 1, batches.drawn_after(epoch, EpochState(drawn=drawn), step=step)


def shares(batches, taken) -> np.ndarray:
    rows = np.concatenate([rows for *_, micro_batches in taken for rows in micro_batches])
    counts = np.histogram(rows, bins=[0, *np.cumsum(batches.sizes)])[0]
    return counts / counts.sum()


def lengths_of(seed: int, mean: int, n: int) -> list[int]:
    return np.random.default_rng(seed).integers(mean // 2, mean * 3 // 2, n).tolist()


# Parts of very different lengths: the worst case, since a batch has sentences of like lengths, hence of one part.
UNEQUAL = (lengths_of(1, 8, 5000), lengths_of(2, 40, 24_000), lengths_of(3, 20, 300))


@pytest.mark.parametrize("weights", [(1, 1, 1), (3, 1, 0.5), (1, 8, 1), (20, 79, 1)])
def test_weights_come_true_within_one_percent_of_all_pairs_over_any_thousand_steps(weights):
    parts = (MixPart(name="own", weight=weights[0]), part("web", weights[1]), part("news", weights[2]))
    batches = batches_of(corpus_of(*UNEQUAL), Mix(parts, (), None))
    taken = list(steps(batches, 2300))
    wanted = np.array(weights) / sum(weights)
    for begin in (0, 137, 640, 1300):
        found = shares(batches, taken[begin : begin + 1000])
        assert np.abs(found - wanted).max() < 0.01
    for *_, micro_batches in taken:
        for rows in micro_batches:
            assert batches.workload([rows]).n_src <= 1000


def test_a_temperature_flattens_the_sizes():
    mix = Mix((MixPart(name="own"), part("web")), (), 2.0)
    assert mix.shares(0, [100, 900]) == pytest.approx([0.25, 0.75])  # 10 : 30
    assert Mix(mix.parts, (), None).shares(0, [100, 900]) == pytest.approx([0.1, 0.9])
    assert Mix(mix.parts, (), 0.01).shares(0, [1_500, 4_500_000]) == [0.0, 1.0]  # 1,500 ** 100 is no float


def test_a_pass_over_a_part_has_each_of_its_pairs_once():
    batches = batches_of(corpus_of(*UNEQUAL), Mix((OWN, part("web", 1.0), part("news", 1.0)), (), None))
    rows: list[list[int]] = [[], [], []]
    drawn = None
    for epoch in range(2):
        epoch_rows = np.concatenate([rows for batch in batches.plan(epoch, EpochState(drawn=drawn)) for rows in batch])
        for number, of_part in enumerate(rows):
            begin, end = np.cumsum([0, *batches.sizes])[number : number + 2]
            of_part += epoch_rows[(epoch_rows >= begin) & (epoch_rows < end)].tolist()
        drawn = batches.drawn_after(epoch, EpochState(drawn=drawn), step=epoch + 1)
    assert drawn is not None
    for of_part, n, size in zip(rows, drawn.pairs, batches.sizes, strict=True):
        times = np.unique(of_part, return_counts=True)[1]
        assert len(of_part) == n and set(times) <= {n // size, n // size + 1}  # the last pass has not ended
    passes = [n / size for n, size in zip(drawn.pairs, batches.sizes, strict=True)]
    assert batches.passes_of_parts(2, EpochState(drawn=drawn), step=drawn.step) == passes
    half = batches.passes_of_parts(0, step=len(batches.plan(0)) // 2)
    assert half == pytest.approx([n / 4 for n in passes], rel=0.01)  # a quarter of two epochs


def test_without_weights_an_epoch_has_every_pair_once():
    batches = batches_of(corpus_of(*UNEQUAL), Mix((MixPart(name="own"), part("web"), part("news")), (), None))
    rows = np.concatenate([rows for batch in batches.plan(0) for rows in batch])
    assert sorted(rows.tolist()) == list(range(sum(map(len, UNEQUAL))))


def test_a_stage_ends_at_its_step_and_what_it_left_comes_first_in_the_next():
    weights = ([1.0, 0.0, 1.0], [1.0, 1.0, 0.0])
    mix = Mix((MixPart(name="own", weight=weights[0]), part("web", weights[1])), (70, 200), None)
    batches = batches_of(corpus_of(*UNEQUAL[:2]), mix, limit=500)
    taken = list(steps(batches, 300))
    found = [shares(batches, taken[begin:end])[0] for begin, end in ((0, 70), (70, 200), (200, 300))]
    assert found[0] == pytest.approx(0.5, abs=0.1) and found[1:] == [0, 1]
    drawn = taken[70][3]
    assert drawn.step == 70 and drawn.left[1]
    web = [rows[rows >= 5000] for rows in (np.concatenate(micro_batches) for *_, micro_batches in taken[:200])]
    assert len(np.concatenate(web[:70])) == drawn.pairs[1] - len(drawn.left[1])
    rows = np.concatenate(web)
    assert len(np.unique(rows)) == len(rows) and set(drawn.left[1]) <= set(rows.tolist())


@pytest.mark.parametrize("begin", [0, 33])
def test_stages_leave_no_pair_out_and_take_none_twice_before_each_was_taken_once(begin):
    """begin: another limit applies from this step on."""
    weights = ([1.0, 1.0, 3.0, 1.0], [0.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 2.0])
    mix = Mix(
        (MixPart(name="own", weight=weights[0]), part("web", weights[1]), part("news", weights[2])),
        (101, 203, 307),
        None,
    )
    corpus = corpus_of(lengths_of(1, 12, 3000), lengths_of(2, 12, 700), lengths_of(3, 12, 60))
    batches = batches_of(corpus, mix, limit=400)
    taken = list(steps(batches, begin))
    earlier, drawn = (PlanPart(batches.limits, begin),) * bool(begin), None
    batches, step, epoch = batches_of(corpus, mix, limit=300 if begin else 400), begin, 0
    rows = [np.concatenate(micro_batches) for *_, micro_batches in taken]
    while step < 900:
        at = EpochState(earlier=earlier, drawn=drawn)
        plan = batches.plan(epoch, at)
        rows += [np.concatenate(micro_batches) for micro_batches in plan]
        step += len(plan)
        drawn, epoch, earlier = batches.drawn_after(epoch, at, step=step), epoch + 1, ()
    for number, left in enumerate(drawn.left or [()] * 3):
        first, end = np.cumsum([0, *batches.sizes])[number : number + 2]
        times = np.bincount(np.concatenate(rows), minlength=end)[first:end]
        assert times.sum() == drawn.pairs[number] - len(left)
        assert times.max() - times.min() <= 1 and times.min() > 0


@given(cut=st.integers(1, 60), micro=st.integers(100, 400), seed=st.integers(0, 3))
@settings(max_examples=10)
def test_a_change_of_limits_within_an_epoch_leaves_its_pairs_the_same(cut, micro, seed):
    few = lengths_of(1, 8, 700), lengths_of(2, 20, 1200)
    batches = batches_of(corpus_of(*few), Mix((OWN, part("web", 2.0)), (), None))
    drawn = Drawn(7, (4000, 11))
    whole = batches.plan(3, EpochState(drawn=drawn))
    other = batches_of(batches._corpus, batches.mix, limit=900, micro=micro, seed=seed)
    rest = other.plan(3, EpochState(earlier=(PlanPart(batches.limits, cut),), drawn=drawn))
    rows = [np.sort(np.concatenate([rows for batch in plan for rows in batch])) for plan in (whole, whole[:cut] + rest)]
    assert np.array_equal(*rows)


def test_plans_of_two_processes_are_the_same_and_seeds_differ():
    mix = Mix((OWN, part("web", 2.0)), (), None)
    corpus = corpus_of(lengths_of(1, 8, 700), lengths_of(2, 20, 1200))
    plans = [batches_of(corpus, mix, seed=seed).plan(1, EpochState(drawn=Drawn(5, (9, 8)))) for seed in (1, 1, 2)]
    flat = [[rows.tolist() for batch in plan for rows in batch] for plan in plans]
    assert flat[0] == flat[1] != flat[2]
