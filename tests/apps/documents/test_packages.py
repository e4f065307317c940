"""Books and office documents: which words are translated, and that every other byte of the package stays."""

import io
import re
import zipfile

import pytest
from tests.apps.documents.translators import linked, swapped_case, translate_document, unchanged, within_seconds

from heed.errors import HeedError
from heed.text.alignment import Link, Translated

OFFICE = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"
ODF = {"office": OFFICE, "fo": "f", "svg": "s"} | {
    name: f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0" for name in ("text", "table", "drawing", "style")
}
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def zipped(files: dict[str, str | bytes]) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as package:
        for name, content in files.items():
            kind = zipfile.ZIP_STORED if name == "mimetype" else zipfile.ZIP_DEFLATED
            package.writestr(name, content, compress_type=kind)
    return output.getvalue()


def unzipped(content: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        return {name: package.read(name).decode() for name in package.namelist()}


def translated(content: bytes, format, translate=swapped_case, **options) -> dict[str, str]:
    found = translate_document(content, translate, format=format, language="en", name="it", **options)
    return unzipped(found)


CONTAINER = '<container><rootfiles><rootfile full-path="OEBPS/b.opf"/></rootfiles></container>'
BOOK = """<package xmlns:dc="d" xml:lang="en-GB"><metadata><dc:title>A &amp; B</dc:title><dc:language>en</dc:language>
<dc:creator>Ann</dc:creator></metadata><manifest>
<item href="a%20b.xhtml" media-type="application/xhtml+xml"/>
<item href="toc.ncx" media-type="application/x-dtbncx+xml"/>
<item href="a.css" media-type="text/css"/></manifest></package>"""
PAGE = (
    '<?xml version="1.0"?><html xmlns="x" lang="en"><head><title>One</title><link href="a.css"/></head>'
    '<body class="c">Two <b>three</b><br/>four &#160; \xe4</body></html>'
)
NAVIGATION = "<ncx><docTitle><text>One</text></docTitle><docAuthor><text>Ann</text></docAuthor></ncx>"
EPUB: dict[str, str | bytes] = {"META-INF/container.xml": CONTAINER, "OEBPS/b.opf": BOOK, "OEBPS/a b.xhtml": PAGE,
        "OEBPS/toc.ncx": NAVIGATION, "OEBPS/a.css": "b { }", "mimetype": "application/epub+zip"}  # fmt: skip


def test_of_a_book_the_pages_the_navigation_and_the_title_are_translated():
    assert translated(zipped(EPUB), "epub", unchanged) == EPUB
    found = translate_document(zipped(EPUB), swapped_case, format="epub", language="en", target="de", name="it")
    assert found[30:58] == b"mimetypeapplication/epub+zip"  # first, stored and without an extra field
    assert unzipped(found) == EPUB | {
        "OEBPS/b.opf": BOOK.replace("A &amp; B", "a &amp; b").replace(">en<", ">de<").replace("en-GB", "de"),
        "OEBPS/a b.xhtml": PAGE.replace(">One<", ">oNE<").replace(">Two <", ">tWO <").replace("three", "THREE").replace(
            "four", "FOUR").replace("\xe4", "\xc4").replace('"en"', '"de"'),
        "OEBPS/toc.ncx": NAVIGATION.replace("One", "oNE"),
    }  # fmt: skip


FONT = "<e><EncryptionMethod Algorithm='http://www.idpf.org/2008/embedding'/></e>"


@pytest.mark.parametrize(
    ("format", "files", "told"),
    [
        ("epub", EPUB | {"mimetype": "application/zip"}, "no EPUB: its mimetype is application/zip"),
        ("epub", EPUB | {"META-INF/rights.xml": ""}, "protected by Adobe's DRM"),
        ("epub", EPUB | {"META-INF/license.lcpl": ""}, "protected by Readium LCP"),
        ("epub", EPUB | {"META-INF/encryption.xml": FONT.replace("2008", "x")}, "encrypted"),
        ("epub", {"mimetype": "application/epub+zip"}, "META-INF/container.xml is not there"),
        ("epub", EPUB | {"META-INF/container.xml": CONTAINER.replace("b.opf", "../../x")}, "is not in it"),
        ("epub", EPUB | {"../x": ""}, "leads out of it"),
        ("odf", {"mimetype": "application/epub+zip", "content.xml": "<a/>"}, "its mimetype is application/epub"),
        ("odf", {"mimetype": "application/vnd.oasis.opendocument.text"}, "content.xml is not there"),
        ("pptx", {"[Content_Types].xml": "<Types/>"}, "holds no slides"),
        ("xlsx", {"a": ""}, "[Content_Types].xml is not there"),
    ],
)
def test_other_protected_and_damaged_packages_are_refused_by_name(format, files, told):
    with pytest.raises(HeedError, match=re.escape(told)) as error:
        translated(zipped(files), format)
    assert "\n" not in str(error.value)


def test_a_book_whose_fonts_alone_are_scrambled_is_read():
    assert "THREE" in translated(zipped(EPUB | {"META-INF/encryption.xml": FONT}), "epub")["OEBPS/a b.xhtml"]


def odt(body: str, **files: str) -> bytes:
    spaces = "".join(f' xmlns:{name}="{space}"' for name, space in ODF.items())
    head = f"<office:document-content{spaces}><office:body>{body}</office:body></office:document-content>"
    return zipped({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": head, **files})


def content_of(body: str, translate=linked, **options) -> str:
    found = translated(odt(body), "odf", translate, **options)["content.xml"]
    return found.partition("<office:body>")[2].partition("</office:body>")[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('<text:p a="b">One <text:span>two</text:span>.</text:p>',
         '<text:p a="b">oNE <text:span>TWO</text:span>.</text:p>'),
        ("<text:p>One<text:line-break/>two<text:tab/>x</text:p>",
         "<text:p>oNE<text:line-break/>TWO<text:tab/>X</text:p>"),
        ("<text:p>One<text:s/> &lt;two &amp; <!-- no -->x</text:p>",
         "<text:p>oNE<text:s/> &lt;TWO &amp; <!-- no -->X</text:p>"),
        (  # a note is a text of its own, within the sentence, and its number stays
            "<text:p>One<text:note><text:note-citation>i</text:note-citation><text:note-body><text:p>Two</text:p>"
            "</text:note-body></text:note> three</text:p>",
            "<text:p>oNE<text:note><text:note-citation>i</text:note-citation><text:note-body><text:p>tWO</text:p>"
            "</text:note-body></text:note> THREE</text:p>",
        ),
        ("<text:tracked-changes><text:p>One</text:p></text:tracked-changes>",) * 2,
        ('<table:table-cell office:value-type="float"><text:p>One</text:p></table:table-cell>',) * 2,
        ("<text:p>One <text:page-number>iv</text:page-number></text:p>",
         "<text:p>oNE <text:page-number>iv</text:page-number></text:p>"),
        # code: pandoc's and LibreOffice's styles, and a paragraph's own style that is made from one
        ('<text:p>See <text:span text:style-name="Source_Text">the code</text:span>.</text:p>',
         '<text:p>sEE <text:span text:style-name="Source_Text">the code</text:span>.</text:p>'),
        ('<style:style style:name="P6" style:parent-style-name="Preformatted_20_Text"/>'
         '<text:p text:style-name="P6">print x</text:p>',) * 2,
    ],
)  # fmt: skip
def test_of_opendocument_the_texts_are_translated_in_place(before, after):
    assert content_of(before) == after and content_of(before, unchanged) == before


def test_the_language_of_opendocuments_styles_and_its_descriptions_follow_the_options():
    body = '<style:x fo:language="en" fo:country="US"/><svg:title>one</svg:title>'
    assert content_of(body, attributes=False) == body
    assert content_of(body, target="de-AT") == body.replace("en", "de").replace("US", "AT").replace("one", "ONE")


def types(**kinds: str) -> str:
    listed = "".join(f'<Override PartName="/{part}.xml" ContentType="a.{kind}"/>' for part, kind in kinds.items())
    return f"<Types>{listed}</Types>"


def slide(body: str, translate=linked, **options) -> str:
    xml = f'<p:sld xmlns:p="p" xmlns:a="{DRAWING}">{body}</p:sld>'
    files = {"[Content_Types].xml": types(s="slide+xml", t="tags+xml"), "s.xml": xml, "t.xml": xml}
    found = translated(zipped(files), "pptx", translate, **options)
    assert found["t.xml"] == xml
    return found["s.xml"].partition('main">')[2].removesuffix("</p:sld>")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (  # runs that a spelling checker divided are one, those of another format an element
            '<a:p><a:pPr/><a:r><a:rPr lang="en-US" dirty="0"/><a:t>One t</a:t></a:r>'
            '<a:r><a:rPr lang="en-US"/><a:t>wo </a:t></a:r><a:r><a:rPr b="1"/><a:t>x</a:t></a:r><a:endParaRPr/></a:p>',
            '<a:p><a:pPr/><a:r><a:rPr lang="de" dirty="0"/><a:t>oNE TWO </a:t></a:r>'
            '<a:r><a:rPr b="1"/><a:t>X</a:t></a:r><a:endParaRPr/></a:p>',
        ),
        ("<a:p><a:r><a:t>a &lt; b</a:t></a:r><a:br/><a:r><a:t>c</a:t></a:r></a:p>",
         "<a:p><a:r><a:t>A &lt; B</a:t></a:r><a:br/><a:r><a:t>C</a:t></a:r></a:p>"),
        ('<a:p><a:r><a:t>One </a:t></a:r><a:fld type="slidenum"><a:t>1</a:t></a:fld></a:p>',
         '<a:p><a:r><a:t>oNE </a:t></a:r><a:fld type="slidenum"><a:t>1</a:t></a:fld></a:p>'),
        ('<p:cNvPr id="1" descr="A &quot;b&quot;"/>', '<p:cNvPr id="1" descr="a &quot;B&quot;"/>'),
        (  # a formula stands in one of two forms of its shape
            '<c:A xmlns:c="c"><c:C><a:p><a:r><a:t>One </a:t></a:r><m:m xmlns:m="m"><m:t>x</m:t></m:m></a:p></c:C>'
            "<c:F><a:p><a:r><a:t> </a:t></a:r></a:p></c:F></c:A>",
            '<c:A xmlns:c="c"><c:C><a:p><a:r><a:t>oNE </a:t></a:r><m:m xmlns:m="m"><m:t>x</m:t></m:m></a:p></c:C>'
            "<c:F><a:p><a:r><a:t> </a:t></a:r></a:p></c:F></c:A>",
        ),
    ],
)  # fmt: skip
def test_of_slides_the_paragraphs_and_descriptions_are_translated_in_place(before, after):
    assert slide(before, target="de") == after and slide(before, unchanged, target="de") == before


