"""Whatever the model, every parse is a tree over exactly the words; what a treebank's layout holds is found."""

import json
import math
import pickle
import random
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.decoding.beam import Hypothesis
from heed.decoding.loading import prepack_models
from heed.decoding.settings import DecodingSettings
from heed.decoding.source_queue import Source, maximum_length
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model
from heed.parsing.parser import MAX_OPEN, MAX_OPENED_AT_ONCE, Parser, TreeConstraint, read_tagged
from heed.parsing.treebank import constituents, files_of, substitute_constituents
from heed.parsing.trees import MAX_DEPTH, ROOT, LinearisationSettings, Tree, depth, linearise, read_trees, restore
from heed.text.tokenizer import TokenizerSettings, train_tokenizer
from tests.conftest import n_examples, sharp_model
from tests.decoding.searches import search
from tests.end_to_end.test_command_line import assert_one_clear_line
from tests.parsing.corpus import RECIPE, parse_tree, write_treebank

SYMBOLS = ["(NP", ")NP", "(S", ")S", "(VP", ")VP", "DT", "NN", "VB", "."]
WORDS = ["the", "dog", "runs", ".", "(", "a/b", "-LRB-", "no\u00a0break", "Zürich", "…"]
TAGS = LinearisationSettings()
BEAM = DecodingSettings(beam_size=3, length_penalty=0.3, max_extra_tokens=30)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["the dog runs in Zürich ."] * 3, TokenizerSettings(vocab_size=600), SYMBOLS)


def random_model(vocab_size: int, seed: int, **changes) -> Transformer:
    arch = Architecture(n_layers=1, d_model=32, d_ff=32, n_heads=2, **changes)
    return sharp_model(arch, vocab_size, seed=seed, factor=3)  # what it wants most is hardly ever a tree


@pytest.mark.slow
@settings(max_examples=n_examples(25))
@given(
    st.lists(st.lists(st.sampled_from(WORDS), max_size=8), min_size=1, max_size=5),
    st.integers(0, 1000),
    st.sampled_from([1, 3, 21]),
    st.sampled_from(["tags", "words"]),
    st.sampled_from(["top-down", "in-order"]),
)
def test_random_weights_write_trees_over_exactly_the_words(tokenizer, sentences, seed, beam, leaves, order):
    options = BEAM.model_copy(update={"beam_size": beam})
    linearisation = LinearisationSettings(leaves=leaves, order=order)
    parser = Parser(random_model(len(tokenizer), seed), tokenizer, options, linearisation)
    parses = parser.parse(sentences)
    assert [list(parse.words) for parse in parses] == sentences
    for words, parse in zip(sentences, parses, strict=True):
        if words:
            assert parse.tree is not None and parse.tree.words() == words
            assert parse_tree(str(parse.tree)) is not None
            assert 0 < parse.confidence <= 1
        else:
            assert parse.tree is None


@pytest.mark.parametrize("leaves", ["tags", "words"])
def test_a_long_sentence_has_room_for_brackets(tokenizer, leaves):
    """What must be written anyway, copied words and tags, does not count against max_extra_tokens."""
    parser = Parser(random_model(len(tokenizer), 1), tokenizer, BEAM, LinearisationSettings(leaves=leaves))
    constraint = TreeConstraint(tokenizer, 1, leaves=leaves)
    words = ["the", "dog"] * 100
    source = parser._source(0, (words, None), tokenizer.encode(" ".join(words)), constraint)
    assert source is not None
    assert maximum_length(source, BEAM) == source.min_limit - 1 + BEAM.max_extra_tokens


def test_the_words_decide_how_long_a_tree_is_at_least(tokenizer):
    """Models of 0.1 may have a min_tokens, which never had an effect."""
    model, changed = random_model(len(tokenizer), 1), BEAM.model_copy(update={"min_tokens": 25})
    found = [Parser(model, tokenizer, settings, TAGS).parse([["the", "dog"]]) for settings in (BEAM, changed)]
    assert found[0] == found[1] and found[0][0].tree is not None


