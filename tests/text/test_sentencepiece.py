"""Ids and texts are those of SentencePiece and of MarianTokenizer; a model that could do harm is refused."""

import io
import json
import pickle
import re
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.conftest import n_examples

from heed.errors import HeedError
from heed.text.numbers import english, german, number_splits
from heed.text.sentencepiece import SentencePieceTokenizer, Vocabulary, marian_tokenizer, opus_mt_tokenizer
from heed.text.sentencepiece_model import SentencePieceModel
from heed.text.tokenizer import SpecialIds
from heed.text.tokenizer_kinds import load_tokenizer

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
        **{"eos_id": 0, "unk_id": 1, "bos_id": -1, "character_coverage": 1.0} | settings,
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


@pytest.mark.slow
@given(texts=st.lists(TEXTS, max_size=4))
@example(texts=["", " ", "▁", "a\0b", "\0"])
@settings(max_examples=n_examples(300))
def test_ids_and_decoded_texts_are_sentencepieces_own(pair, texts):
    tokenizer, library = pair
    expected = [library.encode(text) for text in texts]
    assert tokenizer.encode_lines(texts) == tokenizer.encode_targets(texts) == expected
    for text, ids in zip(texts, expected, strict=True):
        assert tokenizer.encode(text) == ids
        assert all(0 < i < len(tokenizer) for i in ids)  # 0 is eos
        assert tokenizer.decode([*ids, tokenizer.special.eos]) == library.decode(ids)


@given(ids=st.lists(st.integers(0, 10**4), max_size=20))
@settings(max_examples=n_examples(100))
def test_any_ids_decode_as_sentencepiece_decodes_them(pair, ids):
    tokenizer, library = pair
    ids = [i % len(tokenizer) for i in ids]
    assert tokenizer.decode(ids) == library.decode([i for i in ids if i != 0])


@given(text=TEXTS)
@example(text="  two  spaces ")
@settings(max_examples=n_examples(300))
def test_decoding_gives_back_a_text_wherever_sentencepiece_loses_nothing(lossless, text):
    text = text.replace("▁", "").replace("\0", "")  # ▁ is its space
    for tokenizer in lossless:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=TEXTS)
@example(text="naïve  日本 two")
@settings(max_examples=n_examples(200))
def test_spans_are_the_characters_of_each_piece(lossless, text):
    text = text.replace("▁", "").replace("\0", "")  # ▁ is its space
    for tokenizer in lossless:
        (spans,) = tokenizer.src_spans([text])
        assert tokenizer.tgt_spans([text]) == [spans]  # of the same vocabulary
        for (begin, end), piece in zip(spans, tokenizer.src_pieces(tokenizer.encode(text)), strict=True):
            assert 0 <= begin <= end <= len(text)
            if "⟨" not in piece:  # one byte of a character
                assert text[begin:end].strip() == piece.strip()


@given(text=TEXTS)
@example(text="Ｆｕｌｌ ½ﬁ")
@settings(max_examples=n_examples(100))
def test_spans_stand_in_order_whatever_is_normalised(pair, text):
    (spans,) = pair[0].src_spans([text])
    assert len(spans) == len(pair[0].encode(text))
    assert all(0 <= begin <= end <= len(text) for begin, end in spans)
    assert [begin for begin, _ in spans] == sorted(begin for begin, _ in spans)


@pytest.mark.slow
def test_spans_of_a_long_line(pair):
    line = "zwei hundért " * 10_000
    (spans,) = pair[0].src_spans([line])
    assert len(spans) == len(pair[0].encode(line)) and spans[-1][1] >= len(line) - 1


def test_a_saved_tokenizer_loads_equal_and_pickles(pair, tmp_path):
    tokenizer, _ = pair
    tokenizer.save(tmp_path / "tokenizer.json")
    for other in (load_tokenizer(tmp_path / "tokenizer.json"), pickle.loads(pickle.dumps(tokenizer))):  # noqa: S301
        assert isinstance(other, SentencePieceTokenizer) and other == tokenizer
        assert other.encode_lines(ODD_LINES) == tokenizer.encode_lines(ODD_LINES)
    other.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


@pytest.mark.slow
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


def test_pieces_of_bytes_show_the_letter_that_they_form(tmp_path):
    spm = tmp_path / "bytes.spm"
    spm.write_bytes(trained(ENGLISH[:50], vocab_size=340, model_type="bpe", byte_fallback=True))
    tokenizer = marian_tokenizer(spm, spm)
    ids = tokenizer.encode("two 😀")
    shown = ["😀⟨F0⟩", "😀⟨9F⟩", "😀⟨98⟩", "😀⟨80⟩"]
    assert tokenizer.pieces(ids)[-4:] == shown == tokenizer.src_pieces(ids)[-4:]
    assert tokenizer.pieces([ids[-1], ids[0], ids[-4]])[::2] == ["⟨80⟩", "⟨F0⟩"]
    assert tokenizer.pieces(ids[:1])[0].startswith(" t")


