"""Errors of Heed's, as a program that catches them sees them."""

import pickle

import pytest

from heed.errors import HeedError, Stopped


def test_what_a_user_can_mend_is_no_error_that_a_program_catches_by_mistake():
    for builtin in (ValueError, OSError, RuntimeError, KeyError):
        assert not issubclass(HeedError, builtin)
    assert not issubclass(Stopped, HeedError)  # a run that was asked to stop has not failed


@pytest.mark.parametrize("error", [HeedError("val.de: too long."), Stopped(15)])
def test_an_error_reaches_another_process_whole(error):
    """As from a pool of workers."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(copy) is type(error) and vars(copy) == vars(error) and copy.args == error.args
