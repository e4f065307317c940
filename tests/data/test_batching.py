"""Steps hold every pair once an epoch and are filled to their limits, in an order fixed by seed and epoch."""

import tempfile
from hashlib import sha256
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import SPECIAL, n_examples

from heed.data.batches.padded import PaddedBatch
from heed.data.batches.padded_plan import PaddedBatches
from heed.data.batches.token_batches import BatchLimits, EpochState, PlanPart, TokenBatches
from heed.data.corpus.shard import ParallelCorpus, write_corpus
from heed.training.step import twice

LENGTHS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=80)


def corpus_of(lengths) -> ParallelCorpus:
    folder = Path(tempfile.mkdtemp())
    pairs = [
        (list(range(3, 3 + src)), list(range(40 + i % 7, 40 + i % 7 + tgt))) for i, (src, tgt) in enumerate(lengths)
    ]
    return write_corpus(folder / "c", pairs, vocab_size=1000)


def batches_of(corpus, *, limit=100, micro=40, seed=1) -> TokenBatches:
    return TokenBatches(corpus, SPECIAL, BatchLimits(limit, limit, micro, seed))


def rows_of(*plans) -> list[int]:
    return [row for plan in plans for step in plan for rows in step for row in rows.tolist()]


@given(lengths=LENGTHS, limit=st.integers(20, 200), micro=st.integers(10, 100), padded=st.booleans())
@settings(max_examples=n_examples(60))
def test_an_epoch_holds_every_pair_once_and_neither_step_nor_pass_is_too_large(lengths, limit, micro, padded):
    corpus = corpus_of(lengths)
    batches = batches_of(corpus, limit=limit, micro=micro)
    plan = batches.plan(0)
    assert sorted(rows_of(plan)) == list(range(len(lengths)))
    for step in plan:
        parts = batches.passes(step, padded=padded)
        collated = [batches.collate(rows) for rows in parts]
        assert sorted(row for rows in parts for row in rows) == sorted(rows_of([step]))
        for rows, part in zip(parts, collated, strict=True):
            in_rows = PaddedBatch.of(part)
            if len(rows) > 1:
                sizes = (in_rows.src.numel(), in_rows.tgt_in.numel()) if padded else (len(part.src), len(part.tgt_in))
                assert max(sizes) <= (micro if padded else batches.pass_tokens)
            pairs = [[ids.tolist() for ids in corpus[int(row)]] for row in rows]
            sides = ((in_rows.src, in_rows.src_mask), (in_rows.tgt_in, in_rows.tgt_mask))
            found = [[ids[real].tolist() for ids, real in zip(*side, strict=True)] for side in sides]
            assert found == [[[*src, SPECIAL.eos] for src, _ in pairs], [[SPECIAL.bos, *tgt] for _, tgt in pairs]]
            assert [part.src.tolist(), part.tgt_in.tolist()] == [list(chain.from_iterable(side)) for side in found]
            assert part.tgt_out.tolist() == [i for _, tgt in pairs for i in (*tgt, SPECIAL.eos)]
            assert not any(ids[~real].any() for ids, real in sides)  # padding is 0
        if sum(len(rows) for rows in step) > 1:
            work = batches.workload(step)
            assert max(work.n_src, work.n_tgt) <= limit
            assert work.n_src == sum(len(part.src) for part in collated)
            assert work.n_tgt == sum(part.n_tgt_tokens for part in collated)


def drawn_corpus(n_pairs: int, longest: int) -> ParallelCorpus:
    """Log-normal lengths, as those of web text, up to `longest`; the sides' ratio is 1.05 ± 0.25."""
    draw = np.random.default_rng(0)
    src = np.clip(draw.lognormal(3.1, 0.6, n_pairs), 1, longest - 1)
    tgt = np.clip(src * draw.normal(1.05, 0.25, n_pairs), 1, longest - 1)
    return corpus_of(zip(src.astype(int).tolist(), tgt.astype(int).tolist(), strict=True))


