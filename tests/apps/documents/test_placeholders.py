"""Atoms, such as placeholders and addresses, in any format: each comes back once, as it was, and apart from words."""

import io
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from html import escape, unescape
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.apps.documents.test_docx import package, run, styled
from tests.apps.documents.translators import (
    asked,
    linked,
    shuffled,
    swapped_case,
    translate_document,
    translated,
    unchanged,
    within_seconds,
)

from heed.apps.documents.formats.jobs import text_job
from heed.apps.documents.text.atoms import ATOM_KINDS, KEPT, find_kept, kept_patterns
from heed.apps.documents.text.sentences import needs_translation
from heed.apps.documents.text.translation import DocumentOptions, run_job
from heed.errors import HeedError
from heed.text.alignment import Link, Translated

KEPT_LIST = [example for kind in ATOM_KINDS for example in kind.examples]


@given(st.text(st.sampled_from("abzAZ019 .,-+*!?()'\"=|~^;»é中\n@#$%&{}[]<>\\/:_w"), max_size=40))
def test_looking_for_signs_first_finds_the_same_atoms(text):
    found = [match.span() for match in find_kept(text, kept_patterns())]
    assert found == [match.span() for match in KEPT.finditer(text.replace("中", "\ue000"))]


@pytest.mark.parametrize("text", KEPT_LIST)
def test_what_is_no_word_is_kept(text):
    assert KEPT.fullmatch(text) and list(find_kept(text, kept_patterns()))
    assert not needs_translation(text)
    assert translated(f"Wait for {text} here", swapped_case, "text") == f"wAIT FOR {text} HERE"


@pytest.mark.parametrize(
    "text",
    ["100%ig", "50 % des Preises", "5% off", "cost $5", "AT&T; x", "and/or", "24/7", "a < b > c", "{a b}",
     "the end.Now", "<john doe>", "r&d", "1/2", "note: this", "3.5", "U.S.A.", "#1 song", "C# code", "me @ home",
     "at 10:30:15", "#12", "see: that: this", "[A]", "[1]", "## Title ##",
     "5%1", "%1.5", "%12", "Tel: 12", "version 1.2.3", "[[x]]", "3.10.2020", "he/she/they", "km/h", "300 B.C.",
     "jede_r", "the end.The", "_so_", "deadbeef", "1234567", "a :: b", "word(s)", "A4", "G20", "No.5", "Q&A"],
)  # fmt: skip
def test_words_and_numbers_are_no_placeholders(text):
    assert not KEPT.search(text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("请访问https://example.org/x。然后", ["https://example.org/x"]),
        ("访问www.example.org查看《https://a.org/b》", ["www.example.org", "https://a.org/b"]),
        ("发邮件到ann@example.org吧，看v1.2.3的README.md", ["ann@example.org", "v1.2.3", "README.md"]),
        ("共$total个，@ann你好，运行src/app/main.py吧", ["$total", "@ann", "src/app/main.py"]),
        ("„https://a.org/b“ und »https://a.org«", ["https://a.org/b", "https://a.org"]),
        ("ดูที่https://a.org/b", ["https://a.org/b"]),
    ],
)
def test_atoms_end_where_a_script_without_spaces_goes_on(text, kept):
    assert [text[slice(*match.span())] for match in find_kept(text, kept_patterns())] == kept


def doubled(texts: Sequence[str]) -> list[Translated]:
    return [Translated(f"{text} {text}") for text in texts]


def one_word(texts: Sequence[str]) -> list[Translated]:
    return [Translated("word", [Link(0, 4, 0, len(text))]) for text in texts]


def page(text: str) -> str:
    return f"<p>{escape(text, quote=False)}</p>"


def subtitle(text: str) -> str:
    return f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n"


def sentences(known: Sequence[str]) -> st.SearchStrategy[str]:
    words = st.sampled_from("old house. It runs (fast), we".split())
    pairs = st.lists(st.tuples(st.sampled_from(known), words), max_size=5)
    return pairs.map(lambda found: "Look " + " ".join(f"{kept} {word}" for kept, word in found))


# Without what these formats have a meaning of their own for.
PLAIN = [kept for kept in KEPT_LIST if not set("\\`*_<>[#") & set(kept) and not kept.startswith(("{%", "&", "{{", ":"))]


@pytest.mark.parametrize(
    ("format", "write", "known"), [("text", str, KEPT_LIST), ("html", page, KEPT_LIST), ("md", str, PLAIN),
                                   ("srt", subtitle, PLAIN)]
)  # fmt: skip
@given(data=st.data())
def test_no_atom_is_lost_doubled_changed_or_glued_to_a_word(format, write, known, data):
    text = data.draw(sentences(known))
    translate = data.draw(st.sampled_from([swapped_case, shuffled, doubled, one_word]))
    before, after = (
        Counter(match[0] for match in KEPT.finditer(re.sub("^<p>|</p>$", "", unescape(document))))
        for document in (write(text), translated(write(text), translate, format))
    )
    assert before == after


