"""Recipes: presets are the paper's, every recipe that comes with Heed is valid."""

from pathlib import Path

import pytest

from heed.config import merged, parse_override, toml_text, validated
from heed.data.corpora.catalogue import find
from heed.errors import HeedError
from heed.runs.recipe import Recipe, anchor_recipe, is_run_folder, preset_names, read_preset, read_recipe
from heed.runs.recipes import recipe_names, recipe_text, recipe_title
from heed.training.schedule import rate_of_step

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_that_comes_with_heed_is_valid(name):
    recipe = read_recipe(name)
    assert recipe.data.corpus or recipe.parsing
    for text in (recipe.data, *recipe.data.mix):
        if text.corpus:
            find(text.corpus).check_offers(text.src or recipe.data.src, text.tgt or recipe.data.tgt, text.variant)


@pytest.mark.parametrize("language", ["de", "fr"])
@pytest.mark.parametrize("size", ["base", "big"])
def test_the_recipes_for_wmt14_have_the_settings_of_the_paper(language, size):
    """Sections 5.1 to 5.4 and 6.1."""
    recipe = read_recipe(f"wmt14-en-{language}-{size}")
    data, model, training, decoding = recipe.data, recipe.model, recipe.training, recipe.decoding
    assert (data.corpus, data.src, data.tgt, recipe.evaluation.tokenize) == (
        f"wmt14-en-{language}",
        "en",
        language,
        "auto",
    )
    tokenizer = ("bpe", 37_000) if language == "de" else ("wordpiece", 32_000)
    assert (recipe.tokenizer.kind, recipe.tokenizer.vocab_size, model.share) == (*tokenizer, "all")
    assert (training.batch_src_tokens, training.batch_tgt_tokens) == (25_000, 25_000)
    assert (training.warmup_steps, training.learning_rate_factor, training.label_smoothing) == (4000, 1.0, 0.1)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (decoding.beam_size, decoding.length_penalty, decoding.max_extra_tokens) == (4, 0.6, 50)
    steps = (100_000, 5) if size == "base" else (300_000, 20)
    assert (training.max_steps, training.average_last) == steps and training.keep_checkpoints >= training.average_last
    assert training.checkpoint_every == "10 minutes"
    assert model.dropout == (0.3 if (size, language) == ("big", "de") else 0.1)
    width = (512, 2048, 8) if size == "base" else (1024, 4096, 16)
    assert (model.n_layers, model.d_model, model.d_ff, model.n_heads) == (6, *width)


def test_a_treebank_in_the_recipes_folder_or_here_is_found_else_it_is_a_name(tmp_path, monkeypatch):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(recipe_text("parsing-gum").replace('treebank = "gum"', 'treebank = "trees"'))
    assert read_recipe(recipe).parsing.treebank == "trees"
    (tmp_path / "trees").mkdir()
    assert read_recipe(recipe).parsing.treebank == str(tmp_path / "trees")
    monkeypatch.chdir(tmp_path)
    found = read_recipe("parsing-gum", ["parsing.treebank=trees"])
    assert found.parsing.treebank == str(tmp_path / "trees")
    for setting in ("parsing.treebank=", 'data.added=["", "b"]'):
        with pytest.raises(HeedError, match=r"^'' is not a file name that can be looked up"):
            read_recipe("parsing-gum" if "parsing" in setting else "multi30k-en-de", [setting])
    (tmp_path / "gum").mkdir()  # nobody has named it
    assert anchor_recipe(read_recipe("parsing-gum"), tmp_path).parsing.treebank == "gum"


def test_presets_are_the_rows_of_table_3():
    def settings(name):
        return validated(
            Recipe, {"data": {"src": "a", "tgt": "b", "corpus": "c"}} | read_preset(name, where=""), where=""
        )

    assert settings("base") == validated(Recipe, {"data": {"src": "a", "tgt": "b", "corpus": "c"}}, where="")
    big = settings("big")
    assert (big.model.d_model, big.model.d_ff, big.model.n_heads, big.model.dropout) == (1024, 4096, 16, 0.3)
    assert (big.training.max_steps, big.training.average_last) == (300_000, 20)
    tiny = settings("tiny").model
    assert (tiny.n_layers, tiny.d_model, tiny.n_heads, tiny.d_ff) == (4, 128, 4, 256)
    named = [name for name in preset_names() if not name.startswith("table3-")]
    assert named == ["base", "big", "demo", "parsing", "tiny"] and len(preset_names()) == len(named) + 18


