"""From two text files to a model, and what `heed data check` says of them."""

import gzip
import json
import os
from pathlib import Path

import pytest
from tests.end_to_end.test_command_line import assert_one_clear_line
from tests.runs.test_start_from import write_model

from heed.runs.recipe import read_recipe
from heed.text.numbers import english, german, number_splits

SMALL = [
    *("--set", "model.n_layers=1", "--set", "model.d_model=32", "--set", "model.d_ff=32"),
    *("--set", "training.max_steps=4", "--set", "decoding.beam_size=1", "--set", "tokenizer.vocab_size=600"),
]


def write(folder: Path, pairs, name: str = "corpus") -> tuple[Path, Path]:
    files = folder / f"{name}.en", folder / f"{name}.de"
    for side, file in enumerate(files):
        file.write_bytes("".join(f"{pair[side]}\n" for pair in pairs).encode())
    return files


def numbers(n: int) -> list[tuple[str, str]]:
    return [(english(number), german(number)) for number in number_splits(n_train=n, n_dev=1, n_test=1).train]


def test_two_text_files_become_a_recipe_and_the_run_that_it_describes(tmp_path, heed):
    write(tmp_path, numbers(120))
    planned = heed("train", "--src", "corpus.en", "--tgt", "corpus.de", *SMALL, "--dry-run", "--json", cwd=tmp_path)
    assert json.loads(planned.stdout)["pairs"] == 108 and os.listdir(tmp_path) != ["corpus-en-de.toml"]
    bad = heed("train", "--src", "corpus.en", "--tgt", "corpus.de", "--set", "training.max_stepz=4", cwd=tmp_path)
    assert_one_clear_line(bad, "did you mean training.max_steps?")
    assert sorted(os.listdir(tmp_path)) == ["corpus.de", "corpus.en"]

    done = heed("train", "--src", "corpus.en", "--tgt", "corpus.de", *SMALL, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["run"] == "runs/corpus-en-de" and [score["lines"] for score in said["scores"]] == [12, 12]
    recipe = read_recipe(tmp_path / "corpus-en-de.toml")
    assert (recipe.data.src, recipe.data.tgt, recipe.data.dev, recipe.data.tests) == ("en", "de", 12, {})
    assert recipe.model.d_model == 128  # of tiny; --set changed this run, not the file
    assert "left out: 12 held out for dev" in done.stderr

    # The same command resumes, as its recipe does; one that was changed is never replaced.
    for words in (["--src", "corpus.en", "--tgt", "corpus.de"], ["./corpus-en-de.toml"]):
        resumed = heed("train", *words, *SMALL, "--json", cwd=tmp_path)
        assert json.loads(resumed.stdout) == said | {"scores": json.loads(resumed.stdout)["scores"]}
        assert "Splitting" not in resumed.stderr and "Wrote" not in resumed.stderr
    changed = (tmp_path / "corpus-en-de.toml").read_bytes() + b"# mine\n"
    (tmp_path / "corpus-en-de.toml").write_bytes(changed)
    again = heed("train", "--src", "corpus.en", "--tgt", "corpus.de", *SMALL, cwd=tmp_path)
    assert_one_clear_line(again, "./corpus-en-de.toml exists already", "heed train ./corpus-en-de.toml")
    assert (tmp_path / "corpus-en-de.toml").read_bytes() == changed


@pytest.mark.parametrize(
    ("names", "options", "languages", "recipe"),
    [
        (("Europarl.de-en.en", "Europarl.de-en.de"), [], ("en", "de"), "Europarl.de-en"),
        (("english.txt", "german.txt"), ["--from", "en", "--to", "de"], ("en", "de"), "en-de"),
        (("news.zh-Hans.gz", "news.pt_BR.gz"), [], ("zh-Hans", "pt_BR"), "news-zh-Hans-pt_BR"),
        (("sub/a.en", "sub/b.en"), ["--to", "en"], ("en", "en"), "en-en"),
        (('od"d \\.en', 'od"d \\.de'), [], ("en", "de"), "od-d-en-de"),
    ],
)
def test_languages_and_name_come_from_the_files_or_the_options(
    tmp_path, monkeypatch, names, options, languages, recipe
):
    from heed.data.corpora.own_recipe import own_recipe

    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name, side in zip(names, "ab", strict=True):
        text = f"{side} text\n".encode() * 3
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    given = dict(zip(options[::2], options[1::2], strict=True))
    own = own_recipe(Path(names[0]), Path(names[1]), src=given.get("--from"), tgt=given.get("--to"))
    assert own.name == recipe
    own.write()
    read = read_recipe(f"./{recipe}.toml")
    assert (read.data.src, read.data.tgt) == languages
    assert read.data.train == [str(tmp_path / name) for name in names]


def test_the_preset_follows_the_number_of_pairs(tmp_path):
    from heed.data.corpora.own_recipe import own_recipe

    for n, preset, dev in ((3, "tiny", 1), (199_999, "tiny", 500), (200_000, "base", 500)):
        for suffix in ("en", "de"):
            (tmp_path / f"a.{suffix}").write_text("x\n" * n)
        text = own_recipe(tmp_path / "a.en", tmp_path / "a.de").text
        assert f'preset = "{preset}"' in text and f"dev = {dev}\n" in text


def test_a_model_to_start_from_is_fine_tuned_at_a_tenth_of_the_rate_of_base(tmp_path, monkeypatch, number_tokenizer):
    """Preset tiny's rate would undo what the model has learned."""
    from heed.apps.training.command import _recipe_of_files
    from heed.runs.recipe import recipe_of_text
    from heed.training.schedule import rate_of_step

    monkeypatch.chdir(tmp_path)
    write(tmp_path, numbers(5))
    arch = write_model(tmp_path / "given", number_tokenizer).arch
    for settings, rate in (
        (["training.start_from=given"], 0.1 * arch.d_model**-0.5 * 4000**-0.5),
        (["training.learning_rate=0.001", "training.start_from=given"], 0.001),
    ):
        own = _recipe_of_files(Path("corpus.en"), Path("corpus.de"), None, None, settings)
        for overrides in (settings, settings[:-1]):  # the recipe itself starts from the model
            read = recipe_of_text(own.text, overrides, path=own.path)
            assert read.training.start_from == str(tmp_path / "given") and read.model.d_model == arch.d_model
            assert rate_of_step(5000, read.training, d_model=arch.d_model) == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize(
    ("src", "tgt", "options", "message"),
    [
        ("corpus.en", "none.de", {}, "none.de: cannot be read"),
        ("corpus.en", "short.de", {}, "corpus.en has 5 lines, .*short.de 1"),
        ("corpus.en", "text.txt", {}, "text.txt: .* --to en"),
        ("text.txt", "corpus.de", {}, "text.txt: .* --from en"),
        ("corpus.en", "more.en", {}, "both in en; if so, say it: --from en --to en"),
        ("corpus.en", "./corpus.en", {}, "the same file"),
        ("corpus.en", "corpus.de", {"tgt": "d\ne"}, "--to"),
        ("corpus.en", "corpus.de", {"src": ""}, "--from ''"),
        ("b\nd.en", "corpus.de", {}, "rename the file"),
    ],
)
def test_files_that_cannot_be_a_corpus_are_refused(tmp_path, monkeypatch, src, tgt, options, message):
    from heed.data.corpora.own_recipe import own_recipe
    from heed.errors import HeedError

    monkeypatch.chdir(tmp_path)
    write(tmp_path, numbers(5))
    for name in ("text.txt", "more.en"):
        (tmp_path / name).write_text("one\n" * 5)
    (tmp_path / "short.de").write_text("eins\n")
    with pytest.raises(HeedError, match=message):
        own_recipe(Path(src), Path(tgt), **options)


def test_options_that_do_not_go_together_are_refused_and_no_recipe_is_written(tmp_path, heed):
    write(tmp_path, numbers(5))
    torchrun = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for given, env, parts in (
        (["--src", "corpus.en"], {}, ["name a recipe", "--src corpus.en --tgt corpus.de"]),
        (["some.toml", "--to", "de"], {}, ["--to", "leave these out, or the recipe"]),
        (["--src", "corpus.en", "--tgt", "corpus.de"], torchrun, ["without torchrun"]),
    ):
        assert_one_clear_line(heed("train", *given, cwd=tmp_path, env=env), *parts)
    assert not list(tmp_path.glob("*.toml"))


def test_data_check_describes_the_text_of_a_recipe(tmp_path, heed):
    write(tmp_path, [*numbers(120), ("a <b>bold</b> word", "ein Wort")])
    (tmp_path / "my.toml").write_text(
        'preset = "tiny"\n[data]\nsrc = "en"\ntgt = "de"\ntrain = ["corpus.en", "corpus.de"]\ndev = 0.2\n'
    )
    found = json.loads(heed("data", "check", "my.toml", "--set", "data.dev=10", "--json", cwd=tmp_path).stdout)
    assert {name: numbers["pairs"] for name, numbers in found["sets"].items()} == {"train": 111, "dev": 10}
    (line,) = found["suspicious_lines"]
    assert (line["file"], line["line"], line["reason"]) == (str(tmp_path / "corpus.en"), 121, "HTML tag")
    done = heed("data", "check", "my.toml", cwd=tmp_path)
    assert done.returncode == 0 and "corpus.en, line 121: HTML tag: a <b>bold</b> word" in done.stdout
    assert not (tmp_path / "runs").exists()
    (tmp_path / "corpus.de").write_text("eins\n")
    assert_one_clear_line(heed("data", "check", "my.toml", cwd=tmp_path), "corpus.en has 121 lines")


def test_data_check_describes_a_treebank(parser_run, heed):
    done = heed("data", "check", "small.toml", "--mirror", ".", cwd=parser_run)
    assert "train: 400 pairs (RUN/lines/train.words, RUN/lines/train.symbols)\n" in done.stdout
    assert "suspicious pairs: none\n" in done.stdout
