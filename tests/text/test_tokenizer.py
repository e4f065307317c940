"""Segmentation loses nothing and knows everything."""

import copy
import json
import os
import re
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conftest import n_examples
from tests.end_to_end.test_command_line import assert_one_clear_line

from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model
from heed.runtime.manifest import seal
from heed.text.segmentation import BOS, CONTINUATION, EOS, PAD, SYMBOL
from heed.text.token_names import TokenNames, readable
from heed.text.tokenizer import SpecialIds, Tokenizer, TokenizerSettings, spelled_bytes, train_tokenizer
from heed.text.tokenizer_file import MAX_FILE_BYTES

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
@settings(max_examples=n_examples(300))
def test_decoding_gives_back_exactly_what_was_encoded(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    special = tokenizer.special
    assert special == SpecialIds()
    assert not {special.pad, special.bos, special.eos} & set(ids)
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


def test_frequent_words_become_one_piece(tokenizer):
    assert tokenizer.pieces(tokenizer.encode("the fox"))[0] == " the"


@given(st.text(), st.lists(st.integers(0, 200)))
def test_each_part_of_a_text_shows_its_characters_whole_with_the_bytes_of_those_that_are_cut(text, cuts):
    data = text.encode()
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    parts = [data[start:end] for start, end in pairwise(places)]
    spelled, done = spelled_bytes(parts), 0
    assert len(spelled) == len(parts)
    for part, shown in zip(parts, spelled, strict=True):
        expected, place = "", 0
        for character in text:  # worked out from the places of all characters
            begin, end = max(place, done), min(place + len(character.encode()), done + len(part))
            if begin < end:
                here = data[begin:end]
                expected += character if here == character.encode() else f"{character}⟨{here.hex(' ').upper()}⟩"
            place += len(character.encode())
        assert shown == expected
        done += len(part)


@given(st.binary(max_size=40))
def test_of_bytes_that_are_no_text_each_is_named(data):
    for byte, shown in zip(data, spelled_bytes([bytes([byte]) for byte in data]), strict=True):
        assert shown == chr(byte) if byte < 128 else shown.endswith(f"⟨{byte:02X}⟩")
    broken = data.decode(errors="surrogateescape")
    named = re.sub("[\udc80-\udcff]", lambda match: f"⟨{ord(match[0]) - 0xDC00:02X}⟩", broken)
    assert spelled_bytes([data]) == [named]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_ids_of_bytes_show_the_letter_that_they_form(kind):
    tokenizer = train_tokenizer(["a dog"], TokenizerSettings(kind=kind, vocab_size=600), ["NP"])
    ids = tokenizer.encode("xไ")
    shown = ["x", "ไ⟨E0⟩", "ไ⟨B9⟩", "ไ⟨84⟩"]
    assert tokenizer.pieces(ids)[-4:] == shown
    assert tokenizer.pieces([tokenizer.symbols["NP"], ids[-2], tokenizer.special.eos, ids[-1]]) == [
        " NP", "⟨B9⟩", EOS, "⟨84⟩",
    ]  # fmt: skip


def test_symbols_are_ids_of_their_own_that_text_cannot_spell(tmp_path):
    symbols = ["(NP", ")NP", "NN", "the"]
    train_tokenizer(LINES, TokenizerSettings(vocab_size=650), symbols).save(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert set(tokenizer.symbols) == set(symbols)
    for line in ("(NP NN )NP", "(NP ▁the the ▁fox NN )NP", "▁a/b NN"):
        (ids,) = tokenizer.encode_targets([line])
        assert tokenizer.decode([tokenizer.special.bos, *ids, tokenizer.special.eos]) == line
        assert {tokenizer.symbols[name] for name in line.split() if name in symbols} <= set(ids)
    assert not set(tokenizer.symbols.values()) & set(tokenizer.encode("(NP NN the )NP [symbol] NN"))
    assert tokenizer.encode_targets(["(NP  NN )NP "]) == tokenizer.encode_targets(["(NP NN )NP"])
    assert tokenizer.encode_targets(["(NP VB )NP", "NN"]) == [[], [tokenizer.symbols["NN"]]]


@given(data=st.data())
def test_tokens_name_ids_and_can_be_separated_by_spaces(tokenizer, parser_tokenizer, data):
    for one in (tokenizer, parser_tokenizer):
        ids = data.draw(st.lists(st.integers(3, len(one) - 1), max_size=20))
        line = " ".join(one.tokens([one.special.bos, *ids, one.special.eos]))
        assert line.isprintable() and one.token_ids(line.split()) == ids


def test_tokens_are_unlike_each_other_and_readable(tokenizer, parser_tokenizer):
    for one in (tokenizer, parser_tokenizer):
        names = [one.tokens([i]) for i in range(len(one))]
        assert names[:3] == [[], [], []] and len({name for (name,) in names[3:]}) == len(one) - 3
        assert one.tokens(one.encode("the fox")) == ["▁the", "▁fox"]
        *_, first, second = one.tokens(one.encode("ö"))  # which no line holds: two bytes
        assert (first.lstrip("▁…"), second.lstrip(CONTINUATION)) == ("<0xC3>", "<0xB6>")
        for special in (PAD, BOS, EOS, "▁the fox", "", "<symbol:VB>"):
            with pytest.raises(HeedError, match="is not a token of the model's vocabulary"):
                one.token_ids([special])
    assert parser_tokenizer.tokens(parser_tokenizer.encode_targets(["(NP ▁the )NP"])[0]) == [
        "<symbol:(NP>", "▁the", "<symbol:)NP>",
    ]  # fmt: skip


def test_names_that_would_be_alike_or_could_not_be_seen_are_told_apart():
    given = ["<0x0A>", None, "<0x0A>", "<id:1>", "", "b", "…a", "…a", "a"]
    names, ids = TokenNames(given.__getitem__, len(given), left_out={5}), [0, 1, 2, 3, 4, 6, 7, 8]
    expected = ["<0x0A>", "<<id:1>", "<id:2>", "<id:1>", "<id:4>", "…a", "<id:7>", "a"]
    assert names.tokens(range(9)) == expected == [name for i in range(9) for name in names.tokens([i])]
    assert names.ids(expected) == ids
    assert readable(" ü▁\tn\u200b".encode() + b"\xc3", space="▁") == (
        "▁ü<0xE2><0x96><0x81><0x09>n<0xE2><0x80><0x8B><0xC3>"
    )


# A tokenizer file from a stranger


@pytest.fixture(scope="module", params=["bpe", "wordpiece"])
def parser_tokenizer(request) -> Tokenizer:
    return train_tokenizer(LINES, TokenizerSettings(kind=request.param, vocab_size=650), ["(NP", ")NP", "▲"])


def file_of(tokenizer: Tokenizer, path) -> dict:
    tokenizer.save(path)
    return json.loads(path.read_text(encoding="utf-8"))


def refusal(path, file: object) -> str:
    """The line that refuses this content."""
    path.write_text(file if isinstance(file, str) else json.dumps(file), encoding="utf-8")
    with pytest.raises(HeedError) as caught:
        Tokenizer.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message and len(message) < len(str(path)) + 300
    return message


def test_a_saved_tokenizer_loads_equal_to_itself(tokenizer, parser_tokenizer, tmp_path):
    for saved in (tokenizer, parser_tokenizer):
        saved.save(tmp_path / "tokenizer.json")
        loaded = Tokenizer.load(tmp_path / "tokenizer.json")
        assert loaded == saved and loaded.symbols == saved.symbols
        loaded.save(tmp_path / "again.json")
        assert (tmp_path / "again.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("i", [1_000_000, 5000, 2**40, -1, 1, True, 5.0, "5", None])
def test_ids_are_those_of_the_vocabulary_each_once(tokenizer, tmp_path, i):
    path = tmp_path / "tokenizer.json"
    file = file_of(tokenizer, path)
    file["model"]["vocab"]["Ġ"] = i
    assert "ids" in refusal(path, file)


def test_translate_refuses_ids_beyond_the_embeddings(tmp_path, heed):
    tokenizer = train_tokenizer(LINES, TokenizerSettings(vocab_size=650))
    model = Transformer(Architecture(n_layers=1, d_model=16, d_ff=16, n_heads=2), len(tokenizer))
    save_model(tmp_path / "model", model, tokenizer, ModelCard(src="en", tgt="de"))
    path = tmp_path / "model" / "tokenizer.json"
    file = file_of(tokenizer, path)
    file["model"]["vocab"]["Ġ"] = 1_000_000
    path.write_text(json.dumps(file), encoding="utf-8")
    seal(tmp_path / "model")
    done = heed("translate", tmp_path / "model", stdin="a b\n")
    assert_one_clear_line(done, f"{path}: ", "ids are not 0 to")
    assert done.returncode == 1 and done.stdout == ""


def test_special_symbols_are_where_heed_puts_them(parser_tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    good = file_of(parser_tokenizer, path)
    for name in (PAD, BOS, EOS):
        file = copy.deepcopy(good)
        vocab = file["model"]["vocab"]
        vocab["ĠĠĠ"] = vocab.pop(name)
        assert "its first three ids" in refusal(path, file)
    for name in ("▁the", "a b", "a\nb", "x" * 257, "", "\udc80"):
        file = copy.deepcopy(good)
        file["model"]["vocab"][SYMBOL + name] = len(file["model"]["vocab"])
        assert ("surrogates" if name == "\udc80" else "not a target symbol") in refusal(path, file)
    for change in ("gone", "flag", "more", "id"):
        file = copy.deepcopy(good)
        added = file["added_tokens"]
        if change == "gone":
            added.pop()
        elif change == "flag":
            added[3]["lstrip"] = True
        elif change == "more":
            added.append(added[0] | {"content": "the", "id": file["model"]["vocab"]["Ġ"]})
        else:
            added[3]["id"], added[4]["id"] = 4, 3
        assert "added_tokens" in refusal(path, file)


def test_every_byte_has_an_id_and_no_piece_is_anything_but_bytes_of_one_word(parser_tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    good = file_of(parser_tokenizer, path)
    for wrong in ("", "a" * 258, "a" * 10**6, "a b", "日本", "\x1b", "\udc80", "……a"):
        file = copy.deepcopy(good)
        file["model"]["vocab"][wrong] = len(file["model"]["vocab"])
        assert "piece " in refusal(path, file)
    file = copy.deepcopy(good)
    file["model"]["vocab"]["aaaaaaa"] = file["model"]["vocab"].pop("…ÿ" if "…ÿ" in file["model"]["vocab"] else "ÿ")
    assert "lacks the byte" in refusal(path, file)


@pytest.mark.parametrize("merge", [["Ġ", "ÿÿ"], ["Ġ"], "Ġ t", ["Ġ", 5], [PAD, ""], ["", "Ġ"], ["Ġ", "Ġ"], None])
def test_merges_are_pairs_of_pieces_that_make_one(tmp_path, merge):
    path = tmp_path / "tokenizer.json"
    file = file_of(train_tokenizer(LINES, TokenizerSettings(vocab_size=650)), path)
    file["model"]["merges"].append(merge)
    assert "merge" in refusal(path, file)
    file["model"]["merges"][-1] = file["model"]["merges"][0]  # twice
    assert "model.merges" in refusal(path, file)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "2.0"),
        ("truncation", {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}),
        ("padding", {"strategy": {"Fixed": 10**6}, "direction": "Right", "pad_id": 0, "pad_token": PAD}),
        ("normalizer", {"type": "Replace", "pattern": {"String": "dog"}, "content": "cat"}),
        ("pre_tokenizer", None),
        ("pre_tokenizer.pretokenizers.0.pattern.Regex", "(a+)+$"),
        ("pre_tokenizer.pretokenizers.0.invert", True),
        ("pre_tokenizer.pretokenizers.1.add_prefix_space", True),
        ("post_processor", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}),
        ("decoder", {"type": "Fuse"}),
        ("model.dropout", 0.5),
        ("model.unk_token", "a"),
        ("model.byte_fallback", True),
        ("model.type", "Unigram"),
        ("unknown\n\x1b[31m" + "x" * 10**5, 1),
        ("", 1),
    ],
)
def test_anything_but_vocabulary_and_merges_must_be_what_heed_writes(parser_tokenizer, tmp_path, field, value):
    path = tmp_path / "tokenizer.json"
    file = file_of(parser_tokenizer, path)
    *outer, last = field.split(".") if "\n" not in field else [field]
    inner = file
    for name in outer:
        inner = inner[int(name) if name.isdigit() else name]
    inner[last] = value
    message = refusal(path, file)
    if field == "model.type":
        assert "neither byte pairs nor word pieces" in message
    else:
        assert f"{field[:7]}" in message and "differs from what Heed writes" in message


def test_missing_and_empty_fields_are_one(parser_tokenizer, tmp_path):
    """Versions of the library differ in which of these they write."""
    path = tmp_path / "tokenizer.json"
    file = file_of(parser_tokenizer, path)
    for name in ("truncation", "padding", "normalizer", "post_processor"):
        del file[name]
    file["model"] |= {"fuse_unk": False, "a_later_field": None}
    path.write_text(json.dumps(file))
    assert Tokenizer.load(path) == parser_tokenizer


@pytest.mark.parametrize(
    "content",
    [
        "[" * 10**6,
        '{"model": ' * 10**5,
        '{"model": {"type": "BPE", "vocab": {"a": NaN}}}',
        '{"model": {"type": "BPE", "vocab": {"a": -Infinity}}}',
        '{"model": {"type": "BPE", "vocab": {"a": 1' + "0" * 10**5 + "}}}",
        '{"model": {"type": "BPE", "vocab": {"a": 0, "a": 0}}}',
        '{"model": {"type": "BPE", "vocab": [1, 2], "merges": []}}',
        '{"model": {"type": ["BPE"]}}',
        "[]",
        "null",
        "\ufeff{}",
        '{"version": "1.0"}',
    ],
)
def test_broken_json_is_one_line(tmp_path, content):
    assert "not a tokenizer file" in refusal(tmp_path / "tokenizer.json", content)


def test_only_a_regular_file_of_bounded_length_is_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with (tmp_path / "long").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    (tmp_path / "latin1").write_bytes(b'{"model": "\xff"}')
    for name in ("fifo", "zero", "long", "latin1", "missing", ""):
        with pytest.raises(HeedError, match=f"^{tmp_path / name}: "):
            Tokenizer.load(tmp_path / name)


@pytest.mark.parametrize("text", ["\udc80", "a \ud800 b"])
def test_half_a_surrogate_pair_is_refused_as_no_text(tokenizer, parser_tokenizer, text):
    for encode in (tokenizer.encode, parser_tokenizer.encode):
        with pytest.raises(HeedError, match=r"\\ud[c8][80]0.* is not valid Unicode text"):
            encode(text)
    for encode in (tokenizer.encode_lines, tokenizer.encode_targets, parser_tokenizer.encode_targets):
        with pytest.raises(HeedError, match="is not valid Unicode text"):
            encode(["the", text])
    with pytest.raises(HeedError, match="is not valid Unicode text"):
        parser_tokenizer.encode_targets([f"(NP ▁{text} )NP"])


def test_a_target_symbol_that_no_file_may_hold_is_refused_in_training():
    for name in ("x" * 257, "▁x", "", "a b", "a\nb"):
        with pytest.raises(HeedError, match="is not a target symbol"):
            train_tokenizer(LINES, TokenizerSettings(vocab_size=650), ["NP", name])


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_tag_is_one_id_where_a_source_begins_with_it_and_nowhere_else(kind, tmp_path):
    settings = TokenizerSettings(kind=kind, vocab_size=650)
    made = train_tokenizer(LINES, settings, tags=["<2de>", "«fr»"])
    made.save(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert tokenizer == made and set(tokenizer.tags) == {"<2de>", "«fr»"}
    for tag, i in tokenizer.tags.items():
        # As the ids of the tag and then those of the text, whatever the road.
        text = f"{tag} der Fuchs {tag}"
        ids = tokenizer.encode(text)
        assert ids == [i, *tokenizer.encode(f"der Fuchs {tag}")] and tokenizer.encode(tag) == [i]
        assert tokenizer.encode_lines([text, "der Fuchs", tag]) == [ids, tokenizer.encode("der Fuchs"), [i]]
        assert ids.count(i) == 1 and i not in tokenizer.encode(f"x{tag} {tag}")
        for line in (text, tag, f"{tag} ", f"{tag}  a", f"{tag}a", f" {tag} a", f"{tag} {tag}"):
            assert tokenizer.decode(tokenizer.encode(line)) == line
            (encoded,) = tokenizer.encode_targets([line])
            assert i not in encoded and tokenizer.decode(encoded) == line
        # What is shown of it.
        assert tokenizer.src_spans([text])[0][:2] == [(0, len(tag)), (len(tag) + 1, len(tag) + 4)]
        assert len(tokenizer.src_spans([text])[0]) == len(ids)
        assert len(tokenizer.tgt_spans([text])[0]) == len(tokenizer.encode_targets([text])[0])
        assert tokenizer.pieces(ids)[0] == f" {tag}" and tokenizer.tokens(ids)[0] == f"<tag:{tag}>"
        assert tokenizer.token_ids(tokenizer.tokens(ids)) == ids
    # A file from a stranger holds no other tags.
    content = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "bad.json").write_text(content.replace("[tag] <2de>", "[tag] <2 de>"), encoding="utf-8")
    with pytest.raises(HeedError, match="a tag has 1 to 32 visible characters and no space"):
        Tokenizer.load(tmp_path / "bad.json")
