"""Settings of training that cannot be meant are refused."""

import pytest

from heed.config import validated
from heed.errors import HeedError
from heed.runs.recipe import read_recipe
from heed.training.settings import TrainingSettings


@pytest.mark.parametrize(
    ("text", "written", "interval"),
    [
        ("10 minutes", "10 minutes", (10.0, "minutes")),
        ("0.5 minutes", "0.5 minutes", (0.5, "minutes")),
        (" 1 epoch ", "1 epochs", (1.0, "epochs")),
        ("500  step", "500 steps", (500.0, "steps")),
    ],
)
def test_an_interval_between_checkpoints_is_a_number_and_a_unit(text, written, interval):
    settings = TrainingSettings(checkpoint_every=text)
    assert settings.checkpoint_every == written and settings.checkpoint_interval == interval
    assert TrainingSettings(checkpoint_every=written) == settings


@pytest.mark.parametrize(
    "text", ["", "10", "minutes", "0 steps", "-1 steps", "1.5 steps", "2000000000 steps", "1 hour"]
)
def test_another_interval_is_refused(text):
    with pytest.raises(HeedError, match="write a number and steps, epochs, minutes"):
        validated(TrainingSettings, {"checkpoint_every": text}, where="recipe.toml: training")


def test_a_cutoff_without_consistency_is_refused():
    with pytest.raises(HeedError, match=r"cutoff=0\.1 has no effect with consistency=0"):
        validated(TrainingSettings, {"cutoff": 0.1}, where="recipe.toml: training")


def test_two_passes_share_the_tokens_of_one():
    assert [TrainingSettings(consistency=alpha).micro_tokens(4096) for alpha in (0.0, 5.0)] == [4096, 2048]
    for given, tokens in ((1, 1), (601, 300)):
        assert TrainingSettings(consistency=5.0, micro_batch_tokens=given).micro_tokens(4096) == tokens


def test_an_average_needs_as_many_checkpoints_as_it_takes():
    with pytest.raises(HeedError, match="average_last=5 needs keep_checkpoints=5"):
        validated(TrainingSettings, {"average_last": 5, "keep_checkpoints": 2}, where="recipe.toml: training")
    for kept in (2, 5, 20):  # which decides what averages there are to choose from
        assert TrainingSettings(average_last="best", keep_checkpoints=kept).average_last == "best"
    with pytest.raises(HeedError, match=r'average_last="best" has nothing to choose from with keep_checkpoints=1'):
        validated(TrainingSettings, {"average_last": "best", "keep_checkpoints": 1}, where="recipe.toml: training")


@pytest.mark.parametrize("value", [0, -1, 2**40, 1.5, True, "Best", "5", None, []])
def test_what_to_average_is_a_number_or_best(value):
    with pytest.raises(HeedError, match=r'average_last: expected a number from 1 to 1,000,000,000 or "best", found'):
        validated(TrainingSettings, {"average_last": value, "keep_checkpoints": 9}, where="recipe.toml: training")


def test_the_best_checkpoint_is_told_by_what_the_task_measures_and_only_where_it_matters():
    with pytest.raises(HeedError, match='best_by="bleu" has no effect with keep_better=false and without patience'):
        validated(TrainingSettings, {"best_by": "bleu", "keep_better": False}, where="recipe.toml: training")
    for kept in ({"keep_better": True}, {"keep_better": False, "patience": 3}, {"average_last": "best"}):
        assert TrainingSettings(best_by="bleu", **kept).keeps_best
    assert not TrainingSettings(keep_better=False).keeps_best
    with pytest.raises(HeedError, match=r'training.best_by="f1": a translator is validated by loss, bleu, chrf'):
        read_recipe("multi30k-en-de", ["training.best_by=f1"])
    with pytest.raises(HeedError, match=r'training.best_by="bleu": a parser is validated by loss, f1'):
        read_recipe("parsing-gum", ["training.best_by=bleu"])
    with pytest.raises(HeedError, match="setting training.best_by: input should be 'loss', 'bleu', 'chrf' or 'f1'"):
        read_recipe("parsing-gum", ["training.best_by=BLEU"])


def test_the_best_of_a_validation_s_numbers_ranks_first_and_one_that_is_not_finite_last():
    by_loss, by_bleu = TrainingSettings(), TrainingSettings(best_by="bleu")
    numbers = [2.5, float("nan"), 30.0, float("inf")]
    assert min(numbers, key=lambda loss: by_loss.rank({"loss": loss})) == 2.5
    ranks = {number: by_bleu.rank({"greedy_bleu": number, "loss": 1.0}) for number in numbers}
    assert sorted(numbers, key=ranks.__getitem__)[:2] == [30.0, 2.5]
    assert by_bleu.rank({"greedy_bleu": 2.5, "loss": 0.9}) < ranks[2.5]  # equal scores: the lower loss


def test_a_falling_schedule_that_may_be_cut_short_is_remarked_on():
    falling = {"schedule": "cosine", "learning_rate": 0.001, "warmup_steps": 10, "max_steps": 1000}
    for changes, n_steps, remark in (
        ({}, None, ""),
        ({"patience": 3}, 5000, "falls until max_steps=1,000, and patience=3 can end the run before, at a rate"),
        ({"max_minutes": 5.0}, None, "and max_minutes=5 can end the run before, at"),
        ({"max_epochs": 2}, 300.0, "and max_epochs=2 can end the run before (after some 300 steps), at"),
        ({"max_epochs": 2}, 1000.0, ""),
        ({"schedule": "constant", "patience": 3}, None, ""),
    ):
        found = TrainingSettings(**falling | changes).cut_schedule(n_steps)
        assert remark in found and bool(found) == bool(remark)


def test_patience_cannot_run_out_before_so_many_validations():
    def steps(every: str, **other) -> float | None:
        settings = TrainingSettings(checkpoint_every=every, patience=10, **other)
        return settings.patient_steps(epoch_steps=7, step_seconds=0.5)

    assert (steps("30 steps"), steps("2 epochs"), steps("1 minute")) == (300, 140, 1200)
    assert TrainingSettings().patient_steps(epoch_steps=7, step_seconds=0.5) is None
