"""Where sentences end: one a bar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.samples import sample

from heed.apps.documents.text.sentences import splitter
from heed.apps.documents.words import table

TEXTS = sample("sentences.txt")


@pytest.mark.parametrize("line", TEXTS.strip().splitlines())
@pytest.mark.parametrize("white_space", [" ", "\n", "\n\n", "  "])
def test_sentences_end_where_readers_end_them(line, white_space):
    language, text = line.split(": ", 1)
    sentences = [sentence.replace(" ", white_space) for sentence in text.split(" | ")]
    text = white_space.join(sentences)
    assert [text[start:end] for start, end in splitter(language)(text)] == sentences


PIECES = st.sampled_from(
    "The dog runs. (A cat.) [ ] ( ) \" ' Mr. 2. II. 犬。 「はい。」 と 说 ។ e.g. ... ? ! The he U.S. 3".split()
)


@given(
    st.sampled_from([*table("abbreviations"), "ja", "xx", "en-GB"]),
    st.lists(st.tuples(PIECES, st.sampled_from(["", " ", "\n", "\u00a0"])).map("".join)).map("".join),
)
def test_nothing_but_white_space_is_between_sentences(language, text):
    last = 0
    for start, end in splitter(language)(text):
        assert last <= start < end and not text[last:start].strip()
        assert text[start:end] == text[start:end].strip()
        last = end
    assert not text[last:].strip()
