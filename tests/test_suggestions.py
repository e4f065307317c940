"""Unknown names lead to what was meant: by meaning, by likeness, by what lies beside."""

import pytest

from heed.config import known_names
from heed.runs.recipe import Recipe
from heed.suggestions import SYNONYMS, did_you_mean, names_meant

SETTINGS = known_names(Recipe)


def test_every_synonym_leads_to_settings_that_exist_and_is_none_itself():
    lasts = {name.rpartition(".")[2] for name in SETTINGS}
    for ours, theirs in SYNONYMS.items():
        assert lasts.issuperset(ours.split()), ours
        assert names_meant(theirs.split()[0], SETTINGS), theirs
    words = [word for theirs in SYNONYMS.values() for word in theirs.split()]
    assert len(words) == len(set(words))


def test_the_named_table_goes_before_others_and_likeness_comes_last():
    assert names_meant("training.seed", SETTINGS) == ["training.seed"]
    assert names_meant("lr", SETTINGS) == ["training.learning_rate", "training.learning_rate_factor"]
    assert names_meant("training.lable_smoothing", SETTINGS) == ["training.label_smoothing"]
    assert names_meant("zzz", SETTINGS) == []
    assert did_you_mean(["a", "b", "c"]) == "did you mean a, b or c?" and did_you_mean([]) == ""


@pytest.mark.parametrize(
    "arguments, meant",
    [
        (["--set", "training.lr_scheduler=cosine"], "did you mean training.schedule?"),
        (["--set", "training.scheduler=x"], "did you mean training.learning_rate, training.schedule, training.warmup"),
        (["--set", "optimizer.lr=1"], "did you mean training.learning_rate or training.learning_rate_factor?"),
        (["--set", "model.hidden_size=3"], "did you mean model.d_model?"),
        (["--max-steps", "5"], "No such option: --max-steps; did you mean --set training.max_steps=…?"),
        (["--batch-size", "5"], "did you mean --set training.batch_tgt_tokens=… or --set training.batch_src_tokens=…?"),
    ],
)
def test_settings_of_other_programs_lead_to_heeds(heed, tmp_path, arguments, meant):
    done = heed("train", "multi30k-en-de", *arguments, cwd=tmp_path)
    assert done.returncode in (1, 2) and meant in done.stderr, done.stderr
    assert not any(tmp_path.iterdir())


def test_a_name_leads_to_the_file_run_or_recipes_of_that_name(heed, tmp_path):
    (tmp_path / "my.toml").touch()
    model = tmp_path / "runs" / "second" / "model"
    model.mkdir(parents=True)
    (tmp_path / "runs" / "second" / "config.toml").touch()
    expected = {
        ("train", "my"): "did you mean my.toml?",
        ("train", "second"): "did you mean runs/second?",
        ("train", "multi30k"): "did you mean multi30k-en-de, multi30k-en-de-raw or multi30k-en-fr?",
        ("train", "runs/second/model"): "did you mean runs/second?",
        ("average", "runs/second/model"): "did you mean runs/second?",
        ("plot", "runs/second/model"): "did you mean runs/second?",
    }
    for arguments, meant in expected.items():
        done = heed(*arguments, cwd=tmp_path)
        assert done.returncode == 1 and meant in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1