LINKS = [Link(0, 4, 4, 7), Link(5, 10, 8, 13), Link(11, 14, 0, 3)]


def test_words_that_move_out_of_a_run_stand_in_one_of_their_own():
    bold = '<a:p><a:r><a:rPr b="1"/><a:t>New</a:t></a:r><a:r><a:t> old words</a:t></a:r></a:p>'
    moved = slide(bold, lambda _: [Translated("Alte Worte neu", LINKS)])
    assert moved == '<a:p><a:r><a:t>Alte Worte </a:t></a:r><a:r><a:rPr b="1"/><a:t>neu</a:t></a:r></a:p>'


def workbook(strings: str, sheet: str = "", table: str = "") -> bytes:
    kinds = types(w="sheet.main+xml", s="sharedStrings+xml", x="worksheet+xml", t="table+xml")
    parts = {"w": "", "s": strings, "x": sheet, "t": table}
    return zipped(
        {"[Content_Types].xml": kinds, **{f"{k}.xml": f'<{k} xmlns="{SHEET}">{v}</{k}>' for k, v in parts.items()}}
    )


def test_of_a_workbook_the_texts_of_cells_are_translated_and_what_formulas_compare_with_stays():
    strings = "".join(
        f"<si><t>{text}</t></si>" for text in ("One", "Yes", "Price", "a_x000D_\nb", "_x005F_x0041_ c", "12", "cold")
    )
    reading = '<rPh sb="0" eb="1"><t>x</t></rPh>'
    runs = '<r><rPr><b/></rPr><t>Bold</t></r><r><t xml:space="preserve"> plain words</t></r>'
    rich = f"<si>{runs}{reading}</si>"
    sheet = '<c t="inlineStr"><is><t>Two</t></is></c><c t="str"><f>IF(A1="Yes",1)</f><v>x</v></c>'
    sheet += '<formula1>"hot,cold"</formula1>'
    content = workbook(strings + rich, sheet, '<tableColumn id="1" name="Price"/>')
    assert translated(content, "xlsx", unchanged) == unzipped(content)
    found = translated(content, "xlsx", linked)
    expected = unzipped(content)["s.xml"].replace(reading, "")
    for word in ("One", "Bold", "plain words"):
        expected = expected.replace(word, word.swapcase())
    assert found["s.xml"] == expected.replace("a_x000D_\nb", "A_x000D_\nB").replace("_x005F_x0041_ c", "_X0041_ C")
    assert found["x.xml"] == unzipped(content)["x.xml"].replace("Two", "tWO")


