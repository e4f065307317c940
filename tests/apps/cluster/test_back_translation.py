"""heed back-translate: tagged pairs and a recipe that trains; what is there is not made again, whatever was killed."""

import shutil
import signal
from pathlib import Path

import pytest
from tests.apps.cluster.places import MODEL, Run, lines, n_parts
from tests.apps.cluster.test_shards import records
from tests.runs.test_mix import PLAIN, SHAPE
from tests.runs.test_start_from import write_recipe

from heed.config import toml_tables
from heed.runs.back_translation_recipes import mixed_recipe, recipe_text, reverse_recipe
from heed.runs.recipe import read_recipe, recipe_of_text
from heed.runs.recipes import recipe_names
from heed.runtime.manifest import seal

GERMAN_TO_ENGLISH = (
    PLAIN.replace('src = "en"\ntgt = "de"', 'src = "de"\ntgt = "en"').replace('["train.en", "train.de"]', "FILES", 1)
    .replace('["dev.en", "dev.de"]', "FILES")
    .replace("FILES", '["train.de", "train.en"]')
) + SHAPE  # fmt: skip


@pytest.fixture
def folder(tmp_path) -> Path:
    """With a recipe of German-English, for which the golden model of English-German can translate back."""
    write_recipe(tmp_path, GERMAN_TO_ENGLISH)
    (tmp_path / "mono.en").write_text("\n".join([*lines(100), " ", "two\tcells"]) + "\n", encoding="utf-8")
    return tmp_path


def test_a_recipe_that_is_written_down_is_the_same(tmp_path):
    for name in recipe_names():
        recipe = read_recipe(name)
        if recipe.parsing is None:
            mixed = mixed_recipe(recipe, (tmp_path / "a", tmp_path / "b"), tag="<~>", where=name)
            assert recipe_of_text(recipe_text(mixed), path=tmp_path / "recipe.toml") == mixed
            reverse = reverse_recipe(recipe, where=name)
            assert (reverse.data.src, reverse.data.tgt) == (recipe.data.tgt, recipe.data.src)


def test_pairs_are_translations_with_a_tag_and_the_recipe_trains(folder, heed):
    options = ["--mono", "mono.en", "--model", MODEL, "--out", "out", "--part-lines", 30, "--precision", "fp32"]
    # Two lines that are targets of the test set as well, and would be learned.
    for side, texts in (("de", ["Sieben", "Acht"]), ("en", ["a test", "another test"])):
        (folder / f"test.{side}").write_text("\n".join(texts) + "\n", encoding="utf-8")
    with (folder / "mono.en").open("a", encoding="utf-8") as file:
        file.write("another test \na test\nhttps://example.org/a\n")
    recipe = folder / "mine.toml"
    recipe.write_text(recipe.read_text().replace("[data]\n", '[data]\ntests.t = ["test.de", "test.en"]\n', 1))
    made = heed("back-translate", "mine.toml", *options, cwd=folder)
    assert made.returncode == 0, made.stderr
    assert made.stdout == "out/recipe.toml\n" and "2 in dev or a test set; 1 untranslated" in made.stderr

    shares = [*options[:5], "shares", *options[6:]]
    first = heed("back-translate", "mine.toml", *shares, "--part", "1/2", cwd=folder)
    assert first.returncode == 0 and not first.stdout and "of other shares are still missing" in first.stderr
    assert heed("back-translate", "mine.toml", *shares, "--part", "2/2", cwd=folder).stdout == "shares/recipe.toml\n"
    for name in ("back-translated.src", "back-translated.tgt"):
        assert (folder / "shares" / name).read_bytes() == (folder / "out" / name).read_bytes()

    # The pairs are what heed translate gives.
    targets = (folder / "out" / "back-translated.tgt").read_text().splitlines()
    assert targets == [*lines(100), "two\tcells"]
    rows = records(folder / "out" / "parts")
    sources = (folder / "out" / "back-translated.src").read_text().splitlines()
    assert sources == [row["back_translation"] for row in rows if row["text"] in targets]
    recipe = toml_tables((folder / "out" / "recipe.toml").read_text())
    assert [(part["name"], part["weight"], part.get("tag")) for part in recipe["data"]["mix"]] == [
        ("pairs", 1, None),
        ("back-translated", 1, "<~>"),
    ]

    # The same command finds everything; the recipe, which may have been edited, stays.
    path = folder / "out" / "recipe.toml"
    path.write_text(path.read_text() + "\n")
    again = heed("back-translate", "mine.toml", *options, cwd=folder)
    assert again.returncode == 0 and "4 of 4 parts are already there" in again.stderr
    assert "is there already and stays as it is" in again.stderr
    trained = heed("train", "out/recipe.toml", "--run", "run", cwd=folder)
    assert trained.returncode == 0 and "Mix: pairs 50.0% + back-translated 50.0% (tag <~>)." in trained.stderr
    assert "mix: pairs 50.0%" in heed("info", "run", cwd=folder).stdout


