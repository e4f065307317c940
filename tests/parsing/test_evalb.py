"""EVALB's rules: by hand, and against PYEVALB and, where it is installed, EVALB itself."""

import json
import random
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PYEVALB import parser as reference_parser
from PYEVALB.scorer import Scorer

from heed.config import shown
from heed.data.reading.lines import read_lines
from heed.errors import HeedError
from heed.parsing.evalb import Params, _crossing, evalb, read_pairs_of_trees, read_params
from heed.parsing.trees import MAX_DEPTH, Tree, read_trees, restore
from tests.apps.documents.translators import within_seconds
from tests.parsing.corpus import parse_tree
from tests.parsing.damage import damaged

GOLD = "(TOP (S (NP (DT The) (NN dog)) (VP (VBD ran) (ADVP (RB away)) (PP (IN from) (NP (NNP Kim)))) (. .)))"


def score(gold: str, predicted: str, params: Params | None = None):
    return evalb([(parse_tree(gold), parse_tree(predicted))], params).all


def written(folder: Path):
    """The pairs of the folder's files gold and parsed."""
    return read_pairs_of_trees(folder / "gold", read_lines(folder / "parsed"), name="parsed", report=pytest.fail)[0]


def test_the_same_tree_is_complete():
    counts = score(GOLD, GOLD)
    assert (counts.matched, counts.gold, counts.predicted, counts.complete) == (6, 6, 6, 1)
    assert (counts.words, counts.right_tags, counts.crossing) == (6, 6, 0)  # the full stop is deleted, TOP as well


def test_by_hand():
    # PP hangs lower (crossing nothing), ADVP is called PRT, which is the same, Kim has another tag.
    predicted = "(TOP (S (NP (DT The) (NN dog)) (VP (VBD ran) (PRT (RB away)) (PP (IN from) (S (NN Kim)))) (. .)))"
    counts = score(GOLD, predicted)
    assert (counts.matched, counts.gold, counts.predicted, counts.complete) == (5, 6, 6, 0)
    assert counts.right_tags == 5
    numbers = counts.numbers()
    assert numbers["recall"] == numbers["precision"] == numbers["f1"] == pytest.approx(100 * 5 / 6)


SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)).map(lambda at: (at[0], sum(at))), max_size=12)


@given(SPANS, SPANS)
def test_crossing_is_counted_as_it_is_defined(predicted, gold):
    def cross(a: int, b: int, c: int, d: int) -> bool:
        return c < a < d < b or a < c < b < d

    assert _crossing(predicted, gold) == sum(any(cross(*ours, *theirs) for theirs in gold) for ours in predicted)


@pytest.mark.slow
def test_a_sentence_of_sixty_thousand_constituents_takes_seconds():
    n = 60_000
    gold = parse_tree("(TOP (S " + "(NP (NN a) (NN b)) " * n + "))")
    shifted = parse_tree("(TOP (S (NN a) " + "(NP (NN b) (NN a)) " * (n - 1) + "(NN b)))")
    with within_seconds(30):  # comparing each with each would take minutes
        counts = evalb([(gold, shifted)]).all
    assert (counts.gold, counts.predicted, counts.matched, counts.crossing) == (n + 1, n, 1, n - 1)


@pytest.mark.slow
def test_ten_thousand_equal_labels_take_no_longer():
    labels = [f"L{i}" for i in range(10_000)]
    params = Params(equal_labels=frozenset(pairwise(labels)))
    gold = parse_tree("(TOP " + "".join(f"({label} (NN a)) " for label in labels) + ")")
    shifted = parse_tree("(TOP " + "".join(f"({label} (NN a)) " for label in (*labels[1:], "X")) + ")")
    with within_seconds(30):
        assert evalb([(gold, shifted)], params).all.matched == 9_999


def test_a_tree_that_a_model_writes_can_be_read_again():
    def nested(depth: int) -> list[str]:
        return ["(S"] * depth + ["NN"] + [")S"] * depth

    deepest = restore(["a"], nested(MAX_DEPTH - 2))  # with TOP's and the word's
    assert parse_tree(str(deepest)) == deepest
    for depth in (MAX_DEPTH - 1, 5000):
        with pytest.raises(ValueError, match="deeper than 200"):
            restore(["a"], nested(depth))


