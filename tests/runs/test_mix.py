"""A recipe's mix: what is refused, what its parts' sources begin with, and what a person is shown of it."""

import shutil

import pytest

import heed
from heed.data.corpora.download import Corpora
from heed.data.corpus.shard import ParallelCorpus
from heed.errors import HeedError
from heed.model_folder import read_config
from heed.runs.describe import describe
from heed.runs.recipe import read_recipe
from heed.runs.tasks.translation_task import TranslationTask
from heed.text.numbers import english, german
from heed.text.tokenizer_kinds import load_tokenizer
from tests.runs.test_start_from import RECIPE, write_recipe

SHAPE = "[tokenizer]\nvocab_size = 600\n[model]\nn_layers = 1\nd_model = 16\nd_ff = 24\nn_heads = 2\n"
PLAIN = RECIPE.replace('start_from = "given"\n', "").replace(
    'dev = ["train.en", "train.de"]', 'dev = ["dev.en", "dev.de"]'
)
PARTS = """
[[data.mix]]
name = "web"
train = ["web.en", "web.de"]
weight = [3, 1]
tag = "<~>"
[[data.mix]]
name = "own"
weight = [1, 0]
"""


def write_mix(folder, parts: str = PARTS, *, data: str = "mix_stages = [1]\n"):
    for name, numbers in (("web", range(5000, 5200)), ("dev", range(7000, 7020))):
        for side, spelled in (("en", english), ("de", german)):
            (folder / f"{name}.{side}").write_text("".join(f"{spelled(n)}\n" for n in numbers), encoding="utf-8")
    table, training, rest = PLAIN.partition("[training]")
    return write_recipe(folder, table + data + parts + training + rest + SHAPE)


