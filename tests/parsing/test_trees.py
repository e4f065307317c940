"""Brackets are read and written; a tree and its symbols are the same thing; faults are named where they are."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.errors import HeedError
from heed.parsing.trees import (
    MAX_DEPTH,
    ROOT,
    BadTree,
    Tree,
    category,
    clean,
    depth,
    linearise,
    parse_trees,
    plain,
    read_trees,
    restore,
    sentence,
)
from tests.parsing.corpus import parse_tree

DOG = "(TOP (S (NP (DT The) (NN dog)) (VP (VBD ran)) (. .)))"
# What a label or a word can hold: anything that neither ends a token nor is a bracket.
TOKENS = st.text(st.characters(exclude_characters="() \t\r\n\f\v", exclude_categories=["Cs"]), min_size=1, max_size=6)
LABELS = st.one_of(st.sampled_from(["NP", "VP-TMP", "-LRB-", "XX", "NP=2", "S", "▁NN", "_▁NN", "_"]), TOKENS)
WORDS = st.one_of(
    st.sampled_from(["-LRB-", "1\\/2", "a/b", "XX", "=", "[", "'", "no\u00a0break", "▁", "\\\\/"]), TOKENS
)
LEAVES = st.builds(lambda label, word: Tree(label, word=word), LABELS, WORDS)
CONSTITUENTS = st.recursive(
    LEAVES,
    lambda children: st.builds(Tree, LABELS, st.lists(children, min_size=1, max_size=4).map(tuple)),
    max_leaves=12,
)
TREES = st.lists(CONSTITUENTS, min_size=1, max_size=3).map(lambda children: Tree(ROOT, tuple(children)))


@given(TREES)
def test_symbols_and_words_give_the_tree_back(tree):
    words = tree.words()
    assert restore(words, linearise(tree)) == tree
    tags = [leaf.label for leaf in tree.leaves()]
    assert restore(words, linearise(tree, "single"), tags) == tree
    assert restore(words, linearise(tree, "words")) == tree
    for leaves in ("tags", "words"):
        assert restore(words, linearise(tree, leaves, order="in-order"), order="in-order") == tree


@given(TREES)
def test_a_written_tree_is_read_as_it_was(tree):
    if all(leaf.label != "-NONE-" for leaf in tree.leaves()):
        assert parse_tree(str(tree)) == tree


@given(TREES, st.data())
def test_symbols_of_another_sentence_or_with_one_lost_are_refused(tree, data):
    order = data.draw(st.sampled_from(["top-down", "in-order"]))
    words, symbols = tree.words(), linearise(tree, order=order)
    with pytest.raises(ValueError):
        restore([*words, "more"], symbols, order=order)
    lost = data.draw(st.integers(0, len(symbols) - 1))
    with pytest.raises(ValueError):
        restore(words, symbols[:lost] + symbols[lost + 1 :], order=order)


def test_linearisation_is_the_one_of_vinyals_and_kaiser():
    tree = parse_tree(DOG)
    assert linearise(tree) == ["(S", "(NP", "DT", "NN", ")NP", "(VP", "VBD", ")VP", ".", ")S"]
    copied = "(S (NP ▁The DT ▁dog NN )NP (VP ▁ran VBD )VP ▁. . )S"
    assert linearise(tree, "words") == copied.split()
    assert linearise(tree, "single") == ["(S", "(NP", "XX", "XX", ")NP", "(VP", "XX", ")VP", ".", ")S"]


def test_in_order_a_label_is_written_behind_the_first_child():
    tree = parse_tree(DOG)
    assert linearise(tree, order="in-order") == ["DT", "(NP", "NN", ")NP", "(S", "VBD", "(VP", ")VP", ".", ")S"]
    for symbols in ("(NP DT )NP", "DT (NP (S )S )NP", "DT (NP )NP )NP", "DT (NP"):
        with pytest.raises(ValueError):
            restore(["the"], symbols.split(), order="in-order")


def test_no_tree_is_deeper_than_may_be_read():
    unary = ["(S", ")S"]
    assert depth(restore(["a"], ["NN", *unary * (MAX_DEPTH - 2)], order="in-order")) == MAX_DEPTH
    with pytest.raises(ValueError, match="nested deeper"):
        restore(["a"], ["NN", *unary * (MAX_DEPTH - 1)], order="in-order")


@pytest.mark.parametrize("root", ["", "TOP", "ROOT", "S1", "VROOT", "ROOT-0"])
def test_roots_of_all_kinds_are_top(root):
    assert parse_tree(DOG.replace("TOP", root)) == parse_tree(DOG)


def test_a_tree_without_a_root_gets_one():
    assert parse_tree("(S (NP (NN x)))") == parse_tree("(TOP (S (NP (NN x))))")
    assert parse_tree("(NN x)") == Tree(ROOT, (Tree("NN", word="x"),))


def test_traces_go_with_what_they_leave_empty_and_function_tags_if_asked():
    text = "( (S (NP-SBJ-1 (NNP Kim)) (VP (VBZ likes) (NP=2 (-NONE- *T*-1)) (ADVP-TMP (RB now)))))"
    tree = parse_tree(text)
    assert str(tree) == "(TOP (S (NP-SBJ-1 (NNP Kim)) (VP (VBZ likes) (ADVP-TMP (RB now)))))"
    assert str(clean(tree, functions=False)) == "(TOP (S (NP (NNP Kim)) (VP (VBZ likes) (ADVP (RB now)))))"
    assert parse_tree("(TOP (S (NP (-NONE- *))))") is None
    assert [category(label) for label in ("NP-SBJ", "NP=2", "-LRB-", "PRT|ADVP")] == ["NP", "NP", "-LRB-", "PRT|ADVP"]
    features = parse_tree("(TOP (NP##fct=suj## (N##lemma=chat|g=m## chat) (## #)))")
    assert str(clean(features, functions=False)) == "(TOP (NP (N chat) (## #)))"


def test_unary_chains_stay():
    text = "(TOP (S (VP (VB Go))))"
    assert str(parse_tree(text)) == text


def test_the_model_reads_plain_words():
    assert sentence(["-LRB-", "1\\/2", "\\*", "a", "-RRB-"]) == "( 1/2 * a )"
    assert plain("and/or") == "and/or"
    assert str(Tree("NN", word="f(x)")) == "(NN f-LRB-x-RRB-)"


def test_trees_over_many_lines_and_a_line_each_zipped_or_not(tmp_path):
    pretty = "\n( (S (NP (NN a))\n     (VP (VB b)) )\n)\n\n( (X (NN c)))\n"
    expected = ["(TOP (S (NP (NN a)) (VP (VB b))))", "(TOP (X (NN c)))"]
    (tmp_path / "t.mrg").write_text(pretty)
    (tmp_path / "t.ptb.gz").write_bytes(gzip.compress("\n".join(expected).encode()))
    for name in ("t.mrg", "t.ptb.gz"):
        assert [str(tree) for tree in read_trees(tmp_path / name)] == expected


@pytest.mark.parametrize(
    ("text", "line", "column", "part"),
    [
        ("(TOP (NN a))\n(TOP (S (NN b))", 2, 1, "never closed"),
        (
            "( (S (NN a))\n( (S (NN b)))",
            1,
            1,
            "never closed; the first fault within: line 2, column 1, a bracket without",
        ),
        ("(TOP (NN a)))", 1, 13, "not opened"),
        ("(TOP\n (S ))", 2, 2, "(S) is empty; expected (TAG word); its tree spans lines 1 to 2."),
        ("(TOP (NN a b))", 1, 12, "'b' beside"),
        ("(TOP ((NN a)))", 1, 6, "without a label"),
        ("(TOP (NN a (X b)))", 1, 12, "after the word"),
        ("word", 1, 1, "outside of brackets"),
        ("()", 1, 1, "empty bracket"),
        ("(TOP (-LRB- ())", 1, 1, "column 13, an empty bracket; as a word, ( is written -LRB-"),
        (
            "(TOP " + "(S " * 300,
            1,
            1,
            f"never closed; the first fault within: line 1, column {5 + 3 * 199 + 1}, brackets",
        ),
    ],
)
def test_a_fault_is_named_with_file_line_and_column(tmp_path, text, line, column, part):
    path = tmp_path / "bad.mrg"
    path.write_text(text)
    with pytest.raises(HeedError) as caught:
        list(read_trees(path))
    assert f"bad.mrg, line {line}, column {column}: " in str(caught.value)
    assert part in str(caught.value)


def nested(depth: int, root: str = "TOP") -> str:
    """A tree of `depth` brackets within one another."""
    return f"({root} " + "(X " * (depth - 2) + "(NN a)" + ")" * (depth - 1)


UNUSABLE = {
    nested(MAX_DEPTH + 1): "brackets nested deeper than 200",
    nested(MAX_DEPTH, root="S"): "brackets nested deeper than 200",  # with TOP above it
    "(TOP (NP (NN a) (HYPH )))": "(HYPH) is empty; expected (TAG word)",
    "(TOP (S (NP (PRP (Dia)))))": "(Dia) is empty; expected (TAG word)",
    "(TOP (NN tea pot))": "the word 'pot' beside other contents",
    "(TOP (S ( (NN x))))": "a bracket without a label",
    "(TOP (NP (-LRB- () (NN a) (-RRB- ))))": "an empty bracket; as a word, ( is written -LRB-",
}
COMMENTS = [
    "", " ", "*x*x*x*x*x*", "*x*  Copyright (C) 1995  *x*", "<S ID=5>", "</S>", "<DATE> 1994-01-01 </DATE>",
    "<DOCTYPE SOURCE=\"wire (a)\"> chtb_0001 </DOCTYPE>", "#1", " # (NN a)", "%% Sent 1", "; Lisp's", "\ufeff",
]  # fmt: skip


@given(st.lists(st.one_of(CONSTITUENTS, st.sampled_from([*UNUSABLE, *COMMENTS])), max_size=8), st.data())
def test_what_is_not_a_tree_never_changes_the_trees_around_it(parts, data):
    """Nor does it matter whether a tree is written in one line or over several."""
    trees = [part for part in parts if isinstance(part, Tree)]
    faults = [UNUSABLE[part] for part in parts if part in UNUSABLE]
    text = ""
    for part in parts:
        between = data.draw(st.sampled_from([" ", "\n  "])) if isinstance(part, Tree) or part in UNUSABLE else " "
        text += str(part).replace(" (", f"{between}(") + "\n"
    found = list(parse_trees(text.split("\n")))
    assert [tree for tree in found if isinstance(tree, Tree)] == trees
    said = [str(tree) for tree in found if isinstance(tree, BadTree)]
    assert all(fault in message for fault, message in zip(faults, said, strict=True)), said


def test_a_tree_that_cannot_be_used_is_named_and_the_others_are_read(tmp_path):
    path = tmp_path / "t.mrg"
    faults = UNUSABLE | {"no tree, nor a comment": "'no' outside of brackets"}
    path.write_text("".join(f"<S ID={i}>\n{DOG}\n{text}\n</S>\n" for i, text in enumerate(faults)))
    said: list[str] = []
    assert list(read_trees(path, left_out=said.append)) == [parse_tree(DOG)] * len(faults)
    for i, (message, fault) in enumerate(zip(said, faults.values(), strict=True)):
        assert message.startswith(f"{path}, line {4 * i + 3}, column ") and fault in message
    path.write_text(f"{DOG}\n(TOP (NN a)\n{DOG}\n")
    with pytest.raises(HeedError, match="line 2, column 1: this bracket is never closed"):
        list(read_trees(path, left_out=said.append))


@pytest.mark.parametrize("root", ["TOP", "S"])
def test_the_deepest_tree_can_be_written_and_read_again(root):
    deepest = parse_tree(nested(MAX_DEPTH - (root == "S"), root))
    assert depth(deepest) == MAX_DEPTH and parse_tree(str(deepest)) == deepest


def test_markup_may_stand_in_the_line_of_a_tree():
    assert [str(tree) for tree in parse_trees(["<S ID=1> (S (NN a)) </S>", "\ufeff(S (NN b)) (S (NN c))<P>"])] == [
        "(S (NN a))", "(S (NN b))", "(S (NN c))",
    ]  # fmt: skip
    assert parse_tree("(S (# #) (% %) (NN <S>) (NN *x*) (NN ;))").words() == ["#", "%", "<S>", "*x*", ";"]


def test_two_trees_in_a_line_are_refused():
    with pytest.raises(BadTree):
        parse_tree("(TOP (NN a)) (TOP (NN b))")
    assert parse_tree("  ") is None


@pytest.mark.slow
def test_all_trees_of_gum_come_back(data_folder):
    n_trees = 0
    for split in ("train", "dev"):
        for tree in read_trees(data_folder / "gum" / f"{split}.ptb.gz"):
            words, tags = tree.words(), [leaf.label for leaf in tree.leaves()]
            assert restore(words, linearise(tree)) == tree
            assert restore(words, linearise(tree, "single"), tags) == tree
            assert restore(words, linearise(tree, "words")) == tree
            assert restore(words, linearise(tree, "words", order="in-order"), order="in-order") == tree
            assert parse_tree(str(tree)) == tree
            n_trees += 1
    assert n_trees == 11_799
