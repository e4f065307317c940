"""The order of training over shards: every pair once an epoch, in windows that are corpora of their own."""

import os
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.conftest import SPECIAL
from tests.data.shards.made import sharded
from tests.training.runs import run_training
from tests.training.test_distributed import joined

from heed.data.batches import mixed_batches
from heed.data.batches.mixed_batches import MixedBatches
from heed.data.batches.token_batches import WINDOW_SHARDS, BatchLimits, EpochState, PlanPart, StepPlan, TokenBatches
from heed.data.corpus.shard import write_corpus
from heed.data.corpus.sharded import ShardedCorpus
from heed.data.mix import Mix, MixPart
from heed.errors import HeedError
from heed.training.checkpoint import TrainState
from heed.training.distributed import Workers

LIMITS = BatchLimits(max_src_tokens=120, max_tgt_tokens=120, micro_tokens=60, seed=3)


def made_pairs(n, seed):
    draw = random.Random(seed)
    return [tuple([draw.randrange(3, 90) for _ in range(draw.randrange(1, 12))] for _ in range(2)) for _ in range(n)]


@pytest.fixture
def shards():
    return [made_pairs(n, seed) for seed, n in enumerate((40, 0, 35, 61, 7, 50, 33, 20, 44))]


def test_an_epoch_has_every_pair_once_and_another_epoch_another_order(tmp_path, shards):
    corpus = sharded(tmp_path / "shards", shards, vocab_size=100)
    batches = TokenBatches(corpus, SPECIAL, LIMITS)
    orders = []
    for epoch in (0, 1):
        plans = [batches.plan(epoch, EpochState(window)) for window in range(batches.n_windows)]
        orders.append(np.concatenate([rows for plan in plans for batch in plan for rows in batch]))
        assert sorted(orders[-1].tolist()) == list(range(len(corpus)))
    assert batches.n_windows == -(-len(shards) // WINDOW_SHARDS) and orders[0].tolist() != orders[1].tolist()
    first = set(orders[0][:30].tolist())
    assert len({int(np.searchsorted(corpus.starts, row, side="right")) for row in first}) > 1  # shards are mixed


def test_a_window_is_planned_as_the_corpus_that_its_shards_make(tmp_path, shards):
    corpus = sharded(tmp_path / "shards", shards, vocab_size=100)
    batches = TokenBatches(corpus, SPECIAL, LIMITS)
    order = np.random.default_rng((LIMITS.seed, 2)).permutation(len(shards))
    for window in range(batches.n_windows):
        chosen = order[window * WINDOW_SHARDS : (window + 1) * WINDOW_SHARDS]
        pairs = [pair for number in chosen for pair in shards[number]]
        one = write_corpus(tmp_path / f"window-{window}", pairs, vocab_size=100)
        alone, plan = TokenBatches(one, SPECIAL, LIMITS), StepPlan(one.lengths, LIMITS, window=window)
        earlier = (PlanPart(LIMITS._replace(max_tgt_tokens=90), 2),)
        for parts in ((), earlier):
            ours = batches.plan(2, EpochState(window, earlier=parts))
            expected = plan.steps(2, parts)
            assert len(ours) == len(expected) and [len(batch) for batch in ours] == [len(batch) for batch in expected]
            for batch, expected_batch in zip(ours, expected, strict=True):
                assert batches.workload(batch) == alone.workload(expected_batch)
                for rows, expected_rows in zip(batch, expected_batch, strict=True):
                    found, wanted = batches.collate(rows), alone.collate(expected_rows)
                    assert all(
                        ours.tolist() == theirs.tolist() for ours, theirs in zip(found[:5], wanted[:5], strict=True)
                    )


def mix_of(*weights):
    parts = [MixPart(name="0", weight=weights[0])]
    return Mix(
        (*parts, *(MixPart(name=f"{n}", train=["a", "b"], weight=w) for n, w in enumerate(weights[1:], 1))), (), None
    )


def test_a_mix_whose_parts_are_one_window_each_is_that_of_one_shard(tmp_path, shards):
    corpus = sharded(tmp_path / "shards", shards[:6], vocab_size=100, parts=[4, 2])
    pairs = [pair for shard in shards[:6] for pair in shard]
    texts = [("a", sum(map(len, shards[:4]))), ("b", sum(map(len, shards[4:6])))]
    one = write_corpus(tmp_path / "one", pairs, vocab_size=100, texts=texts)
    ours = MixedBatches(corpus, SPECIAL, LIMITS, mix=mix_of(3.0, 1.0), n_files=[1, 1])
    ours._most_pairs = None  # these are fewer than any epoch of one shard
    whole = MixedBatches(one, SPECIAL, LIMITS, mix=mix_of(3.0, 1.0), n_files=[1, 1])
    drawn = None
    for epoch in range(2):
        at = EpochState(drawn=drawn)
        steps, expected = ours.plan(epoch, at), whole.plan(epoch, at)
        assert [np.concatenate(step).tolist() for step in steps] == [np.concatenate(s).tolist() for s in expected]
        assert ours.workload(steps[1]) == whole.workload(expected[1])
        assert ours.lines(steps[1]) == whole.lines(expected[1])
        passes, wanted = ours.passes(steps[1], padded=True), whole.passes(expected[1], padded=True)
        assert [rows.tolist() for rows in passes] == [rows.tolist() for rows in wanted]
        assert (ours.collate(passes[0]).src == whole.collate(wanted[0]).src).all()
        drawn = whole.drawn_after(epoch, at, step=len(expected) * (epoch + 1))
    assert ours.longest == whole.longest


def test_a_part_of_many_shards_is_gone_through_a_window_at_a_time(tmp_path, shards, monkeypatch):
    monkeypatch.setattr(mixed_batches, "MIN_EPOCH_PAIRS", 1)
    corpus = sharded(tmp_path / "shards", [*shards, *shards], vocab_size=100, parts=[15, 3])
    batches = MixedBatches(corpus, SPECIAL, LIMITS, mix=mix_of(3.0, 1.0), n_files=[1, 1])
    first, second = batches.sizes
    assert first + second == len(corpus)
    seen, drawn, step = [], None, 0
    for epoch in range(12):
        at = EpochState(drawn=drawn)
        steps = batches.plan(epoch, at)
        rows = np.concatenate([rows for step in steps for rows in step])
        assert len(rows) <= WINDOW_SHARDS * 61  # pairs of the largest shard: what is planned at once
        assert (rows >= first).mean() == pytest.approx(0.25, abs=0.01)
        seen.append(rows)
        step += len(steps)
        drawn = batches.drawn_after(epoch, at, step=step)
    # No pair has its next turn before every other one of its part has had this one; an epoch mixes two windows at most.
    turns = np.bincount(np.concatenate([rows[rows < first] for rows in seen]))
    assert len(turns) == first and turns.max() - turns.min() <= 1 < turns.max()
    shards_of_epoch = np.unique(np.searchsorted(corpus.starts, seen[0][seen[0] < first], side="right"))
    assert len(shards_of_epoch) <= 2 * WINDOW_SHARDS < 15
    for rows in batches.heaviest(padded=True):
        batches.collate(rows)


def test_rows_keep_their_order_whatever_shards_they_are_of(tmp_path, shards):
    corpus = sharded(tmp_path / "shards", shards, vocab_size=100)
    flat = [pair for shard in shards for pair in shard]
    rows = np.random.default_rng(1).permutation(len(flat))
    for number, side in enumerate(("src", "tgt")):
        ids, lengths = corpus.end_to_end(side, rows)
        assert [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] == [flat[r][number] for r in rows]
    assert corpus.lines_of(rows).tolist() == (rows + 1).tolist()


def test_the_heaviest_micro_batches_have_the_longest_pair_of_all_shards(tmp_path, shards):
    shards[5][3] = ([7] * 50, [8])
    corpus = sharded(tmp_path / "shards", shards, vocab_size=100)
    batches = TokenBatches(corpus, SPECIAL, LIMITS)
    assert batches.longest == 51 and any(
        batches.workload([rows]).n_src >= 51 for rows in batches.heaviest(padded=False)
    )


def test_a_seed_that_changes_within_an_epoch_leaves_the_order_of_its_shards(tmp_path, shards):
    corpus = sharded(tmp_path / "shards", shards, vocab_size=100)
    old = TokenBatches(corpus, SPECIAL, LIMITS)
    new = TokenBatches(corpus, SPECIAL, LIMITS._replace(seed=4))
    state = TrainState(window=1, n_windows=old.n_windows, order_seed=LIMITS.seed)
    seen = [rows for batch in old.plan(0) for rows in batch]
    for window in range(1, old.n_windows):
        state.window = window
        seen += [rows for batch in state.plan_of(new) for rows in batch]
    assert sorted(np.concatenate(seen).tolist()) == list(range(len(corpus)))


def test_the_ranks_of_a_run_share_its_batches_however_many_they_are(tmp_path, shards):
    corpus = sharded(tmp_path / "shards", shards, vocab_size=100)
    for n in (1, 2, 3):
        batches = TokenBatches(corpus, SPECIAL, LIMITS)
        for batch in batches.plan(1, EpochState(1)):
            passes = batches.passes(batch, padded=n == 2)
            shares = [rows for rank in range(n) for rows in Workers(rank, n).shard(passes)]
            assert sorted(np.concatenate(shares).tolist()) == sorted(np.concatenate(batch).tolist())


@pytest.mark.slow
def test_a_run_stopped_in_the_middle_of_a_window_resumes_exactly_by_one_rank_or_two(tmp_path, number_tokenizer):
    """By one rank to the same bits, by two with the pairs that one would have taken."""
    draw = random.Random(1)
    copies = [[draw.randrange(3, 20) for _ in range(draw.randrange(2, 8))] for _ in range(900)]
    pairs = [(row, row) for row in copies]
    chunks = [pairs[begin : begin + 60] for begin in range(0, 900, 60)]
    sharded(tmp_path / "shards", chunks, vocab_size=len(number_tokenizer))
    limits = BatchLimits(max_src_tokens=600, max_tgt_tokens=600, micro_tokens=300, seed=1)

    def trained(name, **options):
        corpus = ShardedCorpus(tmp_path / "shards", vocab_size=len(number_tokenizer))
        batches = TokenBatches(corpus, SPECIAL, limits)
        return run_training(tmp_path, number_tokenizer, name, batches=batches, **options)[1]

    straight = trained("straight")
    for name in ("one", "two"):
        with pytest.raises(KeyboardInterrupt):
            trained(name, stop_after=1)
    one = trained("one")
    with joined(2) as workers, ThreadPoolExecutor(2) as pool:
        states = [one, *pool.map(lambda rank: trained("two", workers=rank), workers)]
    assert straight.step == 30 and (straight.epoch, straight.window) > (0, 1)
    for state in states:
        assert (state.work, state.epoch, state.window, state.batch) == (
            straight.work,
            straight.epoch,
            straight.window,
            straight.batch,
        )
    weights = [(tmp_path / name / "checkpoints/30/model.safetensors").read_bytes() for name in ("straight", "one")]
    assert weights[0] == weights[1]


def test_a_shard_is_verified_when_a_node_reads_it_first_and_after_it_was_written_to(tmp_path, shards):
    folder = tmp_path / "shards"
    corpus = sharded(folder, shards, vocab_size=100)
    path = folder / "shard-00003" / "tgt.bin"
    right = path.read_bytes()
    path.write_bytes(right[:-1] + b"\x07")
    with pytest.raises(HeedError, match=r"shard-00003.*only this shard is made again"):
        corpus.shard(3)
    path.write_bytes(right)
    corpus.shard(3)
    assert [note.name for note in (folder / "verified").glob("*/*.json")] == ["shard-00003.json"]

    # A fault that leaves size and date as they were shows that the files are not read for another start.
    dates = path.stat()
    path.write_bytes(right[:-1] + b"\x07")
    os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    again = type(corpus)(folder, vocab_size=100)
    assert len(again.shard(3)) == 61
    os.utime(path)
    with pytest.raises(HeedError, match="was changed while it was in use"):
        again.shard(3)[0]
    with pytest.raises(HeedError, match="shard-00003"):
        type(corpus)(folder, vocab_size=100).shard(3)
