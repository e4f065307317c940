"""A run folder keeps its recipe, belongs to one process at a time, and is never a user's own folder."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from heed.config import read_toml, validated
from heed.data.corpora.download import Corpora
from heed.errors import HeedError
from heed.leases.workforce import Workforce
from heed.runs.prepare import prepare_run
from heed.runs.recipe import Recipe, read_recipe
from heed.runs.run_folder import RUN_NAMES, check_output_folder, open_run_folder, recipe_of_run
from heed.runtime.locks import Busy

VALUES = {"data": {"src": "en", "tgt": "de", "corpus": "multi30k"}}


def recipe(**changes):
    return validated(Recipe, VALUES | changes, where="test")


def opened(run: Path, **changes) -> list[str]:
    """Opens the folder for a moment; returns what was reported."""
    reports: list[str] = []
    with open_run_folder(recipe(**changes), run, report=reports.append):
        pass
    return reports


def test_the_recipe_is_kept_with_all_its_settings(tmp_path):
    assert opened(tmp_path / "run") == []
    kept = validated(Recipe, read_toml(tmp_path / "run" / "config.toml"), where="kept")
    assert kept == recipe()
    assert opened(tmp_path / "run") == []


def test_names_that_an_older_heed_left_relative_are_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"train": ["t.en", "t.de"], "dev": ["d.en", "d.de"]}
    whole = {kind: [str(tmp_path / name) for name in names] for kind, names in files.items()}
    languages = {"src": "en", "tgt": "de"}
    opened(Path("run"), data=languages | files)
    made_of_text(tmp_path / "run")
    assert opened(Path("run"), data=languages | whole) == []
    assert read_toml(tmp_path / "run" / "config.toml")["data"]["train"] == whole["train"]


def made_of_text(run: Path, name: str = "data/tokenizer.json") -> None:
    (run / name).parent.mkdir(parents=True)
    (run / name).touch()


@pytest.mark.parametrize("name", ["data/tokenizer.json", "lines/train.words", "teachers/1/data/tokenizer.json"])
def test_what_shaped_data_and_weights_cannot_change_once_data_is_there(tmp_path, name):
    run = tmp_path / "run"
    opened(run)
    assert opened(run, model={"d_ff": 64}) == []  # nothing is prepared yet
    made_of_text(run, name)
    with pytest.raises(HeedError, match=r"model.d_ff was 64, is 2048; choose another --run"):
        opened(run)
    assert read_toml(run / "config.toml")["model"]["d_ff"] == 64
    changes = {"model": {"d_ff": 64}, "training": {"max_steps": 7}, "decoding": {"beam_size": 2}}
    assert opened(run, **changes) == [
        "Changed since the run began: decoding.beam_size was 4, is 2.",
        "Changed since the run began: training.max_steps was 100000, is 7.",
    ]
    assert read_toml(run / "config.toml")["training"]["max_steps"] == 7


def test_a_setting_that_comes_or_goes_is_a_change(tmp_path):
    run = tmp_path / "run"
    opened(run, training={"clip_norm": 1.0})
    made_of_text(run)
    assert opened(run) == ["Changed since the run began: training.clip_norm was 1.0, is None."]
    assert opened(run, training={"max_minutes": 3.0}) == [
        "Changed since the run began: training.max_minutes was None, is 3.0."
    ]


def test_settings_that_an_older_heed_did_not_write_have_their_defaults(tmp_path):
    run = tmp_path / "run"
    opened(run)
    made_of_text(run)
    path = run / "config.toml"
    text = path.read_text(encoding="utf-8")
    assert "dropout = 0.1\n" in text
    path.write_text(text.replace("dropout = 0.1\n", ""), encoding="utf-8")
    assert opened(run) == []


def test_a_run_keeps_the_factor_of_its_learning_rate_unless_the_recipe_sets_one(tmp_path):
    """Before 0.2 a preset's factor multiplied learning_rate, too."""
    run, rate = tmp_path / "run", {"schedule": "constant", "learning_rate": 0.0005}
    opened(run, training=rate | {"learning_rate_factor": 2.53})
    for begun, changes, factor in (
        (False, rate, 1.0),
        (True, rate, 2.53),
        (True, rate | {"learning_rate_factor": 1.0}, 1.0),
        (True, rate | {"learning_rate": 0.0004}, 1.0),
    ):
        if begun and not (run / "data").exists():
            made_of_text(run)
        said: list[str] = []
        kept = recipe_of_run(recipe(training=changes), run, report=said.append)
        assert kept.training.learning_rate_factor == factor
        assert [line for line in said if "training.learning_rate_factor=2.53 and keeps it" in line] == said
        assert len(said) == (factor == 2.53)