@given(data=st.data())
def test_tokens_name_ids_and_can_be_separated_by_spaces(pair, data):
    tokenizer, library = pair
    ids = data.draw(st.lists(st.integers(1, len(tokenizer) - 1), max_size=20) | TEXTS.map(library.encode))
    line = " ".join(tokenizer.tokens([*ids, tokenizer.special.eos]))
    assert line.isprintable() and tokenizer.token_ids(line.split()) == ids


def test_tokens_are_the_pieces_and_unlike_each_other(pair):
    tokenizer, library = pair
    names = tokenizer.tokens(range(len(tokenizer)))
    assert len(set(names)) == len(tokenizer) - 1 and "" not in names  # all but eos
    assert tokenizer.tokens(library.encode("two hundred")) == library.encode("two hundred", out_type=str)
    assert tokenizer.token_ids(["<unk>"]) == [tokenizer.special.unk]
    with pytest.raises(HeedError, match="'</s>' is not a token of the model's vocabulary"):
        tokenizer.token_ids(["</s>"])


def test_a_table_of_words_names_what_is_not_visible_and_ids_without_a_word():
    table = ["</s>", "<unk>", "ein", "a\u00a0b", None, "\u200b", "<id:4>", " ", "<0x20>"]
    words = Vocabulary(pieces=table)
    tokenizer = SentencePieceTokenizer(words, words, SpecialIds(pad=0, bos=0, eos=0, unk=1))
    names = ["<unk>", "ein", "a<0xC2><0xA0>b", "<<id:4>", "<0xE2><0x80><0x8B>", "<id:4>", "<0x20>", "<id:8>"]
    assert tokenizer.tokens(range(9)) == names
    assert tokenizer.token_ids(names) == list(range(1, 9))


def test_a_model_without_the_package_says_what_to_install(spm, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(HeedError, match=r"not installed: pip install 'heed-mt\[sentencepiece\]'\.$"):
        marian_tokenizer(spm, spm)


# OPUS-MT: two models and one table


@pytest.fixture(scope="module", params=["unigram", "bpe", "bytes"])
def opus_folder(request, tmp_path_factory) -> Path:
    """A model's files in Hugging Face's form; source pieces, target pieces and a code, in one table."""
    folder = tmp_path_factory.mktemp("opus")
    settings = {"model_type": request.param, "vocab_size": 150, "unk_id": 0, "bos_id": 1, "eos_id": 2}
    if request.param == "bytes":
        settings |= {"model_type": "bpe", "vocab_size": 420, "byte_fallback": True}
    pieces = {">>fra<<", "日", ">"}
    for side, lines in (("source", ENGLISH), ("target", GERMAN)):
        (folder / f"{side}.spm").write_bytes(trained([*lines, *ODD_LINES], **settings))
        pieces |= set(SentencePieceModel.read(folder / f"{side}.spm").pieces[3:])
    pieces -= {max(pieces)}  # one that only the models know
    table = ["</s>", "<unk>", *sorted(pieces), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(table)}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def opus_pair(opus_folder):
    """Heed's tokenizer and Hugging Face's."""
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sacremoses is recommended, and not used where a tokenizer is called
        theirs = transformers.MarianTokenizer(
            *(str(folder_file) for folder_file in (opus_folder / "source.spm", opus_folder / "target.spm")),
            str(opus_folder / "vocab.json"),
        )
    return opus_mt_tokenizer(opus_folder), theirs


@pytest.mark.slow
@given(text=TEXTS | st.sampled_from([">>fra<<", ">>fra<< ", ">>", "  >>fra<<", "<<>>"]).flatmap(
    lambda code: TEXTS.map(code.__add__)
))  # fmt: skip
@example(text=">>fra<< two hundred")
@example(text="日")
@example(text=">> two hundred")
@settings(max_examples=n_examples(300))
def test_ids_and_decoded_texts_are_those_of_marian_tokenizer(opus_pair, text):
    tokenizer, theirs = opus_pair
    for name in ("</s>", "<unk>", "<pad>", "<eop>", "<eod>"):  # of which they make special ids, and Heed text
        text = text.replace(name, "")
    assume(text.startswith(">>fra<<") or not re.match(">>.*<<", text, re.DOTALL))  # see below
    eos = tokenizer.special.eos
    assert [*tokenizer.encode(text), eos] == theirs(text).input_ids
    (tgt_ids,) = tokenizer.encode_targets([text])
    assert [*tgt_ids, eos] == theirs(text_target=text).input_ids
    assert tokenizer.decode([tokenizer.special.bos, *tgt_ids, eos]) == theirs.decode(tgt_ids, skip_special_tokens=True)
    (spans,) = tokenizer.src_spans([text])
    assert len(spans) == len(tokenizer.encode(text))
    if text.startswith(">>fra<<"):
        assert spans[0] == (0, len(">>fra<<"))


def test_a_quotation_is_no_language_code(opus_pair):
    """Hugging Face leaves unk of what stands between such signs."""
    tokenizer, _ = opus_pair
    for quotation in (">>two hundred<< two", ">>x<<"):
        ids = tokenizer.encode(quotation)
        assert len(ids) > 2 and ids[-1] == tokenizer.encode(quotation.removeprefix(">>"))[-1]
        assert len(tokenizer.src_spans([quotation])[0]) == len(ids)
    assert tokenizer.encode(">>fra<< two")[1:] == tokenizer.encode("two")


def test_no_text_spells_a_special_symbol_of_a_table(opus_pair):
    tokenizer, _ = opus_pair
    special = tokenizer.special
    assert special == SpecialIds(len(tokenizer) - 1, len(tokenizer) - 1, 0, unk=1)
    for text in ("</s>", "<pad>", ">></s><<", "two </s> <pad>"):
        for ids in (tokenizer.encode(text), *tokenizer.encode_targets([text])):
            assert not {special.pad, special.eos} & set(ids)


def test_both_sides_of_an_opus_tokenizer_are_saved(opus_pair, tmp_path):
    tokenizer, _ = opus_pair
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded == tokenizer
    assert loaded.encode(">>fra<< two hundred") == tokenizer.encode(">>fra<< two hundred")
    assert loaded.encode_targets(GERMAN) == tokenizer.encode_targets(GERMAN) != tokenizer.encode_lines(GERMAN)
    assert loaded.pieces(loaded.encode(">>fra<< two"))[0] == ">>fra<<"


# Two vocabularies, tables of words


def test_sides_may_have_vocabularies_of_different_size(tmp_path):
    for name, lines, size in (("en", ENGLISH, 120), ("de", GERMAN, 150)):
        (tmp_path / f"{name}.spm").write_bytes(trained(lines, vocab_size=size))
    tokenizer = marian_tokenizer(tmp_path / "en.spm", tmp_path / "de.spm")
    tokenizer.save(tmp_path / "tokenizer.json")
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    english_model, german_model = (
        sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / name)) for name in ("en.spm", "de.spm")
    )
    assert (tokenizer.src_vocab_size, len(tokenizer)) == (len(english_model), len(german_model)) != (120, 120)
    assert tokenizer.encode_lines(ENGLISH) == english_model.encode(ENGLISH)
    assert tokenizer.encode_targets(GERMAN) == german_model.encode(GERMAN)
    assert tokenizer.src_pieces([5]) != tokenizer.pieces([5])
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_targets(GERMAN)] == GERMAN