LANGUAGES = """
[[data.mix]]
name = "en-de"
[[data.mix]]
name = "de-en"
train = ["web.de", "web.en"]
src = "de"
tgt = "en"
tests = { numbers = ["dev.de", "dev.en"] }
"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight = [3, 1]": "weight = [3]"}, "web of data.mix has 1 weights, but data.mix_stages makes 2 stage"),
        ({"weight = [1, 0]\n": ""}, "some parts of data.mix have a weight and some none"),
        ({"[3, 1]": "[3, 0]"}, "stage 2 of data.mix has no part with a weight above 0"),
        ({"weight = [3, 1]\n": "", "weight = [1, 0]\n": ""}, "data.mix_stages has no effect on parts without weights"),
        ({'name = "own"': 'name = "web"'}, "two parts of data.mix have the same name"),
        ({'train = ["web.en", "web.de"]\n': ""}, "2 parts of data.mix are without train and corpus"),
        ({'["web.en", "web.de"]': '["web.en"]'}, "web of data.mix needs two files"),
        ({'tag = "<~>"': 'tag = "two words"'}, "a tag has 1 to 32 visible characters and no space"),
        ({'tag = "<~>"': 'variant = "tok"'}, "web of data.mix has a variant, but names no corpus"),
        ({'tag = "<~>"': "wait = 3"}, "unknown setting data.mix.0.wait"),
        ({"[3, 1]": "-1"}, "greater than or equal to 0"),
        ({'name = "en-de"': 'name = "en-de"\nsrc = "en"'}, "in the languages data.src and data.tgt"),
        ({'name = "en-de"': 'name = "en-de"\ntag = "<~>"'}, "en-de of data.mix has a tag"),
        ({'src = "de"\ntgt = "en"\n': ""}, "de-en of data.mix has tests, but no src or tgt"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(tmp_path, changes, message):
    by_language = next(iter(changes)) in LANGUAGES
    parts = LANGUAGES if by_language else PARTS
    for old, new in changes.items():
        assert old in parts
        parts = parts.replace(old, new)
    with pytest.raises(HeedError, match=message):
        read_recipe(write_mix(tmp_path, parts, data="" if by_language else "mix_stages = [1]\n"))


def test_settings_without_a_mix_and_beside_one_are_refused(tmp_path):
    weights = PARTS.replace("[3, 1]", "3").replace("[1, 0]", "1")
    for overrides, message in (
        (["data.mix_temperature=5"], "data.mix_temperature is for parts without weights"),
        (["training.n_teachers=1"], "training.n_teachers has no part in data.mix"),
        (["data.mix_stages=[9, 9]"], "each later than the one before"),
        (["data.mix=[]", "data.mix_temperature=5"], "have no effect without data.mix"),
    ):
        with pytest.raises(HeedError, match=message):
            read_recipe(write_mix(tmp_path, weights, data=""), overrides)


def test_a_recipe_and_its_text_are_described(tmp_path):
    recipe = write_mix(tmp_path)
    lines = ["until step 1: own 25.0% + web 75.0% (tag <~>)", "then web 100.0% (tag <~>)"]
    assert describe(recipe)["mix"] == "; ".join(lines)
    said: list[str] = []
    assert TranslationTask(read_recipe(recipe)).count_pairs(Corpora(tmp_path, None, said.append)) == 260
    assert [line for line in said if line.startswith("Mix: ")] == [f"Mix: {line}." for line in lines]
    assert [line for line in said if line.startswith("Part ")] == [
        "Part own of the mix: 60 pairs.",
        "Part web of the mix: 200 pairs.",
    ]
    by_size = PARTS.replace("weight = [3, 1]\n", "").replace("weight = [1, 0]\n", "")
    recipe = write_mix(tmp_path, by_size, data="mix_temperature = 2\n")
    assert describe(recipe)["mix"] == "own by its size + web by its size (tag <~>), to the power of 1 / 2"


@pytest.mark.slow
def test_a_run_has_one_vocabulary_and_tags_and_keeps_its_mix(tmp_path):
    run, said = tmp_path / "run", []
    recipe = write_mix(tmp_path)
    trained = heed.train(recipe, run, report=said.append)
    assert "Mix: until step 1: own 25.0% + web 75.0% (tag <~>)." in said
    assert read_config(trained.model).card.trained_on["mix"].startswith("until step 1: own 25.0% + web")
    assert read_config(trained.model).card.trained_on["passes"].startswith("own 0.65, web ")  # 39 of 60, in one step
    tokenizer = load_tokenizer(run / "data" / "tokenizer.json")
    train = ParallelCorpus(run / "data" / "train", vocab_size=len(tokenizer))
    (tag,) = tokenizer.encode("<~>")  # one token, since the vocabulary has been learned with it
    assert [part.rows for part in train.parts([1, 1])] == [range(60), range(60, 260)]
    for row, number in ((0, None), (60, 5000), (259, 5199)):
        src, tgt = (ids.tolist() for ids in train[row])
        assert (src[0] == tag) == (number is not None)
        if number is not None:
            assert src == tokenizer.encode(f"<~> {english(number)}") and tgt == tokenizer.encode(german(number))

    # The mix is a part of what a run began with, but its files may move.
    moved = tmp_path / "moved"
    moved.mkdir()
    for side in ("en", "de"):
        shutil.move(tmp_path / f"web.{side}", moved / f"web.{side}")
    recipe.write_text(recipe.read_text().replace('"web.', '"moved/web.'))
    heed.train(recipe, run)
    with pytest.raises(HeedError, match="this run began with other settings: data.mix was"):
        heed.train(read_recipe(recipe, ["data.mix=[{name='own'}]", "data.mix_stages=[]"]), run)
    with pytest.raises(HeedError, match=r"no pair of data\.mix's part web is left"):
        (tmp_path / "empty").write_text(" \n")
        none = recipe.read_text().replace("moved/web.en", "empty").replace("moved/web.de", "empty")
        recipe.write_text(none)
        heed.train(recipe, tmp_path / "other")


def test_one_model_learns_several_pairs_of_languages_and_is_scored_by_pair(tmp_path):
    recipe = write_mix(tmp_path, LANGUAGES, data="")
    lines: list[str] = []
    trained = heed.train(recipe, tmp_path / "run", report=lines.append)
    # Each source begins with the symbol of its target language, that of dev too.
    tokenizer = load_tokenizer(tmp_path / "run" / "data" / "tokenizer.json")
    sizes = {"vocab_size": len(tokenizer), "src_vocab_size": tokenizer.src_vocab_size}
    first = {name: tokenizer.tags[f"<2{name}>"] for name in ("de", "en")}
    train, dev = (ParallelCorpus(tmp_path / "run" / "data" / name, **sizes) for name in ("train", "dev"))
    assert {train[row][0][0] for row in range(len(train))} == set(first.values())
    assert {dev[row][0][0] for row in range(len(dev))} == {first["de"]}
    # Scores by pair, and their mean.
    assert {one.name.partition(" (")[0] for one in trained.evaluations} == {"dev", "numbers de-en"}
    card = read_config(trained.model).card
    assert set(card.scores) == {"dev", "numbers de-en"}
    # The model is told the target; without a word it is the recipe's.
    model = heed.load(trained.model, precision="fp32")
    assert model.languages == ("en", "de") and set(model.pairs) == {("en", "de"), ("de", "en")}
    assert model.source_ids(["two"])[0][0] == first["de"]
    assert model.between("de", "en").source_ids(["zwei"])[0][0] == first["en"]
    # A text that spells a symbol is text.
    assert first["en"] not in model.source_ids(["<2en> two"])[0]
    with pytest.raises(HeedError, match="'fr' is no target language"):
        model.translate("two", target="fr")
