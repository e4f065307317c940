"""Whatever a stranger writes, reading it takes time in proportion to its length: 200 KB of any repeat, in any format.

Every case runs in a process of its own that the system ends after five seconds of processor time.
"""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from tests.apps.documents.test_text import TIMES
from tests.apps.documents.translators import linked, translate_document, within_seconds

from heed.apps.documents.formats import Format
from heed.apps.documents.formats.jobs import text_job
from heed.apps.documents.text.sentences import splitter
from heed.apps.documents.text.terms import Terms
from heed.apps.documents.text.translation import DocumentOptions, run_job
from heed.errors import HeedError
from heed.text.language_detection import LanguageDetector

SIZE, SECONDS = 100_000, 8
UNITS = (
    " ", "\t", "\n", " \n", "\xa0", "\u200b", "a", "a ", "ä", "中", ".", ". ", "? ", "...", "1", "1.", "0:0:0,0 --> ",
    "0:1 --> 0:2\nit ends. so\n\n", "1:", "1: ", "- ->", "{1}{1}", "[1][1]", "{\\i1}", "<1:2>", "a|", "<", "<a",
    "<a ", "<a b", "<a b=", "<a b='", '<a b="', "</", "</a>", "<a>", "<p>", "<b>", "</b>", "<b></b>", "<br>", "<!",
    "<!--", "-->", "<!-- -->", "<?", "<![CDATA[", "]]>", "<script>", "<table><tr><td>", "<li>", "<svg>", "<code>",
    "&", "&#", "&#1", "&#x", "&a", "&amp;", "=", "= ", "'", '"', "charset", "<meta charset=", "class=' ", "`", "``",
    "` ", "`a", "*", "**", "* ", "*a", "_", "__", "_a", "~", "~~", "#", "# ", ">", "> ", ">>", "- ", "1. ", "[", "]",
    "[]", "](", "[a](", "[a][", "![", "![a](", "[^a]", "[a]:", "(", ")", "|", "| ", "|-", "-", "- -", ":-", "+", "\\",
    "\\\\", "\\`", "!", "{\\", "{", "}", "http://", "www.", "a@", "@a.", "a@a.", "mailto:", "---\n", "```\n", "~~~\n",
    "- [ ] ", "a\nb\n", "  - a\n", "    a\n", "| a | b |\n", "> a\n\n", "<b>a</b> ", "[a](b) ", "*a* ", "$", "$$",
    ":a:", "{{", "{%", "{ ", "$a", "$$a\n", "[[a", "^[", "[a]{", "![a](![", ":::\n", "!!! a\n    ", ": a\n", "[^a]: ",
    "<A {", "+--+\n", "+--+\n|a|\n", "a\n-- --\n", "{% raw %}\n", "\\begin{a}\n", "import {\n", "a/", "a/a.", "a.py ",
    "a_", "A_", "a()", "a.a.", "::", "a::", "1.1.", "v1.1-", "1.1-a.", "0a", "0a-", "AA1", "@@a", "#1", "⟨1", "中a@",
    "1\xa0", "\xa0a ", "'{", "**a** ", "\\*", "<script>\n", "1. a\n\n   ", "|---+", "<b>x ", "<div>", "<a href='",
    "<sup>", "a <b>b</b> <img> ", "<a title='one two' alt=\"",
)  # fmt: skip
# Before and behind them, so that a stretch begins as something and ends as something else.
AROUND = (
    ("", ""),
    ("a `", "x`\n"),
    ("<meta charset=", ">"),
    ("<a b=", ">"),
    ("<p lang=en", "!>one</p>"),
    ("[a](", ")"),
    ("| a |\n", "|\n"),
    ("1\n", "\n"),
)
AROUND_SOURCES = (("", ""), ("<source>", "</source>"))
KEYS = ["\\", "#\n", "# ", "a", "=", " ", "\\\n", '"', "/*", "/", "''", "{0", "\\u"]
SCRIPT = "[Events]\nFormat: Start, Text\nDialogue: 0,"