@given(
    sentences(KEPT_LIST),
    st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=5),
    st.sampled_from([swapped_case, shuffled, doubled, one_word]),
)
def test_no_atom_of_a_docx_is_lost_doubled_or_changed_however_runs_divide_it(text, cuts, translate):
    bounds = [(0, False), *sorted(cuts), (len(text), False)]
    parts = [(text[a:b], is_bold) for (a, is_bold), (b, _) in pairwise(bounds)]
    runs = [
        (styled(b"<w:b/>", written) if bold else run(written))
        for part, bold in parts
        if (written := escape(part).encode())
    ]
    content = package(b"<w:p>%b</w:p>" % b"".join(runs).replace(b"<w:t>", b'<w:t xml:space="preserve">'))
    found = translate_document(content, translate, format="docx", language="en", name="x")
    xml = zipfile.ZipFile(io.BytesIO(found)).read("word/document.xml").decode()
    after = unescape("".join(re.findall(r"<w:t[^>]*>([^<]*)", xml)))
    assert Counter(match[0] for match in KEPT.finditer(text)) == Counter(match[0] for match in KEPT.finditer(after))


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("John Doe <ann@example.org>", "JOHN DOE", "JOHN DOE ann@example.org"),
        ("Open (%s) now", "Öffne%s jetzt", "Öffne %s jetzt"),
        ("Open {x}, now", "Jetzt {x}öffnen", "Jetzt {x} öffnen"),
        ("the {n}th day", "der {n}te Tag", "der {n}te Tag"),
        ("Hello %s", "你好%s", "你好%s"),
        ("Hello {a}{b}", "Hallo {a}{b}", "Hallo {a}{b}"),
        ("Licence (https://a.org/x)", "Lizenz.https://a.org/x", "Lizenz. https://a.org/x"),
        ("See (cf. <a@b.de>) it", "Vgl.a@b.de es", "Vgl. a@b.de es"),
        ("id <a@b.de>; at -0700", "id a@b.de-0700 um", "id a@b.de -0700 um"),
        ("The {n} times", "Das {n}-fache", "Das {n}-fache"),
        ("The e_{i} of all", "Das e_{i} von allen", "Das e_{i} von allen"),
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
    ("text", "expected"),
    [
        ("You have {n, plural, one {# file} other {# files in {dir}}} left.",
         "yOU HAVE {n, plural, one {# FILE} other {# FILES IN {dir}}} LEFT."),
        ("{g, select, male {He is {n, plural, =0 {no} other {a}} one} other {They}}",
         "{g, select, male {hE IS {n, plural, =0 {NO} other {A}} ONE} other {tHEY}}"),
        ("{n, plural, one {a} and so on", "{N, PLURAL, ONE {a} AND SO ON"),
    ],
)  # fmt: skip
def test_of_a_message_with_cases_the_words_are_translated(text, expected):
    assert translated(text, swapped_case, "text") == expected


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("Dear {<b>first</b>_name}, come", "dEAR {<b>first</b>_name}, COME"),
        ("<b>Dear {first</b>_name}, come", "<b>dEAR</b> {first_name}, COME"),
        ("To <i>https://a.exam</i>ple.org/x?a=1&amp;b=2 now", "tO <i>https://a.exam</i>ple.org/x?a=1&amp;b=2 NOW"),
        ("<i>x &lt;b&gt; y</i> z &lt;/b&gt; w", "<i>X &lt;b&gt; Y</i> Z &lt;/b&gt; W"),
        ("<code>{a</code>} b", "<code>{a</code>} B"),
    ],
)
def test_what_tags_divide_stays_whole_and_elements_stay_nested(page, expected):
    assert translated(page, linked, "html") == expected
    assert translated(page, unchanged, "html") == page


def test_markup_within_an_address_stays_if_nothing_changes():
    for text in ("http://a_b.c/*d]*", "See http://a_b.c/*d]* now. And *http://x.y/a*b c."):
        assert translated(text, unchanged, "md") == text


def test_what_a_user_keeps_stays():
    def kept(text: str, *keep: str) -> str:
        return run_job(text_job(text, "text", DocumentOptions(language="en", keep=keep)), swapped_case)

    assert kept("The Acme Corp house AB-12", r"Acme( Corp)?", r"[A-Z]+-\d+") == "tHE Acme Corp HOUSE AB-12"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (r"\w+ing", "leaves nothing for i"),
        ("a*", "matches the empty text"),
        ("(?=a)b", "not understood"),
        ("(a", "a bracket is not closed"),
        ("a**", "not understood"),
        ("[z-a]", "bad character range"),
        ("a" * 201, "1 to 200 characters"),
        ("(a{0,50}b){0,50}", "matches the empty text"),
        ("c(a{0,50}b){0,50}", "may take too long"),
        ("((((a))))", "more than 3 groups"),
    ],
)
def test_an_expression_that_may_be_slow_or_is_none_is_refused(expression, message):
    with pytest.raises(HeedError, match=re.escape(message)):
        kept_patterns((expression,))


@pytest.mark.parametrize("expression", [r"(a{0,9}b{0,9})+c", "a+b", "(aa|a)+d", r"[^x]+x", r"\w+ \w+ \w+ #"])
def test_no_text_makes_an_expression_slow(expression):
    pattern = kept_patterns((expression,))[0]
    with within_seconds(2):
        for text in ("a" * 50_000, "a " * 25_000, "ab" * 25_000):
            assert sum(1 for _ in pattern.finditer(text)) < 50_000


@pytest.mark.parametrize("format", ["text", "html", "md"])
@pytest.mark.parametrize(
    "text",
    [
        "You have {{#one}}one file{{/one}}{{^one}}more files{{/one}} left",
        "See {{#if a}}one house{{else}}two houses{{/if}} there {{name}}",
        "{{- if .Values.x }}One house{{ else }}Two{{ end }} here",
        "{% if x > 1 %}One house{% else %}two houses{% endif %} here",
    ],
)
def test_conditions_and_loops_of_templates_keep_their_order(text, format):
    tags = re.compile(r"\{\{[-#/^ei].*?\}\}|\{%.*?%\}")
    assert tags.findall(translated(text, shuffled, format)) == tags.findall(text)
    assert translated(text, unchanged, format) == text
