import io
import re
import zipfile
from collections import Counter

import docx
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from docx.shared import Pt
from hypothesis import given
from hypothesis import strategies as st
from tests.apps.documents.test_packages import zipped
from tests.apps.documents.translators import (
    Asked,
    linked,
    shuffled,
    swapped_case,
    translate_document,
    unchanged,
    within_seconds,
)

from heed.apps.documents.formats.docx import docx_job
from heed.apps.documents.text.translation import DocumentOptions, run_job
from heed.errors import HeedError
from heed.runtime.memory import peak_memory, reset_peak_memory
from heed.text.alignment import Link, Translated

NOTES = (
    '<?xml version="1.0" encoding="UTF-8" standalone="yes"?><w:footnotes xmlns:w="http://schemas.openxmlformats.org/'
    'wordprocessingml/2006/main"><w:footnote w:id="2"><w:p><w:r><w:t>A note below.</w:t></w:r></w:p></w:footnote>'
    "</w:footnotes>"
)


def letter() -> bytes:
    document = docx.Document()
    document.add_heading("A letter", 1)
    paragraph = document.add_paragraph("Dear ")
    paragraph.add_run("old").bold = True
    # Word splits runs of one format anywhere.
    paragraph.add_run(" frie").italic = True
    paragraph.add_run("nd").italic = True
    paragraph.add_run(", come. ").font.size = Pt(11)
    paragraph.add_run("Bring\tbread")
    paragraph._p.append(parse_xml(f'<w:r {nsdecls("w")}><w:footnoteReference w:id="2"/></w:r>'))
    paragraph.add_run(" and 3 eggs.")
    document.add_paragraph("One", style="List Bullet")
    table = document.add_table(2, 2)
    table.cell(0, 0).text, table.cell(1, 1).text = "Left cell", "42"
    section = document.sections[0]
    section.header.paragraphs[0].text, section.footer.paragraphs[0].text = "The header", "The footer"
    output = io.BytesIO()
    document.save(output)
    with zipfile.ZipFile(output, "a") as package:
        package.writestr("word/footnotes.xml", NOTES)
        package.writestr("word/media/a.bin", b"\x00\x01")
    return output.getvalue()


def translated(content: bytes, translate) -> bytes:
    return translate_document(content, translate, format="docx", language="en", name="letter.docx")


