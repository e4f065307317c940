"""Terms of a glossary in texts: brackets around what stands for a term."""

import pytest
from tests.apps.documents.translators import linked, translate_document

from heed.apps.documents.text.items import Tag
from heed.apps.documents.text.terms import Terms, read_terms, terms_in
from heed.errors import HeedError

ENTRIES = {
    "artist": "Maler",
    "Artist's": "des Malers",
    "seven hundred": "700",
    "hundred and one": "101",
    "IT": "EDV",
    "A%=&": "B&=%",
    "你好": "hallo",
    "डॉ": "Dr",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The artist, Artist (artist)!", "The [Maler], [Maler] ([Maler])!"),
        ("artists artist-run ARTIST it IT", "artists artist-run ARTIST it [EDV]"),  # inflected or not so written
        ("Artist's artist", "[des Malers] [Maler]"),
        ("seven hundred and one", "seven [101]"),  # the longest wins
        ("Seven  hundred", "[700]"),
        ("{artist} a@artist.org artist", "{artist} a@artist.org [Maler]"),
        ("x A%=& y", "x [B&=%] y"),
        ("他说你好吗", "他说[hallo]吗"),
        ("डॉ. डॉक्टर", "[Dr]. डॉक्टर"),
        ("डॉ।", "[Dr]।"),  # a danda is no part of the word
        ("", ""),
    ],
)
def test_terms_are_whole_words_and_the_longest_come_first(text, expected):
    items = Terms(ENTRIES).mark([text])
    assert "".join(f"[{item.text}]" if isinstance(item, Tag) else item for item in items) == expected
    few = terms_in(text, ENTRIES)
    assert len(few) < len(ENTRIES) and Terms(few).mark([text]) == items


def test_a_document_s_terms_stand_as_they_are_given_whatever_is_around_them():
    page = "<p title='an artist'>See the <b>artist</b> &amp; seven&nbsp;hundred<br>dogs</p>"
    assert terms_in(page, ENTRIES) == {key: ENTRIES[key] for key in ("artist", "seven hundred")}
    found = translate_document(page.encode(), linked, format="html", language="en", name="x", terms=ENTRIES).decode()
    assert found == "<p title='AN Maler'>sEE THE <b>Maler</b> &amp; 700<br>DOGS</p>"


@pytest.mark.parametrize(
    ("text", "form", "reason"),
    [
        ("a\tb\n\na\tc", "tsv", "entry 3: its term has been given before"),
        ("a b", "tsv", "entry 1: expected a term and its translation"),
        ("a\tb\nc\t" + "d" * 1025, "tsv", "entry 2: a term is longer than 1,024 bytes"),
        ("a " * 21 + "\tb", "tsv", "entry 1: its term has more than 20 words"),
        ('"a', "csv", r"not CSV"),
        ("\n", "csv", "there are none"),
    ],
)
def test_entries_that_are_none_are_named(text, form, reason):
    with pytest.raises(HeedError, match=f"^Invalid glossary entries provided: {reason}"):
        read_terms(text, form)
    assert read_terms('"a, b",c,en,de\r\n', "csv") == {"a, b": "c"}
