"""Any bytes, as a document of any format: it is translated or refused, in bounded time.

A translator that changes nothing changes no byte of a text, a Markdown page or subtitles, and none of HTML, or of
subtitles with character references, that Heed wrote. No text that a model writes becomes a tag of HTML or of XML, a
line of a text or another subtitle. Heed reads each .docx that it wrote.
"""

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from heed.apps.documents.formats import Format
from heed.apps.documents.text.translation import Translate
from heed.errors import HeedError
from heed.text.alignment import Translated
from tests.apps.documents.test_docx import NAMESPACE, files, letter, with_document
from tests.apps.documents.test_html import PAGE
from tests.apps.documents.test_keys_and_values import ANDROID, PROPERTIES, RESX, STRINGS
from tests.apps.documents.test_linear import AROUND, UNITS
from tests.apps.documents.test_packages import zipped
from tests.apps.documents.test_yaml_locale import RAILS
from tests.apps.documents.translators import shuffled, translate_document, unchanged, within_seconds
from tests.fuzzing.inputs import kind_of, of_kind, refused_in_one_line
from tests.samples import sample

SECONDS = 5.0
MARKDOWN = sample("page.md").encode()
SRT = sample("film.srt").encode()
ODT = "application/vnd.oasis.opendocument.text"
_TIME = rb"\d{1,3}:\d{1,2}:\d{1,2}[,.]\d{1,3}"
LAYOUT = {
    "text": re.compile(rb"\r\n|[\r\n]"),
    "srt": re.compile(rb"^[ \t]*%b[ \t]*-->[ \t]*%b[^\r\n]*" % (_TIME, _TIME), re.MULTILINE),
}
TAG = "<evil>"
SIGNS = TAG + "\0\x0b\x1b\ufffe\r\n</p>]]><b a='&#0;'> 1. - # > | `` [a](b) **_ {\\an8} 0:0:0,0 --> 0:0:1,0\n\n"


def hostile(texts: Sequence[str]) -> list[Translated]:
    """What a strange model may write: signs of every format, around the text."""
    return [Translated(SIGNS + text + SIGNS) for text in texts]


# Formats of keys and texts, and others, of which the same words are the same bytes; and those that get more than words.
EXACT: tuple[Format, ...] = ("ass", "json", "yaml", "properties", "strings", "table", "android", "resx", "odf")
FILLED: tuple[Format, ...] = ("po", "xliff")
# xml: of the text in a .docx, which a changed byte of the package would hide.
Kind = tuple[Format, str, Translate, str]
KINDS: tuple[Kind, ...] = (
    *(("text", "text", translate, language) for translate, language in ((unchanged, "en"), (shuffled, "de"))),
    *(("text", "text", translate, language) for translate, language in ((unchanged, "ja"), (hostile, "hi"))),
    *(("md", "md", translate, "en") for translate in (unchanged, shuffled, hostile)),
    *(("srt", "srt", translate, "en") for translate in (unchanged, shuffled, hostile)),
    *(("html", "html", translate, "en") for translate in (unchanged, shuffled, hostile)),
    *(("docx", content, translate, "en") for content in ("xml", "docx") for translate in (shuffled, hostile)),
    *((format, format, translate, "en") for format in EXACT for translate in (unchanged, shuffled, hostile)),
    *((format, format, translate, "en") for format in FILLED for translate in (unchanged, shuffled, hostile)),
)
WORDS = tuple(word.encode() for word in {*UNITS, *(sign for pair in AROUND for sign in pair if sign)}) + tuple(
    f"<w:{name}>".encode()
    for name in "p r t tab/ br/ rPr b/ sdt sdtContent hyperlink ins del moveTo txbxContent fldChar instrText".split()
)


def target(data: bytes) -> None:
    if not data:
        return
    (format, content_kind, translate, language), content = kind_of(KINDS, data)
    package = with_document(content) if content_kind == "xml" else content
    if format == "odf":
        package = content = zipped({"mimetype": ODT, "content.xml": content})
    with within_seconds(SECONDS), refused_in_one_line():
        into = "" if translate is unchanged else "pl"  # which has more plural forms than the source
        found = translate_document(package, translate, format=format, language=language, target=into, name="it")
        is_exact = format != "html" and format not in FILLED and not (format == "srt" and b"&" in content)
        if translate is unchanged and is_exact and not content.startswith((b"\xff\xfe", b"\xfe\xff")):
            assert found == content, "changed"
        if translate is unchanged and not is_exact:
            again = translate_document(found, translate, format=format, language=language, name="its translation")
            assert again == found, "changed again"
        if format in ("text", "srt"):
            assert LAYOUT[format].findall(found) == LAYOUT[format].findall(content), "another layout"
        if translate is hostile and format in ("html", "docx", "android", "resx", "xliff", "odf"):
            parts = files(found).values() if format in ("docx", "odf") else [found]
            assert TAG.encode() in content or not any(TAG.encode() in part for part in parts), "a tag more"
        if format not in ("text", "md", "srt", "html", "ass"):
            _check_readable(found, format, language)


def _check_readable(package: bytes, format: Format, language: str) -> None:
    try:
        translate_document(package, unchanged, format=format, language=language, name="its translation")
    except HeedError as error:
        raise AssertionError(f"Heed wrote what it does not read: {error}") from None


def seeds() -> Iterator[bytes]:
    guide = (Path(__file__).parents[2] / "README.md").read_bytes()
    with zipfile.ZipFile(io.BytesIO(letter())) as package:
        xml = package.read("word/document.xml")
    small = b"<w:document %b><w:body><w:p><w:r><w:t>A word.</w:t></w:r></w:p></w:body></w:document>" % NAMESPACE
    contents: dict[str, list[bytes]] = {
        "text": [b"Mr. Smith left.  Why?\tNobody knows.\n\n- one\n- two\n", "犬が走る。猫です。\n".encode()],
        "md": [MARKDOWN, guide[:1500]],
        "srt": [SRT],
        "html": [PAGE.encode()],
        "xml": [xml, small],
        "docx": [with_document(small)],
        "ass": [b"[Events]\nFormat: Start, Text\nDialogue: 0,One {\\i1}two{\\i0}\\Nthree\n"],
        "json": [b'{"a_one": "a {n}", "a_other": ["b\\u00e9", 1, {"c": "{n, plural, one {x} other {#}}"}]}'],
        "properties": [PROPERTIES],
        "strings": [STRINGS.encode()],
        "table": [b'id,name\r\n1,"a ""b"", c"\n2;x|y\tz\n'],
        "android": [ANDROID.encode()],
        "resx": [RESX.encode()],
        "yaml": [RAILS.encode()],
        "odf": [b"<a><p>One <span>two</span><note><p>x</p></note><s/> &lt; three<tab/></p><h>b</h></a>"],
        "po": [
            b'#, fuzzy, c-format\nmsgctxt "x"\nmsgid "%s a\\n"\n"b"\nmsgid_plural "c"\nmsgstr[0] ""\n#~ msgid "d"\n'
        ],
        "xliff": [
            b'<xliff version="1.2"><file><trans-unit id="1"><source>a <g id="1">b</g><x id="2"/></source></trans-unit>'
            b"</file></xliff>",
            b'<xliff version="2.0"><unit id="1"><segment><source>a <pc>b</pc></source></segment></unit></xliff>',
        ],
    }
    for kind in KINDS:
        for content in contents[kind[1]]:
            yield of_kind(KINDS, kind, content)
