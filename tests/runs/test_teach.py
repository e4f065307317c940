"""A run that learns from its teachers' translations as well: what it trains, writes, skips and refuses."""

import json
import shutil
import tomllib

import pytest

import heed
from heed.data.corpora.download import Corpora
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.model.transformer import Transformer
from heed.model_folder import read_config
from heed.runs.recipe import read_recipe
from heed.runs.tasks.translation_task import TranslationTask
from heed.runs.teach import _translate
from tests.runs.test_start_from import RECIPE, write_recipe

TAUGHT = RECIPE.replace(
    'start_from = "given"\n', "teachers = 2\nwarmup_steps = 10\nseed = 3\nmicro_batch_tokens = 250\n"
).replace("max_steps = 2\nlearning_rate_factor = 1e-12", "max_steps = 20")
SHAPE = "[tokenizer]\nvocab_size = 600\n[model]\nn_layers = 1\nd_model = 16\nd_ff = 24\nn_heads = 2\n"


@pytest.mark.slow
def test_a_run_learns_from_its_teachers_translations_as_well(tmp_path):
    run = tmp_path / "run"
    said: list[str] = []
    steps: list[int] = []
    recipe = write_recipe(tmp_path, TAUGHT + SHAPE)
    trained = heed.train(recipe, run, report=said.append, on_validation=lambda record: steps.append(record.step))
    assert steps == list(range(1, 21))  # not the teachers'
    teachers = [run / "teachers" / name for name in ("1", "2")]
    settings = [tomllib.loads((teacher / "config.toml").read_text())["training"] for teacher in teachers]
    assert [(one["seed"], one["n_teachers"]) for one in settings] == [(1003, 0), (2003, 0)]
    sources = (tmp_path / "train.en").read_text().splitlines()
    translations = (run / "teachers" / "translations-1").read_text().splitlines()
    ensemble = Translator.load(*(teacher / "model" for teacher in teachers))
    assert translations == [one.text for one in ensemble.translate(sources)]
    assert any(translations)
    report = json.loads((run / "data" / "train.report.json").read_text())
    n_pairs = read_config(trained.model).card.trained_on["pairs"]
    assert n_pairs == 2 * len(sources) - sum(report["dropped"].values())
    assert n_pairs > len(sources)
    assert read_config(trained.model).card.trained_on["teachers"] == "2, whose cost is not included here"
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
    with pytest.raises(HeedError, match=r"training\.n_teachers was 2, is 0; choose another --run"):
        heed.train(read_recipe(recipe, ["training.n_teachers=0"]), run)


def test_a_parser_has_no_teachers():
    parsing = ['parsing.treebank="bank"', 'parsing.train=["02-21"]', 'parsing.dev=["22"]']
    with pytest.raises(HeedError, match="training.n_teachers is for translation: leave it out"):
        read_recipe("parsing-gum", [*parsing, "training.n_teachers=1"])


def test_added_sources_are_translated_as_well_and_each_file_once(tmp_path):
    added = f'data.added=["{{}}", "{tmp_path}/train.de"]'
    recipe = write_recipe(tmp_path, TAUGHT + SHAPE)
    more = tmp_path / "more.en"
    more.write_text("one\ntwo\n", encoding="utf-8")
    for source, n_files in ((more, 2), (tmp_path / "train.en", 1)):
        task = TranslationTask(read_recipe(recipe, [added.format(source)]))
        files = task.given_files(tmp_path, Corpora(tmp_path, None, str))
        pairs = task.taught_pairs(files, tmp_path / "run").values()
        assert [src for src, _ in pairs] == [tmp_path / "train.en", more][:n_files]
        assert len({translations for _, translations in pairs}) == n_files


def test_a_translation_goes_on_behind_its_last_whole_line(tmp_path, number_tokenizer, small_arch):
    translator = Translator(Transformer(small_arch, len(number_tokenizer)).eval(), number_tokenizer)
    sources = ["one", "two", "three", "four"]
    expected = [f"{translation.text}\n" for translation in translator.translate(sources)]
    source, begun = tmp_path / "source", tmp_path / "translations-1.begun"
    source.write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    for before, n_kept in ((None, 0), ("", 0), ("A\nB\nhalf a line", 2), ("A\nB\nC\nD\n", 4), ("half", 0)):
        if before is not None:
            begun.write_text(before, encoding="utf-8")
        reports: list[str] = []
        _translate(translator, source, tmp_path / "translations-1", reports.append)
        with open(tmp_path / "translations-1", encoding="utf-8", newline="\n") as file:
            written = list(file)  # a translation by random weights may hold other line ends
        assert written == ["A\n", "B\n", "C\n", "D\n"][:n_kept] + expected[n_kept:] and not begun.exists()
        assert reports == ([f"{n_kept} lines were translated before."] if n_kept else [])


def test_a_dry_run_says_what_it_leaves_out(tmp_path, heed):
    recipe = write_recipe(tmp_path, TAUGHT + SHAPE)
    done = heed("train", recipe, "--dry-run", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["teachers"] == 2
    assert "Not included: 2 teachers" in heed("train", recipe, "--dry-run", cwd=tmp_path).stdout
    assert not (tmp_path / "runs").exists()