def test_what_is_not_parsed_is_said_and_keeps_its_words(tokenizer):
    said = []
    parser = Parser(random_model(len(tokenizer), 1), tokenizer, BEAM, TAGS, precision="fp32", report=said.append)
    words = ["dog"] * 3000
    long, short, blank, tagged = parser.parse(
        [words, ["dog"], [], words], tags=[["NN"] * 3000, ["NN"], [], ["X"] * 3000]
    )
    assert long.tree == Tree.flat(words, ["NN"] * 3000) and long.words == tuple(words) and long.confidence == 0
    assert {leaf.label for leaf in tagged.tree.leaves()} == {"X"}
    assert short.confidence > 0 and blank.tree is None and blank.confidence == 0
    assert [line.split(":")[0] for line in said] == ["sentence 1", "sentence 4"]


def test_the_confidence_counts_the_symbols_that_were_written(tokenizer):
    """The geometric mean; a tree that was cut off has no end to count."""
    parser = Parser(random_model(len(tokenizer), 1), tokenizer, BEAM, TAGS)
    ids = tuple(tokenizer.symbols[symbol] for symbol in ("(S", "NN", ")S"))
    for ended, n_symbols in ((True, 4), (False, 3)):
        parse = parser._parse(["dog"], None, Hypothesis(ids, -1.5, -1.5, ended))
        assert parse.confidence == pytest.approx(math.exp(-1.5 / n_symbols))
    assert parser._parse(["dog"], None, Hypothesis((), 0.0, 0.0, False)).confidence == 0


def test_a_text_in_place_of_words_is_refused(tokenizer):
    parser = Parser(random_model(len(tokenizer), 1), tokenizer, BEAM, TAGS)
    for sentences in (["the dog barks"], "the dog barks", [["the"], "dog"]):
        with pytest.raises(HeedError, match=r"sentence [12] is one text; expected a list of its words: write text.spl"):
            parser.parse(sentences)


def test_words_and_tags_that_do_not_fit_are_refused(tokenizer):
    parser = Parser(random_model(len(tokenizer), 1), tokenizer, BEAM, TAGS)
    with pytest.raises(HeedError, match="sentence 2: 2 words, but 1 tags"):
        parser.parse([["a"], ["a", "b"]], tags=[["NN"], ["NN"]])
    with pytest.raises(HeedError, match="sentence 1: -NONE- is the tag of a trace"):
        parser.parse([["a"]], tags=[["-NONE-"]])
    for word in ("New York", ""):
        with pytest.raises(HeedError, match="sentence 1: the word '.*' is empty or has spaces within"):
            parser.parse([[word, "b"]])


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ([["N N", "DT"]], "sentence 1: the tag 'N N' is empty or has spaces or brackets within"),
        ([["(", "DT"]], r"sentence 1: the tag '\(' is empty or has spaces or brackets within"),
        ([["", "DT"]], "sentence 1: the tag '' is empty"),
        ([], "sentence 1: has no tags"),
        ([["DT", "NN"], ["NN"]], "sentence 2: has no words"),
    ],
)
def test_tags_that_no_tree_can_have_are_refused(tokenizer, tags, message):
    parser = Parser(random_model(len(tokenizer), 1), tokenizer, BEAM, TAGS)
    with pytest.raises(HeedError, match=message):
        parser.parse([["the", "dog"]], tags=tags)


def test_what_is_shown_of_a_long_token_is_short():
    with pytest.raises(HeedError) as error:
        read_tagged("x" * 300_000, 1)
    assert len(str(error.value)) < 200


def test_without_the_constraint_random_weights_write_none(tokenizer):
    parser = Parser(random_model(len(tokenizer), 1), tokenizer, BEAM, TAGS, constrained=False)
    assert [parse.tree for parse in parser.parse([["the", "dog", "runs"]])] == [None]