def files(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        return {name: package.read(name) for name in package.namelist()}


def test_word_s_formats_tables_headers_and_notes_survive():
    before = letter()
    after = translated(before, swapped_case)
    document = docx.Document(io.BytesIO(after))
    runs = [(run.text, run.bold, run.italic) for run in document.paragraphs[1].runs if run.text]
    assert ("OLD", True, None) in runs and "".join(run[0] for run in runs) == (
        "dEAR OLD FRIEND, COME. bRING\tBREAD AND 3 EGGS."
    )
    assert next(run for run in runs if "FRIEND" in run[0])[2] is True
    assert [p.style.name for p in document.paragraphs] == ["Heading 1", "Normal", "List Bullet"]
    assert [cell.text for row in document.tables[0].rows for cell in row.cells] == ["lEFT CELL", "", "", "42"]
    assert document.sections[0].header.paragraphs[0].text == "tHE HEADER"
    assert document.sections[0].footer.paragraphs[0].text == "tHE FOOTER"
    old, new = files(before), files(after)
    assert b"a NOTE BELOW." in new["word/footnotes.xml"]
    changed = {name for name in old if old[name] != new[name]}
    assert list(old) == list(new) and changed <= {
        "word/document.xml", "word/header1.xml", "word/footer1.xml", "word/footnotes.xml"
    }  # fmt: skip


@pytest.mark.parametrize("translate", [unchanged, shuffled])
def test_words_and_references_are_all_there_in_any_order(translate):
    before, after = letter(), translated(letter(), translate)
    texts = [
        " ".join(p.text for p in docx.Document(io.BytesIO(content)).paragraphs).upper() for content in (before, after)
    ]
    assert sorted(re.findall(r"\w", texts[0])) == sorted(re.findall(r"\w", texts[1]))
    assert files(after)["word/document.xml"].count(b"footnoteReference ") == 1


def with_document(xml: bytes, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", compression) as package:
        package.writestr("word/document.xml", xml)
    return output.getvalue()


NAMESPACE = b'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


# Each tab would get a copy of the properties.
HEAVY = b"<w:rPr>" + b"<w:b/>" * 50_000 + b"</w:rPr><w:t>a</w:t>" + b"<w:tab/>" * 50_000
# And each space between words in other formats one of those of the plain words.
PLAIN = b"<w:r><w:rPr>" + b"<w:b/>" * 20_000 + b"</w:rPr><w:t>%b</w:t></w:r>" % (b"many words " * 4000)
OTHERS = b"".join(b"<w:r><w:rPr><w:%b/></w:rPr><w:t>a </w:t></w:r>" % (b"i", b"u")[i % 2] for i in range(2000))
MANY_FORMATS = b"<w:document %b><w:p>%b%b</w:p></w:document>" % (NAMESPACE, PLAIN, OTHERS)
EXTERNAL = b'<!DOCTYPE d [<!ENTITY e SYSTEM "file:///etc/passwd">]><w:document %b>&e;</w:document>' % NAMESPACE
EXPANDING = b'<!DOCTYPE d [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><w:document %b>&b;</w:document>' % NAMESPACE


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 no zip",
        with_document(b"<w:document"),
        with_document(EXTERNAL),
        with_document(EXPANDING),
        with_document(b"<w:document %b>" % NAMESPACE + b"<w:p>" * 100_000),
        with_document(b"<w:document %b>" % NAMESPACE + b" " * 2**27 + b"</w:document>"),
        letter()[:-200],
        with_document(b"<w:document %b><w:p><w:r>%b</w:r></w:p></w:document>" % (NAMESPACE, HEAVY)),
        with_document(MANY_FORMATS),
        with_document(b"<w:document %b/>" % NAMESPACE, zipfile.ZIP_LZMA),
    ],
    ids=[
        "empty",
        "no zip",
        "broken",
        "external entity",
        "entities",
        "deep",
        "bomb",
        "cut short",
        "heavy runs",
        "many formats",
        "lzma",
    ],
)
def test_hostile_packages_are_refused_in_one_line(content):
    with pytest.raises(HeedError, match=r"^letter\.docx: [^\n]+$") as refused:
        translated(content, swapped_case)
    assert "root:" not in str(refused.value)


def test_moved_text_is_translated_and_no_character_is_written_that_xml_lacks():
    run = b"<w:r><w:t>%b</w:t></w:r>"
    moved = b"<w:document %b><w:body><w:p>%b<w:moveTo>%b</w:moveTo></w:p></w:body></w:document>" % (
        NAMESPACE, run % b"one ", run % b"two"
    )  # fmt: skip
    after = files(translated(with_document(moved), swapped_case))["word/document.xml"]
    assert b"ONE" in after and b"TWO" in after

    def odd(texts):
        return [Translated("\ufffeuno\uffff\x00") for _ in texts]

    assert "uno" in docx.Document(io.BytesIO(translated(letter(), odd))).paragraphs[0].text


def test_the_namespaces_that_word_declares_are_no_properties():
    names = b"".join(
        b' xmlns:n%d="http://schemas.microsoft.com/office/word/2010/wordml/%d"' % (i, i) for i in range(34)
    )
    run = b"<w:r><w:rPr><w:%b/></w:rPr><w:t>some words </w:t></w:r>"
    paragraph = b"<w:p>%b%b%b</w:p>" % (run % b"b", run % b"i", run % b"b")
    content = with_document(b"<w:document %b%b>%b</w:document>" % (NAMESPACE, names, paragraph * 300))
    assert files(translated(content, swapped_case))["word/document.xml"].count(b"SOME WORDS") == 900


