"""Segmentation loses nothing and knows everything."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heed.config import HeedError
from heed.text.tokenizer import BOS, EOS, PAD, Tokenizer, TokenizerSettings, train_tokenizer

LINES = [
    "the quick brown fox jumps over the lazy dog",
    "der schnelle braune Fuchs springt über den faulen Hund",
    "## …hash ##ing @-@ &apos;s 1,234.5",
] * 5


@pytest.fixture(scope="module", params=["bpe", "wordpiece"])
def tokenizer(request) -> Tokenizer:
    return train_tokenizer(LINES, TokenizerSettings(kind=request.param, vocab_size=650))


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
@example(text="")
@example(text="   two  spaces\tand a tab ")
@example(text=f"{PAD}{BOS} {EOS}</s><unk>")
@example(text="##ing … …the")
@example(text="日本語 😀\u0301 x\u2028y\u0085z")
@example(text="x" * 5000)
@settings(max_examples=300, deadline=None)
def test_decoding_gives_back_exactly_what_was_encoded(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not {tokenizer.pad, tokenizer.bos, tokenizer.eos} & set(ids)
    assert all(0 <= i < len(tokenizer) for i in ids)


def test_batches_encode_as_single_lines_do(tokenizer):
    lines = [*LINES, "", "new wörds"]
    assert tokenizer.encode_lines(lines) == [tokenizer.encode(line) for line in lines]


def test_a_word_has_the_same_ids_wherever_it_stands(tokenizer):
    assert tokenizer.encode("fox fox") == tokenizer.encode("fox") * 2


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_training_again_gives_the_same_vocabulary(kind, tmp_path):
    for name in ("a", "b"):
        train_tokenizer(LINES, TokenizerSettings(kind=kind, vocab_size=650)).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_saved_tokenizer_loads_as_it_was(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.encode(f"springs {EOS}") == tokenizer.encode(f"springs {EOS}")
    assert len(loaded) == len(tokenizer) <= 650


def test_frequent_words_become_one_piece(tokenizer):
    assert tokenizer.pieces(tokenizer.encode("the fox"))[0] == " the"


def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path):
    path = tmp_path / "tokenizer.json"
    for content in ("{", '{"version": "1.0"}'):
        path.write_text(content)
        with pytest.raises(HeedError, match="tokenizer.json: not a tokenizer file"):
            Tokenizer.load(path)
    with pytest.raises(HeedError, match="cannot be read"):
        Tokenizer.load(tmp_path / "missing.json")


def test_symbols_are_ids_of_their_own_that_text_cannot_spell(tmp_path):
    symbols = ["(NP", ")NP", "NN", "the"]
    train_tokenizer(LINES, TokenizerSettings(vocab_size=650), symbols).save(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert set(tokenizer.symbols) == set(symbols)
    for line in ("(NP NN )NP", "(NP ▁the the ▁fox NN )NP", "▁a/b NN"):
        (ids,) = tokenizer.encode_targets([line])
        assert tokenizer.decode([tokenizer.bos, *ids, tokenizer.eos]) == line
        assert {tokenizer.symbols[name] for name in line.split() if name in symbols} <= set(ids)
    assert not set(tokenizer.symbols.values()) & set(tokenizer.encode("(NP NN the )NP [symbol] NN"))
    assert tokenizer.encode_targets(["(NP VB )NP", "NN"]) == [[], [tokenizer.symbols["NN"]]]
