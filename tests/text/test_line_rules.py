"""Lines: what is blank, where a long one is cut."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.text.line_rules import is_blank, is_uneven
from heed.text.long_lines import cut_line, parts_of_line


@pytest.mark.parametrize(
    "text", ["", " ", "\t", "\u200b", "\ufeff\ufeff", "\xa0", "\u3000", "\xad", "\u200e", "\u2800", "\x1a"]
)
def test_what_unicode_shows_as_nothing_is_blank(text):
    assert is_blank(text) and is_blank(text * 3)
    assert not is_blank(text + "a")


@pytest.mark.parametrize("text", ["a", ".", "\u0600", "👩\u200d👩", "е\u0301"])
def test_what_can_be_seen_is_not_blank(text):
    assert not is_blank(text)


def test_a_text_of_another_length_is_no_translation_unless_scripts_explain_it():
    chinese, english = "我们明天在火车站见面", "We will meet each other at the railway station tomorrow morning."
    assert not is_uneven(chinese, english) and not is_uneven(english, chinese) and not is_uneven("42", "zweiundvierzig")
    assert is_uneven(english, " ".join([english] * 8)) and is_uneven(" ".join([english] * 8), english)


def letters(text: str) -> list[tuple[int, int]]:
    """A token for each character."""
    return [(i, i + 1) for i in range(len(text))]


def encoded(texts: list[str]) -> list[list[int]]:
    """An id for each character, and one for the beginning."""
    return [[0, *map(ord, text)] for text in texts]


@given(st.text(st.sampled_from("ab .。!\u0301ก\u0e33👩\u200d"), max_size=80), st.integers(2, 20))
def test_the_parts_are_the_line_and_none_is_too_long(text, most):
    found = cut_line(text, most, spans_of=letters, encode=encoded)
    assert "".join(part.before + part.text for part, _ in found) == text
    assert all(len(ids) <= most for _, ids in found)
    assert not any(part.before.strip("\u200b \t") for part, _ in found)


def test_a_line_is_cut_at_a_sentence_else_at_a_space_else_between_graphemes():
    def cut(text: str, most: int) -> list[str]:
        return [part.text for part in parts_of_line(text, letters(text), most)]

    assert cut("One. Two three", 10) == ["One.", "Two three"]
    assert cut("No. 3.5 of e.g. them", 16) == ["No.", "3.5 of e.g. them"]
    assert cut("今日は。明日は", 5) == ["今日は。", "明日は"]
    assert cut("one two three", 9) == ["one two", "three"]
    assert cut("10\xa0000 euros", 8) == ["10\xa0000", "euros"]
    for text in ("e\u0301" * 9, "👩\u200d👩" * 5):
        for part in cut(text, 5):
            assert unicodedata.category(part[0]) not in ("Mn", "Cf")
