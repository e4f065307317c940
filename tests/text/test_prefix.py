"""A prefix allows the ids whose text begins with it, all of them and no others."""

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.conftest import n_examples
from tests.text.test_sentencepiece import ENGLISH, GERMAN, KINDS, ODD_LINES, trained

from heed.errors import HeedError
from heed.text.prefix import NO_PREFIX, Prefix
from heed.text.sentencepiece import marian_tokenizer, opus_mt_tokenizer
from heed.text.tokenizer import TokenizerSettings, train_tokenizer
from heed.text.tokenizer_kinds import AnyTokenizer

LINES = [*ENGLISH[:300], *GERMAN[:300], *ODD_LINES]
BYTE_LEVEL = ["bpe", "wordpiece"]
NAMES = [*BYTE_LEVEL, *(f"sentencepiece {i}" for i in range(len(KINDS))), "opus", "words"]
LOSSLESS = [*BYTE_LEVEL, "sentencepiece 2", "sentencepiece 4"]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory) -> dict[str, AnyTokenizer]:
    folder = tmp_path_factory.mktemp("vocabularies")
    made: dict[str, AnyTokenizer] = {}
    for kind in BYTE_LEVEL:
        made[kind] = train_tokenizer(LINES, TokenizerSettings(kind=kind, vocab_size=900))
    for i, options in enumerate(KINDS):
        (folder / f"{i}.spm").write_bytes(trained(LINES, **options))
        made[f"sentencepiece {i}"] = marian_tokenizer(folder / f"{i}.spm", folder / f"{i}.spm")
    model = trained(LINES, model_type="unigram", vocab_size=150)
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(model)
    pieces = [piece for piece in marian_tokenizer(*[folder / "source.spm"] * 2).tgt.table if piece is not None]
    table = [">>fra<<", *pieces, "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(table)}), encoding="utf-8")
    made["opus"] = opus_mt_tokenizer(folder)
    words = ["</s>", "<unk>", *sorted({word for line in LINES for word in line.split(" ") if word})]
    (folder / "words.json").write_text(json.dumps({word: i for i, word in enumerate(words)}), encoding="utf-8")
    made["words"] = marian_tokenizer(*[folder / "words.json"] * 2)
    return made


def written(prefix: Prefix, ids: list[int]) -> bool:
    """Whether a search with this prefix may write these ids, eos behind."""
    state = 0
    for i in ids:
        if state < prefix.end and i not in prefix.allowed_ids(state, 10**6):
            return False
        state = prefix.after(state, i)
    return state == prefix.end


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=n_examples(25))
def test_whatever_a_prefix_allows_decodes_to_a_text_that_begins_with_it(tokenizers, name, data):
    tokenizer = tokenizers[name]
    if name in LOSSLESS:
        text = data.draw(st.text(alphabet=st.characters(exclude_characters="▁", exclude_categories=["Cs", "Cc"])))
    else:  # what no normalisation changes
        line = data.draw(st.sampled_from(LINES))
        line = tokenizer.decode(tokenizer.encode_targets([line])[0]).strip(" ")
        assume(tokenizer.decode(tokenizer.encode_targets([line])[0]).strip(" ") == line)
        text = line[: data.draw(st.integers(0, len(line)))]
    prefix = tokenizer.prefix(text)
    room = data.draw(st.integers(prefix.n_tokens, prefix.n_tokens + 20))
    draw = np.random.default_rng(data.draw(st.integers(0, 1000)))
    state, ids = 0, []
    while state < prefix.end:
        assert prefix.needed[state] <= room - len(ids)
        ids.append(int(draw.choice(prefix.allowed_ids(state, room - len(ids)))))
        state = prefix.after(state, ids[-1])
    assert len(ids) <= room
    special = {tokenizer.special.pad, tokenizer.special.bos, tokenizer.special.eos, tokenizer.special.unk}
    assert not special & set(ids)
    decoded = tokenizer.decode([*ids, *tokenizer.encode_targets(["ein"])[0]])
    assert decoded.startswith(text), (text, decoded, tokenizer.pieces(ids))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=n_examples(25))
def test_a_prefix_of_what_ids_decode_to_allows_these_ids(tokenizers, name, data):
    tokenizer = tokenizers[name]
    special = tokenizer.special
    never = {special.pad, special.bos, special.eos, special.unk}
    known = [i for i in range(len(tokenizer)) if i not in never and "<c>" not in tokenizer.pieces([i])[0]]
    if name.startswith("sentencepiece"):
        known = [i for i in known if not tokenizer.tokens([i])[0].startswith("<0x")]
    ids = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=8))
    text = tokenizer.decode(ids)
    # Bytes that together are no character decode to U+FFFD, which no prefix can tell from that character itself.
    text = text.partition("\ufffd")[0]
    cut = text[: data.draw(st.integers(0, len(text)))]
    if name in LOSSLESS or tokenizer.decode(tokenizer.encode(cut)) == cut.rstrip(" "):
        assert written(tokenizer.prefix(cut), ids), (cut, tokenizer.pieces(ids))


def test_a_prefix_that_ends_within_a_word_allows_the_words_that_complete_it(tokenizers):
    tokenizer = tokenizers["bpe"]
    hundred = tokenizer.encode("hundred")
    assert len(hundred) == 1 and written(tokenizer.prefix("hun"), hundred)
    assert not written(tokenizer.prefix("hun"), tokenizer.encode("hu"))
    assert not written(tokenizer.prefix("huns"), hundred)
    assert written(tokenizer.prefix("two "), tokenizer.encode("two hundred"))
    assert not written(tokenizer.prefix("two "), tokenizer.encode("two"))
    assert tokenizer.prefix("hundred").n_tokens == 1
    assert tokenizer.prefix("") is NO_PREFIX and tokenizers["opus"].prefix(" ") is NO_PREFIX


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("opus", "zwei 中国", "the prefix 'zwei 中国' holds text that the model's vocabulary lacks: '中', '国'; take"),
        ("words", "one onehundred t", "no token continues 'one' as it does; take another"),
        ("bpe", "a\ud800", "not valid Unicode"),
        ("opus", "a\ud800", "not valid Unicode"),
    ],
)
def test_a_prefix_that_no_ids_spell_is_refused(tokenizers, name, text, complaint):
    with pytest.raises(HeedError, match=complaint):
        tokenizers[name].prefix(text)


def test_symbols_are_a_prefix_as_they_stand():
    tokenizer = train_tokenizer(LINES, TokenizerSettings(vocab_size=600), symbols=["(S", ")S"])
    ids = tokenizer.encode_targets(["(S ▁one )S"])[0]
    assert tokenizer.prefix("(S ▁one )S").ids.tolist() == ids
    with pytest.raises(HeedError, match="holds a symbol that the model's vocabulary lacks"):
        tokenizer.prefix("(S NP")
