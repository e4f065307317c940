"""What benchmarks/kernel_times.py times: every kernel and PyTorch's operation run, and a loser is marked."""

import pytest
from benchmarks.kernel_times import KernelTime, kernel_times, timed_kernels

from heed.backends.cpu.build import library
from heed.errors import HeedError
from heed.model.architecture import Architecture

needs_kernels = pytest.mark.skipif(library() is None, reason="no C++ compiler: Heed's kernels are not at hand")


@pytest.mark.slow
@needs_kernels
def test_every_kernel_and_what_stands_beside_it_run_twice():
    arch = Architecture(n_layers=1, d_model=16, d_ff=24, n_heads=2, dropout=0.1)
    names = set()
    for timed in timed_kernels(arch, 50):
        for work in (timed.kernel, timed.plain) * 2:
            work()
        names.add(timed.name)
    assert {"product in fp32", "best_continuations", "steps in fp32", "add_norm", "attend"} <= names
    assert {"embed", "bias_relu", "adam_step", "smoothed_loss", "consistent_loss"} <= names


def test_a_kernel_below_the_speed_of_pytorch_loses():
    slower, equal = (KernelTime("tiny", "search", "some", "1 × 1", 1.0, plain) for plain in (0.9, 0.98))
    assert (slower.loses, equal.loses) == (True, False)
    assert slower.numbers()["speedup"] == pytest.approx(0.9)


def test_a_shape_that_does_not_exist_is_refused():
    with pytest.raises(HeedError, match=r"^huge: expected tiny, recipe, base, big\.$"):
        next(kernel_times(["huge"]))