def test_a_result_without_a_formula_is_a_text_as_sheetjs_and_exceljs_write_it():
    cells = '<c t="str"><v>One &amp; two</v></c><c t="str"><f t="shared" ref="A1:A2">A1</f><v>x</v></c>'
    content = workbook("", cells)
    assert translated(content, "xlsx", unchanged) == unzipped(content)
    assert translated(content, "xlsx")["x.xml"] == unzipped(content)["x.xml"].replace("One &amp; two", "oNE &amp; TWO")
    array = workbook("", cells.replace("shared", "array"))  # the results of which look the same
    assert translated(array, "xlsx") == unzipped(array)
    # Only the cells of its own range hold its results.
    places = workbook("", "".join(
        f'<c r="{cell}" t="str">{formula}<v>One</v></c>'
        for cell, formula in (("Y2", '<f t="array" ref="Y2:AB3">A1:D2</f>'), ("AA3", ""), ("AC3", ""), ("Z12", ""))
    ))  # fmt: skip
    assert re.findall("<v>(.*?)<", translated(places, "xlsx")["x.xml"]) == ["One", "One", "oNE", "oNE"]
    # Of a sheet with many ranges none is translated, in time that does not grow by their number squared.
    formula, word = '<c r="A{0}"><f t="array" ref="A{0}:B{0}">1</f></c>', '<c r="E{0}" t="str"><v>One</v></c>'
    many = workbook("", "".join((formula + word).format(i) for i in range(1, 4_000)))
    with within_seconds(10):
        assert translated(many, "xlsx") == unzipped(many)


