"""Several seeds of one recipe: their mean, and Student's t between two groups."""

import json

import pytest

from heed.runs.seeds import differences, student_p
from tests.end_to_end.test_own_text import SMALL, numbers, write


@pytest.mark.parametrize(
    "t, freedom", [(12.7062, 1), (4.30265, 2), (3.18245, 3), (2.77645, 4), (2.57058, 5), (2.22814, 10), (2.04841, 28)]
)
def test_p_is_that_of_the_tables_of_student_s_t(t, freedom):
    assert student_p(t, freedom) == pytest.approx(0.05, abs=1e-6) == student_p(-t, freedom)


def test_two_groups_are_compared_with_pooled_variance():
    # Means 2 and 5, variances 1 and 1: the error is sqrt(1 · (1/3 + 1/3)) = 0.8165, t = 3 / 0.8165.
    key = ("dev", "bleu")
    (one,) = differences({key: [1.0, 2.0, 3.0]}, {key: [4.0, 5.0, 6.0]})
    assert (one.value, one.freedom) == (3, 4) and one.t == pytest.approx(3.6742, abs=1e-4)
    assert one.p == pytest.approx(0.0213, abs=1e-4)  # as R's t.test(c(4,5,6), c(1,2,3), var.equal=TRUE)
    (alone,) = differences({key: [1.0]}, {key: [4.0, 5.0]})
    assert alone.value == 3.5 and alone.p is None


# Has the interface of Weights & Biases, and writes what it is told to a file.
BOARD = """
Table = dict

def init(name, **about):
    write(f"init {name}")

def log(numbers, step=None):
    write(*(f".{name}" for name in numbers))

def finish():
    write("end")

def write(*lines):
    with open("reported", "a") as file:
        file.writelines(f"{line}\\n" for line in lines)
"""


@pytest.mark.slow
def test_seeds_are_trained_in_turn_and_compared_with_another_group(tmp_path, heed):
    write(tmp_path, numbers(120))
    files = ["train", "--src", "corpus.en", "--tgt", "corpus.de", "--seeds", 2, *SMALL]
    refused = heed(*files, "--track", "comet", cwd=tmp_path)
    assert refused.returncode == 1 and refused.stderr == "heed: --track comet: expected trackio or wandb.\n"
    (tmp_path / "board").mkdir()
    (tmp_path / "board" / "wandb.py").write_text(BOARD)
    tracked = {"env": {"PYTHONPATH": str(tmp_path / "board")}}
    first = heed(*files, "--run", "a", "--track", "wandb", "--json", cwd=tmp_path, **tracked)
    reported = (tmp_path / "reported").read_text().split("\n")
    assert [line for line in reported if line[:1] != "."] == ["init a/seed-1", "end", "init a/seed-2", "end", ""]
    assert {".train/loss", ".dev/loss", ".samples"} <= set(reported)
    scores = json.loads(first.stdout)["scores"]
    assert len(scores["dev/chrf"]) == 2 and len(set(scores["dev/perplexity"])) == 2  # each seed has its own weights
    again = heed(*files, "--run", "a", cwd=tmp_path)
    assert again.returncode == 0 and "Seed 1 of 2" not in again.stderr and "deviation" in again.stdout
    assert heed(*files, "--run", "b", "--set", "training.max_steps=6", cwd=tmp_path).returncode == 0
    compared = heed("compare", "a", "b", cwd=tmp_path)
    assert compared.returncode == 0 and "Student's t-test" in compared.stdout, compared.stderr
    (_, other) = json.loads(heed("compare", "a", "b", "--json", cwd=tmp_path).stdout)
    assert {(one["metric"], one["freedom"]) for one in other["differences"]} >= {("chrf", 2), ("perplexity", 2)}
    wrong = heed("compare", "a", "corpus.en", cwd=tmp_path)
    assert wrong.returncode == 1 and "corpus.en is no folder of heed train --seeds" in wrong.stderr
