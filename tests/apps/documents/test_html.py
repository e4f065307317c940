import re
from collections import Counter
from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from tests.apps.documents.translators import (
    Asked,
    asked,
    linked,
    shuffled,
    swapped_case,
    translate_document,
    translated,
    unchanged,
    within_seconds,
)
from tests.samples import sample

from heed.apps.documents.formats.html import read_html, write_html
from heed.apps.documents.formats.html_elements import INLINE
from heed.apps.documents.formats.jobs import text_job
from heed.apps.documents.text.items import Tag
from heed.apps.documents.text.translation import DocumentOptions, run_job
from heed.errors import HeedError
from heed.text.alignment import Link, Translated

PAGE = sample("page.html")


def tags(page: str) -> Counter:
    return Counter(re.findall(r"<[^<>]*>", re.sub(r"(?s)<(script|style).*?</\1>|<!--.*?-->", "", page)))


class Nesting(HTMLParser):
    """Reads a page and notes inline tags that close what is not open."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag in INLINE:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in INLINE and (not self.open or self.open.pop() != tag):
            self.wrong.append(tag)


def test_a_page_keeps_its_tags_and_their_nesting_whatever_the_order_of_words():
    assert translated(PAGE, unchanged, "html").replace("café", "caf&eacute;") == PAGE
    for translate in (swapped_case, shuffled):
        result = translated(PAGE, translate, "html")
        seen = translated('<img title="A dog"> <img title="A fox">', translate, "html")
        dog, fox = re.findall('"(.*?)"', seen)
        assert tags(result) == tags(PAGE.replace("A dog", dog).replace("A fox", fox))
        assert not Nesting(result).wrong
        for piece in ("<script>if (a < b && \"<p>\")", "<pre>keep   <b>this</b></pre>", "Heed GmbH", "&lt;target&gt;",
                      "<!-- a comment with <b>tags</b> -->", "p > a { color: red }"):  # fmt: skip
            assert result.count(piece) == 1, piece
    assert "<h1>tHE <em>QUICK</em> BROWN FOX</h1>" in translated(PAGE, swapped_case, "html")


def test_a_tag_goes_where_the_words_go_that_it_marked():
    def german(texts):
        # "the red house is not old" → "nicht alt ist das rote Haus"
        target = "nicht alt ist das rote Haus"
        pairs = [("nicht", "not"), ("alt", "old"), ("ist", "is"), ("das", "the"), ("rote", "red"), ("Haus", "house")]
        (text,) = texts
        links = [
            Link(target.index(g), target.index(g) + len(g), text.index(e), text.index(e) + len(e)) for g, e in pairs
        ]
        return [Translated(target, links)]

    page = '<p>the <a href="x">red <b>house</b></a> is not <i>old</i>'
    assert translated(page, german, "html") == '<p>nicht <i>alt</i> ist das <a href="x">rote <b>Haus</b></a>'


def test_code_is_read_with_its_sentence_and_dropped_from_it_only_if_it_does_not_survive():
    translate = Asked(lambda texts: [Translated(text.replace("Call", "Rufe").replace("x()", "y()")) for text in texts])

    assert translated("<p>Call <code>f()</code> now", translate, "html") == "<p>Rufe <code>f()</code> now"
    assert translated("<p>Call <code>x()</code> now", translate, "html") == "<p>Rufe <code>x()</code> now"
    assert translate.texts == ["Call f() now", "Call x() now", "Call now"]


def test_signs_that_a_model_writes_become_no_markup():
    def hostile(texts):
        return [Translated("<script>alert(1)</script> & more") for _ in texts]

    assert translated("<p>Hello you", hostile, "html") == "<p>&lt;script&gt;alert(1)&lt;/script&gt; &amp; more"


VOID = st.sampled_from(["<br>", "<img src=x> ", "<code>f(x)</code> ", "<hr/>", "<!-- c -->", "<svg>x</svg>"])
WORD = st.sampled_from(["one", "two.", "Three", "four!", "&amp;", "犬", "12", "http://a.b"])


@st.composite
def well_formed(draw, depth: int = 3) -> str:
    parts = []
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["word", "word", "inline", "block", "void"] if depth else ["word"]))
        if kind == "word":
            parts.append(draw(WORD) + draw(st.sampled_from([" ", " ", "", "\n  "])))
        elif kind == "void":
            parts.append(draw(VOID))
        else:
            name = draw(st.sampled_from(["b", "i", "a"] if kind == "inline" else ["p", "div", "li"]))
            space = draw(st.sampled_from(["", " "]))
            parts.append(f"<{name}>{space}{draw(well_formed(depth=depth - 1))}</{name}>{space}")
    return "".join(parts)


@given(well_formed())
def test_tags_survive_in_number_and_nesting(page):
    assert write_html(read_html(page)) == page
    for translate in (swapped_case, shuffled):
        result = translated(page, translate, "html")
        found, wanted = tags(result), tags(page)
        # An element around a line break is two where other words came between them.
        assert found == wanted or ("<br>" in wanted and found >= wanted and set(found) == set(wanted))
        nesting = Nesting(result)
        assert not nesting.wrong and not nesting.open


PIECES = st.sampled_from(
    [
        *"""< >
    <b <b> </b> </ <p> </i> <i> <!-- --> <script> </script> ' " = & &lt &#0; &#xD800; word. Two <code> </code>
    <pre> <br/> <! <? <svg> </svg>""".split(),
        " ",
        "<a href='",
        "\x00",
        "\n",
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join))
def test_malformed_pages_keep_every_tag(page):
    result = translated(page, shuffled, "html")
    markup = Counter(item.markup for item in read_html(page) if isinstance(item, Tag) and item.kind != "spelling")
    assert (
        Counter(item.markup for item in read_html(result) if isinstance(item, Tag) and item.kind != "spelling")
        == markup
    )


@pytest.mark.parametrize(
    "page",
    [
        "<p>" + "word " * 100_000,
        "<b><i>" * 10_000 + "word. " * 10_000 + "</i></b>" * 10_000,
        "".join(f"<a{i} translate=no>" for i in range(15_000)),
        "<sup>" * 50_000 + "1",
        "<x-a>x" * 25_000 + "</x-a>" * 25_000,
        "<a " + "title " * 100_000 + "=" * 1_000 + ">",
    ],
    ids=lambda page: page[:12],
)
@pytest.mark.slow
def test_pages_of_strangers_end(page):
    with within_seconds(15):
        translated(page, shuffled, "html")


def test_an_element_without_an_end_does_not_unprotect_the_next():
    page = '<p translate=no>Keep me.<p>Text.</p><p translate="no">Keep me too.</p><code>a<p>b <code>c</code> d'
    assert translated(page, swapped_case, "html") == (
        '<p translate=no>Keep me.<p>tEXT.</p><p translate="no">Keep me too.</p><code>A<p>B <code>c</code> D'
    )


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<ul><li translate=no>keep<li>words</ul>", "<ul><li translate=no>keep<li>WORDS</ul>"),
        (
            "<ul><li translate=no>keep<ul><li>keep</ul>keep<li>words</ul>words",
            "<ul><li translate=no>keep<ul><li>keep</ul>keep<li>WORDS</ul>WORDS",
        ),
        ("<div><p class=a translate=no>keep</div>words", "<div><p class=a translate=no>keep</div>WORDS"),
        ("<dl><dt translate=no>keep<dd>words<dt>words</dl>", "<dl><dt translate=no>keep<dd>WORDS<dt>WORDS</dl>"),
        (
            "<table><tr translate=no><td>keep<td>keep<tr><td>words</table>",
            "<table><tr translate=no><td>keep<td>keep<tr><td>WORDS</table>",
        ),
        ("<i><b>words</i>words<p translate=no>keep", "<i><b>WORDS</i>WORDS<p translate=no>keep"),
        (
            "<p translate=no>keep <b>keep<ul><li>words</ul><h2>words</h2>words",
            "<p translate=no>keep <b>keep<ul><li>WORDS</ul><h2>WORDS</h2>WORDS",
        ),
        (
            "<table><tr translate=no><td>keep<tbody><tr><td>words</table>",
            "<table><tr translate=no><td>keep<tbody><tr><td>WORDS</table>",
        ),
    ],
)
def test_an_element_that_needs_no_end_tag_ends_where_browsers_end_it(page, expected):
    assert translated(page, swapped_case, "html") == expected


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<p>The <b>old</b><i> </i><u>man</u> sleeps.</p>", "<p>tHE <b>OLD</b> <i></i><u>MAN</u> SLEEPS.</p>"),
        ("<p>Read more<a href='x'> </a>about it.</p>", "<p>rEAD MORE <a href='x'></a>ABOUT IT.</p>"),
    ],
)
def test_an_element_around_white_space_takes_no_word(page, expected):
    assert translated(page, linked, "html") == expected


def test_elements_that_close_themselves_hide_nothing():
    page = "<p>One.</p><svg/><p>Two.</p><svg><text>three</text></svg>"
    assert translated(page, swapped_case, "html") == page.replace("One", "oNE").replace("Two", "tWO")
    page = '<?xml version="1.0"?><html><script src="a"/><p>Five\xa0six &#160; seven.</p></html>'
    result = translated(page, swapped_case, "html")
    assert "fIVE" in result and etree.fromstring(result) is not None


def test_links_side_by_side_are_texts_of_their_own():
    page = '<a href="1">one</a><a href="2">two</a> <a>three</a><p>H<sub>2</sub><b>O</b></p>'
    assert translated(page, swapped_case, "html").startswith('<a href="1">ONE</a><a href="2">TWO</a> <a>THREE</a><p>')
    assert asked(page, "html") == ["one", "two three", "H2O"]
    assert asked("<a>one</a><svg></svg><!-- c --><a>two</a>", "html") == ["one", "two"]


@pytest.mark.parametrize(
    "head", ['<?xml version="1.0"?>', '<!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml">']
)
def test_in_xml_an_inline_element_that_closes_itself_is_within_its_sentence(head):
    page = head + '<p>See <a id="p12"/>the <b>old <i id="x"/>house</b> now.</p>'
    assert asked(page, "html") == ["See the old house now."]
    assert translated(page, linked, "html") == head + '<p>sEE <a id="p12"/>THE <b>OLD <i id="x"/>HOUSE</b> NOW.</p>'
    assert asked("<p>See <b/>the old</b> house.", "html") == ["See the old house."]


@pytest.mark.parametrize(
    ("page", "sentences"),
    [
        ("<p>Please <x-chip>press</x-chip> the <button>OK</button> key.</p>", ["Please press the OK key."]),
        (
            "<button>Save</button> <button>Cancel</button> <x-card>A</x-card><x-card>B</x-card>",
            ["Save", "Cancel", "A", "B"],
        ),
        ("<label>Name <input></label> <button>Go on</button>", ["Name", "Go on"]),
        (
            '<html xmlns="x"><p>In <st1:City><st1:place>Oslo</st1:place></st1:City> now.<o:p></o:p></p></html>',
            ["In Oslo now."],
        ),
        (
            "<p>Type <input name=a> into <textarea>x</textarea> the <picture><source><img></picture> box.",
            ["Type into the box."],
        ),
        ("<p>Pick <select><option>red house<option>two</select> now.", ["Pick now.", "red house", "two"]),
        ("<p>Use <x-name translate=no>Heed</x-name> here.", ["Use Heed here."]),
        ("<p>He came.<sup>1</sup> Then<sup><a href=#n>[b]</a></sup> 5 m<sup>2</sup>.", ["He came.", "Then 5 m2."]),
        ("<p><ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rt>じ</ruby>を書く。", ["漢字を書く。"]),
        ("<p>It is re&shy;peat&shy;ing.", ["It is repeating."]),
    ],
)
def test_elements_cut_a_sentence_where_browsers_show_them_as_blocks(page, sentences):
    assert asked(page, "html") == sentences
    assert translated(page, unchanged, "html") == page


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<p title='a \"house\"'>x</p>", "<p title='A \"HOUSE\"'>X</p>"),
        (
            '<img alt="one &quot;two&quot; &amp; <br>" src="a.png">',
            '<img alt="ONE &quot;TWO&quot; &amp; <br>" src="a.png">',
        ),
        ("<img alt=house id=house><a aria-label=go href=go>", '<img alt="HOUSE" id=house><a aria-label="GO" href=go>'),
        (
            '<input placeholder="name" name="name" value="name"><input type=submit value="go">',
            '<input placeholder="NAME" name="name" value="name"><input type=submit value="GO">',
        ),
        (
            '<meta property=og:title content="two"><meta name=Description content="two"><meta name=a content="two">',
            '<meta property=og:title content="TWO"><meta name=Description content="TWO"><meta name=a content="two">',
        ),
        (
            '<b title="one">a<br>b</b><p translate="no" title="one">c',
            '<b title="ONE">A<br>B</b><p translate="no" title="one">c',
        ),
        (
            '<select><optgroup label="one"><option label="two">a</select>',
            '<select><optgroup label="ONE"><option label="TWO">A</select>',
        ),
        (
            "<script title='one'>title='two'</script><i title='{{one}}'>",
            "<script title='one'>title='two'</script><i title='{{one}}'>",
        ),
    ],
)
def test_attributes_that_readers_see_are_translated(page, expected):
    assert translated(page, linked, "html") == expected
    assert translated(page, unchanged, "html") == page


def test_attributes_stay_as_they_are_where_nobody_wants_them():
    page = '<p title="one"><img alt="two">three <select><option>four</select></p>'
    found = run_job(text_job(page, "html", DocumentOptions(language="en", attributes=False)), linked)
    assert found == '<p title="one"><img alt="two">THREE <select><option>FOUR</select></p>'


def test_an_attribute_takes_no_sign_that_would_end_it():
    page = "<img alt='one' title=\"one\" aria-label=one>"
    result = translated(page, lambda texts: [Translated("\"><'&lt;") for _ in texts], "html")
    assert (
        result
        == '<img alt=\'"&gt;&lt;&#39;&amp;lt;\' title="&#34;&gt;&lt;\'&amp;lt;" aria-label="&#34;&gt;&lt;\'&amp;lt;">'
    )


def test_icons_and_formulas_are_within_their_sentence():
    page = "<p>Let <math><mi>x</mi></math> be. Click <svg><title>Go</title></svg> now.</p>"
    assert asked(page, "html") == ["Let be.", "Click now."]
    assert translated(page, swapped_case, "html") == (
        "<p>lET <math><mi>x</mi></math> BE. cLICK <svg><title>Go</title></svg> NOW.</p>"
    )
    assert asked('so<math display="block"><mi>x</mi></math>holds', "html") == ["so", "holds"]


@pytest.mark.parametrize("translate", [swapped_case, linked])
@pytest.mark.parametrize(
    "page",
    [
        "<p>An area of 5 m<sup>2</sup> is big.</p>",
        "<p>as shown before<sup>1</sup> this works.</p>",
        '<p>his<sup><a href="#n1">1</a></sup> book, <sup>14</sup>c and H<sub>2</sub>O.</p>',
        "<p>un<b>like</b>ly words</p>",
    ],
)
def test_an_element_within_a_word_stays_there(translate, page):
    tags = re.compile("(<[^>]*>)")
    expected = "".join(part if tags.fullmatch(part) else part.swapcase() for part in tags.split(page))
    assert translated(page, translate, "html") == expected


@pytest.mark.parametrize(
    ("page", "translation", "expected"),
    [
        ("<p>It is <b>good</b></p>", "यह अच्छा है", "<p>यह अच्छा <b>है</b></p>"),
        ("<p><b>Red</b> house</p>", "சிவப்பு வீடு", "<p><b>சிவப்பு</b> வீடு</p>"),
        ("<p><b>Peace</b> here</p>", "שָׁלוֹם כָּאן", "<p><b>שָׁלוֹם</b> כָּאן</p>"),
        ("<p><b>I</b> want</p>", "می\u200cخواهم من", "<p><b>می\u200cخواهم</b> من</p>"),
        ("<p>n<b>o</b>t</p>", "ไม่", "<p><b>ไม่</b></p>"),
    ],
)
def test_no_element_parts_a_letter_from_its_vowels_points_and_tones(page, translation, expected):
    assert translated(page, lambda _: [Translated(translation)], "html") == expected


def test_an_element_within_a_word_that_becomes_another_takes_that_word():
    def translate(texts):
        return [Translated("fünf Quadratmeter sind", [Link(0, 4, 0, 4), Link(5, 17, 5, 7), Link(18, 22, 8, 11)])]

    assert translated("five m<sup>2</sup> are", translate, "html") == "fünf <sup>Quadratmeter</sup> sind"


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ('<meta charset="iso-8859-1">', "CAF&#201; &copy; <b>&#27700;</b>"),
        (
            '<meta http-equiv="Content-Type" content="text/html; charset=windows-1252">',
            "CAF&#201; &copy; <b>&#27700;</b>",
        ),
        ('<?xml version="1.0" encoding="ISO-8859-1"?>', "CAF&#201; &copy; <b>&#27700;</b>"),
        ('<meta charset="UTF-8">', "CAFÉ &copy; <b>&#27700;</b>"),
        ("", "CAFÉ &copy; <b>&#27700;</b>"),
    ],
)
def test_a_page_that_is_not_called_utf_8_is_written_in_ascii(head, expected):
    assert translated(head + "caf&eacute; &copy; <b>&#27700;</b>", swapped_case, "html") == head + expected


def page_in(content: bytes, target: str = "") -> bytes:
    return translate_document(content, linked, format="html", language="en", name="page", target=target)


@pytest.mark.parametrize(
    ("head", "codec", "expected"),
    [
        ('<meta charset="iso-8859-1">', "latin-1", "&#201;"),
        (
            '<!-- <meta charset="utf-8"> --><meta http-equiv=Content-Type content="text/html; charset=x-sjis">',
            "cp932",
            "А",
        ),
        ('<?xml version="1.0" encoding="KOI8-R"?>', "koi8-r", "А"),
        ('<meta charset="utf-8">', "utf-8", "А"),
        ("", "utf-8", "А"),
        ("\ufeff", "utf-16-le", "А"),
        ('\ufeff<meta charset="iso-8859-1">', "utf-8", "А"),
    ],
)
def test_a_page_is_read_and_written_in_the_charset_that_it_declares(head, codec, expected):
    word = "é" if codec == "latin-1" else "а"
    page = f'{head}<p title="{word}">see {word} &#27700;</p>'
    result = page_in(page.encode(codec, "xmlcharrefreplace")).decode(codec)
    assert result == f'{head}<p title="{expected}">SEE {expected} &#27700;</p>'


def test_a_page_of_ascii_that_declares_nothing_stays_ascii():
    assert page_in(b"<p>caf&eacute; &mdash; it</p>") == b"<p>CAF&#201; &mdash; IT</p>"


def test_a_page_that_declares_nothing_and_is_not_utf_8_is_windows_1252_as_in_browsers():
    page = page_in("<p>café – “it”</p>".encode("cp1252"))
    assert page.isascii() and unescape(page.decode()) == "<p>CAFÉ – “IT”</p>"


def test_a_page_that_is_not_in_its_charset_is_refused():
    for content, told in (
        (b"<meta charset=none-such>\xff", "page: declares charset none-such, which Heed cannot read"),
        (b"<meta charset=euc-jp>\xff", "page: byte 22 .0xff. is not euc-jp, which it declares"),
        (b"<meta charset=utf-8>\xff", "page: byte 21 .0xff. is not UTF-8"),
    ):
        with pytest.raises(HeedError, match=told):
            page_in(content)


def test_the_language_of_a_page_becomes_the_target():
    page = (
        '<html lang="en-GB" xml:lang=en><meta http-equiv="Content-Language" content="en"><p lang=\'en\'>x y</p>'
        '<p lang="fr">z</p><p lang="en" translate="no">keep</p>'
    )
    assert page_in(page.encode(), "de").decode() == (
        '<html lang="de" xml:lang=de><meta http-equiv="Content-Language" content="de"><p lang=\'de\'>X Y</p>'
        '<p lang="fr">Z</p><p lang="en" translate="no">keep</p>'
    )


def test_a_break_within_elements_ends_the_sentence_only_there():
    page = '<p>Please <a id=x href="y"><b>read this<br>\nwith care</b></a> now.</p>'
    assert asked(page, "html") == ["Please read this", "with care now."]
    assert translated(page, unchanged, "html") == page
    assert translated(page, linked, "html") == page.replace("Please", "pLEASE").replace(
        "read this", "READ THIS"
    ).replace("with care", "WITH CARE").replace("now", "NOW")

    def reversed_words(texts):
        return [
            Translated("this Read please", [Link(0, 4, 12, 16), Link(5, 9, 7, 11), Link(10, 16, 0, 6)])
            if text.startswith("Please")
            else Translated(text)
            for text in texts
        ]

    assert translated(page, reversed_words, "html") == (
        '<p><a id=x href="y"><b>this Read</b></a> please<br><a href="y"><b>\nwith care</b></a> now.</p>'
    )


def test_cdata_is_read_as_words_and_stays_well_formed():
    page = '<?xml version="1.0"?><html><p>if <![CDATA[a < b && c]]> stop</p></html>'
    assert asked(page, "html") == ["if a < b && c stop"]
    assert translated(page, linked, "html") == page.replace("if", "IF").replace("a < b && c", "A < B && C").replace(
        "stop", "STOP"
    )
    hostile = translated(page, lambda texts: [Translated("]]> <b>") for _ in texts], "html")
    assert "".join(etree.fromstring(hostile).itertext()).strip() == "]]> <b>"


def test_what_a_template_writes_stays_byte_for_byte():
    page = "<p>Hi {{ a > b && c }}, <%= user %> and <?= $a->b ?>!{% if x > 1 %}One{% else %}Many{% endif %}</p>"
    result = translated(page, swapped_case, "html")
    for piece in re.findall(r"\{\{.*?\}\}|\{%.*?%\}|<%.*?%>|<\?.*?\?>", page):
        assert result.count(piece) == page.count(piece)
    assert {"One", "Many"} <= set(asked(page, "html"))


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<p>I&rsquo;m &quot;in&quot;&nbsp;&mdash; now</p>", "<p>i&rsquo;M &quot;IN&quot;&nbsp;&mdash; NOW</p>"),
        ("<p>&nbsp; &nbsp;if x:<br>&nbsp; end&nbsp;</p>", "<p>&nbsp; &nbsp;IF X:<br>&nbsp; END&nbsp;</p>"),
        ("<p>AT&T & co > 5 < 6 &#9999999; b&aacute;</p>", "<p>at&t & CO > 5 < 6 &#9999999; B&aacute;</p>"),
        ("<p>see https://a.org/?b=1&c=2, &#64;x</p>", "<p>SEE https://a.org/?b=1&c=2, &#64;x</p>"),
        ("<p>see &#109;e&#64;a.org now</p>", "<p>SEE &#109;e&#64;a.org NOW</p>"),
    ],
)
def test_characters_stay_as_the_page_spells_them(page, expected):
    assert translated(page, unchanged, "html") == page
    assert translated(page, swapped_case, "html") == expected.replace("B&aacute;", "BÁ")


def test_a_spelling_never_becomes_a_tag_or_another_reference():
    backwards = {"b & lt;": "a &lt;", "1 < b": "x <b", "copy& so": "so&copy"}
    for text, translation in backwards.items():
        page = f"<p>{text}</p>"
        result = translated(page, lambda _, made=translation: [Translated(made)], "html")
        assert "".join(etree.HTML(result).itertext()) == translation
        assert translated(page, unchanged, "html") == page


@pytest.mark.parametrize("name", ["math inline", "arithmatex", "katex", "a mwe-math-element"])
def test_formulas_stay_whatever_program_wrote_them(name):
    formula = f'<span class="{name}"><em>E</em> = <em>m</em><em>c</em><sup>2</sup></span>'
    page = f'<p>Where {formula} and \\(a_b \\text{{ if }} c\\) hold.</p><h1 class="mathematics">All</h1>'
    written = translated(page, linked, "html")
    assert formula in written and r"\(a_b \text{ if } c\) HOLD" in written and ">aLL<" in written


def test_no_break_spaces_that_align_columns_stay_and_words_of_notranslate():
    page = "<p>Name:&nbsp;&nbsp;&nbsp;one house&nbsp; two <i class=notranslate>Acme Inc</i></p>"
    assert asked(page, "html")[:2] == ["Name:", "one house two Acme Inc"]
    assert translated(page, unchanged, "html") == page
    assert translated(page, shuffled, "html").startswith("<p>NAME:&nbsp;&nbsp;&nbsp;")
    assert "<i class=notranslate>Acme Inc</i>" in translated(page, shuffled, "html")