def test_made_trees_are_other_combinations_of_what_the_treebank_has():
    def pairs(tree: Tree) -> set[tuple[str, str]]:
        below = [child for child in tree.children if child.word is None]
        return {(tree.label, child.label) for child in below}.union(*map(pairs, below))

    texts = [
        "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (NN cat)))))",
        "(TOP (S (NP (PRP she)) (VP (VBZ gives) (NP (PRP him)) (NP (NN time)))))",
    ]
    gold = [tree for tree in map(parse_tree, texts) if tree]
    made = list(substitute_constituents(gold, 200))
    assert 40 < len(made) < 400 and made == list(substitute_constituents(gold, 200))
    assert set().union(*map(pairs, made)) == set().union(*map(pairs, gold))
    assert "she sees a cat" in {" ".join(tree.words()) for tree in made}
    assert not set(made[:20]) & {gold[0]} and not set(made[-20:]) & {gold[1]}  # nor one whole sentence for another
    assert list(substitute_constituents(gold, 0)) == []


def test_fragments_are_the_short_constituents_each_once():
    tree = parse_tree("(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (NP (DT a) (NN cat)))) (. .)))")
    found = [str(part) for part in constituents(tree, 3)]
    assert found == [
        "(TOP (NP (DT the) (NN dog)))",
        "(TOP (VP (VBZ sees) (NP (NP (DT a) (NN cat)))))",
        "(TOP (NP (NP (DT a) (NN cat))))",
    ]
    assert list(constituents(tree, 0)) == []


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["sinusoid", "learned"])
def test_a_parse_does_not_depend_on_what_is_parsed_beside_it(tokenizer, positions):
    # Learned positions have no kernels: the search then looks at every row, not at those only that can still win.
    rng = random.Random(3)
    sentences = [rng.choices(WORDS, k=rng.randint(1, 9)) for _ in range(40)]
    parser = Parser(random_model(len(tokenizer), 2, positions=positions), tokenizer, BEAM, TAGS)
    together = parser.parse(sentences)
    for words, parse in zip(sentences, together, strict=True):
        (alone,) = parser.parse([words])
        assert alone.tree == parse.tree and alone.score == pytest.approx(parse.score, rel=1e-5)


def test_the_best_parse_is_no_worse_than_any_that_the_constraint_allows(tokenizer):
    """With a beam that holds all of them: compared with every tree of a small space, scored one by one."""
    from heed.decoding.translator import Translator

    words = ["dog"]
    model = random_model(len(tokenizer), 4)
    tight = DecodingSettings(beam_size=400, length_penalty=0.0, max_extra_tokens=4)
    (found,) = Parser(model, tokenizer, tight, TAGS, precision="fp32").parse([words])
    longest = len(tokenizer.encode("dog")) + 4 - 1
    leaves, labels = ["DT", "NN", "VB", "."], ["NP", "S", "VP"]
    trees = [[leaf] for leaf in leaves]
    candidates = list(trees)
    while trees and len(trees[0]) + 2 <= longest:
        trees = [[f"({label}", *inner, f"){label}"] for label in labels for inner in trees]
        candidates += trees
    targets = [" ".join(symbols) for symbols in candidates]
    log_probs = Translator(model, tokenizer, tight, precision="fp32").log_probs(["dog"] * len(targets), targets)
    scores = {tuple(symbols): sum(values) for symbols, values in zip(candidates, log_probs, strict=True)}
    assert found.tree is not None
    assert found.log_prob == pytest.approx(max(scores.values()), abs=1e-4)
    assert scores[tuple(linearise(found.tree))] == pytest.approx(found.log_prob, abs=1e-4)


