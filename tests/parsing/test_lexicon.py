"""Rare words are given by their class, signs have the tags that they had, and a run keeps both with its model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.errors import HeedError
from heed.model_folder import ModelCard, save_model
from heed.parsing.lexicon import NO_LEXICON, Lexicon, has_letters, word_class
from heed.parsing.parser import Parser, TreeConstraint
from heed.parsing.trees import LinearisationSettings, linearise, restore, sentence
from heed.text.tokenizer import TokenizerSettings, train_tokenizer
from tests.conftest import n_examples
from tests.parsing.corpus import parse_tree
from tests.parsing.test_parser import BEAM, random_model

TREES = [
    "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .)))",
    "(TOP (S (NP (DT the) (NN dog)) (, ,) (VP (VBZ runs)) (: .)))",
    "(TOP (S (NP (DT The) (NN dog)) (VP (VBZ barks)) (-RRB- -RRB-)))",
]
SYMBOLS = ["(NP", ")NP", "(S", ")S", "(VP", ")VP", "DT", "NN", "VBZ", ".", ":", ",", "-RRB-"]


def lexicon(min_count: int = 2, leaves="words") -> Lexicon:
    trees = [parse_tree(line) for line in TREES]
    return Lexicon.of([tree for tree in trees if tree], leaves=leaves, min_count=min_count)


def test_a_word_is_known_if_it_is_not_rare():
    found = lexicon()
    assert found.words is not None and found.words.split(" ") == [".", "barks", "dog", "the"]
    assert [found.form(word) for word in ("dog", "runs", "The", "Dog", "-LRB-")] == [
        "dog", "UnknownLowerS", "the", "dog", "UnknownSigns",
    ]  # fmt: skip
    for keeps_all in (lexicon(1), lexicon(0), NO_LEXICON):
        assert [keeps_all.form(word) for word in ("runs", "Zürich", "-LRB-")] == ["runs", "Zürich", "("]
    assert lexicon(100).form("the") == "UnknownLower"


def test_signs_have_the_tags_that_they_had_and_words_no_sign_s():
    found = lexicon()
    assert found.tags("wolf") == {"DT", "NN", "VBZ"}
    assert found.tags(".") == {".", ":"}
    assert found.tags("-RRB-") == {"-RRB-"}
    assert found.tags("…") == NO_LEXICON.tags(".") == NO_LEXICON.tags("wolf") == frozenset()  # any
    assert lexicon(leaves="single").tags("wolf") == {"XX"}


def test_an_annotation_error_is_not_learned():
    trees = ["(TOP (NP (NN dog) (. .)))"] * 150 + ["(TOP (NP (NN dog) (NNS .)))", "(TOP (NP (. dog) (. .)))"]
    found = Lexicon.of([tree for line in trees if (tree := parse_tree(line))], leaves="words", min_count=0)
    assert (found.tags("."), found.tags("wolf")) == ({"."}, {"NN"})


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("walking", "UnknownLowerIng"),
        ("Walking", "UnknownCapitalIng"),
        ("WALKING", "UnknownCapitals"),
        ("I", "UnknownCapital"),
        ("ing", "UnknownLower"),
        ("well-fed", "UnknownCompoundEd"),
        ("1,234.5", "UnknownNumber"),
        ("4th", "UnknownMixed"),
        ("½", "UnknownNumber"),
        ("a.b@c.org", "UnknownAddress"),
        ("…", "UnknownSigns"),
    ],
)
def test_classes(word, expected):
    assert word_class(word) == expected


@settings(max_examples=n_examples(200))
@given(st.text(min_size=1))
def test_every_word_has_a_class_of_letters(word):
    assert word_class(word).isascii() and word_class(word).isalpha()
    assert has_letters(word) or word_class(word) == "UnknownSigns"


def test_trees_with_classes_are_restored_with_their_words():
    tree = parse_tree("(TOP (S (NP (DT The) (NN wolf)) (VP (VBZ howls)) (. .)))")
    assert tree is not None
    form = lexicon().form
    symbols = linearise(tree, "words", form)
    assert "▁UnknownLower" in symbols and "▁wolf" not in symbols
    assert sentence(tree.words(), form) == "the UnknownLower UnknownLowerS ."
    assert restore(tree.words(), symbols, form=form) == tree
    with pytest.raises(ValueError):
        restore(tree.words(), symbols)


@pytest.mark.slow
@pytest.mark.parametrize("leaves", ["tags", "words"])
def test_every_leaf_of_a_random_model_has_a_tag_that_it_may_have(leaves):
    tokenizer = train_tokenizer(["the dog runs UnknownLower"] * 3, TokenizerSettings(vocab_size=600), SYMBOLS)
    found = lexicon(leaves=leaves)
    words = ["the", "wolf", ",", "howls", "-RRB-", "…", "."]
    for seed in range(5):
        model = random_model(len(tokenizer), seed)
        parser = Parser(model, tokenizer, BEAM, LinearisationSettings(leaves=leaves), lexicon=found, precision="fp32")
        for parse in parser.parse([words, words[::-1]]):
            assert parse.tree is not None
            for leaf in parse.tree.leaves():
                assert leaf.word is not None
                allowed = found.tags(leaf.word)
                assert leaf.label in allowed or not allowed


@pytest.mark.parametrize("damage", [[], {"words": 1}, {"sign_tags": {".": []}}, {"more": ""}])
def test_a_damaged_lexicon_on_a_card_is_refused(tmp_path, damage):
    tokenizer = train_tokenizer(["the dog"] * 3, TokenizerSettings(vocab_size=600), SYMBOLS)
    card = ModelCard("en", "trees", parsing={"leaves": "tags", "functions": False, "lexicon": damage})
    save_model(tmp_path / "model", random_model(len(tokenizer), 1), tokenizer, card)
    with pytest.raises(HeedError, match="lexicon"):
        Parser.load(tmp_path / "model")


def test_a_bracket_without_its_partner_is_refused(tmp_path):
    tokenizer = train_tokenizer(["the dog"] * 3, TokenizerSettings(vocab_size=600), [*SYMBOLS, "(QP"])
    card = ModelCard("en", "trees", parsing={"leaves": "tags", "functions": False})
    save_model(tmp_path / "model", random_model(len(tokenizer), 1), tokenizer, card)
    with pytest.raises(HeedError, match="lacks one of the brackets of 'QP'"):
        Parser.load(tmp_path / "model")


def test_given_tags_go_before_those_of_the_lexicon():
    tokenizer = train_tokenizer(["the dog"] * 3, TokenizerSettings(vocab_size=600), SYMBOLS)
    constraint = TreeConstraint(tokenizer, 1, leaves="tags", lexicon=lexicon())
    constraint.expect(0, [".", "."], ["NN", "unheard-of"])
    constraint.admit([0])
    row = np.zeros(1, np.int64)

    def allowed() -> set[int]:
        return {int(i) for i in constraint.choices(row, np.array([30]))[0] if i >= 0}

    opening = {i for name, i in tokenizer.symbols.items() if name[0] == "("}
    assert allowed() - opening == {tokenizer.symbols["NN"]}
    constraint.advance(row, np.array([tokenizer.symbols["NN"]]))
    assert len(allowed() - opening) == sum(name[0] not in "()" for name in SYMBOLS)


def test_a_given_tag_is_the_leaf_that_stands_for_it():
    tokenizer = train_tokenizer(["the dog"] * 3, TokenizerSettings(vocab_size=600), ["(NP", ")NP", "XX", ",", "."])
    constraint = TreeConstraint(tokenizer, 1, leaves="single")
    constraint.expect(0, ["dog", ","], ["NN", ","])
    constraint.admit([0])
    row = np.zeros(1, np.int64)
    for symbol in ("XX", ","):
        allowed = {int(i) for i in constraint.choices(row, np.array([30]))[0] if i >= 0}
        assert allowed == {tokenizer.symbols[symbol], tokenizer.symbols["(NP"]}
        constraint.advance(row, np.array([tokenizer.symbols[symbol]]))


def test_it_is_kept_whole_and_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "lexicon.json"
    assert Lexicon.load(path) == NO_LEXICON
    lexicon().save(path)
    assert Lexicon.load(path) == lexicon()
    for damaged in ("", "{", "[]", '{"words": 1}', '{"more": ""}'):
        path.write_text(damaged)
        with pytest.raises(HeedError, match="lexicon.json"):
            Lexicon.load(path)
