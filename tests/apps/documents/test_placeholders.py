"""Placeholders and addresses, in any format: each comes back once, as it was, and apart from words."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.apps.documents.translators import asked, linked, shuffled, swapped_case, translated

from heed.apps.documents.placeholders import KEPT
from heed.apps.documents.sentences import needs_translation
from heed.text.alignment import Translated

KEPT_TEXTS = """%s %d %1$s %2$05.1f %-10s %@ %lld %(name)s %(price).2f %{count} %PATH% %% {} {0} {count} {user.name}
{price:>8,.2f} {name!r} {{x}} {{ user.name | upper }} {{{raw}}} {%endif%} {# a note #} ${total} $total $(file)
#{user.name} <%= user %> <?= $user ?> {n,plural,one{a file}other{# files}} __COUNT__ &nbsp; &#228; \\n
http://a.b/c?d=e ssh://git@host/x www.a.de/b mailto:a@b.c ann@example.org example.org docs.python.org/3/x.html
/usr/bin/python ~/.profile ./configure ../src C:\\Users\\ann <br/> <0> <a href="x">"""
KEPT_LIST = [text for text in re.split(r"\s(?![^<{]*[>}])", KEPT_TEXTS) if text]


@pytest.mark.parametrize("text", KEPT_LIST)
def test_what_is_no_word_is_kept(text):
    assert KEPT.fullmatch(text)
    assert not needs_translation(text)
    assert translated(f"Wait for {text} here", swapped_case, "text") == f"wAIT FOR {text} HERE"


@pytest.mark.parametrize(
    "text",
    ["100%ig", "50 % des Preises", "5% off", "cost $5", "AT&T; x", "and/or", "24/7", "a < b > c", "{a b}",
     "the end.Now", "<john doe>", "r&d", "1/2", "note: this", "3.5", "U.S.A."],
)  # fmt: skip
def test_words_and_numbers_are_no_placeholders(text):
    assert not KEPT.search(text)


@given(st.lists(st.tuples(st.sampled_from(KEPT_LIST), st.sampled_from("old house. It runs (fast), we".split()))))
def test_each_comes_back_in_any_order_and_never_glued_to_a_word(pairs):
    text = "Look " + " ".join(f"{kept} {word}" for kept, word in pairs)
    for format in ("text", "html"):
        source = text.replace("&", "&amp;").replace("<", "&lt;") if format == "html" else text
        for translate in (swapped_case, shuffled):
            result = translated(source, translate, format)
            result = re.sub("&lt;", "<", result).replace("&gt;", ">").replace("&amp;", "&")
            for kept in KEPT_LIST:
                assert len(re.findall(rf"(?<!\w){re.escape(kept)}(?!\w)", result)) >= sum(kept == k for k, _ in pairs)


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("John Doe <ann@example.org>", "JOHN DOE", "JOHN DOE ann@example.org"),
        ("Open (%s) now", "Öffne%s jetzt", "Öffne %s jetzt"),
        ("Open {x}, now", "Jetzt {x}öffnen", "Jetzt {x} öffnen"),
        ("the {n}th day", "der {n}te Tag", "der {n}te Tag"),
        ("Hello %s", "你好%s", "你好%s"),
        ("Hello {a}{b}", "Hallo {a}{b}", "Hallo {a}{b}"),
    ],
)
def test_a_translation_that_glues_a_placeholder_to_a_word_is_put_right(text, translation, expected):
    assert translated(text, lambda texts: [Translated(translation) for _ in texts], "text") == expected


def test_tags_that_are_written_as_text_go_with_their_words():
    text = "Press <b>Save</b> or <a href='x'>read on</a>."
    assert asked(text, "text") == ["Press Save or read on."]
    assert translated(text, linked, "text") == "pRESS <b>sAVE</b> OR <a href='x'>READ ON</a>."
    page = "<p>Press &lt;b&gt;<i>Save</i>&lt;/b&gt; now</p>"
    assert translated(page, linked, "html") == "<p>pRESS &lt;b&gt;<i>sAVE</i>&lt;/b&gt; NOW</p>"


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("Licence (https://a.org/x)", "Lizenz.https://a.org/x", "Lizenz. https://a.org/x"),
        ("The e_{i} of all", "Das e_{i} von allen", "Das e_{i} von allen"),
    ],
)
def test_placeholders_touch_only_what_they_touched(text, translation, expected):
    assert translated(text, lambda _: [Translated(translation)], "text") == expected