@pytest.mark.parametrize(
    "line",
    ["(" * 10**5, "(S " * 10**5, ")" * 10**5, "()" * 10**5, "(NN a) " * 10**5, "x" * 10**6, f"({'x' * 10**6})",
     f"(NN a {'x' * 10**6})", f"(NN {'x' * 10**6})"],
)  # fmt: skip
def test_a_line_that_is_no_tree_is_an_error_of_one_short_line(tmp_path, line):
    (tmp_path / "gold").write_text("(TOP (NN a))\n")
    (tmp_path / "parsed").write_text(f"{line}\n")
    found = evalb(written(tmp_path))
    ((_, counts, why),) = found.each
    assert counts.errors == 1 and 0 < len(why) < 200 and "\n" not in why


def test_a_bracket_is_used_once():
    twice = score("(TOP (NP (NP (NN a))))", "(TOP (NP (NN a)))")
    assert (twice.matched, twice.gold, twice.predicted) == (1, 2, 1)


def test_brackets_of_deleted_words_only_do_not_count():
    counts = score("(TOP (S (NP (NN a)) (X (. .))))", "(TOP (S (NP (NN a)) (. .)))")
    assert (counts.matched, counts.gold, counts.predicted) == (2, 2, 2)


def test_function_tags_do_not_count():
    assert score("(TOP (S (NP-SBJ-1 (NN a)) (VP (VB b))))", "(TOP (S (NP (NN a)) (VP=2 (VB b))))").complete == 1


def test_other_words_are_errors_no_tree_is_skipped_and_neither_counts():
    pairs = [(parse_tree(GOLD), prediction) for prediction in (parse_tree("(TOP (NN x))"), None, "broken")]
    found = evalb([*pairs, (parse_tree(GOLD), parse_tree(GOLD))])
    assert (found.all.sentences, found.all.errors, found.all.skipped, found.all.gold) == (4, 2, 1, 6)
    assert found.f1 == 100
    assert found.strict_f1 == pytest.approx(2 * 100 * 25 / 125)
    assert [why for _, _, why in found.each] == ["1 words, expected 6", "", "broken", ""]


def test_punctuation_in_one_tree_only_is_an_error():
    assert score("(TOP (S (NN a) (. .)))", "(TOP (S (NN a) (NN .)))").errors == 1


def test_gold_without_words_is_counted_as_evalb_does(tmp_path):
    """Checked with EVALB itself: a blank line is skipped, so are traces of which nothing is predicted."""
    traces = "(TOP (S (NP (-NONE- *))))"
    (tmp_path / "gold").write_text(f"{GOLD}\n\n{traces}\n{traces}\n{GOLD}\n")
    (tmp_path / "parsed").write_text(f"{GOLD}\n\n(TOP (NN a))\n\n{GOLD}\n")
    found = evalb(written(tmp_path)).all
    assert (found.sentences, found.errors, found.skipped, found.valid) == (5, 1, 2, 2)
    (tmp_path / "gold").write_text(GOLD.replace("(VP", "\n  (VP") + "\n" + GOLD)  # over lines: pairs are by place
    (tmp_path / "parsed").write_text(f"{GOLD}\n{GOLD}\n\n")
    assert evalb(written(tmp_path)).all.complete == 2


def test_a_quotation_mark_that_one_tree_takes_for_an_apostrophe_stays_in_both():
    gold, predicted = "(S (NP (NNS dogs) ('' ')) (VP (VB run)))", "(S (NP (NNS dogs) (POS ')) (VP (VB run)))"
    assert score(gold, predicted).errors == 1
    counts = score(gold, predicted, Params(quotes=frozenset(["''", "POS"])))
    assert (counts.errors, counts.matched, counts.words, counts.right_tags) == (0, 3, 3, 2)


def test_quotation_marks_that_both_trees_delete_stay_deleted():
    """As in EVALB's fix_quote, which puts back what one side alone has deleted."""
    params = Params(deleted=frozenset(["``", "''"]), quotes=frozenset(["``", "''", "POS"]))
    gold = "(S (NP (PRN (`` \")) (NN a) (NNS dogs) ('' ')) (VP (VB run)))"
    predicted = "(S (NP ('' \") (NN a) (NNS dogs) (POS ')) (VP (VB run)))"
    counts = score(gold, predicted, params)
    assert (counts.matched, counts.gold, counts.predicted, counts.words, counts.right_tags) == (3, 3, 3, 4, 3)