def test_an_ensemble_of_one_model_twice_is_that_model_and_of_two_another(tokenizer):
    one, other = (random_model(len(tokenizer), seed) for seed in (1, 2))
    sentences = [["the", "dog", "runs"], ["dog"] * 9]
    alone, twice, both = (
        Parser(models, tokenizer, BEAM, TAGS).parse(sentences) for models in (one, [one, one], [one, other])
    )
    assert [parse.tree for parse in twice] == [parse.tree for parse in alone]
    assert [parse.score for parse in twice] == pytest.approx([parse.score for parse in alone])
    assert all(parse.tree.words() == words for parse, words in zip(both, sentences, strict=True))
    assert both != alone


def test_models_with_other_sequences_are_not_joined(tokenizer, tmp_path):
    for name, order in (("a", "top-down"), ("b", "top-down"), ("c", "in-order")):
        card = ModelCard("en", "trees", parsing={"leaves": "tags", "functions": False, "order": order})
        save_model(tmp_path / name, random_model(len(tokenizer), ord(name)), tokenizer, card)
    assert len(Parser.load(tmp_path / "a", tmp_path / "b").models) == 2
    assert Parser.load(tmp_path / "a", beam_size=2, early_stopping=True).settings.early_stopping
    with pytest.raises(HeedError, match="min_tokens has no effect on a parser"):
        Parser.load(tmp_path / "a", min_tokens=3)
    with pytest.raises(HeedError, match="c: its trees are other sequences than those of .*a, or its lexicon"):
        Parser.load(tmp_path / "a", tmp_path / "b", tmp_path / "c")


def test_threads_share_a_parser_and_a_pickled_one_parses_alike(tokenizer):
    rng = random.Random(4)
    sentences = [[rng.choices(WORDS, k=rng.randint(0, 7)) for _ in range(5)] for _ in range(4)]
    parser = Parser(random_model(len(tokenizer), 2), tokenizer, BEAM, TAGS)
    expected = [parser.parse(some) for some in sentences]
    again = pickle.loads(pickle.dumps(parser))  # noqa: S301
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(again.parse, sentences)) == expected == list(pool.map(parser.parse, sentences))


def test_given_tags_stand_in_the_tree_and_known_ones_are_written(tokenizer):
    parser = Parser(random_model(len(tokenizer), 5), tokenizer, BEAM, TAGS)
    (parse,) = parser.parse([["the", "dog", "x"]], tags=[["DT", "VB", "FW"]])
    assert [leaf.label for leaf in parse.tree.leaves()] == ["DT", "VB", "FW"]
    # What the model itself wrote, whatever stands in the tree.
    constraint = TreeConstraint(tokenizer, beam_size=1, leaves="tags")
    constraint.expect(0, ["the", "dog", "x"], ["DT", "(NP", "FW"])
    constraint.admit([0])
    row, leaves = np.zeros(1, np.int64), {tokenizer.symbols[name] for name in SYMBOLS if name[0] not in "()"}
    for expected in ({"DT"}, {"DT", "NN", "VB", "."}, {"DT", "NN", "VB", "."}):  # unknown tags ask for nothing
        allowed = leaves.intersection(constraint.choices(row, np.array([30]))[0].tolist())
        assert allowed == {tokenizer.symbols[name] for name in expected}
        constraint.advance(row, np.array([min(allowed)]))


def test_tagged_words_stay_as_they_are():
    line = "1\\/2/CD -LRB-/-LRB- (/( no\u00a0break/NN"
    assert read_tagged(line, 1) == (["1\\/2", "-LRB-", "(", "no\u00a0break"], ["CD", "-LRB-", "-LRB-", "NN"])


def test_what_is_no_tree_is_none(tokenizer):
    parser = Parser(random_model(len(tokenizer), 1), tokenizer, BEAM, TAGS, constrained=False)
    for text in ("", "the dog"):
        best = Hypothesis(tuple(tokenizer.encode(text)), log_prob=-1.0, score=-1.0, ended=True)
        assert parser._parse(["the", "dog"], None, best).tree is None
    with pytest.raises(ValueError):
        restore(["the"], ["▁the", "▁the", "DT"])


