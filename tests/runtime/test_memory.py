"""Memory as the system counts it."""

import math
import sys

import pytest
import torch

from heed.runtime.device import choose_machine
from heed.runtime.memory import free_memory, memory_of, peak_memory, reset_peak_memory

BLOCK = 2**26  # bytes: more than a test suite's other threads may take meanwhile

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is Linux that tells")


@linux
def test_the_peak_rises_with_what_is_touched_and_stays_when_it_is_freed():
    before = reset_peak_memory()
    assert before > 0
    block = torch.ones(BLOCK, dtype=torch.uint8)
    assert peak_memory() >= before + 0.9 * BLOCK
    del block
    assert peak_memory() >= before + 0.9 * BLOCK


@linux
def test_a_reset_forgets_the_peak():
    block = torch.ones(4 * BLOCK, dtype=torch.uint8)
    high = peak_memory()
    del block
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pytest.skip("this system does not let a process reset its peak")
    reset_peak_memory()
    assert peak_memory() <= high - 2 * BLOCK


@linux
def test_what_is_free_is_part_of_what_the_machine_has():
    total = memory_of(choose_machine("fp32", device="cpu"))
    assert 0 < free_memory() <= total < math.inf