@pytest.mark.slow
def test_two_processes_never_share_a_run(tmp_path):
    code = (
        "import sys; from heed.runs.run_folder import open_run_folder; from heed.runs.recipe import Recipe; "
        "from pathlib import Path; "
        f"open_run_folder(Recipe.model_validate({VALUES!r}), Path(sys.argv[1]), report=print).__enter__()"
    )
    with open_run_folder(recipe(), tmp_path / "run", report=pytest.fail):
        other = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], capture_output=True, text=True)
    assert Busy.__name__ in other.stderr and "is at work there" in other.stderr
    opened(tmp_path / "run")  # free again


@pytest.mark.parametrize("name", RUN_NAMES)
def test_a_folder_with_such_a_name_but_without_config_is_a_users(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(HeedError, match=f"holds {name}, but no config.toml of a run; choose another --run"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_config_of_another_program_is_not_overwritten(tmp_path):
    (tmp_path / "config.toml").write_text("[tool]\nx = 1\n")
    with pytest.raises(HeedError, match="is not a run folder of this Heed"):
        opened(tmp_path)
    assert (tmp_path / "config.toml").read_text() == "[tool]\nx = 1\n"


def test_a_users_own_recipe_is_not_replaced_but_a_runs_copied_config_may_begin_a_run(tmp_path):
    own, copied = tmp_path / "own", tmp_path / "copied"
    own.mkdir()
    (own / "config.toml").write_text('# my notes\n[data]\nsrc = "en"\ntgt = "de"\ncorpus = "multi30k"\n')
    before = (own / "config.toml").read_text()
    with pytest.raises(HeedError, match="has comments, which a run here would delete; choose another --run"):
        opened(own)
    (own / "data").mkdir()  # the user's
    with pytest.raises(HeedError, match="has comments"):
        opened(own)
    assert (own / "config.toml").read_text() == before and len(list(own.iterdir())) == 2
    opened(tmp_path / "run")
    copied.mkdir()
    shutil.copyfile(tmp_path / "run" / "config.toml", copied / "config.toml")
    assert opened(copied) == []


def test_a_models_folder_with_a_users_file_is_refused_at_the_start(tmp_path):
    opened(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(HeedError, match=r"holds notes\.txt"):
        opened(tmp_path)


def test_a_model_is_written_anywhere_but_over_the_runs_own_files(tmp_path):
    run = tmp_path / "run"
    for name in RUN_NAMES:
        (run / name).mkdir(parents=True)
    for out in ("run/model", "run/other", "elsewhere", "elsewhere/deeper"):
        check_output_folder(tmp_path / out, run)
    (tmp_path / "link").symlink_to(run / "checkpoints")
    for out in ("run/model/x", "run/data", "run/checkpoints/5", "link", "link/x"):
        with pytest.raises(HeedError, match="which training writes to"):
            check_output_folder(tmp_path / out, run)


@pytest.mark.parametrize("train", ['train = ["web/"]', 'train = ["web/*.en", "web/*.de"]', ""])
def test_a_run_of_folders_or_patterns_may_be_moved_with_its_text(tmp_path, train):
    """The third one has the folder in its mix."""
    mix = '[[data.mix]]\nname = "own"\n[[data.mix]]\nname = "more"\ntrain = ["web/"]\n'
    text = 'preset = "tiny"\n[data]\nsrc = "en"\ntgt = "de"\ndev = ["web/b.en", "web/b.de"]\n'
    text += train or f'train = ["web/a.en", "web/a.de"]\n{mix}'
    place = tmp_path / "here"
    (place / "web").mkdir(parents=True)
    (place / "x.toml").write_text(f"{text}\n[tokenizer]\nvocab_size = 600\n")
    for name in ("a.en", "a.de", "b.en", "b.de"):
        (place / "web" / name).write_text("".join(f"one {n} {name[2]}\n" for n in range(30)))
    for _ in range(2):
        assert prepare_run(read_recipe(place / "x.toml"), place / "run", Corpora(), Workforce())
        place = place.rename(place.with_name(f"{place.name}-moved"))
    (place / "web" / "a.en").write_text("".join(f"two {n} e\n" for n in range(30)))
    with pytest.raises(HeedError, match=r"a\.en: changed since this run|began with other settings: data\.train"):
        prepare_run(read_recipe(place / "x.toml"), place / "run", Corpora(), Workforce())
