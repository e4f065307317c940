"""Batches hold every pair once an epoch, within their limits, in an order fixed by seed and epoch."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import SPECIAL, n_examples

from heed.data.batching import PlanPart, TokenBatches
from heed.data.corpus.shard import ParallelCorpus, write_corpus

LENGTHS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=80)


def corpus_of(lengths) -> ParallelCorpus:
    folder = Path(tempfile.mkdtemp())
    pairs = [
        (list(range(3, 3 + src)), list(range(40 + i % 7, 40 + i % 7 + tgt))) for i, (src, tgt) in enumerate(lengths)
    ]
    return write_corpus(folder / "c", pairs, vocab_size=100)


def batches_of(corpus, *, limit=100, micro=40, seed=1) -> TokenBatches:
    return TokenBatches(corpus, SPECIAL, max_src_tokens=limit, max_tgt_tokens=limit, micro_tokens=micro, seed=seed)


@given(lengths=LENGTHS, limit=st.integers(20, 200), micro=st.integers(10, 100))
@settings(max_examples=n_examples(60))
def test_an_epoch_holds_every_pair_once_and_no_batch_is_too_large(lengths, limit, micro):
    corpus = corpus_of(lengths)
    batches = batches_of(corpus, limit=limit, micro=micro)
    plan = batches.plan(0)
    rows = np.concatenate([rows for batch in plan for rows in batch])
    assert sorted(rows.tolist()) == list(range(len(lengths)))
    for batch in plan:
        collated = [batches.collate(rows) for rows in batch]
        for part in collated:
            if len(part.rows) > 1:
                assert max(part.src.numel(), part.tgt_in.numel()) <= micro
            for i, row in enumerate(part.rows):
                src_ids, tgt_ids = (ids.tolist() for ids in corpus[int(row)])
                assert part.src[i][part.src_mask[i]].tolist() == [*src_ids, SPECIAL.eos]
                assert part.tgt_in[i][part.tgt_mask[i]].tolist() == [SPECIAL.bos, *tgt_ids]
                assert part.tgt_out[i][part.tgt_mask[i]].tolist() == [*tgt_ids, SPECIAL.eos]
            assert not part.src[~part.src_mask].any() and not part.tgt_in[~part.tgt_mask].any()  # pad is 0
        longest = max(max(src, tgt) + 1 for src, tgt in lengths)
        if longest <= limit:  # even if pairs are longer than a micro-batch
            assert sum(part.src.numel() for part in collated) <= limit
            assert sum(part.tgt_in.numel() for part in collated) <= limit


def test_a_batch_twice_is_cut_off_in_its_second_half_alone():
    batches = batches_of(corpus_of([(i % 20, i % 13) for i in range(200)]), limit=10**4, micro=10**4)
    ((rows,),) = batches.plan(0)
    batch, n = batches.collate(rows), 200
    torch.manual_seed(1)
    plain, twice = batch.twice(cutoff=0.0), batch.twice(cutoff=0.25)
    assert plain.src_keep_mask is None and plain.tgt_keep_mask is None
    for name in ("src", "src_mask", "tgt_in", "tgt_out", "tgt_mask"):
        once = getattr(batch, name)
        for both in (plain, twice):
            assert torch.equal(getattr(both, name)[:n], once) and torch.equal(getattr(both, name)[n:], once)
    targets = batch.tgt_out[batch.tgt_mask]
    assert torch.equal(twice.tgt_out.flatten()[twice.tgt_places], targets.repeat(2))
    for kept in (twice.src_keep_mask, twice.tgt_keep_mask):
        assert kept[:n].all()
        # of some 2,000 draws and more: five deviations
        assert float(kept[n:].float().mean()) == pytest.approx(0.75, abs=5 * (0.75 * 0.25 / kept[n:].numel()) ** 0.5)


def test_order_depends_on_seed_and_epoch_alone():
    corpus = corpus_of([(i % 7, i % 5) for i in range(200)])

    def order(seed, epoch):
        return [rows.tolist() for batch in batches_of(corpus, seed=seed).plan(epoch) for rows in batch]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def test_like_lengths_meet_so_that_little_is_padding():
    draw = np.random.default_rng(0)
    src = draw.integers(5, 40, 3000)
    batches = batches_of(
        corpus_of([(int(n), max(1, int(n) + int(d))) for n, d in zip(src, draw.integers(-3, 4, 3000), strict=True)]),
        limit=2000,
        micro=1000,
    )
    collated = [batches.collate(rows) for batch in batches.plan(0) for rows in batch]
    real = sum(int(batch.tgt_mask.sum()) for batch in collated)
    assert real / sum(batch.tgt_mask.numel() for batch in collated) > 0.95


def test_a_batch_is_shifted_and_masked_as_the_model_expects(tmp_path):
    corpus = write_corpus(tmp_path / "c", [([5, 6], [7]), ([8], [9, 10, 11])], vocab_size=50)
    batch = batches_of(corpus).collate(np.array([0, 1]))
    assert batch.src.tolist() == [[5, 6, 2], [8, 2, 0]]
    assert batch.src_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.tgt_in.tolist() == [[1, 7, 0, 0], [1, 9, 10, 11]]
    assert batch.tgt_out.tolist() == [[7, 2, 0, 0], [9, 10, 11, 2]]
    assert batch.tgt_mask.tolist() == [[True, True, False, False], [True] * 4]


def test_the_papers_25000_tokens_are_cut_into_equal_parts():
    batches = batches_of(corpus_of([(9, 9)] * 833 * 6), limit=25_000, micro=10_000)
    first = batches.plan(0)[0]
    assert [len(rows) for rows in first] == [833] * 3  # 3 × 833 × 10 = 24,990 tokens


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
    earlier: list[PlanPart] = []
    seen: list[int] = []
    for (limit, micro, seed), share in zip(limits, [*shares, 1.0][-len(limits) :], strict=True):
        batches = batches_of(corpus, limit=limit, micro=micro, seed=seed)
        plan = batches.plan(4, earlier=earlier)
        used = plan[: round(share * len(plan))]
        seen += [row for batch in used for rows in batch for row in rows.tolist()]
        earlier.append(PlanPart(batches.limits, len(used)))
    assert sorted(seen) == list(range(len(lengths)))
    assert batches.plan(4, earlier=earlier) == []