def test_length_counts_punctuation():
    long = "(TOP (S " + "(NN a) " * 40 + "(. .)))"
    found = evalb([(parse_tree(long), parse_tree(long)), (parse_tree(GOLD), parse_tree(GOLD))])
    assert (found.all.sentences, found.short.sentences) == (2, 1)


def test_parameters_are_read_and_faults_named(tmp_path):
    path = tmp_path / "own.prm"
    path.write_text("# own\nLABELED 0\nCUTOFF_LEN 10\nDELETE_LABEL TOP\nEQ_LABEL A B\nEQ_WORD This this\n")
    params = read_params(path)
    assert params == Params(
        deleted=frozenset(["TOP"]),
        deleted_for_length=frozenset(),
        equal_labels=frozenset([("A", "B")]),
        equal_words=frozenset([("This", "this")]),
        labelled=False,
        cutoff=10,
    )
    assert score("(TOP (X (NN This)))", "(TOP (Y (NN this)))", params).matched == 1
    for text, part in (
        ("FOO 1", "line 1: unknown parameter FOO"),
        ("\nEQ_LABEL A", "line 2: EQ_LABEL takes 2"),
        ("CUTOFF_LEN ²", "line 1: CUTOFF_LEN takes a number of up to 9 digits, found '²'"),
        ("CUTOFF_LEN ٣", "line 1: CUTOFF_LEN takes a number"),
        ("\nCUTOFF_LEN " + "9" * 5000, r"line 2: CUTOFF_LEN takes a number of up to 9 digits, found '9+…"),
        ("CUTOFF_LEN -1", "takes a number"),
        ("LABELED ²", "line 1: LABELED takes a number"),
        ("LABELED " + "1" * 5000, "line 1: LABELED takes a number"),
        ("X" * 10**6, "line 1: unknown parameter X+…;"),
    ):
        path.write_text(text)
        with pytest.raises(HeedError, match=part) as caught:
            read_params(path)
        assert len(str(caught.value)) < 400


def made_trees(n_trees: int, rng: random.Random) -> list[Tree]:
    """Random trees with labels and tags of English, without brackets of one label over one span."""

    def grown(depth: int, above: str) -> Tree:
        if depth == 0 or rng.random() < 0.2:
            return Tree(rng.choice(("NN", "VB", "DT", "IN", ",", ".")), word=rng.choice("abcde"))
        label = rng.choice([label for label in ("S", "NP", "VP", "PP", "ADVP", "PRT") if label != above])
        return Tree(label, tuple(grown(depth - 1, label) for _ in range(rng.randint(1, 4))))

    return [Tree("TOP", (Tree("S", tuple(grown(4, "S") for _ in range(rng.randint(2, 4)))),)) for _ in range(n_trees)]


def without_deleted(tree: Tree, params: Params) -> Tree | None:
    """What EVALB looks at, as a tree: PYEVALB deletes nothing by itself."""
    if tree.word is not None:
        return None if tree.label in params.deleted else tree
    children = tuple(kept for child in tree.children if (kept := without_deleted(child, params)))
    return Tree(tree.label.replace("PRT", "ADVP"), children) if children else None


def has_a_bracket_twice(tree: Tree) -> bool:
    found = []

    def visit(node: Tree, start: int) -> int:
        end = start + 1 if node.word is not None else start
        for child in node.children:
            end = visit(child, end)
        if node.word is None:
            found.append((node.label, start, end))
        return end

    visit(tree, 0)
    return len(found) != len(set(found))