@pytest.mark.parametrize(("limit", "longest"), [(25_000, 250), (4096, 250), (2048, 200), (600, 59)])
def test_steps_are_full_of_real_tokens_and_the_same_on_every_machine(limit, longest):
    """The last step of an epoch takes what is left. A pass without padding is one of as few as can be."""
    lengths = drawn_corpus(29_000, longest)
    whole = batches_of(lengths, limit=limit, micro=10**9)
    plan = whole.plan(0)
    works = [whole.workload(step) for step in plan[:-1]]
    fill = np.array([(work.n_src, work.n_tgt) for work in works]) / limit
    assert fill.mean(0).max() >= 0.97 and fill.max(1).min() >= 0.96 and fill.max() <= 1
    for micro in (limit // 2, 4096, 1000, longest):
        batches = batches_of(lengths, limit=limit, micro=micro)
        assert rows_of(batches.plan(0), whole.with_micro_tokens(micro).plan(0)) == rows_of(plan, plan)
        counts = [len(batches.passes(step, padded=False)) for step in plan[:-1]]
        assert micro == longest or np.mean(counts) <= 1.1 * batches.n_passes


def test_a_step_has_groups_of_many_lengths():
    """Its mean length differs from the corpus's by little more than that of as many random groups of one length."""
    lengths = drawn_corpus(29_000, 250)
    batches = batches_of(lengths, limit=25_000, micro=25_000)
    means = [float(np.mean(lengths.lengths[0][step[0]])) for step in batches.plan(0)[:-1]]
    assert np.std(means) < 0.3 * np.std(lengths.lengths[0])


def test_a_batch_twice_is_cut_off_in_its_second_half_alone():
    batches = batches_of(corpus_of([(i % 20, i % 13) for i in range(200)]), limit=10**4, micro=10**4)
    ((rows,),) = batches.plan(0)
    batch = batches.collate(rows)
    torch.manual_seed(1)
    plain, cut = twice(batch, cutoff=0.0), twice(batch, cutoff=0.25)
    assert plain.keep_masks is None
    for both in (plain, cut):
        for once, repeated in zip(batch[:5], both[:5], strict=True):
            assert repeated.tolist() == 2 * once.tolist()
    for kept, once in zip(cut.keep_masks, (batch.src, batch.tgt_in), strict=True):
        first, second = np.split(kept, 2)
        assert len(second) == len(once) and first.all()
        # of some 1,000 draws and more: five deviations
        assert second.mean() == pytest.approx(0.75, abs=5 * (0.75 * 0.25 / len(second)) ** 0.5)


def test_order_depends_on_seed_and_epoch_alone():
    corpus = corpus_of([(i % 7, i % 5) for i in range(200)])

    def order(seed, epoch):
        return [rows.tolist() for batch in batches_of(corpus, seed=seed).plan(epoch) for rows in batch]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def test_like_lengths_meet_where_padding_is_computed():
    lengths = drawn_corpus(29_000, 250)
    batches = batches_of(lengths, limit=25_000, micro=25_000)
    src, tgt = (of + 1 for of in lengths.lengths)
    passes = [rows for step in batches.plan(0)[:10] for rows in batches.passes(step, padded=True)]
    computed = sum(len(rows) * (int(src[rows].max()) + int(tgt[rows].max())) for rows in passes)
    assert sum(int(src[rows].sum() + tgt[rows].sum()) for rows in passes) / computed > 0.8


def test_a_batch_is_shifted_and_masked_as_the_model_expects(tmp_path):
    corpus = write_corpus(tmp_path / "c", [([5, 6], [7]), ([8], [9, 10, 11])], vocab_size=50)
    batch = batches_of(corpus).collate(np.array([0, 1]))
    assert batch.src.tolist() == [5, 6, 2, 8, 2] and batch.src_lengths.tolist() == [3, 2]
    assert batch.tgt_in.tolist() == [1, 7, 1, 9, 10, 11] and batch.tgt_lengths.tolist() == [2, 4]
    assert batch.tgt_out.tolist() == [7, 2, 9, 10, 11, 2]
    rows = PaddedBatch.of(batch)
    assert rows.src.tolist() == [[5, 6, 2], [8, 2, 0]]
    assert rows.src_mask.tolist() == [[True, True, True], [True, True, False]]
    assert rows.tgt_in.tolist() == [[1, 7, 0, 0], [1, 9, 10, 11]]
    assert rows.tgt_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert rows.tgt_places.tolist() == [0, 1, 4, 5, 6, 7]


def test_passes_are_equal_shares_of_a_step():
    batches = batches_of(corpus_of([(9, 9)] * 2500 * 2), limit=25_000, micro=10_000)
    for step in batches.plan(0):
        assert [len(rows) for rows in batches.passes(step, padded=False)] == [834, 833, 833]
    assert (batches.n_passes, batches.pass_tokens) == (3, 8334 + 10)


def test_a_pair_longer_than_a_pass_is_one_by_itself_and_one_longer_than_the_limits_a_step():
    batches = batches_of(corpus_of([(3, 3)] * 10 + [(44, 9), (95, 9)]), limit=90, micro=40)
    plan = batches.plan(0)
    assert sorted(len(step[0]) for step in plan) == [1, 11]
    for step in plan:
        for padded in (False, True):
            passes = [rows.tolist() for rows in batches.passes(step, padded=padded)]
            assert [10] in passes or passes == [[11]]


@pytest.mark.parametrize("limit", [5, 100])
def test_a_corpus_smaller_than_a_batch_is_one_batch(limit):
    plan = batches_of(corpus_of([(3, 3)]), limit=limit).plan(0)
    assert [rows.tolist() for batch in plan for rows in batch] == [[0]]


@given(
    lengths=LENGTHS,
    limits=st.lists(st.tuples(st.integers(5, 200), st.integers(1, 100), st.integers(0, 3)), min_size=1, max_size=4),
    shares=st.lists(st.floats(0, 1), min_size=3, max_size=3),
)
@settings(max_examples=n_examples(60))
def test_an_epoch_holds_every_pair_once_however_often_its_batches_change(lengths, limits, shares):
    corpus = corpus_of(lengths)
    earlier: tuple[PlanPart, ...] = ()
    seen: list[int] = []
    for (limit, micro, seed), share in zip(limits, [*shares, 1.0][-len(limits) :], strict=True):
        batches = batches_of(corpus, limit=limit, micro=micro, seed=seed)
        plan = batches.plan(4, EpochState(earlier=earlier))
        used = plan[: round(share * len(plan))]
        seen += rows_of(used)
        earlier += (PlanPart(batches.limits, len(used)),)
    assert sorted(seen) == list(range(len(lengths)))
    assert batches.plan(4, EpochState(earlier=earlier)) == []


def test_a_run_of_an_earlier_version_keeps_its_plan():
    batches = PaddedBatches(drawn_corpus(3000, 60), SPECIAL, BatchLimits(900, 800, 400, seed=3))
    plan = batches.plan(2)
    content = b"".join(
        rows.astype("<u4").tobytes() + b"|" for step in plan for rows in batches.passes(step, padded=False)
    )
    assert len(plan) == 116
    assert sha256(content).hexdigest() == "129fa68bef5e4c41b6c564702c684a95fd0c4af62146e9474b73a4e54b605bf9"
    # Half of it under other limits: the rest has what is left.
    other = batches.with_micro_tokens(200)
    rest = other.plan(2, EpochState(earlier=(PlanPart(batches.limits, 50),)))
    assert sorted(rows_of(plan[:50], rest)) == list(range(3000))
