"""What stands between sentences survives, whatever the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.apps.cluster.earlier_split import split_text

TEXT = st.text(st.one_of(st.sampled_from(" .!?\n\r\t\u00a0\u2028abcÄ1。😀"), st.characters(exclude_categories=["Cs"])))


@given(TEXT, st.sampled_from(["en", "de", "ja", "zz"]))
def test_a_text_is_put_together_again_exactly(text, language):
    split = split_text(language, text)
    assert split.with_translations(split.sentences) == text
    assert all(sentence == sentence.strip() and sentence for sentence in split.sentences)
    assert not any("\n" in sentence or "\r" in sentence for sentence in split.sentences)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Hello Mr. Smith.  How are you?\n\n Fine!", ["Hello Mr. Smith.", "How are you?", "Fine!"]),
        ("https://example.org/a?b=c", []),
        ("a.b@example.org\n😀\n...\n\t", []),
        ("See https://example.org now.", ["See https://example.org now."]),
        ("", []),
    ],
)
def test_addresses_emoji_and_blanks_alone_are_no_sentences(text, sentences):
    assert split_text("en", text).sentences == sentences