@pytest.mark.slow
def test_agrees_with_pyevalb_on_a_thousand_damaged_trees():
    rng, params, scorer = random.Random(5), Params(), Scorer()
    compared, sums = [], [0, 0, 0, 0, 0]
    for gold in made_trees(4000, rng):
        predicted = damaged(gold, rng)
        bare = [without_deleted(tree, params) for tree in (gold, predicted)]
        # PYEVALB counts a bracket that stands twice once.
        if None in bare or any(has_a_bracket_twice(tree) for tree in bare) or len({len(t.words()) for t in bare}) > 1:
            continue
        # Without TOP, which COLLINS.prm deletes: its only child is the root there.
        roots = [tree.children[0] for tree in bare if len(tree.children) == 1]
        texts = [str(root) for root in roots if root.word is None]
        if len(texts) < 2 or bare[0].words() != bare[1].words():
            continue
        theirs = scorer.score_trees(*map(reference_parser.create_from_bracket_string, texts))
        ours = evalb([(gold, predicted)], params).all
        expected = (theirs.matched_brackets, theirs.gold_brackets, theirs.test_brackets, theirs.cross_brackets)
        assert (ours.matched, ours.gold, ours.predicted, ours.crossing) == expected, (str(gold), str(predicted))
        assert (ours.words, ours.right_tags) == (theirs.words, theirs.correct_tags)
        sums = [a + b for a, b in zip(sums, (*expected[:3], theirs.words, theirs.correct_tags), strict=True)]
        compared.append((gold, predicted))
    assert len(compared) >= 1000
    numbers = evalb(compared).all.numbers()
    assert round(numbers["recall"], 2) == round(100 * sums[0] / sums[1], 2)
    assert round(numbers["precision"], 2) == round(100 * sums[0] / sums[2], 2)
    assert round(numbers["tagging_accuracy"], 2) == round(100 * sums[4] / sums[3], 2)
    assert 50 < numbers["f1"] < 95  # they were damaged


@pytest.mark.parametrize("label", ["ROOT", "S1", "VROOT", "TOP", ""])
def test_a_root_that_no_label_deletes_counts_if_asked_for_as_in_pyevalb(tmp_path, label):
    rng, scorer = random.Random(9), Scorer()
    pairs = [(gold, damaged(gold, rng)) for gold in made_trees(60, rng)]
    kept = []
    for pair in pairs:
        bare = [without_deleted(tree, Params()) for tree in pair]
        if None not in bare and len({tuple(tree.words()) for tree in bare}) == 1:
            kept.append((pair, bare))
    for name, side in (("gold", 0), ("parsed", 1)):
        lines = (str(pair[side]).replace("(TOP", f"({label}", 1) for pair, _ in kept)
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    read = written(tmp_path)
    found = {count: evalb(read, Params(count_root=count)) for count in (False, True)}
    cleaned = evalb([pair for pair, _ in kept])
    n_roots = 0 if label == "TOP" else 2 * len(kept)
    assert found[False].all == cleaned.all and found[False].roots_left_out.total() == n_roots
    assert found[True].roots_left_out.total() == 0
    compared = 0
    for (_, bare), (_, without, _), (_, counted, _) in zip(kept, found[False].each, found[True].each, strict=True):
        added = 0 if label == "TOP" else 1
        assert [counted.gold, counted.predicted, counted.matched] == [
            n + added for n in (without.gold, without.predicted, without.matched)
        ]
        if label in ("", "TOP") or any(has_a_bracket_twice(tree) for tree in bare):
            continue  # PYEVALB reads no bracket without a label, and deletes nothing
        texts = [str(Tree(label, tree.children)) for tree in bare]
        theirs = scorer.score_trees(*map(reference_parser.create_from_bracket_string, texts))
        assert (counted.matched, counted.gold, counted.predicted, counted.crossing) == (
            theirs.matched_brackets, theirs.gold_brackets, theirs.test_brackets, theirs.cross_brackets,
        )  # fmt: skip
        compared += 1
    assert compared > 15 or label in ("", "TOP")


def test_several_trees_in_a_line_have_a_root_each(tmp_path):
    (tmp_path / "gold").write_text("(ROOT (S (A (P this)) (B (Q is))))\n")
    (tmp_path / "parsed").write_text("(ROOT (A (P this))) (ROOT (Q is))\n")
    read = written(tmp_path)
    for count, expected in ((False, (1, 3, 1)), (True, (1, 4, 3))):
        counts = evalb(read, Params(count_root=count)).all
        assert (counts.matched, counts.gold, counts.predicted) == expected


