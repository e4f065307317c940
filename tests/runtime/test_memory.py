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


MEMINFO = "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n"
V1 = {"memory.usage_in_bytes": "3000", "memory.stat": "cache 1\ntotal_active_file 200\ntotal_inactive_file 100\n"}
V2 = {"memory.current": "3000", "memory.stat": "file 900\nactive_file 200\ninactive_file 100\nshmem 600\n"}
HYBRID = "5:cpu,cpuacct:/other\n4:memory:/a/b\n0::/\n"


@pytest.mark.parametrize(
    "groups, folder, files",
    [
        ("0::/a/b\n", "a/b", V2 | {"memory.max": "5000"}),
        ("0::/a/b\n", "a", V2 | {"memory.max": "5000"}),  # the group around it
        ("0::/host/container\n", "", V2 | {"memory.max": "5000"}),  # a container that sees only its own group
        (HYBRID, "memory/a/b", V1 | {"memory.limit_in_bytes": "5000"}),
        (HYBRID, "memory", V1 | {"memory.limit_in_bytes": "5000"}),
    ],
)
def test_a_control_groups_limit_holds_wherever_it_is_set(tmp_path, groups, folder, files):
    for name, text in {"proc/meminfo": MEMINFO, "proc/self/cgroup": groups}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    group = tmp_path / "sys/fs/cgroup" / folder
    group.mkdir(parents=True)
    assert free_memory(tmp_path) == 8_000_000 * 1024  # no group says anything
    for name, text in files.items():
        (group / name).write_text(text)
    assert free_memory(tmp_path) == 5000 - 3000 + 300
    limit = "memory.max" if "memory.max" in files else "memory.limit_in_bytes"
    (group / limit).write_text("max\n" if limit == "memory.max" else "9223372036854771712\n")
    assert free_memory(tmp_path) == 8_000_000 * 1024