def test_a_marian_table_has_the_size_that_the_model_has(tmp_path):
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps({"</s>": 0, "<unk>": 1, "a": 2, "b": 3}))
    tokenizer = marian_tokenizer(path, path, sizes=(3, 6))
    assert tokenizer.src.pieces == ["</s>", "<unk>", "a"] and tokenizer.encode("a b") == [2, 1]
    assert tokenizer.tgt.pieces == ["</s>", "<unk>", "a", "b", None, None] and len(tokenizer) == 6
    as_list = tmp_path / "vocab.txt"
    as_list.write_bytes(b"</s>\n<unk>\na\r\nb\n")
    assert marian_tokenizer(as_list, as_list, sizes=(3, 6)) == tokenizer


def test_a_marian_table_splits_at_spaces(tmp_path):
    words = ["no", "~", "1", "<<", "two", "'q", "2001-01-01", "y@@", "日本", 'a"b', "x: y"]
    lines = ["</s>: 0", "<unk>: 1", *(f"{json.dumps(word)}: {i + 2}" for i, word in enumerate(words[:7]))]
    lines += [f"{words[7]!r}: 9", f"{words[8]}: 10", f"{words[9]!r}: 12"]  # no word has id 11
    (tmp_path / "vocab.yml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokenizer = marian_tokenizer(tmp_path / "vocab.yml", tmp_path / "vocab.yml")
    assert (len(tokenizer), tokenizer.special) == (13, SpecialIds(0, 0, 0, unk=1))
    assert tokenizer.encode(" no  ~ 1 << two three </s> <unk> 日本\ttwo ") == [2, 3, 4, 5, 6, 1, 1, 1, 1]
    ids = tokenizer.encode("no 'q 2001-01-01 y@@ 日本 a\"b")
    assert ids == [2, 7, 8, 9, 10, 12]
    assert tokenizer.decode([*ids, 11, 0]) == "no 'q 2001-01-01 y@@ 日本 a\"b"
    assert tokenizer.pieces([2, 11]) == [" no", " "]
    with pytest.raises(HeedError, match="is not valid Unicode text"):
        tokenizer.encode("a \ud800")
    tokenizer.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json") == tokenizer


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.yml", "a: b", "id of 'a' is 'b', expected 0 to"),
        ("v.yml", "a: 0\nb: 0", "'b' and 'a' have the same id 0"),
        ("v.yml", "a: 999999999999999999", "expected 0 to"),
        ("v.yml", "a: -1", "expected 0 to"),
        ("v.yml", "- a", "not a table of pieces and ids"),
        ("v.yml", "? [a]\n: 1", "damaged|not a table"),
        ("v.yml", "a: &x [*x]", "is not a number"),
        ("v.yml", "a: [", "damaged"),
        ("v.yml", "[" * 10**5, "damaged"),
        ("v.yml", "!!python/object/apply:os.system ['true']", "not a table"),
        ("v.yml", "</s>: 0", "must have </s> and <unk>"),
        ("v.yml", "a: 0\na: 1", "has two ids"),
        ("v.yml", "", "not a table"),
        ("v.json", "{}", "not a table of pieces"),
        ("v.json", '{"a": true}', "is True, expected"),
        ("v.json", '{"a": 1' + "0" * 5000 + "}", "damaged"),
        ("v.json", "[" * 10**6, "damaged"),
    ],
)
def test_a_damaged_table_is_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(HeedError, match=message) as caught:
        marian_tokenizer(path, path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < len(str(path)) + 400


# tokenizer.json from a stranger


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sentencepiece": 2}, "sentencepiece"),
        ({"more": 1}, "more"),
        ({"special": {"pad": 0, "bos": 0, "eos": 0, "unk": 10**6}}, "unk is id 1000000"),
        ({"special": {"pad": -1, "bos": 0, "eos": 0, "unk": 1}}, "pad is id -1"),
        ({"special": {"pad": 0, "bos": 0, "eos": 5, "unk": 1}}, "are not control symbols"),
        ({"special": {"pad": 0, "bos": 0, "eos": 0, "unk": 0}}, "unk has the id 0 of pad, bos or eos"),
        ({"special": {"pad": 0, "bos": 0, "eos": 0, "unk": 2}}, "unk is not the unknown piece"),
        ({"special": {"pad": 0, "bos": 0, "eos": 0}}, "special.unk"),
        ({"src": {"model": None, "pieces": None}}, "neither a model nor"),
        ({"src": {"model": None, "pieces": ["a", "b", "a"]}}, "has two ids"),
        ({"src": {"model": None, "pieces": ["a", "b", "\ud800"]}}, "is not valid Unicode text"),
        ({"src": {"model": None, "pieces": ["a", 5]}}, "pieces"),
        ({"src": {"model": None, "pieces": ["a", "b" * 600]}}, "more than 512 bytes"),
        ({"src": {"model": None, "pieces": ["</s>"]}}, "unk is id 1"),
        ({"src": {"model": {"kind": "word"}}}, "src.model"),
        ({"tgt": 5}, "tgt"),
    ],
)
def test_a_tokenizer_file_whose_ids_cannot_be_trusted_is_refused(pair, tmp_path, changes, message):
    path = tmp_path / "tokenizer.json"
    pair[0].save(path)
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    with pytest.raises(HeedError, match=message) as caught:
        load_tokenizer(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 400


def test_marians_own_model_gives_marians_ids(data_folder, tmp_path):
    path = data_folder / "marian" / "joint.spm"
    if not path.exists():
        pytest.skip("no model of Marian's beside the project")
    lines = (data_folder / "marian" / "src.en").read_text(encoding="utf-8").splitlines()
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = marian_tokenizer(path, path)
    assert (len(tokenizer), tokenizer.special) == (600, SpecialIds(0, 0, 0, unk=1))
    assert tokenizer.encode_lines(lines) == library.encode(lines)
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_targets(lines)] == lines


def test_a_table_of_pieces_in_marians_form_is_read_with_the_models_beside_it(opus_folder, tmp_path):
    table = json.loads((opus_folder / "vocab.json").read_text(encoding="utf-8"))
    shutil.copytree(opus_folder, tmp_path / "opus")
    path = tmp_path / "opus" / "opus.vocab.yml"
    path.write_text("".join(f"{json.dumps(piece)}: {i}\n" for piece, i in table.items()), encoding="utf-8")
    ours, expected = marian_tokenizer(path, path), opus_mt_tokenizer(opus_folder)
    for line in (*ENGLISH[:20], *ODD_LINES, ">>fra<< two hundred"):
        assert ours.encode(line) == expected.encode(line)
    (tmp_path / "opus" / "source.spm").unlink()
    with pytest.raises(HeedError, match=r"opus\.vocab\.yml: its entries are SentencePiece's pieces; put"):
        marian_tokenizer(path, path)