def test_words_behind_a_comment_within_a_run_are_words():
    content = with_document(
        b"<w:document %b><w:p><w:r><w:t>foo<!-- c --> bar is here</w:t></w:r></w:p></w:document>" % NAMESPACE
    )
    assert b"FOO BAR IS HERE" in files(translated(content, swapped_case))["word/document.xml"]


def test_a_mistake_of_the_translator_is_not_blamed_on_the_document():
    def broken(texts):
        raise ValueError("the translator's own")

    with pytest.raises(ValueError, match="the translator's own"):
        translated(letter(), broken)


def asked_and_written(body: bytes) -> tuple[list[str], bytes]:
    """What the translator is asked for, and the body, of a document whose one paragraph has this content."""
    translate = Asked(swapped_case)
    paragraph = b"<w:document %b><w:body><w:p>%b</w:p></w:body></w:document>" % (NAMESPACE, body)
    written = files(translated(with_document(paragraph), translate))["word/document.xml"]
    return translate.texts, written.partition(b"<w:p>")[2].partition(b"</w:p>")[0]


def run(text: bytes) -> bytes:
    return b'<w:r><w:t xml:space="preserve">%b</w:t></w:r>' % text


def test_inline_controls_are_part_of_their_sentence():
    inside = b'<w:sdt><w:sdtPr><w:alias w:val="a"/></w:sdtPr><w:sdtContent>%b</w:sdtContent></w:sdt>' % run(b"sir")
    asked, written = asked_and_written(run(b"dear ") + inside + run(b" welcome"))
    assert asked == ["dear sir welcome"]
    assert written == run(b"DEAR ") + inside.replace(b"sir", b"SIR") + run(b" WELCOME")


def test_formulas_are_part_of_their_sentence():
    names = b'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
    formula = b"<m:oMath %b><m:r><m:t>x</m:t></m:r></m:oMath>" % names
    asked, written = asked_and_written(run(b"let ") + formula + run(b" be positive"))
    assert asked == ["let be positive"] and written == run(b"LET ") + formula + run(b" BE POSITIVE")
    paragraph = b"<m:oMathPara %b>%b</m:oMathPara>" % (names, formula.replace(b" " + names, b""))
    asked, written = asked_and_written(run(b"so") + paragraph + run(b"holds"))
    assert asked == ["so", "holds"] and paragraph in written
    old = b"<w:r><w:object/></w:r>"  # of Word's former editor of formulas
    asked, written = asked_and_written(run(b"let ") + old + run(b" be positive"))
    assert asked == ["let be positive"] and old in written


def test_hyphens_are_part_of_their_word():
    hyphens = b"<w:r><w:t>well</w:t><w:noBreakHyphen/><w:t>kn</w:t><w:softHyphen/><w:t>own</w:t></w:r>"
    asked, written = asked_and_written(hyphens)
    assert asked == ["well-known"]
    assert re.sub(rb"</?w:t[^>]*>", b"", written) == b"<w:r>WELL<w:noBreakHyphen/>KN<w:softHyphen/>OWN</w:r>"


def test_the_text_of_other_controls_is_theirs():
    box = b'<w:sdt><w:sdtPr><w14:checkbox xmlns:w14="urn:w14"/></w:sdtPr><w:sdtContent>%b</w:sdtContent></w:sdt>' % run(
        "☐".encode()
    )
    asked, written = asked_and_written(box + run(b" yes ") + box + run(b" no"))
    assert asked == ["yes", "no"] and written.count("☐".encode()) == 2 and b"YES" in written


@pytest.mark.slow
def test_many_namespaces_cost_no_memory():
    names = b" ".join(b'xmlns:n%d="urn:%d"' % (i, i) for i in range(5000))
    body = b"<w:p>%b</w:p>" % (b"<w:r><w:t>a</w:t><w:tab/></w:r>" * 10_000)
    content = with_document(b"<w:document %b %b><w:body>%b</w:body></w:document>" % (NAMESPACE, names, body))
    before = reset_peak_memory()
    with within_seconds(60):
        translated(content, unchanged)
    assert peak_memory() - before < 2**29


