"""Which cores are the fast ones, on made trees of Linux' /sys."""

import pytest

from heed.runtime.cores import FastCores, fast_cores


@pytest.fixture
def tree(tmp_path):
    """Writes files of a made system below its root, which it returns."""

    def write(files: dict[str, str]):
        for name, content in files.items():
            path = tmp_path / "sys" / "devices" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")
        return tmp_path

    return write


# Two fast cores of two threads each, four small ones of one.
SIBLINGS = {
    f"system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(4)
}
SIBLINGS |= {f"system/cpu/cpu{cpu}/topology/thread_siblings_list": str(cpu) for cpu in range(4, 8)}
HYBRID = {"cpu_core/cpus": "0-3", "cpu_atom/cpus": "4-7"} | SIBLINGS


def test_intels_two_kinds_are_told_apart_and_threads_of_a_core_count_once(tree):
    assert fast_cores(tree(HYBRID), allowed=range(8)) == FastCores(2, frozenset(range(4)))


def test_only_cores_that_the_process_may_use_count(tree):
    root = tree(HYBRID)
    assert fast_cores(root, allowed={1, 2, 6}) == FastCores(2, frozenset({1, 2}))
    assert fast_cores(root, allowed={0, 1}) is None  # all alike
    assert fast_cores(root, allowed={6, 7}) is None


@pytest.mark.parametrize(
    ("capacities", "fast"),
    [([325, 325, 855, 855, 1024], {2, 3, 4}), ([446, 446, 1024, 1024], {2, 3}), ([1024, 1024], None), ([], None)],
)
def test_arms_capacities_tell_large_cores_from_small_ones(tree, capacities, fast):
    root = tree({f"system/cpu/cpu{cpu}/cpu_capacity": str(value) for cpu, value in enumerate(capacities)})
    found = fast_cores(root, allowed=range(len(capacities)))
    assert found == (FastCores(len(fast), frozenset(fast)) if fast else None)


def test_cores_that_are_all_alike_or_unknown_are_none(tree):
    assert fast_cores(tree({"cpu_core/cpus": "0-3", "cpu_atom/cpus": "none"}), allowed=range(4)) is None
    assert fast_cores(tree({"cpu_core/cpus": "0-3"}), allowed=range(4)) is None
