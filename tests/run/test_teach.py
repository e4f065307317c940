"""A run that learns from its teachers' translations as well: what it trains, writes, skips and refuses."""

import json
import shutil
import tomllib

import pytest

import heed
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.model_folder import read_config
from heed.recipe import read_recipe
from tests.run.test_start_from import RECIPE, write_recipe

TAUGHT = RECIPE.replace(
    'start_from = "given"\n', "teachers = 2\nwarmup_steps = 10\nseed = 3\nmicro_batch_tokens = 250\n"
).replace("max_steps = 2\nlearning_rate_factor = 1e-12", "max_steps = 20")
SHAPE = "[tokenizer]\nvocab_size = 600\n[model]\nn_layers = 1\nd_model = 16\nd_ff = 24\nn_heads = 2\n"


def test_a_run_learns_from_its_teachers_translations_besides(tmp_path):
    run = tmp_path / "run"
    said: list[str] = []
    steps: list[int] = []
    recipe = write_recipe(tmp_path, TAUGHT + SHAPE)
    trained = heed.train(recipe, run, report=said.append, on_validation=lambda record: steps.append(record.step))
    assert steps == list(range(1, 21))  # not the teachers'
    teachers = [run / "teachers" / name for name in ("1", "2")]
    settings = [tomllib.loads((teacher / "config.toml").read_text())["training"] for teacher in teachers]
    assert [(one["seed"], one["teachers"]) for one in settings] == [(1003, 0), (2003, 0)]
    sources = (tmp_path / "train.en").read_text().splitlines()
    translations = (run / "teachers" / "translations-1").read_text().splitlines()
    ensemble = Translator.load(*(teacher / "model" for teacher in teachers))
    assert translations == [one.text for one in ensemble.translate(sources)]
    assert any(translations)
    report = json.loads((run / "data" / "train.report.json").read_text())
    n_pairs = read_config(trained.model).card.trained_on["pairs"]
    assert n_pairs == 2 * len(sources) - sum(report["dropped"].values())
    assert n_pairs > len(sources)
    assert read_config(trained.model).card.trained_on["teachers"] == 2
    assert [line for line in said if line.startswith("Teacher ")] == [
        f"Teacher {number} of 2, in {teacher}:" for number, teacher in enumerate(teachers, start=1)
    ]

    # Teachers that have translated are needed no more.
    for teacher in teachers:
        shutil.rmtree(teacher)
    weights = (trained.model / "model.safetensors").read_bytes()
    said.clear()
    heed.train(recipe, run, report=said.append)
    assert (trained.model / "model.safetensors").read_bytes() == weights
    assert not any("eacher" in line for line in said)
    with pytest.raises(HeedError, match=r"training\.teachers was 2, is 0; choose another --run"):
        heed.train(read_recipe(recipe, ["training.teachers=0"]), run)


def test_a_parser_has_no_teachers():
    parsing = ['parsing.treebank="bank"', 'parsing.train=["02-21"]', 'parsing.dev=["22"]']
    with pytest.raises(HeedError, match="training.teachers is for translation"):
        read_recipe("parsing-gum", [*parsing, "training.teachers=1"])
