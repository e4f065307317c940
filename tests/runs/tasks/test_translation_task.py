"""What a run of translation reads, validates by and is scored by."""

import gzip
from pathlib import Path

import pytest
import torch

from heed.config import validated
from heed.data.corpora.download import Corpora
from heed.data.reading.text_files import TextFiles
from heed.decoding.settings import DecodingSettings
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.evaluation.bleu import bleu, chrf
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model
from heed.model_folder.card import EXAMPLES
from heed.runs.recipe import Recipe
from heed.runs.tasks.evaluation import LONGEST_PAIR, evaluate_translations
from heed.runs.tasks.parsing_task import ParsingTask
from heed.runs.tasks.task import task_of
from heed.runs.tasks.translation_task import TranslationTask
from heed.text.numbers import english, german
from heed.text.tokenizer import TokenizerSettings, train_tokenizer

OWN_FILES = {"src": "en", "tgt": "de", "train": ["a", "b"], "dev": ["c", "d"], "tests": {"late": ["e", "f"]}}


def recipe_of(data: dict, **tables) -> Recipe:
    return validated(Recipe, {"data": data} | tables, where="test")


def own_files(folder: Path, *, n_train: int = 30, **tables) -> Recipe:
    """A recipe for number words that are written into the folder."""
    sets = {"train": range(n_train), "dev": range(100, 110), "late": range(200, 207)}
    data: dict = {"src": "en", "tgt": "de", "tests": {}}
    for name, numbers in sets.items():
        files = [folder / f"{name}.en", folder / f"{name}.de.gz"]
        files[0].write_text("".join(f"{english(n)}\n" for n in numbers), encoding="utf-8")
        files[1].write_bytes(gzip.compress("".join(f"{german(n)}\n" for n in numbers).encode()))
        (data["tests"] if name == "late" else data)[name] = [str(file) for file in files]
    return recipe_of(data, decoding={"beam_size": 3, "max_extra_tokens": 5}, **tables)


def test_a_recipe_is_of_the_task_that_its_tables_say():
    assert isinstance(task_of(recipe_of(OWN_FILES)), TranslationTask)
    parsing = {"treebank": "bank", "train": ["02-21"], "dev": ["22"]}
    data = {"src": "en", "tgt": "trees", "tgt_symbols": True}
    assert isinstance(task_of(recipe_of(data, parsing=parsing)), ParsingTask)


def test_own_files_are_read_where_they_are(tmp_path):
    files = task_of(recipe_of(OWN_FILES)).text_files(tmp_path / "run", Corpora(tmp_path, None, print))
    assert files == TextFiles(
        train=((Path("a"), Path("b")),), dev=(Path("c"), Path("d")), tests={"late": (Path("e"), Path("f"))}
    )
    assert list(files.evaluation_sets) == ["dev", "late"]
    assert list(map(str, sum(files.pairs, ()))) == ["a", "b", "c", "d", "e", "f"]
    assert not list(tmp_path.iterdir())


def test_added_pairs_are_learned_from_besides(tmp_path):
    recipe = own_files(tmp_path)
    more = {"added": [str(tmp_path / "late.en"), str(tmp_path / "late.de.gz")]}
    task = task_of(recipe_of(recipe.data.model_dump() | more))
    files = task.text_files(tmp_path / "run", Corpora(tmp_path, None, print))
    assert files.train == tuple((tmp_path / f"{name}.en", tmp_path / f"{name}.de.gz") for name in ("train", "late"))
    assert files.dev == (tmp_path / "dev.en", tmp_path / "dev.de.gz")
    assert task.count_pairs(Corpora(tmp_path, None, str)) == 37
    assert task.card(files).trained_on["corpus"] == "own files and added pairs"
    named = {"src": "en", "tgt": "de", "corpus": "multi30k"}
    again = {"added": [str(tmp_path / "train.en"), str(tmp_path / "train.de.gz")]}
    taught = task_of(recipe_of(recipe.data.model_dump() | again, training={"n_teachers": 2}))
    reports: list[str] = []
    assert taught.count_pairs(Corpora(tmp_path, None, reports.append)) == 30 + 30 + 30
    assert reports[-1] == "30 translations by the teachers will be added."
    with pytest.raises(HeedError, match=r"^gone: no such file\.$"):  # before the corpus is looked for
        task_of(recipe_of(named | {"added": ["gone", "gone"]})).count_pairs(Corpora(tmp_path, None, str))
    with pytest.raises(HeedError, match="data.added needs two files"):
        recipe_of(named | {"added": ["one"]})
    trees = {"src": "en", "tgt": "trees", "tgt_symbols": True} | more
    with pytest.raises(HeedError, match="so data.added must go"):
        recipe_of(trees, parsing={"treebank": "bank", "train": ["02-21"], "dev": ["22"]})


def test_pairs_are_counted_and_faulty_files_named(tmp_path):
    recipe = own_files(tmp_path)
    reports: list[str] = []
    assert task_of(recipe).count_pairs(Corpora(tmp_path, None, reports.append)) == 30
    assert reports == ["30 training pairs; both sides of every file have as many lines."]
    (tmp_path / "late.en").write_text("one\n", encoding="utf-8")
    with pytest.raises(HeedError, match=r"late.en has 1 lines, .*late.de.gz 7"):
        task_of(recipe).count_pairs(Corpora(tmp_path, None, print))


def test_a_corpus_that_is_not_there_is_not_counted_nor_fetched(tmp_path):
    recipe = recipe_of({"src": "en", "tgt": "de", "corpus": "multi30k"})
    reports: list[str] = []
    assert task_of(recipe).count_pairs(Corpora(tmp_path, None, reports.append)) is None
    assert "still to be fetched from https://" in reports[0] and reports[0].endswith(
        f"heed data get multi30k --src en --tgt de --variant raw --dir {tmp_path})."
    )
    assert not list(tmp_path.iterdir())


