"""The length penalty against numbers worked out by hand."""

import pytest

from heed.decoding.scoring import length_penalty


def test_length_penalty_is_that_of_wu_et_al():
    # ((5 + 10) / 6) ^ 0.6 = 2.5 ^ 0.6 = e^(0.6 · 0.916291) = e^0.549774 = 1.732862
    assert length_penalty(10, 0.6) == pytest.approx(1.732862, abs=1e-6)
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(123, 0.0) == 1.0


def test_the_other_forms_divide_by_a_power_of_the_length_and_by_nothing():
    assert length_penalty(8, 2.0, "average") == 64.0
    assert length_penalty(8, 2.0, "none") == 1.0
