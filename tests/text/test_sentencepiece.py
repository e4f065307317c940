"""Ids and texts are those of SentencePiece and of MarianTokenizer; a model that could do harm is refused."""

import io
import pickle
import sys
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heed.errors import HeedError
from heed.text.loading import load_tokenizer
from heed.text.numbers import english, german, number_splits
from heed.text.sentencepiece import (
    SentencePieceTokenizer,
    marian_tokenizer,
)
from heed.text.tokenizer import Tokenizer, TokenizerSettings, train_tokenizer

NUMBERS = number_splits(n_train=1500, n_dev=10, n_test=10).train
ENGLISH, GERMAN = [english(number) for number in NUMBERS], [german(number) for number in NUMBERS]
ODD_LINES = [
    "Ｆｕｌｌ ｗｉｄｔｈ ½ ﬁ",
    "  two   spaces ",
    "日本語 with ASCII",
    "tabs\tand\u3000spaces",
    "naïve CAFÉ",
] * 20


def trained(lines: list[str], **settings: object) -> bytes:
    """A model that SentencePiece trained as Marian does: eos is id 0, unk id 1, and there is no bos."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, hard_vocab_limit=False, minloglevel=2, num_threads=1,
        **{"eos_id": 0, "unk_id": 1, "bos_id": -1} | settings,
    )  # fmt: skip
    return model.getvalue()


KINDS = [
    {"model_type": "unigram", "vocab_size": 150},
    {"model_type": "bpe", "vocab_size": 150},
    {"model_type": "unigram", "vocab_size": 400, "byte_fallback": True, "normalization_rule_name": "identity",
     "remove_extra_whitespaces": False},
    {"model_type": "bpe", "vocab_size": 420, "byte_fallback": True, "normalization_rule_name": "nmt_nfkc_cf"},
    {"model_type": "bpe", "vocab_size": 420, "byte_fallback": True, "normalization_rule_name": "identity",
     "remove_extra_whitespaces": False},
    {"model_type": "unigram", "vocab_size": 160, "user_defined_symbols": [">>de<<", "<x>", "<x>y"],
     "control_symbols": ["<c>"], "treat_whitespace_as_suffix": True, "unk_surface": "?"},
]  # fmt: skip
LOSSLESS = [2, 4]  # of KINDS: SentencePiece gives these texts back exactly


@pytest.fixture(scope="module", params=range(len(KINDS)))
def spm(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("spm") / f"{request.param}.spm"
    path.write_bytes(trained([*ENGLISH, *GERMAN, *ODD_LINES], **KINDS[request.param]))
    return path


@pytest.fixture(scope="module")
def pair(spm) -> tuple[SentencePieceTokenizer, sentencepiece.SentencePieceProcessor]:
    """Heed's tokenizer and the library itself."""
    return marian_tokenizer(spm, spm), sentencepiece.SentencePieceProcessor(model_file=str(spm))


@pytest.fixture(scope="module")
def lossless(tmp_path_factory) -> list[SentencePieceTokenizer]:
    folder = tmp_path_factory.mktemp("lossless")
    for i in LOSSLESS:
        (folder / f"{i}.spm").write_bytes(trained([*ENGLISH, *ODD_LINES], **KINDS[i]))
    return [marian_tokenizer(folder / f"{i}.spm", folder / f"{i}.spm") for i in LOSSLESS]


TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(
    st.sampled_from([*"two hundred zwei fünf ".split(" "), "½ﬁ", "日本", "<x>", "<x>y", "<c>", ">>de<<", "</s>", "\0",
                     "<unk>", "<0x41>", "▁", " ", "  ", "Ａ", "\u200b", "\u0301", "\ufffd", "⁇", "\n", "\r"])
).map("".join)  # fmt: skip


@given(texts=st.lists(TEXTS, max_size=4))
@example(texts=["", " ", "▁", "a\0b", "\0"])
@settings(max_examples=300, deadline=None)
def test_ids_and_decoded_texts_are_sentencepieces_own(pair, texts):
    tokenizer, library = pair
    expected = [library.encode(text) for text in texts]
    assert tokenizer.encode_lines(texts) == tokenizer.encode_targets(texts) == expected
    for text, ids in zip(texts, expected, strict=True):
        assert tokenizer.encode(text) == ids
        assert all(0 < i < len(tokenizer) for i in ids)  # 0 is eos
        assert tokenizer.decode([*ids, tokenizer.special.eos]) == library.decode(ids)


@given(ids=st.lists(st.integers(0, 10**4), max_size=20))
@settings(max_examples=100, deadline=None)
def test_any_ids_decode_as_sentencepiece_decodes_them(pair, ids):
    tokenizer, library = pair
    ids = [i % len(tokenizer) for i in ids]
    assert tokenizer.decode(ids) == library.decode([i for i in ids if i != 0])


@given(text=TEXTS)
@example(text="  two  spaces ")
@settings(max_examples=300, deadline=None)
def test_decoding_gives_back_a_text_wherever_sentencepiece_loses_nothing(lossless, text):
    text = text.replace("▁", "").replace("\0", "")  # ▁ is its space
    for tokenizer in lossless:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_saved_tokenizer_loads_equal_and_pickles(pair, tmp_path):
    tokenizer, _ = pair
    tokenizer.save(tmp_path / "tokenizer.json")
    for other in (load_tokenizer(tmp_path / "tokenizer.json"), pickle.loads(pickle.dumps(tokenizer))):  # noqa: S301
        assert isinstance(other, SentencePieceTokenizer) and other == tokenizer
        assert other.encode_lines(ODD_LINES) == tokenizer.encode_lines(ODD_LINES)
    other.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_heeds_own_tokenizers_still_load(tmp_path):
    tokenizer = train_tokenizer(ENGLISH, TokenizerSettings(vocab_size=600))
    tokenizer.save(tmp_path / "tokenizer.json")
    assert isinstance(load_tokenizer(tmp_path / "tokenizer.json"), Tokenizer)
    assert load_tokenizer(tmp_path / "tokenizer.json") == tokenizer


def test_long_lines_are_segmented_whole(pair):
    tokenizer, library = pair
    line = "two hundred " * 90_000
    assert tokenizer.encode(line) == library.encode(line)
    assert tokenizer.encode("日" * 10**6) == library.encode("日" * 10**6)


@pytest.mark.parametrize("text", ["\udc80", "a \ud800 b"])
def test_half_a_surrogate_pair_is_refused_as_no_text(pair, text):
    for encode in (pair[0].encode_lines, pair[0].encode_targets):
        with pytest.raises(HeedError, match=r"\\ud[c8][80]0.* is not valid Unicode text"):
            encode(["two", text])


def test_pieces_show_a_space_before_a_word(pair):
    tokenizer, library = pair
    ids = library.encode("two hundred")
    assert tokenizer.src_pieces(ids) == tokenizer.pieces(ids)
    assert "".join(tokenizer.pieces(ids)).strip() == "two hundred"


def test_a_model_without_the_package_says_what_to_install(spm, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(HeedError, match=r"not installed: pip install 'heed\[exchange\]'\.$"):
        marian_tokenizer(spm, spm)