def test_samples_differ_by_seed_and_by_part(folder, heed):
    (folder / "mono.en").write_text("a cat sees the dog .\n" * 60)
    found = []
    for seed in (1, 1, 2):
        shutil.rmtree(folder / "out", ignore_errors=True)
        options = ["--sample", 1, "--seed", seed, "--max-extra-tokens", 40, "--precision", "fp32"]
        places = ["--mono", "mono.en", "--model", MODEL, "--out", "out", "--part-lines", 20]
        made = heed("back-translate", "mine.toml", *places, *options, cwd=folder)
        assert made.returncode == 0, made.stderr
        rows = records(folder / "out" / "parts")
        found.append([row["back_translation"] for row in rows])
    assert found[0] == found[1] != found[2]
    assert len(found[0]) == 60 and found[0][:20] != found[0][20:40]
    refused = heed("back-translate", "mine.toml", *places, "--sample", 1, "--beam", 2, cwd=folder)
    assert refused.returncode == 1 and "--beam is for search only; leave it out with --sample" in refused.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "swapped"], "swapped: translates de → en; back-translation for de → en needs a model of en → de"),
        (["--tag", "two words"], "--tag: setting tag: a tag has 1 to 32 visible characters"),
        (["--set", "training.n_teachers=1"], "training.n_teachers cannot be combined with a mix"),
        (["--mono", "absent.en"], "absent.en: no such file"),
        (["--mono", "absent.en", "--model", "none"], "absent.en: no such file"),
        (["--set", "data.train=['pairs.tsv']", "--model", "none"], "pairs.tsv: a .tsv has its sources first"),
        (["--top-k", "3"], "--top-k needs --sample TEMPERATURE"),
        (["--part", "0/2", "--model", "none"], "--part 0/2: expected I/N, from 1/N to N/N"),
        (["--set", "data.mix=[{name='own'}]"], "has a mix already"),
        (["--model", ""], "training.start_from is a model of one direction; name a model of the other direction"),
    ],
)
def test_what_cannot_work_is_refused_and_leaves_nothing(folder, heed, options, message):
    shutil.copytree(MODEL, folder / "swapped")
    config = folder / "swapped" / "config.json"
    config.write_text(config.read_text().replace('"src": "en"', '"src": "de"').replace('"tgt": "de"', '"tgt": "en"'))
    seal(folder / "swapped")
    shutil.copytree(MODEL, folder / "given")
    model = [] if "--model" in options else ["--model", MODEL]
    if options[-2:] == ["--model", "none"]:  # a reverse model would have to be trained
        options = options[:-2]
    if options[-1] == "":
        text = GERMAN_TO_ENGLISH.removesuffix(SHAPE).replace("[training]\n", '[training]\nstart_from = "given"\n')
        (folder / "mine.toml").write_text(text)
        options = []
    mono = [] if "--mono" in options else ["--mono", "mono.en"]
    refused = heed("back-translate", "mine.toml", *mono, *model, *options, "--out", "out", cwd=folder)
    assert refused.returncode == 1 and message in refused.stderr, refused.stderr
    assert not (folder / "out" / "recipe.toml").exists() and not list(folder.glob("out/parts/part*"))
    assert not (folder / "out" / "reverse").exists()


@pytest.mark.soak
def test_a_reverse_model_is_trained_once_and_a_kill_loses_no_part(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "mono.en").write_text("\n".join(lines(1500)) + "\n")
    out = folder / "out"
    settings = ["--set", "training.max_steps=12", "--set", "decoding.max_extra_tokens=50"]
    words = [
        "back-translate",
        "mine.toml",
        "--mono",
        "mono.en",
        "--out",
        out,
        "--part-lines",
        50,
        "--sample",
        1,
        *settings,
    ]
    log = folder / "log"

    def run() -> Run:
        return Run(*words, log=log, out=out / "parts")

    # Killed while it trains, then while it translates.
    first = run()
    first.wait_until(lambda: any((out / "reverse" / "checkpoints").glob("[1-9]*")))
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    second = run()
    second.wait_for(parts=2)
    second.process.send_signal(signal.SIGKILL)
    second.process.wait()
    there = {path.name: path.stat().st_mtime_ns for path in (out / "parts").glob("part-*.jsonl")}
    model = (out / "reverse" / "model" / "manifest.json").stat().st_mtime_ns
    assert 2 <= n_parts(out / "parts") < 30 and not (out / "recipe.toml").exists()

    # The third ends, and has made neither the model nor those parts again.
    assert run().process.wait(240) == 0, log.read_text()
    assert (out / "recipe.toml").exists() and n_parts(out / "parts") == 30
    assert (out / "reverse" / "model" / "manifest.json").stat().st_mtime_ns == model
    assert all((out / "parts" / name).stat().st_mtime_ns == time for name, time in there.items())
    assert "Resumed from step " in log.read_text() and log.read_text().count("Training ended at step 12") == 1
