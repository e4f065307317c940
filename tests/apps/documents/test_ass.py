"""SubStation Alpha: the words of dialogue lines are translated, wherever the Format: line puts them."""

import pytest
from tests.apps.documents.translators import linked, translated, unchanged

from heed.errors import HeedError
from heed.text.alignment import Translated

HEAD = "[Script Info]\r\nTitle: One\r\n[V4+ Styles]\nStyle: One,Arial\n\n[Events]\n"
FORMAT = "Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n"
START = "Dialogue: 0,0:00:01.00,0:00:02.00,One,Ann,0,0,0,,"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("One, two\\Nthree", "oNE, TWO\\NTHREE"),
        ("{\\an8}One {\\i1}two{\\i0} th\\hree", "{\\an8}oNE {\\i1}TWO{\\i0} TH\\hREE"),
        ("{\\k20}One {\\k30}two", "{\\k20}oNE {\\k30}TWO"),
        ("One {\\p1}m 0 0 l 5 b{\\p0} two", "oNE {\\p1}m 0 0 l 5 b{\\p0} TWO"),
        ("{\\p2}m 0 0 l 5 b", "{\\p2}m 0 0 l 5 b"),
        ("a } \\{b {c", "A } \\{B {C"),
    ],
)
def test_words_are_translated_and_codes_and_drawings_stay(before, after):
    text = f"{HEAD}{FORMAT}{START}{before}\r\nComment: 0,0:00:01.00,0:00:02.00,One,,0,0,0,,One\n[Fonts]\nDialogue: x\n"
    assert translated(text, unchanged, "ass") == text
    assert translated(text, linked, "ass") == text.replace(START + before, START + after)


def test_fields_are_those_of_the_format_line():
    for fields, line in (
        ("Start, Text, End", "Dialogue: 0,One,5\n"),
        ("Layer, Start, End, Style, Text", "Dialogue: 0,0,5,One,Two, three\n"),
    ):
        text = f"{HEAD}Format: {fields}\n{line}"
        kept, _, words = line.rstrip().partition("One,Two" if "Two" in line else "0,One")
        found = translated(text, linked, "ass")
        assert found == text.replace("Two, three", "tWO, THREE").replace("0,One,5", "0,oNE,5"), (kept, words)


def test_words_of_a_model_become_no_codes_and_no_line_ends():
    text = f"{HEAD}{FORMAT}{START}One\n"
    found = translated(text, lambda _: [Translated("{\\b1}x C:\\New \\{")], "ass")
    assert found == text.replace(f"{START}One", f"{START}\\{{\\b1\\}}x C:\\\u2060New \\\u2060\\{{")


def test_a_file_without_dialogue_is_refused():
    with pytest.raises(HeedError, match="no line of dialogue"):
        translated("Dialogue: 0,1,2,One\n", linked, "ass")