def package(body: bytes, main: str = "word/document.xml", others: dict[str, bytes] | None = None) -> bytes:
    """A whole package whose main part has this body; others: more of its files."""
    relationships = (
        b'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">%b</Relationships>'
    )
    relationship = (
        '<Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/'
        'officeDocument" Target="%s"/>'
    )
    types = (
        '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" '
        'ContentType="application/xml"/><Override PartName="/%s" ContentType="application/'
        'vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
    )
    return zipped(
        {
            "[Content_Types].xml": types % main.replace("\\", "/"),
            "_rels/.rels": relationships % (relationship % main).encode(),
            main: b"<w:document %b><w:body>%b</w:body></w:document>" % (NAMESPACE, body),
        }
        | (others or {})
    )


def counts(xml: bytes) -> Counter[str]:
    """How often each element is there, but for runs of text."""
    found = Counter(re.findall(r"<([\w:]+)", xml.decode()))
    for name in ("w:r", "w:t", "w:rPr", "w:b", "w:i"):
        del found[name]
    return found


def bold(text: bytes) -> bytes:
    return b'<w:r><w:rPr><w:b/></w:rPr><w:t xml:space="preserve">%b</w:t></w:r>' % text


def field(code: bytes, shown: bytes) -> bytes:
    mark = b'<w:r><w:fldChar w:fldCharType="%b"/></w:r>'
    text = b"<w:r><w:instrText> %b </w:instrText></w:r>" % code
    return mark % b"begin" + text + mark % b"separate" + shown + mark % b"end"


def control(properties: bytes, content: bytes) -> bytes:
    return b"<w:sdt><w:sdtPr>%b</w:sdtPr><w:sdtContent>%b</w:sdtContent></w:sdt>" % (properties, content)


DELETED = b'<w:del w:id="1"><w:r><w:delText xml:space="preserve">never </w:delText></w:r></w:del>'
MOVED = (
    b'<w:moveFromRangeStart w:id="7" w:name="m"/><w:moveFrom w:id="8"><w:r><w:t xml:space="preserve">away </w:t></w:r>'
    b'</w:moveFrom><w:moveFromRangeEnd w:id="7"/>'
)
BREAK, TAB = b"<w:r><w:br/></w:r>", b"<w:r><w:tab/></w:r>"
LINK = b'<w:hyperlink w:anchor="a">%b</w:hyperlink>'
RUBY = b"<w:r><w:ruby><w:rubyPr/><w:rt>%b</w:rt><w:rubyBase>%b</w:rubyBase></w:ruby></w:r>"
FORMULA = b'<m:oMath xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"/>'
ALTERNATIVES = b'<mc:AlternateContent xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006">%b</mc:AlternateContent>'