@pytest.mark.parametrize("order", ["top-down", "in-order"])
@pytest.mark.parametrize("leaves", ["tags", "words"])
def test_the_constraint_leaves_room_to_close_everything(tokenizer, leaves, order):
    """A walk that always opens where it may still ends in time."""
    constraint = TreeConstraint(tokenizer, beam_size=1, leaves=leaves, order=order)
    constraint.expect(0, ["a"] * 5, None)
    constraint.admit([0])
    names = {i: name for name, i in tokenizer.symbols.items()}
    steps_left, written = 40, []
    rows = torch.zeros(1, dtype=torch.int64).numpy()
    while True:
        allowed = [i for i in constraint.choices(rows, torch.tensor([steps_left]).numpy())[0] if i >= 0]
        assert allowed and steps_left > 0
        opening = [i for i in allowed if names.get(int(i), "").startswith("(")]
        chosen = int((opening or list(allowed))[0])
        if chosen == tokenizer.special.eos:
            break
        written.append(names.get(chosen, "piece"))
        constraint.advance(rows, torch.tensor([chosen]).numpy())
        steps_left -= 1
    assert steps_left >= 1
    assert sum(symbol[0] not in "()" and symbol != "piece" for symbol in written) == 5


def under_constraint(tokenizer, n_words: int, order: str) -> TreeConstraint:
    constraint = TreeConstraint(tokenizer, beam_size=1, leaves="tags", order=order)
    constraint.expect(0, ["dog"] * n_words, None)
    constraint.admit([0])
    return constraint


@settings(max_examples=n_examples(25))
@given(st.sampled_from(["top-down", "in-order"]), st.integers(1, 30), st.integers(0, 10), st.randoms())
def test_any_walk_within_the_constraint_is_a_tree(tokenizer, order, n_words, eagerness, draws):
    """However eager for brackets; in order, one that was closed may be held by the next, again and again."""
    walk, row, written = under_constraint(tokenizer, n_words, order), np.zeros(1, np.int64), []
    names = {i: name for name, i in tokenizer.symbols.items()}
    for steps_left in range(1000, 0, -1):
        allowed = [int(i) for i in walk.choices(row, np.array([steps_left]))[0] if i >= 0]
        brackets = [i for i in allowed if names.get(i, " ")[0] in "()"]
        chosen = draws.choice(brackets if brackets and draws.randrange(10) < eagerness else allowed)
        if chosen == tokenizer.special.eos:
            break
        written.append(names[chosen])
        walk.advance(row, np.array([chosen]))
    tree = restore(["dog"] * n_words, written, order=order)
    assert linearise(tree, order=order) == written and depth(tree) <= MAX_DEPTH


def test_in_order_constituents_around_constituents_end_where_a_tree_is_too_deep_to_be_read(tokenizer):
    """A walk that closes what it opens at once, but for the last bracket between two words, which holds the next."""
    n_words = 100
    walk, row, written = under_constraint(tokenizer, n_words, "in-order"), np.zeros(1, np.int64), []
    names = {i: name for name, i in tokenizer.symbols.items()}
    opened = 0
    for steps_left in range(10_000, 0, -1):
        allowed = [int(i) for i in walk.choices(row, np.array([steps_left]))[0] if i >= 0]
        if tokenizer.special.eos in allowed:
            break
        must_hold_a_word = opened == MAX_OPENED_AT_ONCE and written[-1][0] == "("
        first = "leaf" if must_hold_a_word else ")"
        kinds = {names[i][0] if names[i][0] in "()" else "leaf": i for i in allowed}
        chosen = next(kinds[kind] for kind in (first, "(", "leaf") if kind in kinds)
        written.append(names[chosen])
        opened = opened + 1 if written[-1][0] == "(" else opened if written[-1][0] == ")" else 0
        walk.advance(row, np.array([chosen]))
    tree = restore(["dog"] * n_words, written, order="in-order")
    assert MAX_OPEN <= depth(tree) <= MAX_DEPTH