def test_file_overrides_preset_and_set_overrides_both(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text('preset = "tiny"\n[data]\nsrc="a"\ntgt="b"\ntrain=["x", "y"]\ndev=["v", "w"]\n[model]\nd_ff = 99\n')
    recipe = read_recipe(path, ["training.max_steps=7", "training.clip_norm=1.5"])
    assert (recipe.model.d_ff, recipe.model.d_model) == (99, 128)
    assert (recipe.training.max_steps, recipe.training.clip_norm) == (7, 1.5)
    assert recipe.data.train == [str(tmp_path / "x"), str(tmp_path / "y")]
    assert read_recipe(path, ["preset=base"]).model.d_model == 512
    with pytest.raises(HeedError, match=r"unknown setting model\.dff; did you mean .* \(--set 'model\.dff=8'\)$"):
        read_recipe(path, ["model.dff=8"])


def test_a_resolved_recipe_reads_back_as_itself(tmp_path):
    own = [*(f'data.{name}=["a.{name}", "b"]' for name in ("train", "dev", "added")), 'data.tests={"t"=["x", "y"]}']
    (tmp_path / "own.toml").write_text('preset = "tiny"\n[data]\nsrc = "a"\ntgt = "b"\n')
    for recipe in (read_recipe("multi30k-en-de"), read_recipe(tmp_path / "own.toml", own)):
        (tmp_path / "config.toml").write_text(toml_text(recipe.model_dump()))
        assert read_recipe(tmp_path / "config.toml") == recipe
    assert recipe.data.train == [str(Path.cwd() / "a.train"), str(Path.cwd() / "b")]
    assert recipe.data.added == [str(Path.cwd() / "a.added"), str(Path.cwd() / "b")]


def test_two_passes_that_cannot_differ_are_refused():
    same = [f"model.{name}=0.0" for name in ("dropout", "attention_dropout", "word_dropout")]
    options = [*same, "training.consistency=5.0"]
    with pytest.raises(
        HeedError, match=r"training\.consistency has no effect .* set model\.dropout or training\.cutoff"
    ):
        read_recipe("multi30k-en-de", options)
    for different in ("training.cutoff=0.1", "model.word_dropout=0.1"):
        assert read_recipe("multi30k-en-de", [*options, different]).training.n_passes == 2


@pytest.mark.parametrize(
    ("recipe", "option", "message"),
    [
        ("multi30k-en-de", "model.n_layers=2", r"n_encoder_layers is 6 and model\.n_decoder_layers 3; set those"),
        ("parsing-gum", "evaluation.tokenize=none", r"evaluation\.tokenize would have no effect on a parser"),
        ("parsing-gum", "decoding.min_tokens=3", r"decoding\.min_tokens would have no effect on a parser"),
        ("parsing-gum", "data.variant=lc.norm.tok", r"data\.variant is a form of a named corpus"),
        ("demo.toml", "data.variant=lc.norm.tok", r"data\.variant is a form of a named corpus"),
    ],
)
def test_settings_without_effect_are_refused(recipe: str, option: str, message: str, tmp_path: Path):
    (tmp_path / "demo.toml").write_text(
        'preset = "demo"\n[data]\nsrc = "a"\ntgt = "b"\ntrain = ["a", "b"]\ndev = ["c", "d"]\n'
    )
    path = tmp_path / recipe if recipe.endswith(".toml") else recipe
    read_recipe(path)
    with pytest.raises(HeedError, match=message):
        read_recipe(path, [option])


def test_overrides_are_toml_or_plain_words():
    assert parse_override("a.b=3") == {"a": {"b": 3}}
    assert parse_override("a.b=10 minutes") == {"a": {"b": "10 minutes"}}
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}) == {"a": {"b": 3, "c": 2}}
    with pytest.raises(HeedError, match="NAME=VALUE"):
        parse_override("a.b")


