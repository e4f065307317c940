"""Files of keys and texts: .properties, .strings and Android's strings.xml, each with its escapes."""

import re

import pytest
from tests.apps.documents.translators import swapped_case, translate_document, unchanged
from tests.samples import sample

from heed.errors import HeedError
from heed.text.alignment import Translated


def translated(content: str | bytes, format, translate=swapped_case, target="de", **options) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return translate_document(content, translate, format=format, language="en", target=target, name="it", **options)


PROPERTIES = sample("app.properties").encode()


def test_of_properties_the_values_are_translated_with_their_escapes():
    assert translated(PROPERTIES, "properties", unchanged) == PROPERTIES
    expected = (
        PROPERTIES.replace(b"Save it\\\n    now", b"sAVE ITNOW")
        .replace(b"Caf\\u00e9\n", b"cAF\\u00c9\n")
        .replace(b"It''s", b"iT''S")
        .replace(b"twice", b"TWICE")
    )
    assert translated(PROPERTIES, "properties") == expected
    quoted = "a = Use '{0}' or '{'name'}' for l'{0} and ''{0}''"
    assert translated(quoted, "properties") == b"a = uSE '{0}' OR '{'name'}' FOR L''{0} AND ''{0}''"
    assert translated("a = \xe9", "properties") == "a = \xc9".encode()
    assert translated("a = \xe9 b".encode("latin-1"), "properties") == b"a = \\u00c9 B"


STRINGS = sample("app.strings")


def test_of_strings_the_values_are_translated_in_the_charset_of_the_file():
    for content in (STRINGS.encode(), b"\xff\xfe" + STRINGS.encode("utf-16-le")):
        assert translated(content, "strings", unchanged) == content
    expected = STRINGS.replace('"Save %@ \\"now', '"sAVE %@ \\"NOW').replace("a \\U00e9", "A \xc9")
    assert translated(content, "strings") == b"\xff\xfe" + expected.encode("utf-16-le")


ANDROID = sample("strings.xml")


def test_of_androids_resources_the_shown_texts_are_translated_and_plurals_get_the_targets_forms():
    assert translated(ANDROID, "android", unchanged).decode() == ANDROID
    expected = ANDROID
    for words in ("It\\'s", ">one</b>", "nand %1$s", '"one ', "a file", "%d files"):
        change = words.replace("nand", "and").swapcase().replace("</B>", "</b>").replace("%1$S", "%1$s")
        expected = expected.replace(words, ("n" if "nand" in words else "") + change.replace("%D", "%d"))
    assert translated(ANDROID, "android").decode() == expected
    polish = translated(ANDROID, "android", target="pl").decode()
    assert re.findall('quantity="([a-z]+)">(.*?)<', polish) == [
        ("one", "A FILE"), ("other", "%d FILES"), ("few", "%d FILES"), ("many", "%d FILES")]  # fmt: skip


def test_androids_singular_without_a_number_is_not_said_of_21():
    russian = translated(ANDROID, "android", target="ru").decode()
    assert re.findall('quantity="([a-z]+)">(.*?)<', russian)[0] == ("one", "%d FILES")


def test_androids_styles_and_stored_values_stay_and_each_kind_of_device_has_its_text():
    kept = """<resources><style name="s"><item name="android:fontFamily">sans-serif</item></style>
        <item name="i" type="layout">wide</item><string-array name="reply_values"><item>reply</item></string-array>"""
    shown = """<item name="j" type="string">One</item><string name="k" product="tablet">Tablet</string>
        <string name="k">Phone</string></resources>"""
    assert translated(kept + shown, "android").decode() == kept + re.sub(
        r"\b[OTP]\w+", lambda m: m[0].swapcase(), shown
    )
    earlier = shown.replace("One", "Eins").replace("Tablet", "Tafel").replace("Phone", "Telefon")
    found = translated(kept + shown, "android", earlier=f"<resources>{earlier}".encode()).decode()
    assert found == kept + earlier


def test_tags_and_escapes_in_androids_texts_stay():
    text = r"""<resources><string name="a"><![CDATA[%s <a href="x?a=1">One</a>]]>\u00a0two \@me</string></resources>"""
    assert translated(text, "android", unchanged).decode() == text
    found = translated(text, "android").decode()
    assert found == text.replace('"x?a=1"', r"\"x?a=1\"").replace("One", "oNE").replace("two", "TWO")


RESX = sample("words.resx")


def test_of_dot_nets_resources_the_strings_are_translated_but_for_what_is_locked():
    assert translated(RESX, "resx", unchanged).decode() == RESX
    expected = RESX.replace("Save", "sAVE").replace(" of ", " OF ").replace("now &amp; here", "NOW &amp; HERE")
    expected = expected.replace("Run --watch in", "rUN --watch IN")
    assert translated(RESX, "resx").decode() == expected.replace(
        "<![CDATA[one <i>two</i>]]>", "ONE &lt;i&gt;TWO&lt;/i&gt;"
    )
    nested = b'<root><data name="a"><data name="b"><value>one</value></data></data></root>'
    assert translated(nested, "resx") == nested.replace(b"one", b"ONE")
    earlier = '<root><data name="a"><value>Sichern {0} &lt; {1}</value></data></root>'
    assert ">Sichern {0} &lt; {1}<" in translated(RESX, "resx", earlier=earlier.encode()).decode()


def test_words_of_a_model_are_escaped():
    def said(words: str):
        return lambda texts: [Translated(words) for _ in texts]

    assert translated("a = one {0}", "properties", said("l'un\\ {0}")) == b"a = l''un\\\\ {0}"
    assert translated('"a" = "one";', "strings", said('"un"\\')) == b'"a" = "\\"un\\"\\\\";'
    found = translated('<resources><string name="a">one</string></resources>', "android", said("@l'un \"<b>\x0b"))
    assert b">\\@l\\'un \\\"&lt;b&gt;<" in found


def test_directives_that_a_program_fills_by_position_keep_their_order():
    def exchanged(texts):
        return [Translated("%d IN %@")] * len(texts)

    assert translated('"a" = "%@ in %d";', "strings", exchanged) == b'"a" = "%2$d IN %1$@";'


@pytest.mark.parametrize(
    ("format", "text", "earlier", "expected"),
    [
        ("properties", "a=one\nb=two\n", "b = zwei\n", "a=ONE\nb=zwei\n"),
        ("strings", '"a" = "one"; "b" = "two";', 'b = "zwei";', '"a" = "ONE"; "b" = "zwei";'),
        ("android", '<resources><string name="a">one</string><string name="b">two</string></resources>',
         '<resources><string name="b">z<b>w</b>ei</string></resources>',
         '<resources><string name="a">ONE</string><string name="b">z<b>w</b>ei</string></resources>'),
    ],
)  # fmt: skip
def test_texts_of_an_earlier_file_stay(format, text, earlier, expected):
    assert translated(text, format, earlier=earlier.encode()).decode() == expected


@pytest.mark.parametrize(
    ("format", "content", "told"),
    [
        ("strings", '\n"a" "b" = "c";', "line 2: expected"),
        ("strings", '"a', "line 1: expected"),
        ("strings", b"bplist00", "compiled for a program"),
        ("resx", "<resources/>", "XML whose root is resources, not .NET's resources"),
        ("android", "<html/>", "XML whose root is html, not Android's resources"),
        ("android", "<resources>", "damaged"),
    ],
)
def test_other_and_damaged_files_are_refused(format, content, told):
    with pytest.raises(HeedError, match=re.escape(told)):
        translated(content, format)
