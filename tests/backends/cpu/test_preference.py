"""Who computes a model: the kernels, or PyTorch's operations where these are faster."""

from math import inf

import pytest

from heed.backends import dispatch
from heed.backends.cpu import preference
from heed.backends.cpu.build import library
from heed.backends.cpu.packed_model import PackedModel
from heed.backends.cpu.preference import PREFERENCES, Preference, any_wins, wins
from heed.backends.cpu.search import why_not
from heed.backends.reference import ReferenceBackend
from heed.model.architecture import Architecture
from heed.runtime.instruction_sets import SETS, chosen_set


def test_every_set_has_a_preference_and_says_how_it_is_known():
    assert set(PREFERENCES) == {each.name for sets in SETS.values() for each in sets}
    assert all(each.measured for each in PREFERENCES.values())


@pytest.fixture
def from_width_64(monkeypatch):
    """On this machine's set the kernels win searches from width 64 on, and never a training."""
    monkeypatch.setitem(PREFERENCES, chosen_set().name, Preference(64.0, inf, "made"))
    monkeypatch.delenv("HEED_KERNELS", raising=False)


def test_the_shape_and_the_set_decide_unless_the_kernels_are_forced(from_width_64, monkeypatch):
    narrow, wide = (Architecture(n_layers=1, d_model=d, d_ff=32, n_heads=4) for d in (32, 64))
    assert any_wins(chosen_set())
    assert [wins(arch, training=training) for arch in (narrow, wide) for training in (False, True)] == [
        *(False, False),
        *(True, False),
    ]
    monkeypatch.setenv("HEED_KERNELS", "1")
    assert wins(narrow, training=True)


@pytest.mark.skipif(library() is None, reason="no C++ compiler: Heed's kernels are not at hand")
def test_a_model_for_which_the_kernels_do_not_win_runs_on_the_plain_network(from_width_64, small_model, monkeypatch):
    assert isinstance(dispatch.backend_for(small_model), ReferenceBackend)  # of width 32
    assert dispatch.searchable(small_model) is small_model
    assert why_not(small_model.arch) == f"PyTorch's operations are faster with {chosen_set().title}"
    monkeypatch.setitem(preference.PREFERENCES, chosen_set().name, Preference(32.0, inf, "made"))
    assert isinstance(dispatch.searchable(small_model), PackedModel)
    assert isinstance(dispatch.backend_for(small_model.train()), ReferenceBackend)
