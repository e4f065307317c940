"""Training that predicts dev worse than the frequencies of the words ends with an error; a slow start does not."""

import math

import pytest
from tests.training.runs import run_training

from heed.data.corpus.shard import write_corpus
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.training.divergence import Diverged, unigram_loss


def test_the_loss_by_frequencies_is_that_of_a_hand_count(tmp_path):
    train = write_corpus(tmp_path / "train", [([3], [4, 4]), ([3], [3])], vocab_size=5)
    dev = write_corpus(tmp_path / "dev", [([3], [4, 1])], vocab_size=5)
    # Of train's ids, with eos (2): 4 twice, 3 once, 2 twice; each plus one, of 5 + 5.
    expected = -(math.log(3 / 10) + math.log(1 / 10) + math.log(3 / 10)) / 3
    assert unigram_loss(train, dev, vocab_size=5, eos=2) == pytest.approx(expected, rel=1e-12)


def losses(*values):
    """Dev losses, one a validation; the last one stays."""
    left = list(values)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


# The training loss is about 6 at first, ln of the vocabulary. max_steps is 60: a validation every 5 steps.
SMALL = Architecture(n_layers=1, d_model=16, d_ff=16, n_heads=2)
FEW = {"checkpoint_every": "5 steps", "max_steps": 60, "warmup_steps": 10, "report_every": 5, "arch": SMALL}


@pytest.mark.slow
def test_three_validations_above_the_frequencies_after_the_warm_up_end_training(tmp_path, number_tokenizer):
    said: list[str] = []
    options = FEW | {"unigram_loss": 0.5, "learning_rate_factor": 1e-9}
    dev = losses(3.0, 0.4, 50.0, 49.0, 48.0)
    with pytest.raises(Diverged, match="since step 15, .* above 0.500, ") as first:
        run_training(tmp_path, number_tokenizer, "run", dev_loss=dev, report=said.append, **options)
    assert "(48.000 at step 25)" in str(first.value) and "training.learning_rate_factor (it was 1e-09)" in str(
        first.value
    )
    # Only two checkpoints are kept by number: the good one is older.
    assert str(first.value).endswith(f"of step 10, is kept as a usable model: {tmp_path}/run/checkpoints/best.")
    with pytest.raises(Diverged) as again:
        run_training(tmp_path, number_tokenizer, "run", **options)
    assert str(again.value) == str(first.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "options"),
    [
        ([8.0], {"warmup_steps": 100}),  # not before the end of the warm-up
        ([8.0, 0.4, 8.0, 8.0, 0.4, 8.0, 8.0, 0.4], {}),  # not three in a row
        ([8.0 - 0.1 * n for n in range(12)], {}),  # a slow start
        ([0.55], {}),  # as good as the frequencies
        ([8.0], {"unigram_loss": 7.5}),  # overfitting: the training loss is lower
    ],
    ids=["warm-up", "ups and downs", "slow", "stuck", "overfitting"],
)
def test_what_is_no_divergence_trains_to_its_end(tmp_path, number_tokenizer, values, options):
    every = FEW | {"unigram_loss": 0.5, "learning_rate_factor": 1e-9} | options
    _, state = run_training(tmp_path, number_tokenizer, "run", dev_loss=losses(*values), **every)
    assert state.finished == "max_steps=60"


@pytest.mark.slow
def test_a_single_validation_at_the_end_that_is_hopeless_is_an_error_too(tmp_path, number_tokenizer):
    options = {"max_steps": 12, "checkpoint_every": "100 steps", "warmup_steps": 5, "learning_rate_factor": 1e-9}
    with pytest.raises(HeedError, match=r"since step 12, the dev loss \(332.000 at step 12\)"):
        run_training(tmp_path, number_tokenizer, "run", dev_loss=losses(332.0), unigram_loss=0.5, **options)
    said: list[str] = []
    run_training(
        tmp_path, number_tokenizer, "other", dev_loss=losses(6.0), unigram_loss=0.5, report=said.append, **options
    )
    assert "the model has learned nothing from its sources yet" in said[-1]