LEAVES = st.builds(lambda tag: Tree(tag, word="dog"), st.sampled_from(["DT", "NN", "VB"]))
CONSTITUENTS = st.recursive(
    LEAVES,
    lambda children: st.builds(Tree, st.sampled_from(["NP", "S", "VP"]), st.lists(children, min_size=1).map(tuple)),
    max_leaves=15,
)


@given(st.sampled_from(["top-down", "in-order"]), st.lists(CONSTITUENTS, min_size=1, max_size=3))
def test_the_constraint_allows_every_tree(tokenizer, order, children):
    tree = Tree(ROOT, tuple(children))
    walk, row = under_constraint(tokenizer, len(tree.words()), order), np.zeros(1, np.int64)
    for symbol in linearise(tree, order=order):
        assert tokenizer.symbols[symbol] in walk.choices(row, np.array([500]))[0]
        walk.advance(row, np.array([tokenizer.symbols[symbol]]))
    assert tokenizer.special.eos in walk.choices(row, np.array([1]))[0]


def test_sections_are_split_as_the_recipe_says(parser_run):
    folder = parser_run / "treebank"
    assert [path.parent.name for path in files_of(folder, ["02-21"])] == [f"{n:02d}" for n in range(2, 22)]
    assert [path.name for path in files_of(folder, ["23"])] == ["wsj_2301.mrg"]
    with pytest.raises(HeedError, match="no section 25"):
        files_of(folder, ["24-25"])
    with pytest.raises(HeedError, match=r"no file \*.ptb"):
        files_of(folder, ["*.ptb"])
    for entry in ("21-02", "**x", "", ".", "./", "/", "/.", "/./", "x" * 5000):
        with pytest.raises(HeedError):
            files_of(folder, [entry])
    with pytest.raises(HeedError, match="two digits: 02-21"):
        files_of(folder, ["2-21"])
    assert len(files_of(folder, ["02", "02-03", "**/02/*.mrg"])) == 2  # each once
    assert files_of(folder / "nowhere", [f"{folder}/**/0[2]/*.mrg"]) == files_of(folder, ["02"])


def test_a_section_is_found_in_capitals_and_through_links_and_must_be_one(tmp_path):
    trees = tmp_path / "elsewhere" / "WSJ" / "02"
    trees.mkdir(parents=True)
    (trees / "WSJ_0201.MRG").write_text("(TOP (NN a))")
    (tmp_path / "bank").mkdir()
    (tmp_path / "bank" / "wsj").symlink_to(tmp_path / "elsewhere" / "WSJ")
    (tmp_path / "bank" / "circle").symlink_to(tmp_path / "bank")
    assert [path.name for path in files_of(tmp_path / "bank", ["02"])] == ["WSJ_0201.MRG"]
    for name in ("aaa", "eval", "test", "zzz"):  # whichever of them is met first
        (tmp_path / "elsewhere" / "WSJ" / name).symlink_to(trees)
    # An editor's copy, a packed one, and what macOS leaves beside it.
    for name in ("WSJ_0201.MRG.bak", "WSJ_0201.MRG.gz", "._WSJ_0201.MRG"):
        (trees / name).write_bytes(b"")
    assert [path.name for path in files_of(tmp_path / "bank", ["02"])] == ["WSJ_0201.MRG"]
    shutil.copytree(trees, tmp_path / "bank" / "backup" / "02")
    with pytest.raises(HeedError, match=r"section 02 is in .* and in .*; name the folder"):
        files_of(tmp_path / "bank", ["02"])