def test_the_card_names_the_corpus_the_search_and_three_sources_of_dev(tmp_path):
    files = TextFiles(train=(), dev=(tmp_path / "c", tmp_path / "d"))
    for path in files.dev:
        path.write_text("".join(f"{'so ' * i}long\n" for i in range(10)) + "x" * 101 + "\n")
    examples = ["so long", "so so so long", "so so so so so long"]
    recipe = recipe_of({"src": "en", "tgt": "fr", "corpus": "multi30k"}, decoding={"beam_size": 7})
    named = task_of(recipe).card(files)
    assert (named.src, named.tgt, named.trained_on, named.parsing) == (
        "en",
        "fr",
        {"corpus": "multi30k", EXAMPLES: examples, LONGEST_PAIR: 256},
        {},
    )
    assert named.decoding["beam_size"] == 7 and named.examples == examples
    assert task_of(recipe_of(OWN_FILES)).card(files).trained_on["corpus"] == "own files"


@pytest.fixture
def model(small_arch, number_tokenizer) -> Transformer:
    torch.manual_seed(3)
    return Transformer(small_arch, len(number_tokenizer)).eval()


def test_validation_is_bleu_of_greedy_translations_of_dev(tmp_path, model, number_tokenizer):
    recipe = own_files(tmp_path)
    task = task_of(recipe)
    files = task.text_files(tmp_path, Corpora(tmp_path, None, print))
    scores = task.validator(files, number_tokenizer)(model)
    greedy = Translator(model, number_tokenizer, recipe.decoding.model_copy(update={"beam_size": 1}))
    texts = [translation.text for translation in greedy.translate(english(n) for n in range(100, 110))]
    references = [german(n) for n in range(100, 110)]
    assert scores == {"bleu": bleu(texts, references, tokenize="13a").value}
    by_chrf = task_of(own_files(tmp_path, training={"best_by": "chrf"}))
    assert by_chrf.validator(files, number_tokenizer)(model) == scores | {"chrf": chrf(texts, references).value}
    assert (task.ranked_by, by_chrf.ranked_by) == ("bleu", "chrf")


def test_training_scores_by_the_target_language_and_says_so_once(tmp_path, model, number_tokenizer):
    recipe = recipe_of(own_files(tmp_path).data.model_dump() | {"tgt": "th"})
    task = task_of(recipe)
    files = task.text_files(tmp_path, Corpora(tmp_path, None, print))
    save_model(tmp_path / "model", model, number_tokenizer, task.card(files))
    reports: list[str] = []
    task.validator(files, number_tokenizer, reports.append)
    assert reports == ["BLEU's tokenisation: char, by the language of the references."]
    for title in ("average", "last checkpoint"):
        results = list(task.evaluate(tmp_path / "model", files.evaluation_sets, title=title, report=reports.append))
        assert ["|tok:char|" in result.scores["bleu"].signature for result in results] == [True, True]
    assert len([line for line in reports if line.startswith("BLEU")]) == 1
    named = recipe_of(recipe.data.model_dump(), evaluation={"tokenize": "13a"})
    (dev, _) = task_of(named).evaluate(tmp_path / "model", files.evaluation_sets, title="average", report=print)
    assert "|tok:13a|" in dev.scores["bleu"].signature


def test_evaluation_scores_every_set_with_the_models_own_search(tmp_path, model, number_tokenizer):
    recipe = own_files(tmp_path)
    task = task_of(recipe)
    files = task.text_files(tmp_path, Corpora(tmp_path, None, print))
    save_model(tmp_path / "model", model, number_tokenizer, ModelCard("en", "de", recipe.decoding.model_dump()))
    reports: list[str] = []
    precision = Translator.load(tmp_path / "model").precision
    dev, late = task.evaluate(tmp_path / "model", files.evaluation_sets, title="average", report=reports.append)
    expected = [f"Translating {name} with the average in {precision}." for name in ("dev", "late")]
    assert [line for line in reports if not line.startswith("Cut off")] == expected
    assert [result.cut_off for result in (dev, late)] == [10, 7]  # the model has learned nothing
    assert [(result.name, result.n_lines, set(result.scores)) for result in (dev, late)] == [
        ("dev", 10, {"bleu", "chrf"}),
        ("late", 7, {"bleu", "chrf"}),
    ]
    translator = Translator.load(tmp_path / "model")
    assert translator.settings == recipe.decoding
    log_probs = translator.log_probs([english(n) for n in range(200, 207)], [german(n) for n in range(200, 207)])
    n_tokens = sum(map(len, log_probs))
    nats = -sum(sum(values) for values in log_probs) / n_tokens
    assert late.perplexity == pytest.approx(torch.tensor(nats).exp().item(), rel=1e-6)


def test_perplexity_leaves_out_references_with_an_unknown_symbol(small_arch):
    tokenizer = train_tokenizer(["a dog", "a cat"], TokenizerSettings(vocab_size=600), ["NN", "DT"])
    translator = Translator(
        Transformer(small_arch.model_copy(update={"share": "none"}), len(tokenizer), tokenizer.src_vocab_size).eval(),
        tokenizer,
        DecodingSettings(max_tokens=3),
    )
    found = [
        evaluate_translations(translator, sources, targets, name="test", tokenize="none", max_tokens=256).perplexity
        for sources, targets in ((["a dog"], ["DT NN"]), (["a dog", "a cat"], ["DT NN", "DT VB"]))
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
