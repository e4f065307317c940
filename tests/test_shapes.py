"""The checks of shapes, which every test relies on, are at work."""

import jaxtyping
import pytest
import torch

from heed.model.attention import AttentionMask
from heed.model.transformer import Transformer
from tests import shapes


def test_a_shape_that_does_not_fit_is_refused_in_a_tests_first_calls_and_in_some_later_ones(small_model):
    right = torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool)
    wrong = torch.ones(2, 3, dtype=torch.long), torch.ones(2, 1, dtype=torch.bool)  # would be broadcast
    shapes.begin_test()
    with pytest.raises(jaxtyping.TypeCheckError, match="Transformer.encode"):
        small_model.encode(*wrong)
    for _ in range(shapes.FIRST_CALLS):
        small_model.encode(*right)
    with pytest.raises(jaxtyping.TypeCheckError):
        for _ in range(shapes.EVERY):
            small_model.encode(*wrong)


def test_a_dataclass_is_checked_and_what_names_no_shape_is_not_wrapped():
    with pytest.raises(jaxtyping.TypeCheckError):
        AttentionMask(bias=torch.zeros(3))
    assert not hasattr(Transformer.__init__, "__wrapped__")