@pytest.mark.parametrize(
    ("body", "sentences"),
    [
        # What is no end.
        (run(b"they ") + DELETED + run(b"always agree"), ["they always agree"]),
        (run(b"colo") + DELETED + run(b"red paper"), ["colored paper"]),
        (run(b"go ") + MOVED + run(b"home now"), ["go home now"]),
        (run(b"go ") + b'<w:permStart w:id="1"/>' + run(b"home") + b'<w:permEnd w:id="1"/>', ["go home"]),
        (run(b"a ") + b"<w:r><w:drawing/><w:pict/></w:r>" + run(b"b"), ["a b"]),
        (run(b"a ") + b'<w:customXmlInsRangeStart w:id="3"/>' + run(b"b"), ["a b"]),
        # An end within a format, a link, or both.
        (run(b"read ") + bold(b"all") + BREAK + bold(b"of it") + run(b" now"), ["read all", "of it now"]),
        (run(b"read ") + LINK % (run(b"all") + TAB + run(b"of it")) + run(b" now"), ["read all", "of it now"]),
        (run(b"read ") + LINK % (BREAK + run(b"all")) + run(b" now"), ["read", "all now"]),
        (run(b"read ") + LINK % (run(b"all") + BREAK) + run(b"now"), ["read all", "now"]),
        (
            b'<w:ins w:id="4">%b</w:ins>' % (run(b"a ") + LINK % (bold(b"b") + BREAK + bold(b"c")) + run(b" d")),
            ["a b", "c d"],
        ),
        # Fields.
        (run(b"see ") + field(b'HYPERLINK "x"', run(b"this page")) + run(b" too"), ["see this page too"]),
        (run(b"see ") + field(b'HYPERLINK "x"', run(b"a") + BREAK + run(b"b")) + run(b" too"), ["see a", "b too"]),
        (run(b"see ") + field(b"REF x", run(b"results")) + run(b" too"), ["see results too"]),
        (run(b"see page ") + field(b"PAGEREF x", run(b"31")) + run(b" too"), ["see page 31 too"]),
        (run(b"a ") + field(b"IF " + field(b"MERGEFIELD n", run(b"1")), run(b"one")) + run(b" b"), ["a b", "one"]),
        (run(b"a ") + b'<w:fldSimple w:instr=" REF x ">%b</w:fldSimple>' % run(b"results"), ["a results"]),
        (run(b"as ") + field(b"ADDIN EN.CITE x", run(b"(IEC 6)")) + run(b" says"), ["as (IEC 6) says", "as says"]),
        (LINK % (field(b"IF x", run(b"inner words")) + BREAK), ["inner words"]),
        (run(b"name:") + run(b"     one"), ["name:", "one"]),
        (run(b"a ") + b'<w:fldSimple w:instr="HYPERLINK x">%b</w:fldSimple>' % run(b"b") + run(b" c"), ["a b c"]),
        (b'<w:r><w:fldChar w:fldCharType="begin"/></w:r>' + run(b"a ") + LINK % run(b"b"), ["a b"]),
        # Content controls of each kind.
        *(
            (run(b"on ") + control(b"<w:%b/>" % kind, run(b"the day")) + run(b" we meet"), ["on the day we meet"])
            for kind in (b"date", b"dropDownList", b"comboBox", b"docPartObj", b"citation", b"group", b"x", b"richText")
        ),
        (control(b"<w:docPartObj/>", run(b"page ") + b"<w:r><w:pgNum/></w:r>"), ["page"]),
        (run(b"a ") + control(b"<w:picture/>", b"<w:r><w:drawing/></w:r>") + run(b"b"), ["a b"]),
        (run(b"a") + control(b"<w:text/>", run(b"b") + BREAK + run(b"c")) + run(b"d"), ["a", "b", "c", "d"]),
        # Ruby, notes, formulas, what is for other programs.
        (RUBY % (run(b"abc"), run(b"mountain")) + run(b" is high"), ["mountain is high"]),
        (b"<w:r><w:footnoteRef/></w:r>" + run(b" a note"), ["a note"]),
        (ALTERNATIVES % (b"<mc:Choice>%b</mc:Choice><mc:Fallback>%b</mc:Fallback>" % (run(b"new"), run(b"old"))),
         ["new", "old"]),
    ],
)  # fmt: skip
def test_a_sentence_ends_where_word_shows_an_end_and_its_elements_stay(body, sentences):
    before, translate = package(b"<w:p>%b</w:p>" % body), Asked(linked)
    after = translated(before, translate)
    assert sorted(translate.texts) == sorted(sentences)
    docx.Document(io.BytesIO(after))
    old, new = files(before)["word/document.xml"], files(after)["word/document.xml"]
    assert words_of(new) == words_of(old).upper()
    assert counts(old) == counts(new)
    in_any_order = files(translated(before, shuffled))["word/document.xml"]
    assert sorted(words_of(in_any_order).replace(b" ", b"")) == sorted(words_of(new).replace(b" ", b""))