@pytest.mark.parametrize("root", ["TOP", "ROOT", "S1"])
def test_agrees_with_evalb_itself(tmp_path, data_folder, root):
    program = shutil.which("evalb")
    if program is None:
        pytest.skip("no evalb on the path")
    rng = random.Random(1)
    gold = [tree for tree in read_trees(data_folder / "gum" / "dev.ptb.gz") if len(str(tree)) < 2000]
    lines = [str(damaged(tree, rng)) for tree in gold]
    for i in rng.sample(range(len(lines)), 40):
        lines[i] = rng.choice(["", "(TOP (S (NN x)))"])
    for name, trees in (("gold", gold), ("parsed", lines)):
        (tmp_path / name).write_text("".join(f"{tree}\n".replace("(TOP", f"({root}", 1) for tree in trees))
    collins = "CUTOFF_LEN 40\nLABELED 1\nDELETE_LABEL_FOR_LENGTH -NONE-\nEQ_LABEL ADVP PRT\n"
    collins += "".join(f"DELETE_LABEL {label}\n" for label in Params().deleted)
    (tmp_path / "collins.prm").write_text(collins)
    command = [program, "-p", "collins.prm", "-e", "100000", "gold", "parsed"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    params = replace(read_params(tmp_path / "collins.prm"), count_root=True)
    found = evalb(written(tmp_path), params)
    for ours, summary in zip((found.all, found.short), shown.split("Number of sentence")[1:], strict=True):
        theirs = [float(value) for value in re.findall(r"= +([\d.]+)", summary)]
        numbers = ours.numbers()
        assert theirs[:4] == [ours.sentences, ours.errors, ours.skipped, ours.valid]
        names = ("recall", "precision", "f1", "complete_match", "average_crossing", "no_crossing")
        names += ("two_or_less_crossing", "tagging_accuracy")
        assert theirs[4:] == [pytest.approx(numbers[name], abs=0.006) for name in names]


def test_a_gold_tree_that_cannot_be_used_leaves_out_its_pair(tmp_path, heed):
    deep = "(TOP " + "(X " * MAX_DEPTH + "(NN a)" + ")" * (MAX_DEPTH + 1)
    pretty = GOLD.replace(" (VP", "\n  (VP")
    layouts = {
        "a line each": (f"{GOLD}\n{deep}\n{GOLD}\n\n", f"{GOLD}\n{deep}\n(TOP (NN x))\n\n", 1, 2, 3),
        "over lines": (f"*x*x*\n*x* LDC\n\n{pretty}\n{deep}\n{pretty}", f"# parsed\n{GOLD}\n\n(TOP (NN x))", 0, 6, 4),
    }
    for gold, parsed, skipped, line, line_of_error in layouts.values():
        (tmp_path / "gold").write_text(gold)
        (tmp_path / "parsed").write_text(parsed)
        done = heed("evalb", "gold", "parsed", cwd=tmp_path)
        assert done.stderr.splitlines() == [
            f"gold, line {line}, column 603: brackets nested deeper than 200; the pair is left out.",
            f"parsed, line {line_of_error}: 1 words, expected 6.",
            f"Left out: 1 of {3 + skipped} pairs, whose gold trees cannot be used.",
        ]
        assert re.search(r"^  left out +1 +0$", done.stdout, re.MULTILINE)
        scores = json.loads(heed("evalb", "gold", "parsed", "--json", "--verbose", cwd=tmp_path).stdout)["all"]
        counts = [scores[name] for name in ("sentences", "errors", "skipped", "left_out", "f1", "complete_match")]
        assert counts == [3 + skipped, 1, skipped, 1, 100, 100]
    (tmp_path / "gold").write_text(f"{deep}\n")
    done = heed("evalb", "gold", "gold", cwd=tmp_path)
    assert done.returncode == 1 and "nested deeper than 200; there is no other tree to score." in done.stderr


def test_text_between_gold_trees_is_named_and_no_pair(tmp_path):
    (tmp_path / "gold").write_text(f"a header\nof two lines\n{GOLD}\n# a comment\n{GOLD}\n")
    (tmp_path / "parsed").write_text(f"# one more\n{GOLD}\n{GOLD}\n")
    said: list[str] = []
    path = tmp_path / "gold"
    pairs, lines = read_pairs_of_trees(path, read_lines(tmp_path / "parsed"), name="parsed", report=said.append)
    assert evalb(pairs).all.complete == 2 and lines == [2, 3]
    assert said == [f"{path}, line 1, column 1: 'a' outside of brackets; skipped."]


def test_a_comment_in_place_of_a_prediction_skips_its_sentence(tmp_path):
    (tmp_path / "gold").write_text(f"# gold\n{GOLD}\n{GOLD}\n\n")
    (tmp_path / "parsed").write_text(f"\n# no parse\n{GOLD}\n# the end\n")
    found = evalb(written(tmp_path)).all
    assert (found.sentences, found.skipped, found.complete) == (2, 1, 1)


@pytest.mark.parametrize(
    ("word", "expected", "difference"),
    [
        ("cafe\u0301", "caf\u00e9", " (from character 4: U+0065 U+0301, expected U+00E9)"),
        ("p\u0430y", "pay", " (from character 2: U+0430, expected U+0061)"),
        ("dog\u200b", "dog", " (from character 4: U+200B, expected nothing)"),
        ("x" * 100 + "a", "x" * 100 + "b", " (from character 101: U+0061, expected U+0062)"),
        ("cat", "dog", ""),
    ],
)
def test_the_difference_between_words_that_look_alike_is_shown(word, expected, difference):
    ((_, _, why),) = evalb([(parse_tree(f"(TOP (NN {expected}))"), parse_tree(f"(TOP (NN {word}))"))]).each
    assert why == f"the word {shown(word)}, expected {shown(expected)}{difference}"


@given(st.text(min_size=1), st.text(min_size=1))
def test_an_error_never_names_two_words_alike(word, expected):
    if word != expected:
        ((_, _, why),) = evalb(
            [(Tree("TOP", (Tree("NN", word=expected),)), Tree("TOP", (Tree("NN", word=word),)))]
        ).each
        found, _, rest = why.removeprefix("the word ").partition(", expected ")
        assert found != rest and len(why) < 600


def test_command_line(tmp_path, heed):
    (tmp_path / "gold").write_text(f"{GOLD}\n{GOLD}\n{GOLD}\n")
    (tmp_path / "parsed").write_text(f"{GOLD}\n\n{GOLD[:-1]}\n")
    done = heed("evalb", "gold", "parsed", "--json", "--verbose", cwd=tmp_path)
    found = json.loads(done.stdout)
    for part in ("all", "len40"):
        assert {"recall", "precision", "f1", "complete_match", "tagging_accuracy"} <= found[part].keys()
        assert (found[part]["sentences"], found[part]["errors"], found[part]["skipped"]) == (3, 1, 1)
    assert "never closed" in found["each"][2]["error"]
    assert done.stderr == "parsed, line 3: column 1, this bracket is never closed.\n"
    from_pipe = heed("evalb", "gold", "-", "--verbose", stdin=(tmp_path / "parsed").read_text(), cwd=tmp_path)
    assert from_pipe.stderr == "standard input, line 3: column 1, this bracket is never closed.\n"
    shown = from_pipe.stdout
    assert "skipped" in shown and "EVALB, COLLINS.prm" in shown and "count as missed: 50.00" in shown
    assert "Not counted" not in shown and found["roots_left_out"] == {}
    (tmp_path / "gold").write_text(GOLD.replace("TOP", "ROOT") + "\n")
    (tmp_path / "parsed").write_text(GOLD.replace("TOP", "ROOT").replace("PP", "NP") + "\n")
    for options, n, told in (([], 6, {"ROOT": 2}), (["--count-root"], 7, {})):
        scores = json.loads(heed("evalb", "gold", "parsed", "--json", *options, cwd=tmp_path).stdout)
        assert scores["all"]["f1"] == pytest.approx(100 * (n - 1) / n) and scores["roots_left_out"] == told
        assert scores["signature"] == "EVALB, COLLINS.prm" + ", root counted" * bool(options)
        shown = heed("evalb", "gold", "parsed", *options, cwd=tmp_path).stdout
        assert ("Not counted: 2 roots (ROOT) of gold and predicted trees" in shown) == (not options)
    for gold, parsed, part in (
        ("(TOP (S\n", "", "gold, line 1, column 1: this bracket is never closed"),
        (f"{GOLD}\n", f"{GOLD}\n{GOLD}\n", "has 1 trees, parsed 2 lines"),
        ("", "", "no tree to score"),
    ):
        (tmp_path / "gold").write_text(gold)
        (tmp_path / "parsed").write_text(parsed)
        bad = heed("evalb", "gold", "parsed", cwd=tmp_path)
        assert bad.returncode == 1 and part in bad.stderr and "Traceback" not in bad.stderr
