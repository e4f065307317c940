"""The account on the device against numpy's, and the best continuations against exact ones. On the CPU's tensors."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.test_beam_account import EOS, continuations, written

from heed.backends.beam_account import BeamAccount, EndingRules, extend
from heed.backends.gpu.beams import FP32_COLUMNS, GROUP, DeviceAccount, best_of_rows


def on_device(account: BeamAccount, rules: EndingRules) -> DeviceAccount:
    """The account, with two more places, of which nothing is searched."""
    n, n_best = account.best_scores.shape
    beam, width = account.history.shape[1:]
    found = DeviceAccount.empty(n + 2, width, beam=beam, n_best=n_best, device=torch.device("cpu"))
    arrays = vars(account) | {"live": np.ones(n, np.bool_), "limit_penalties": rules.penalties[account.limits]}
    for name, tensor in found.by_place().items():
        tensor[:n] = torch.from_numpy(arrays[name])
    return found


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.booleans(), st.booleans())
def test_the_device_keeps_the_account_that_numpy_keeps(seed, n, beam, n_best, early_stopping, end_often):
    """Sentences that are done stay on the device as they were; numpy's leave."""
    draws = np.random.default_rng(seed)
    limits = draws.integers(1, 9, n)
    penalties = np.concatenate([[1.0], (5 + np.arange(1, 9)) ** draws.choice([0.0, 0.6, 1.0])])
    rules = EndingRules(EOS, early_stopping=early_stopping, rows_compete=True, penalties=penalties)
    account = BeamAccount.of(limits, beam=beam, n_best=n_best, n_first=1, bos=1, width=10)
    ours, places = on_device(account, rules), np.arange(n)
    while len(account):
        drawn = continuations(draws, account, end_often=end_often)
        of_places = [torch.from_numpy(np.resize(x, (n + 2, x.shape[1]))) for x in drawn]
        for tensor, x in zip(of_places, drawn, strict=True):
            tensor[torch.from_numpy(places)] = torch.from_numpy(x)
        live, before = ours.live.clone(), {name: tensor.clone() for name, tensor in ours.by_place().items()}
        rows = ours.extend(*of_places, eos=EOS, early_stopping=early_stopping, penalties=torch.from_numpy(penalties))
        parents, done = extend(account, drawn, rules)
        assert (live[places] & ~ours.live[places]).numpy().tolist() == done.tolist()
        real = account.log_probs > -np.inf  # where nothing goes on, it does not matter what
        assert (rows.numpy()[places] == parents)[real].all()
        for field in dataclasses.fields(BeamAccount):
            theirs, mine = getattr(account, field.name), getattr(ours, field.name).numpy()[places]
            if field.name in ("last", "history"):
                theirs, mine = theirs[real], mine[real]
            if field.name == "history":
                lengths = np.repeat(account.lengths, real.sum(axis=1))
                theirs, mine = written(theirs, lengths), written(mine, lengths)
            if field.name == "best_ids":
                theirs, mine = (written(x, np.abs(account.best_lengths)) for x in (theirs, mine))
            if field.name in ("best_log_probs", "best_lengths", "best_ids"):
                there = account.best_scores > -np.inf
                theirs, mine = theirs[there], mine[there]
            np.testing.assert_array_equal(mine, theirs, err_msg=field.name)
        assert not ours.live[n:].any() and not ours.broken
        for name in ("lengths", "n_ended", "best_scores", "best_log_probs", "best_lengths", "best_ids"):
            assert torch.equal(before[name][~live], getattr(ours, name)[~live])  # what was found stays
        kept = np.flatnonzero(~done & (account.log_probs[:, 0] > -np.inf))
        account, places = account.select(kept), places[kept]
        ours.live.copy_(torch.from_numpy(np.isin(np.arange(n + 2), places)))


def test_a_live_sentence_without_a_continuation_is_broken():
    rules = EndingRules(EOS, early_stopping=False, rows_compete=True, penalties=np.ones(9))
    for value in (-np.inf, np.nan):
        account = on_device(BeamAccount.of(np.array([5, 5]), beam=2, n_best=1, n_first=1, bos=1, width=8), rules)
        values = torch.zeros(4, 4, dtype=torch.float64)
        values[2] = value  # of a place without a sentence
        options = {"eos": EOS, "early_stopping": False, "penalties": torch.ones(9, dtype=torch.float64)}
        ids = torch.full((4, 4), 3)
        account.extend(values, torch.zeros(4, 4, dtype=torch.int64), ids, **options)
        assert not account.broken
        values[1] = value
        account.extend(values, torch.zeros(4, 4, dtype=torch.int64), ids, **options)
        assert account.broken


@pytest.mark.parametrize("vocab_size", [5, 100, 8 * GROUP, 9 * GROUP + 1, 20 * GROUP + 63, 2 * FP32_COLUMNS + 77])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_best_of_each_row_are_those_of_its_softmax(vocab_size, dtype):
    """bf16 logits are exact numbers themselves; both are summed in fp32, of which 1e-6 may be lost."""
    torch.manual_seed(vocab_size)
    n_rows, k = 12, 8
    logits = (torch.randn(n_rows, vocab_size) * 5).to(dtype)
    logits[0] = -60  # where nearly all lies on a forbidden id
    logits[0, 1] = 30
    never, eos, may_end = torch.tensor([0, 1]), 2, torch.arange(n_rows) % 3 > 0
    logits[1:3, eos] = 25  # best where it is allowed
    exact = logits.double().log_softmax(dim=1)
    exact[:, never] = -torch.inf
    exact[~may_end, eos] = -torch.inf
    values, ids = best_of_rows(logits, never, may_end, eos=eos, k=k)
    expected = exact.sort(dim=1, descending=True).values[:, :k]
    assert values.shape == (n_rows, min(k, vocab_size)) and values.dtype == torch.float64
    torch.testing.assert_close(values, expected, rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(exact.gather(1, ids), expected, rtol=1e-6, atol=2e-6)
    assert all(len(row) == len(set(row)) for row in ids.tolist())