def test_a_recipe_is_found_by_name_by_path_and_in_a_run_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = read_recipe("multi30k-en-de")
    Path("mine.toml").write_text(recipe_text("multi30k-en-de"))
    assert read_recipe("mine.toml") == read_recipe(Path("mine.toml")) == read_recipe("./mine.toml") == named
    Path("runs/first").mkdir(parents=True)
    Path("runs/first/config.toml").write_text(toml_text(named.model_dump()))
    assert read_recipe("runs/first") == read_recipe(Path("runs") / "first") == named
    assert is_run_folder("runs/first") and not is_run_folder("mine.toml") and not is_run_folder("multi30k-en-de")


def test_a_bare_word_is_a_name_unless_it_is_a_run_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = toml_text(read_recipe("multi30k-en-fr").model_dump())
    # A file without a suffix, and a folder of something else, do not hide a recipe; a path reads the file.
    Path("multi30k-en-de").write_text(other)
    assert read_recipe("multi30k-en-de").data.tgt == "de"
    assert read_recipe("./multi30k-en-de").data.tgt == read_recipe(Path("multi30k-en-de")).data.tgt == "fr"
    Path("multi30k-en-de").unlink()
    Path("multi30k-en-de").mkdir()
    assert read_recipe("multi30k-en-de").data.tgt == "de" and not is_run_folder("multi30k-en-de")
    # A run folder that stands where we are is what is meant by its name: it is resumed with its own settings.
    Path("multi30k-en-de/config.toml").write_text(other)
    assert read_recipe("multi30k-en-de").data.tgt == "fr" and is_run_folder("multi30k-en-de")


def test_a_folder_that_is_no_run_folder_is_called_that(tmp_path):
    with pytest.raises(HeedError, match="not a run folder: it has no config.toml"):
        read_recipe(tmp_path)


def test_an_unknown_recipe_is_refused_with_the_nearest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrong in (read_recipe, recipe_text):
        with pytest.raises(
            HeedError, match=r"^no recipe 'mutli30k-en-de' comes with Heed; did you mean multi30k-en-de\?"
        ):
            wrong("mutli30k-en-de")
        with pytest.raises(
            HeedError, match=r"no recipe 'zzz' comes with Heed; known: multi30k-en-de, .*-big; for text of"
        ):
            wrong("zzz")
    Path("zzz").write_text(recipe_text("multi30k-en-de"))
    with pytest.raises(HeedError, match=r"To read the file 'zzz', write \./zzz\.$"):
        read_recipe("zzz")
    with pytest.raises(HeedError, match=r"mine\.toml: "):
        read_recipe("mine.toml")


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_begins_with_a_line_that_says_what_it_is(name):
    assert recipe_text(name).startswith(f"# {recipe_title(name)}\n")
    assert recipe_title(name).endswith(".") and len(recipe_title(name)) <= 120


def test_the_papers_recipes_take_the_average_and_all_others_the_better_model():
    papers = {f"wmt14-en-{tgt}-{size}" for tgt in ("de", "fr") for size in ("base", "big")}
    papers |= {"parsing-wsj", "parsing-wsj-semi", "table3-multi30k"}
    assert {name for name in recipe_names() if not read_recipe(name).training.keep_better} == papers
    rows = {name for name in preset_names() if not read_preset(name, where="")["training"].get("keep_better", True)}
    assert rows == {name for name in preset_names() if name.startswith("table3-")}


def test_a_learning_rate_is_the_rate_unless_the_same_file_or_call_has_a_factor_too(tmp_path):
    """The factors of presets and recipes are equation 3's."""
    constant = 'schedule = "constant"\nlearning_rate = 0.0005\n'
    of_call = ["training.schedule=constant", "training.learning_rate=0.0005"]
    for preset, training, overrides, rate in (
        ("tiny", constant, [], 0.0005),
        ("tiny", "learning_rate_factor = 0.7\n", of_call, 0.0005),
        ("tiny", "", ["training.learning_rate_factor=2", *of_call], 0.001),
        ("tiny", constant + "learning_rate_factor = 2.0\n", ["training.learning_rate=0.001"], 0.002),
        ("tiny", "", [], 2.53 * 128**-0.5 * 2000**-0.5),
    ):
        text = f'preset = "{preset}"\n[data]\nsrc = "en"\ntgt = "de"\ncorpus = "any"\n[training]\n{training}'
        (tmp_path / "mine.toml").write_text(text)
        read = read_recipe(tmp_path / "mine.toml", overrides)
        assert rate_of_step(2000, read.training, d_model=128) == pytest.approx(rate)
