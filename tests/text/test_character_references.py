"""References are resolved as by html.unescape, which stops at numbers of thousands of digits."""

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.text.character_references import resolved


@given(
    st.lists(st.sampled_from(["&", "#", "x", "X", ";", "0", "6", "5", "e4", "amp", "auml", "lt", " ", "ä"])).map(
        "".join
    )
)
def test_what_html_resolves_is_resolved_as_there(text):
    assert resolved(text) == html.unescape(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one &#" + "1" * 5000 + "; two", "one \ufffd two"),
        ("&#x" + "f" * 5000, "\ufffd"),
        ("&#" + "0" * 5000 + "65;", "A"),
        ("&#X" + "0" * 5000 + "e4;&#228;", "ää"),
        ("&#" + "0" * 5000 + ";", "\ufffd"),
        ("&#1114112;", "\ufffd"),
    ],
)
def test_numbers_of_any_length_are_characters_or_the_replacement(text, expected):
    assert resolved(text) == expected
