"""The kernel that extends beams against numpy's `extend`, over whole searches of random continuations."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import n_examples

from heed.backends.beam_account import BeamAccount, Continuations, EndingRules, extend
from heed.backends.cpu import account_ops
from heed.backends.cpu.build import library

pytestmark = pytest.mark.skipif(library() is None, reason="no kernels here")
EOS, VOCAB = 2, 12


def continuations(draws: np.random.Generator, account: BeamAccount, *, end_often: bool) -> Continuations:
    """Twice the beam for each sentence, best first, some of them equal, few real ones where little exists."""
    n, beam = account.last.shape
    places = np.stack([draws.permutation(beam * VOCAB)[: 2 * beam] for _ in range(n)])
    parents, ids = places // VOCAB, places % VOCAB
    if end_often:
        # At most one continuation a row is eos, as in a search.
        is_first = np.array([[p not in row[:i] for i, p in enumerate(row)] for row in parents.tolist()])
        ids = np.where(is_first, EOS, np.where(ids == EOS, 3, ids))
    best = account.log_probs[:, :1]
    falls = draws.integers(0, 4, (n, 2 * beam)).cumsum(axis=1) / 4.0
    log_probs = np.where(draws.random((n, 2 * beam)) < 0.05, -np.inf, best - falls)
    log_probs[:, 0] = best[:, 0]
    return Continuations(-np.sort(-log_probs, axis=1), parents, ids)


@settings(max_examples=n_examples(150))
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.booleans(), st.booleans())
def test_the_kernel_keeps_the_account_that_numpy_keeps(seed, n, beam, n_best, early_stopping, end_often):
    draws = np.random.default_rng(seed)
    limits = draws.integers(1, 9, n)
    penalties = np.concatenate([[1.0], (5 + np.arange(1, 9)) ** draws.choice([0.0, 0.6, 1.0])])
    rules = EndingRules(EOS, early_stopping=early_stopping, rows_compete=True, penalties=penalties)
    ours = BeamAccount.of(limits, beam=beam, n_best=min(n_best, beam), n_first=1, bos=1, width=10)
    theirs = BeamAccount(*(array.copy() for array in vars(ours).values()))
    while len(ours):
        drawn = continuations(draws, ours, end_often=end_often)
        rows, done = extend(ours, drawn, rules)
        kernel_rows, kernel_done = account_ops.extend_beams(theirs, drawn, rules)
        real = ours.log_probs > -np.inf  # where nothing goes on, it does not matter what
        assert (rows == kernel_rows)[real].all() and (done == kernel_done).all()
        for field in dataclasses.fields(BeamAccount):
            mine, other = (getattr(account, field.name) for account in (ours, theirs))
            if field.name == "history":
                mine, other = (written(x, ours.lengths) for x in (mine, other))
                mine, other = mine[real], other[real]
            if field.name == "best_ids":
                mine, other = (written(x, np.abs(ours.best_lengths)) for x in (mine, other))
            np.testing.assert_array_equal(mine, other, err_msg=field.name)
        kept = np.flatnonzero(~done & (ours.log_probs[:, 0] > -np.inf))
        ours, theirs = ours.select(kept), theirs.select(kept)


def written(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The ids, 0 in the place of those behind their lengths."""
    lengths = lengths.reshape(lengths.shape + (1,) * (ids.ndim - lengths.ndim))
    return np.where(np.arange(ids.shape[-1]) < lengths, ids, 0)


def test_the_kernels_refuse_what_would_lead_them_out_of_their_arrays():
    rules = EndingRules(EOS, early_stopping=False, rows_compete=True, penalties=np.ones(9))
    account = BeamAccount.of(np.array([5, 5]), beam=2, n_best=1, n_first=1, bos=1, width=4)
    good = Continuations(np.zeros((2, 4)), np.zeros((2, 4), np.int64), np.full((2, 4), 3))
    with pytest.raises(IndexError, match="parent"):
        account_ops.extend_beams(account, good._replace(parents=np.full((2, 4), 2)), rules)
    with pytest.raises(ValueError, match="expected"):
        account_ops.extend_beams(account, good._replace(ids=np.full((2, 4), 3, np.int32)), rules)
    with pytest.raises(IndexError, match="limit"):
        account_ops.extend_beams(account, good, dataclasses.replace(rules, penalties=np.ones(5)))
    ancestors = np.zeros((4, 8), np.int32)
    with pytest.raises(IndexError, match="parents"):
        account_ops.reorder_ancestors(ancestors, np.arange(4), np.array([0, 1, 2, 4]), beam=2, n_positions=3)
    with pytest.raises(IndexError, match="positions"):
        account_ops.reorder_ancestors(ancestors, np.arange(4), np.arange(4), beam=2, n_positions=9)