def test_copied_words_from_treebank_to_scores_odd_ones_as_well(tmp_path, heed):
    """What the recipe for GUM does: fragments, made trees, copied words, classes; in dev a word of backslashes."""
    write_treebank(tmp_path / "treebank")
    path = tmp_path / "treebank/parsed/mrg/wsj/22/wsj_2201.mrg"
    path.write_text(path.read_text() + r"( (S (NP (DT the) (NN \\/)) (VP (VBZ whispers)) (. .)))" + "\n")
    (tmp_path / "small.toml").write_text(RECIPE.format(treebank="treebank", max_steps=30))
    settings = ['parsing.leaves="words"', "parsing.fragments=4", "parsing.substituted=2", "parsing.gold_weight=2",
                "parsing.rare_words=2"]  # fmt: skip
    options = ["--mirror", ".", *(part for value in settings for part in ("--set", value))]
    wrong = heed("train", "small.toml", *options, "--set", 'parsing.tests={late=["99"]}', cwd=tmp_path)
    assert_one_clear_line(wrong, "no section 99")
    looked = heed("train", "small.toml", "--dry-run", *options, cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    done = heed("train", "small.toml", *options, cwd=tmp_path)  # the mended recipe in the same run folder
    assert done.returncode == 0, done.stderr
    (n_trees,) = {line for line in done.stderr.splitlines() if line.startswith("train: ") and "gold" in line}
    assert n_trees.split()[1] in looked.stderr
    assert "all gold" in done.stdout and "of 21 sentences left out" in done.stdout
    lines = tmp_path / "runs/small/lines"
    assert r"\\/" in (lines / "dev.trees").read_text()
    assert (lines / "dev.words").read_text().splitlines()[-1] == "the UnknownSigns UnknownLowerS ."
    assert "▁UnknownLowerS VBZ" in (lines / "dev.symbols").read_text()
    parser = Parser.load(tmp_path / "runs/small/model")
    assert parser._encode([(["the", "wolf"], None)]) == [parser.tokenizer.encode("the UnknownLower")]
    read, written = parser.as_read(["the", "wolf", "runs"])
    assert read == "the UnknownLower UnknownLowerS" and "▁UnknownLower" in written.split(" ")
    shown = heed("attention", tmp_path / "runs/small/model", "the wolf runs", "--out", tmp_path / "a.html")
    assert shown.returncode == 0 and f"{read} → {written}" in shown.stderr, shown.stderr
    # A lost lexicon is made again, as it was, and so are the lines.
    kept = (lines / "lexicon.json").read_text()
    (lines / "lexicon.json").unlink()
    assert heed("train", "small.toml", *options, cwd=tmp_path).returncode == 0
    assert (lines / "lexicon.json").read_text() == kept


def test_the_treebank_may_move_once_its_lines_are_written(parser_run, heed, tmp_path):
    shutil.copytree(parser_run / "runs", tmp_path / "runs")
    shutil.copy(parser_run / "small.toml", tmp_path)
    done = heed("train", "small.toml", "--set", "parsing.treebank=elsewhere", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"parsing.treebank was '{parser_run / 'treebank'}', is 'elsewhere'" in done.stderr


def test_parse_and_evalb_from_the_command_line(parser_run, heed):
    gold = list(read_trees(parser_run / "treebank/parsed/mrg/wsj/23/wsj_2301.mrg", functions=False))
    (parser_run / "gold").write_text("".join(f"{tree}\n" for tree in gold))
    sentences = "".join(" ".join(tree.words()) + "\n" for tree in gold) + "\n( odd/one\n"
    model = "runs/small/model"
    done = heed("parse", model, stdin=sentences, cwd=parser_run)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 22 and lines[20] == ""
    assert parse_tree(lines[21]).words() == ["-LRB-", "odd/one"]
    (parser_run / "parsed").write_text("\n".join(lines[:20]) + "\n")
    found = json.loads(heed("evalb", "gold", "parsed", "--json", cwd=parser_run).stdout)
    assert found["all"]["f1"] > 90 and found["all"]["errors"] == 0

    tagged = heed("parse", model, "--tags", "--json", stdin="the/DT dog/NN sleeps/VBZ ./FW\n", cwd=parser_run)
    facts = json.loads(tagged.stdout)
    assert "(FW .)" in facts["tree"] and facts["words"] == ["the", "dog", "sleeps", "."]
    assert facts["log_prob"] < 0 < facts["confidence"] < 1
    free = heed("parse", model, "--unconstrained", stdin="the dog sleeps .\n", cwd=parser_run)
    assert "of 1 outputs are not trees over their words" in free.stderr
    none = heed("parse", model, "--min-confidence", "1", stdin=sentences, cwd=parser_run)
    assert none.stdout == "" and "0 of 21 trees" in none.stderr  # the blank line is none


def test_self_training_mixes_in_what_the_parser_is_sure_of(parser_run, heed):
    raw = "the bird gives the dog the cat .\n" * 30
    sure = heed("parse", "runs/small/model", "--min-confidence", "0.5", stdin=raw, cwd=parser_run)
    assert sure.returncode == 0, sure.stderr
    n_sure = len(sure.stdout.splitlines())
    assert n_sure and f"{n_sure} of 30 trees have a confidence of 0.5 or more" in sure.stderr
    (parser_run / "treebank" / "auto.trees").write_text(sure.stdout)
    settings = ('parsing.parsed=["auto.trees"]', "parsing.gold_weight=2", "training.max_steps=5")
    mixed = [word for setting in settings for word in ("--set", setting)]
    done = heed("train", "small.toml", "--mirror", ".", "--run", "mixed", *mixed, cwd=parser_run)
    assert done.returncode == 0, done.stderr
    assert f"train: {800 + n_sure} trees from 400 gold ones." in done.stderr


def test_bad_input_is_one_clear_line(parser_run, heed):
    assert_one_clear_line(
        heed("parse", "runs/small/model", "--tags", stdin="the/DT dog/NN\ndog\n", cwd=parser_run),
        "standard input, line 2: 'dog' is not word/TAG",
    )
    assert_one_clear_line(
        heed("parse", "runs/small/model", "--tags", stdin="*T*-1/-NONE- dog/NN\n", cwd=parser_run),
        "standard input, line 1: '*T*-1/-NONE-' is a trace",
    )
    assert_one_clear_line(
        heed("train", "small.toml", "--run", "x", "--set", "parsing.treebank=missing", cwd=parser_run),
        "treebank missing: no folder corpora/missing",
    )


@pytest.mark.parametrize("leaves", ["tags", "words"])
def test_a_cancelled_sentence_leaves_the_others_constraint_as_it_was(tokenizer, leaves):
    (model,) = prepack_models(random_model(len(tokenizer), 3), "fp32", copy=False)
    sentences = [["the", "dog"], ["a", "dog", "runs"], ["the", "cat"], ["x"] * 4]

    def found(gone: int | None) -> dict[int, list[Hypothesis]]:
        asked = 0

        def cancelled(number: int) -> bool:
            nonlocal asked
            asked += number == gone
            return number == gone and asked > 3

        constraint = TreeConstraint(tokenizer, BEAM.beam_size, leaves=leaves)
        sources = [
            Source(number, tokenizer.encode(" ".join(words)), min_limit=constraint.expect(number, words, None) + 20)
            for number, words in enumerate(sentences)
        ]
        results = search([model], sources, tokenizer.special, BEAM, constraint=constraint, cancelled=cancelled)
        return dict(result for result in results if result is not None)

    everything, fewer = found(None), found(1)
    assert set(everything) == {0, 1, 2, 3} and set(fewer) == {0, 2, 3}
    for number, hypotheses in fewer.items():
        assert [hypothesis.ids for hypothesis in hypotheses] == [hypothesis.ids for hypothesis in everything[number]]
