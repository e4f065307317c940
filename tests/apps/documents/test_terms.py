"""Terms of a glossary in texts: brackets around what stands for a term."""

import pytest

from heed.apps.documents.items import Tag
from heed.apps.documents.terms import Terms

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
        ("", ""),
    ],
)
def test_terms_are_whole_words_and_the_longest_come_first(text, expected):
    items = Terms(ENTRIES).mark([text])
    assert "".join(f"[{item.text}]" if isinstance(item, Tag) else item for item in items) == expected