WORDS = st.sampled_from([b"one ", b"two", b" three", b"four five ", b"6 "])
LEAVES = st.one_of(
    WORDS.map(run),
    WORDS.map(bold),
    st.sampled_from([BREAK, TAB, DELETED, MOVED, FORMULA, b"<w:r><w:drawing/></w:r>", b"<w:r/>", b"<w:proofErr/>"]),
    st.tuples(st.sampled_from([b"bookmark%b", b"commentRange%b", b"perm%b"]), st.sampled_from([b"Start", b"End"]),
              st.integers(1, 3)).map(lambda t: b'<w:%b w:id="%d"/>' % (t[0] % t[1], t[2])),
)  # fmt: skip
HOLDERS = st.sampled_from(
    [LINK, b'<w:ins w:id="9">%b</w:ins>', b"<w:smartTag><w:smartTagPr/>%b</w:smartTag>", control(b"<w:text/>", b"%b"),
     control(b"<w:x/>", b"%b"), RUBY.replace(b"%b", b"x", 1) % b"%b", field(b"HYPERLINK y", b"%b"),
     field(b"REF y", b"%b"), b'<w:fldSimple w:instr="REF z">%b</w:fldSimple>']
)  # fmt: skip
BODIES = st.recursive(
    st.lists(LEAVES, max_size=6).map(b"".join),
    lambda inner: st.lists(
        st.one_of(inner, st.tuples(HOLDERS, inner).map(lambda t: t[0].replace(b"%b", t[1]))), max_size=5
    ).map(b"".join),
    max_leaves=12,
)


@given(BODIES)
def test_nothing_is_lost_or_doubled_in_any_nesting(body):
    before = with_document(b"<w:document %b><w:body><w:p>%b</w:p></w:body></w:document>" % (NAMESPACE, body))
    old = files(before)["word/document.xml"]
    same, capitals, in_any_order = (
        files(translated(before, model))["word/document.xml"] for model in (unchanged, linked, shuffled)
    )
    assert words_of(same) == words_of(old) and counts(same) == counts(old)
    # A line has single spaces.
    words = words_of(old).upper().replace(b" ", b"")
    assert words_of(capitals).replace(b" ", b"") == words and counts(capitals) == counts(old)
    assert sorted(words_of(in_any_order).replace(b" ", b"")) == sorted(words)
    fewer = counts(old) - counts(in_any_order)
    assert not fewer  # a link that is torn apart is there twice
    # Fields stay well-formed, and no range ends before it begins if it did not.
    depth = 0
    for kind in re.findall(rb'fldCharType="(\w+)"', in_any_order):
        depth += {b"begin": 1, b"separate": 0, b"end": -1}[kind]
        assert depth >= 0
    assert depth == 0


def words_of(xml: bytes) -> bytes:
    """The words of runs that are neither moved away nor a reading."""
    shown = re.sub(rb"<w:(moveFrom|rt)[ >].*?</w:\1>", b"", xml)
    return b"".join(re.findall(rb"<w:t(?: [^>]*)?>([^<]*)</w:t>", shown))


def test_a_link_that_a_break_tears_apart_becomes_two_and_a_range_never_ends_before_it_begins():
    body = run(b"one two ") + LINK % (run(b"three") + BREAK + run(b"four")) + run(b" five")

    def reversed_words(texts):
        found = []
        for text in texts:
            words, links, length = [], [], 0
            for match in reversed(list(re.finditer(r"\S+", text))):
                words.append(match[0].upper())
                links.append(Link(length, length + len(match[0]), *match.span()))
                length += len(match[0]) + 1
            found.append(Translated(" ".join(words), links))
        return found

    written = files(translated(package(b"<w:p>%b</w:p>" % body), reversed_words))["word/document.xml"]
    links = [words_of(link) for link in re.findall(rb"<w:hyperlink.*?</w:hyperlink>", written)]
    assert links == [b"THREE", b"FOUR"] and written.count(b"<w:br/>") == 1
    start, end = b'<w:commentRangeStart w:id="%d"/>', b'<w:commentRangeEnd w:id="%d"/>'
    body = run(b"one ") + start % 1 + run(b"two ") + start % 2 + run(b"three") + end % 1 + run(b" four") + end % 2
    written = files(translated(package(b"<w:p>%b</w:p>" % body), reversed_words))["word/document.xml"]
    for i in (1, 2):
        assert 0 < written.index(start % i) < written.index(end % i)


