"""What a run of parsing reads, validates by and is scored by; a parser is trained in tests/parsing."""

import pytest
from tests.parsing.corpus import RECIPE, write_treebank

from heed.data.corpora.download import Corpora
from heed.data.reading.pairs import read_pairs
from heed.errors import HeedError
from heed.model_folder import load_model
from heed.parsing.parser import Parser
from heed.parsing.treebank import gold_trees
from heed.parsing.trees import read_trees
from heed.runs.recipe import read_recipe
from heed.runs.tasks.parsing_task import ParsingTask, parsing_scores
from heed.runs.tasks.task import task_of


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    """A folder with a treebank and a recipe for it."""
    folder = tmp_path_factory.mktemp("bank")
    write_treebank(folder / "treebank")
    (folder / "small.toml").write_text(RECIPE.format(treebank="treebank", max_steps=1))
    return folder


def task_with(bank, *overrides: str) -> ParsingTask:
    task = task_of(read_recipe(bank / "small.toml", overrides))
    assert isinstance(task, ParsingTask)
    return task


def test_the_treebank_becomes_lines_that_the_run_keeps(bank, tmp_path):
    reports: list[str] = []
    files = task_with(bank).text_files(tmp_path, Corpora(bank, None, reports.append))
    assert reports == ["train: 400 trees.", "dev: 20 trees.", "section23: 20 trees."]
    assert files.train == ((tmp_path / "lines/train.words", tmp_path / "lines/train.symbols"),)
    assert list(files.evaluation_sets) == ["dev", "section23"]
    words, symbols = next(read_pairs(files.dev))
    assert words.startswith("the ") and symbols.startswith("(S (NP DT NN )NP (VP VBZ")
    assert gold_trees(files.dev[0]) == list(
        read_trees(bank / "treebank/parsed/mrg/wsj/22/wsj_2201.mrg", functions=False)
    )
    # What is written is not written again, nor is the treebank needed any more.
    again = task_with(bank).text_files(tmp_path, Corpora(tmp_path / "nowhere", None, pytest.fail))
    assert again == files


def test_trees_are_counted_as_they_would_be_written(bank, tmp_path):
    more = ["parsing.fragments=4", "parsing.substituted=1", "parsing.gold_weight=2"]
    task = task_with(bank, *more)
    n_trees = task.count_pairs(Corpora(tmp_path, str(bank), str))
    assert not list(tmp_path.iterdir()) and n_trees > 800
    files = task.text_files(tmp_path, Corpora(bank, None, str))
    assert sum(1 for _ in read_pairs(files.train[0])) == n_trees
    with pytest.raises(HeedError, match="treebank trees: no folder"):
        task_with(bank, "parsing.treebank=trees").count_pairs(Corpora(tmp_path, None, str))


@pytest.mark.parametrize("setting", ["dev", "train", "tests.section23"])
def test_a_set_without_trees_is_named_and_leaves_nothing_that_stands_in_the_way(bank, tmp_path, setting):
    empty = bank / "treebank" / "empty.ptb"
    empty.write_text("")
    value = '["empty.ptb"]' if setting != "tests.section23" else '{section23=["empty.ptb"]}'
    task = task_with(bank, f"parsing.{setting.removesuffix('.section23')}={value}")
    message = f"there is no tree in empty.ptb, which parsing.{setting} names"
    with pytest.raises(HeedError, match=message):
        task.count_pairs(Corpora(bank, None, str))
    with pytest.raises(HeedError, match=message):
        task.text_files(tmp_path, Corpora(bank, None, str))
    empty.write_text("(TOP (S (NN a)))\n")
    (tmp_path / "lines").mkdir(exist_ok=True)
    (tmp_path / "lines" / ".dev.words.0123abcd.part").write_text("left by a killed process")
    files = task.text_files(tmp_path, Corpora(bank, None, str))
    assert all(path.stat().st_size for pair in files.evaluation_sets.values() for path in pair)
    assert not list((tmp_path / "lines").glob(".*.part"))


def test_trees_that_cannot_be_used_are_named_counted_and_left_out(bank, tmp_path):
    good, bad = "(TOP (S (NN a)))", "(TOP (S (NN )))"
    (bank / "treebank" / "mixed.ptb").write_text(f"*x*x*\n{good}\n{bad}\n{good}\n" + f"{bad}\n" * 11)
    (bank / "treebank" / "bad.ptb").write_text(bad)
    path = bank / "treebank" / "mixed.ptb"
    named = [
        f"{path}, line {line}, column 9: (NN) is empty; expected (TAG word); left out." for line in (3, *range(5, 14))
    ]
    changed = ['parsing.dev=["mixed.ptb"]', f'parsing.parsed=["{bank}/treebank/bad.ptb"]']
    reports: list[str] = []
    files = task_with(bank, *changed).text_files(tmp_path, Corpora(bank, None, reports.append))
    (of_parsed,) = (report for report in reports if "bad.ptb" in report)
    assert [report for report in reports if report != of_parsed] == [
        "train: 400 trees; left out: 1.", *named, "dev: 2 trees; left out: 12.", "section23: 20 trees.",
    ]  # fmt: skip
    assert len(gold_trees(files.dev[0])) == 2 == sum(1 for _ in read_pairs(files.dev))
    counted: list[str] = []
    task_with(bank, *changed).count_pairs(Corpora(bank, None, counted.append))
    assert counted[:10] == named and counted[10] == "dev: 2 trees; left out: 12."
    assert counted[-1].endswith(f"from 400 gold ones in {bank}/treebank; left out: 1.")
    with pytest.raises(
        HeedError, match=r"no tree in bad.ptb, .* The first that cannot be used: .*bad.ptb, line 1, col"
    ):
        task_with(bank, 'parsing.dev=["bad.ptb"]').count_pairs(Corpora(bank, None, str))


def test_the_card_says_how_trees_are_sequences_and_what_words_are_known(bank, tmp_path):
    task = task_with(bank, 'parsing.leaves="words"', "parsing.rare_words=2")
    files = task.text_files(tmp_path, Corpora(bank, None, str))
    card = task.card(files)
    lexicon = card.parsing.pop("lexicon")
    assert card.parsing == {"leaves": "words", "order": "top-down", "functions": False}
    assert "the" in lexicon["words"].split(" ") and "DT" in lexicon["word_tags"].split(" ")
    assert card.trained_on == {"corpus": "treebank treebank"}


def test_a_trained_parser_validates_and_evaluates_by_f1(parser_run):
    task = task_of(read_recipe(parser_run / "small.toml"))
    model_folder = parser_run / "runs/small/model"
    files = task.text_files(parser_run / "runs/small", Corpora(parser_run, None, pytest.fail))
    parser, loaded = Parser.load(model_folder), load_model(model_folder)
    assert task.validator(files, loaded.tokenizer)(loaded.model)["f1"] > 80
    reports: list[str] = []
    dev, test = task.evaluate(model_folder, files.evaluation_sets, title="average", report=reports.append)
    assert reports == [f"Parsing {name} with the average in {parser.precision}." for name in ("dev", "section23")]
    assert (dev.n_lines, test.n_lines, dev.perplexity) == (20, 20, None)
    assert test.scores == parsing_scores(parser, gold_trees(files.tests["section23"][0]))
    assert test.scores["f1"].value >= test.scores["f1_of_all_gold"].value > 80
