"""Table 4: what is published, and what says which treebank a figure is of."""

import json

from tests.end_to_end.test_command_line import assert_one_clear_line

from heed.apps.paper.table4 import PUBLISHED, page


def test_the_papers_rows():
    ours = [row.f1 for row in PUBLISHED if row.parser.startswith("Transformer")]
    assert len(PUBLISHED) == 12 and ours == [91.3, 92.7]


def test_without_a_run_the_page_says_how_to_measure(tmp_path):
    text = page(tmp_path).text
    assert "heed paper table4 --run --treebank FOLDER" in text and "Not measured on GUM yet" in text


def test_the_default_recipes_are_those_that_come_with_heed(tmp_path, heed):
    """They are found, so that the first thing missing is their data."""
    for table, missing in (("table3", "train.lc.norm.tok.en"), ("table4", "treebank gum: no folder")):
        assert_one_clear_line(heed("paper", table, "--run", "--mirror", tmp_path, cwd=tmp_path), missing)


def test_a_page_and_its_numbers_are_not_asked_for_at_once(tmp_path, heed):
    for table in ("table1", "table2", "table3", "table4", "equations"):
        done = heed("paper", table, "--json", "--out", tmp_path)
        assert_one_clear_line(done, "--out writes a page, --json prints its numbers instead")


def test_options_that_would_have_no_effect_are_refused(tmp_path, heed):
    assert_one_clear_line(heed("paper", "all", "--out", tmp_path, "--lower"), "--src and --lower", "need --model")
    for name in (["table4"], ["all", "--out", tmp_path]):
        assert_one_clear_line(heed("paper", *name, "--folder", tmp_path / "none"), "--folder", "there is no folder")
    for table in ("table3", "table4"):
        assert_one_clear_line(heed("paper", table, "--mirror", tmp_path), "--mirror", "need --run")
    (tmp_path / "equations-mine.svg").write_text("mine")
    assert_one_clear_line(heed("paper", "equations", "--out", tmp_path), "equations-mine.svg: not made by")


def test_a_run_is_shown_with_its_treebank(tmp_path, parser_run, heed):
    (tmp_path / "parsing-gum").symlink_to(parser_run / "runs" / "small")
    found = json.loads(heed("paper", "table4", "--folder", tmp_path, "--json").stdout)["parsers"]
    assert [parser["trained_on"]["corpus"] for parser in found] == ["treebank treebank"]
    text = page(tmp_path).text
    assert "| **Heed, `parsing-gum`** | GUM only | GUM section23 | F1 " in text and "sentences left out" in text
    assert "corpus: treebank treebank" in text and "not comparable" in text
    assert_one_clear_line(heed("paper", "table4", "--treebank", "x"), "need --run")
    assert_one_clear_line(heed("paper", "table4", "--run", "--recipe", "mine"), "--recipe mine: expected one of")
    (tmp_path / "parsing-gum").rename(tmp_path / "parsing-wsj")
    assert "not comparable" not in page(tmp_path).text
