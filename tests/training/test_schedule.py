"""Equation 3 against numbers worked out by hand."""

import pytest

from heed.training.schedule import learning_rate


def test_equation_3_worked_out_by_hand():
    # 512^-0.5 = 0.04419417; at step 4000 both terms are 4000^-0.5 = 0.01581139: 6.987712e-4
    assert learning_rate(4000, d_model=512, warmup_steps=4000) == pytest.approx(6.987712e-4, rel=1e-6)
    # step 1: 0.04419417 · 4000^-1.5 = 0.04419417 · 3.952847e-6 = 1.746928e-7
    assert learning_rate(1, d_model=512, warmup_steps=4000) == pytest.approx(1.746928e-7, rel=1e-6)
    # step 100,000: 0.04419417 · 0.003162278 = 1.397542e-4
    assert learning_rate(100_000, d_model=512, warmup_steps=4000) == pytest.approx(1.397542e-4, rel=1e-6)
    assert learning_rate(7, d_model=512, warmup_steps=4000, factor=2.5) == pytest.approx(
        2.5 * learning_rate(7, d_model=512, warmup_steps=4000)
    )