def document(format: Format) -> Callable[[str], object]:
    """Reads a repeat as a document; as subtitles also behind times, without which most are refused."""

    def read(text: str) -> None:
        for before in ("", TIMES, "WEBVTT\n\n" + TIMES) if format == "srt" else ("",):
            with suppress(HeedError):
                run_job(text_job(before + text, format, DocumentOptions(language="en", target="de")), linked)

    return read


READERS: dict[str, Callable[[str], object]] = {
    **{format: document(format) for format in ("text", "md", "srt", "html")},
    **{f"sentences in {code}": splitter(code) for code in ("en", "de", "ja", "hi")},
    "terms": lambda text: Terms({"a " * 20: "b", "a b": "c"}).mark([text]),
    "language": LanguageDetector(["de", "en", "fr", "ja"]).rank,
}


def cases() -> Iterator[str]:
    for before, behind in AROUND:
        for unit in UNITS:
            yield before + unit * (SIZE // len(unit.encode())) + behind


def ended_well(read: Callable[[str], object], text: str) -> bool:
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        try:
            read(text)
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_repeat_is_read_in_time(name):
    """Of some units, and of what once took hours; make soak tries all."""
    once_slow = (("<meta charset=", " ", ">"), ("a `", " ", "x`\n"), ("<p lang=en", "_a", "!>one</p>"))
    texts = [unit * (SIZE // len(unit.encode())) for unit in UNITS[::50]]
    texts += [before + unit * SIZE + behind for before, unit, behind in once_slow]
    assert not [text[:20] for text in texts if not ended_well(READERS[name], text)]


# Of other formats: the size in characters, what stands around a repeat, and its units.
SIGNS: dict[Format, tuple[int, list[tuple[str, str]], list[str]]] = {
    "po": (50_000, [('msgid "x"\n', '\nmsgstr ""\n')], ['"', "\\", 'msgid "', '"a"\n', "#, fuzzy,", "[1]", "#|\n"]),
    "xliff": (
        50_000,
        [(f'<xliff version="1.2"><trans-unit>{a}', f"{b}</trans-unit></xliff>") for a, b in AROUND_SOURCES],
        ["<source>a</source>", "<g>a</g>", "<trans-unit><source>a</source><target/></trans-unit>", "<target/>"],
    ),
    "yaml": (
        20_000,
        [("", ""), ("a: ", ""), ("[", "")],
        ["- ", "a: b\n", "[a,", "&a *a ", "? ", "|\n a\n", "'", "a\n", "{other: b, one: c},", "%", "!a "],
    ),
    "json": (50_000, [("", ""), ("[", ""), ("{", "")], ['"', '"\\', "[", '{"a":', "1", "[1,", '"a_other":"b",']),
    "table": (50_000, [("", "")], ['"', '",', '"""', '"a', '"a""', ",", '""",', "\r", '"\n']),
    "properties": (50_000, [('"a" = "', "")], KEYS),
    "strings": (50_000, [('"a" = "', "")], KEYS),
    "ass": (50_000, [(SCRIPT, "")], ["{", "{\\p1}", "\\", ",", "[a]\n", "Format:,\n", "{\\"]),
}


@pytest.mark.parametrize("format", SIGNS)
def test_signs_of_a_format_are_read_in_time(format):
    size, around, units = SIGNS[format]
    for unit in units:
        for before, behind in around:
            with within_seconds(4), suppress(HeedError):
                text = before + unit * (size // len(unit)) + behind
                translate_document(text.encode(), linked, format=format, language="en", target="de", name="x")


@pytest.mark.soak
@pytest.mark.parametrize("name", READERS)
def test_every_repeat_is_read_in_time_also_within_others(name):
    assert not [text[:20] for text in cases() if not ended_well(READERS[name], text)]
