"""Equation 3 and the other schedules against numbers worked out by hand, and against torch's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heed.errors import HeedError
from heed.training.schedule import learning_rate, rate_of_step
from heed.training.settings import TrainingSettings


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


def settings(**given) -> TrainingSettings:
    return TrainingSettings(warmup_steps=100, **given)


def rates(steps, **given) -> list[float]:
    return [rate_of_step(step, settings(**given), d_model=512) for step in steps]


def test_other_schedules_worked_out_by_hand():
    peak = {"learning_rate": 0.01}
    assert rates([1, 50, 100, 10**6], schedule="constant", **peak) == pytest.approx([1e-4, 0.005, 0.01, 0.01])
    assert rates([50, 100, 400], schedule="inverse-square-root", **peak) == pytest.approx([0.005, 0.01, 0.005])
    falling = {"max_steps": 300, **peak}
    assert rates([50, 100, 200, 300, 301], schedule="linear", **falling) == pytest.approx([0.005, 0.01, 0.005, 0, 0])
    expected = [0.005, 0.01, 0.01 * (1 + 2**-0.5) / 2, 0.005, 0]
    assert rates([50, 100, 150, 200, 300], schedule="cosine", **falling) == pytest.approx(expected)
    assert rates([100], schedule="constant", learning_rate_factor=0.5, **peak) == pytest.approx([0.005])


@given(st.integers(1, 10**6), st.integers(1, 5000))
def test_the_papers_is_an_inverse_square_root_with_its_own_peak(step, warmup_steps):
    at = {"warmup_steps": warmup_steps}
    peak = learning_rate(warmup_steps, d_model=512, warmup_steps=warmup_steps)
    same = TrainingSettings(schedule="inverse-square-root", learning_rate=peak, **at)
    assert rate_of_step(step, TrainingSettings(**at), d_model=512) == pytest.approx(
        rate_of_step(step, same, d_model=512), rel=1e-9
    )


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_torchs_schedulers_have_the_same_rates(name):
    """Without a warm-up: torch has none in one."""
    chosen = TrainingSettings(schedule=name, learning_rate=0.1, warmup_steps=1, max_steps=41)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    if name == "linear":
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-12, total_iters=40)
    else:
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    for step in range(1, 42):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate_of_step(step, chosen, d_model=8), abs=1e-8)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"schedule": "triangle"}, "schedule='triangle': expected one of paper, inverse-square-root, linear, cosine"),
        ({"learning_rate": 0.1}, "learning_rate has no effect with schedule='paper'"),
        ({"schedule": "constant"}, "schedule='constant' needs learning_rate"),
        ({"schedule": "linear", "learning_rate": 0.1}, "schedule='linear' falls until max_steps: set it"),
        ({"schedule": "cosine", "learning_rate": 0.1, "max_steps": 100}, "the latter must be larger"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(given, message):
    with pytest.raises(HeedError, match=message):
        settings(**given)