def test_of_a_spreadsheet_texts_that_formulas_conditions_filters_and_pivot_tables_name_stay():
    def cells(*words: str) -> str:
        return "".join(f"<table:table-cell><text:p>{text}</text:p></table:table-cell>" for text in words)

    named = (
        '<table:content-validation table:condition="of:cell-content-is-in-list(&quot;open&quot;;&quot;shut&quot;)"/>'
        '<table:table-cell table:formula="of:=IF([.A1]=&quot;Yes&quot;;1;2)"/>'
        '<table:filter-set-item table:value="Wait"/><table:data-pilot-field table:source-field-name="State"/>'
    )
    kept = "Open", "Shut", "Yes", "Wait", "State"
    spaces = "".join(f' xmlns:{name}="{space}"' for name, space in ODF.items())
    sheet = f"<office:document-content{spaces}>{named}{cells(*kept)}{cells('Yes, one')}</office:document-content>"
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    found = translated(zipped({"mimetype": kind, "content.xml": sheet}), "odf")["content.xml"]
    assert found == sheet.replace("Yes, one", "yES, ONE")


def test_a_cell_whose_translation_only_looks_like_a_character_is_written_as_text():
    found = translated(workbook("<si><t>One</t></si>"), "xlsx", lambda _: [Translated(" _x0041_ ")])["s.xml"]
    assert "<t>_x005F_x0041_</t>" in found


def test_characters_that_xml_lacks_are_left_out_of_words_and_descriptions():
    def said(texts):
        return [Translated(f"\0{text}\x1b\ufffe<") for text in texts]

    found = slide('<p:cNvPr descr="one"/><a:p><a:r><a:t>two</a:t></a:r></a:p>', said)
    assert found == '<p:cNvPr descr="one&lt;"/><a:p><a:r><a:t>two&lt;</a:t></a:r></a:p>'
    assert "\x1b" not in "".join(translated(zipped(EPUB), "epub", said).values())


ENTITIES = '<!DOCTYPE a [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]>'


@pytest.mark.parametrize("xml", [ENTITIES + "<a>&b;</a>", "<a>" * 300, "<a" * 100_000, "<a><b></a>", "\ud7ff", ""])
def test_hostile_and_damaged_xml_is_refused_in_one_line(xml):
    slides = {"[Content_Types].xml": types(s="slide+xml"), "s.xml": xml}
    for format, files in (
        ("odf", {"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": xml}),
        ("epub", EPUB | {"OEBPS/b.opf": xml}),
        ("pptx", slides),
    ):
        with pytest.raises(HeedError) as error:
            translated(zipped(files), format)
        assert "\n" not in str(error.value) and re.search("entities|within each other|damaged", str(error.value))