def test_a_dropped_capital_belongs_to_its_word():
    frame = b'<w:p><w:pPr><w:framePr w:dropCap="drop" w:lines="3"/></w:pPr>%b</w:p><w:p>%b</w:p>'
    german = {"Once there was a king.": "¿Es war ein König?", "The king": "Der König"}
    translate = Asked(lambda texts: [Translated(german[text]) for text in texts])
    for letter, rest, expected in (
        (b"O", bold(b"nce") + run(b" there was a king."), ["¿E", "s war ein König?"]),
        (b"The", run(b" king"), ["Der", " König"]),
    ):
        after = translated(package(frame % (run(letter), rest)), translate)
        assert [p.text for p in docx.Document(io.BytesIO(after)).paragraphs] == expected
    assert translate.texts == ["Once there was a king.", "The king"]


def test_a_paragraph_whose_end_is_deleted_goes_on_in_the_next_one():
    deleted = b'<w:p><w:pPr><w:rPr><w:del w:id="1"/></w:rPr></w:pPr>%b</w:p>'
    body = (
        deleted % run(b"we never ") + deleted % (LINK % run(b"go there")) + b"<w:p>%b</w:p>" % run(b"again and again.")
    )
    before, translate = package(body), Asked(linked)
    document = docx.Document(io.BytesIO(translated(before, translate)))
    assert translate.texts == ["we never go there again and again."]
    assert [p.text.strip() for p in document.paragraphs] == ["WE NEVER", "GO THERE", "AGAIN AND AGAIN."]
    old, new = (files(content)["word/document.xml"] for content in (before, translated(before, shuffled)))
    assert set(counts(new) - counts(old)) <= {"w:hyperlink"} and not counts(old) - counts(new)
    few = docx.Document(io.BytesIO(translated(before, lambda texts: [Translated("so.") for _ in texts])))
    assert "".join(p.text for p in few.paragraphs).strip(" so.") == "" and len(few.paragraphs) == 3


def test_the_main_part_and_the_comments_are_those_that_the_relationships_name():
    remark = b'<w:comment w:id="0"><w:p><w:r><w:annotationRef/></w:r>%b</w:p></w:comment>' % run(b"a remark")
    comments = b"<w:comments %b>%b</w:comments>" % (NAMESPACE, remark)
    relationships = (
        b'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" '
        b'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/comments" Target="Remarks1.xml"/>'
        b'<Relationship Id="r2" Type="http://x/header" TargetMode="External" Target="http://x/header1.xml"/></Relationships>'
    )
    others = {"word/_rels/document2.xml.rels": relationships, "word/Remarks1.xml": comments}
    after = translated(package(b"<w:p>%b</w:p>" % run(b"some words"), "word/document2.xml", others), swapped_case)
    assert b"SOME WORDS" in files(after)["word/document2.xml"]
    assert b"A REMARK" in files(after)["word/Remarks1.xml"] and list(files(after))[2] == "word/document2.xml"
    after = translated(package(b"<w:p>%b</w:p>" % run(b"some words"), "word\\document.xml"), swapped_case)
    assert b"SOME WORDS" in files(after)["word/document.xml"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "password"),
        (b"{\\rtf1 words}", r"\.rtf"),
        (b"%PDF-1.7", "PDF"),
        (b"<html><p>words</p></html>", "format html"),
        (zipped({"mimetype": b"application/vnd.oasis.opendocument.text"}), r"\.odt"),
        (zipped({"a.txt": b"words"}), r"word/document\.xml is not there"),
        (with_document(b'<x xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"/>'), "Excel"),
        (with_document(b'<x xmlns="urn:x"/>'), "not a part of a Word document"),
        (package(b'<w:altChunk/><w:p>%b</w:p>' % run(b"a")), "altChunk.*save it again"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(content, told):
    with pytest.raises(HeedError, match=rf"^letter\.docx: [^\n]*{told}[^\n]*$"):
        translated(content, swapped_case)


def styled(properties: bytes, text: bytes) -> bytes:
    return b"<w:r><w:rPr>%b</w:rPr><w:t>%b</w:t></w:r>" % (properties, text)


def test_code_and_hidden_words_stay_and_a_note_s_number_ends_no_sentence():
    code, note = styled(b'<w:rStyle w:val="HTMLCode"/>', b"make"), styled(b'<w:vertAlign w:val="superscript"/>', b"1")
    hidden, shown = styled(b"<w:vanish/>", b"secret"), styled(b'<w:vanish w:val="0"/>', b"shown")
    asked, written = asked_and_written(run(b"He came.") + note + run(b" Run ") + code + hidden + run(b" ") + shown)
    assert asked[:2] == ["He came.", "Run make shown"]
    assert all(part in written for part in (code, hidden, note, b">SHOWN<", b"hE CAME."))
    block = b'<w:p><w:pPr><w:pStyle w:val="SourceCode"/></w:pPr>%b</w:p>' % run(b"x = y")
    assert run(b"x = y") in files(translated(package(block), swapped_case))["word/document.xml"]


def test_a_picture_s_description_is_translated_unless_nobody_wants_it():
    properties = b'<d:docPr xmlns:d="urn:d" name="a" descr="one &amp; house"/>'
    content = package(b"<w:p>%b<w:r><w:drawing>%b</w:drawing></w:r></w:p>" % (run(b"words"), properties))
    assert b'name="a" descr="ONE &amp; HOUSE"' in files(translated(content, swapped_case))["word/document.xml"]
    job = docx_job(content, DocumentOptions(language="en", attributes=False), name="x")
    assert properties in files(run_job(job, swapped_case))["word/document.xml"]


def test_a_control_is_bound_to_no_property_any_more_and_the_language_is_the_target_s():
    bound = control(b'<w:dataBinding w:xpath="a"/><w:text/>', styled(b'<w:lang w:val="en-GB" w:bidi="ar"/>', b"words"))
    after = translate_document(
        package(b"<w:p>%b</w:p>" % bound), swapped_case, format="docx", language="en", name="x", target="de"
    )
    written = files(after)["word/document.xml"]
    assert b"WORDS" in written and b"dataBinding" not in written and b'<w:lang w:val="de" w:bidi="ar"/>' in written


def test_a_strict_document_stays_strict():
    strict = b"http://purl.oclc.org/ooxml/wordprocessingml/main"
    usual = NAMESPACE[9:-1]
    before = files(package(b"<w:p>%b</w:p>" % run(b"words")))
    content = with_document(before["word/document.xml"].replace(usual, strict))
    after = files(translated(content, swapped_case))["word/document.xml"]
    assert strict in after and usual not in after and b"WORDS" in after


def nested(content: bytes, depth: int) -> bytes:
    return b"<w:p>" + b'<w:ins w:id="1">' * depth + content + b"</w:ins>" * depth + b"</w:p>"


HYPHENATED = b"<w:r><w:t>well</w:t><w:noBreakHyphen/><w:t>known </w:t></w:r>"


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        nested((run(b"go on ") + b"<w:r><w:br/></w:r>") * 3000, 200),
        nested(b"<w:r><w:drawing/></w:r>" * 3000 + run(b"word"), 200),
        nested((b"<w:ins>" + run(b"go on ") + b"</w:ins>") * 3000, 200),
        nested(HYPHENATED * 12_000, 1),
        nested(b"<w:r>" + b"<w:sym/>" * 12_000 + b"<w:t>word</w:t></w:r>", 1),
    ],
    ids=["ends", "things", "holders", "hyphens", "things of a run"],
)
def test_time_is_in_proportion_to_the_size_whatever_is_in_what(body):
    with within_seconds(10):
        translated(package(body), linked)
