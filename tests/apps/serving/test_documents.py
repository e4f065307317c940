"""Pages and files through a real server come back as the command translates them, and bad ones are refused."""

import asyncio
import io
import json
import zipfile
from collections.abc import Callable
from html import escape, unescape
from urllib.parse import urlsplit

import docx
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.apps.documents.test_packages import EPUB, odt, zipped
from tests.apps.documents.translators import translate_document, translated
from tests.conftest import n_examples

from heed.apps.documents.text.translation import DocumentOptions
from heed.apps.serving.documents import translate_file
from heed.apps.serving.engine import Engine
from heed.apps.serving.files import FileStore, disposition, name_of_translation
from heed.apps.serving.request_queue import TooLate
from heed.apps.serving.service import Limits, Service
from heed.decoding.beam import Hypothesis
from heed.decoding.translator import Translator

PAGE = """<!DOCTYPE html><html><head><title>Seven hundred</title><style>p { margin: 0 }</style></head><body>
<h1>Forty-two &amp; three</h1><p class="a">One <b>hundred <i>twelve</i></b>. Two <a href="/x?a=1&amp;b=2">thousand</a>!
<script>if (1 < 2) x()</script><ul><li>seven</li><li><code>four</code> five</li></ul></body></html>
"""
SUBTITLES = "1\r\n00:00:01,000 --> 00:00:02,500\r\n<i>Seven</i> hundred\r\ntwelve.\r\n\r\n"


def document() -> bytes:
    """As Word writes them: headings, a table, words in bold, a list."""
    found = docx.Document()
    found.add_heading("Seven hundred", level=1)
    paragraph = found.add_paragraph("One ")
    paragraph.add_run("hundred").bold = True
    paragraph.add_run(" twelve. Forty-two!")
    found.add_paragraph("three", style="List Bullet")
    for cell, text in zip(found.add_table(1, 2).rows[0].cells, ("four", "five"), strict=True):
        cell.text = text
    output = io.BytesIO()
    found.save(output)
    return output.getvalue()


def package(**files: bytes) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"word/{name}.xml", content)
    return output.getvalue()


def upload(client: httpx.Client, name: str, content: bytes, **fields: str) -> httpx.Response:
    fields = {"source": "en", "target": "de"} | fields
    return client.post("/translate_file", data=fields, files={"file": (name, content)})


@pytest.mark.slow
def test_pages_keep_their_tags_as_the_command_keeps_them(client, translator):
    expected = translated(PAGE, translator.translate_aligned, "html")
    fields = {"source": "en", "target": "de", "format": "html"}
    assert client.post("/translate", json=fields | {"q": PAGE}).json() == {"translatedText": expected}
    several = [PAGE, "", "<p>", "three", PAGE]
    answer = client.post("/translate", json=fields | {"q": several, "source": "auto", "alternatives": 2}).json()
    pages = [translated(page, translator.translate_aligned, "html") for page in several]
    assert answer["translatedText"] == pages and answer["alternatives"] == [[]] * 5
    # Markup counts, too.
    assert client.post("/translate", json=fields | {"q": "<hr>" * 4000 + "three"}).status_code == 400


# A placeholder, an address, tags, a paragraph that is wrapped, blank lines, a list.
PLAIN = """Seven {count} hundred %1$s.  Two https://example.org/x <b>thousand</b>!

- four hundred and twenty-two thousand three hundred and one, and seven
  hundred and eleven, and twelve
- five\n\n\tsix"""


def test_every_interface_translates_a_plain_text_as_the_command_translates_the_file(client, translator):
    expected = translated(PLAIN, translator.translate_aligned, "text")
    assert all(expected.count(kept) == 1 for kept in ("{count}", "%1$s", "https://example.org/x", "<b>", "</b>"))
    assert expected.count("\n") == PLAIN.count("\n")
    fields = {"q": PLAIN, "source": "en", "target": "de"}
    answer = client.post("/translate", json=fields | {"alternatives": 2}).json()
    assert answer["translatedText"] == expected
    assert all(text.count("{count}") == 1 and text != expected for text in answer["alternatives"])
    answer = client.post("/v2/translate", json={"text": [PLAIN], "source_lang": "EN", "target_lang": "DE"}).json()
    assert answer["translations"][0]["text"] == expected
    assert streamed(client, PLAIN) == expected


def streamed(client: httpx.Client, text: str) -> str:
    """The sentences of a stream, which stand in the text where they say, put together."""
    answer = client.post("/v1/translate", json={"q": text, "source": "en", "target": "de"})
    found, end = "", 0
    for line in sorted(map(json.loads, answer.text.splitlines()[:-1]), key=lambda line: line["start"]):
        assert text[line["start"] :].startswith(line["source"])
        found, end = found + text[end : line["start"]] + line["translation"], line["start"] + len(line["source"])
    return found + text[end:]


KEPT = ("{count}", "%1$s", "ann@shop.example", "https://a.example/x?b=1&c=2", "[X5X]", "@ann_b", "{{ name }}")
DEEPL = {"source_lang": "EN", "target_lang": "DE"}
LIBRE = {"source": "en", "target": "de"}


@pytest.mark.parametrize("interface", ["/translate", "html", "/v1/translate", "/v2/translate", "xml", "file"])
@given(st.lists(st.sampled_from([*KEPT, *"one hundred seven. and forty-two, \n".split(" ")]), min_size=1, max_size=9))
@settings(max_examples=n_examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_stays_comes_back_once_from_every_interface(client, interface, parts):
    text = " ".join(parts)
    match interface:
        case "/translate" | "html":
            fields = LIBRE | {"q": escape(text), "format": "html"} if interface == "html" else LIBRE | {"q": text}
            found = client.post("/translate", json=fields).json()["translatedText"]
        case "/v1/translate":
            found = streamed(client, text)
        case "/v2/translate" | "xml":
            fields = (
                DEEPL | {"text": [escape(text)], "tag_handling": "xml"}
                if interface == "xml"
                else DEEPL | {"text": [text]}
            )
            found = client.post("/v2/translate", json=fields).json()["translations"][0]["text"]
        case _:
            found = client.get(upload(client, "a.txt", text.encode()).json()["translatedFileUrl"]).text
    found = unescape(found) if interface in ("html", "xml") else found
    assert [found.count(kept) for kept in KEPT] == [text.count(kept) for kept in KEPT]


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("letter.docx", document(), "docx"),
        ("page.HTML", PAGE.encode(), "html"),
        ("film.srt", SUBTITLES.encode(), "srt"),
        ("notes.md", b"# Seven\n\n- one **hundred**\n", "md"),
        ("de.po", b'msgid "seven"\nmsgstr ""\n', "po"),
        ("en.json", b'{"a": "seven"}', "json"),
        ("a.epub", zipped(EPUB), "epub"),
        ("a.csv", b"1,seven\n", "table"),
        ("a.xlf", b'<xliff version="1.2"><source>seven</source></xliff>', "xliff"),
        ("a.odt", odt("<text:p>seven</text:p>"), "odf"),
        ("a/b\\\u0435.txt", "\ufeffSeven.\r\n\r\n  Forty-two!".encode(), "text"),
    ],
)
def test_files_come_back_as_the_command_translates_them(client, translator, name, content, kind):
    expected = translate_document(
        content, translator.translate_aligned, format=kind, language="en", target="de", name=""
    )
    for source in ("en", "auto"):
        answer = upload(client, name, content, source=source)
        address = answer.json()["translatedFileUrl"]
        assert urlsplit(address).netloc == client.base_url.netloc.decode()
        for _ in range(2):
            found = client.get(address)
            assert (found.status_code, found.content) == (200, expected)
        assert found.headers["content-disposition"] == disposition(name_of_translation(name, "de"))
        assert found.headers["content-type"] == "application/octet-stream"


HEAD = b'<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
ENTITY = (
    b'<!DOCTYPE w [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
    + HEAD
    + b"<w:p><w:r><w:t>&b;</w:t></w:r></w:p></w:document>"
)


@pytest.mark.parametrize(
    ("name", "content", "status", "message"),
    [
        ("a.pdf", b"%PDF", 400, "file format not supported; a PDF has no paragraphs"),
        ("a.exe", b"MZ", 400, "file format not supported; expected .txt"),
        ("", b"a", 400, "missing file parameter"),
        ("a.txt", b"\xff", 400, "the file: byte 1 (0xff) is not UTF-8"),
        ("a.txt", b"a" * 1_000_001, 400, "longer than 1,000,000 bytes"),
        ("a.txt", b"word " * 50_000, 400, "exceeds text limit (200000)"),
        ("a.txt", b"a" * 10_000_000, 413, "Request entity too large"),
        ("a.docx", b"PK", 400, "no .docx document"),
        ("a.docx", package(document=ENTITY), 400, "declares entities"),
        ("a.docx", package(document=HEAD + b"<w:p/>" * 400_000), 400, "longer than 1,000,000 bytes of XML"),
        ("a.docx", package(document=HEAD, bomb=bytes(2**27)), 400, "unpacks to more than"),
        ("a.odt", odt("<text:p/>" * 200_000), 400, "longer than 1,000,000 bytes of XML"),
    ],
)
def test_bad_files_are_refused_in_one_line(client, name, content, status, message):
    answer = upload(client, name, content)
    assert answer.status_code == status
    assert message in answer.json()["error"] and "\n" not in answer.json()["error"]


def test_bad_uploads_are_refused(client):
    good = {"source": "en", "target": "de"}
    file = {"file": ("a.txt", b"one")}
    for parts, status in (
        ({"data": good}, 400),
        ({"json": good | {"file": "one"}}, 415),
        ({"data": good, "files": {"other": ("a.txt", b"one")}}, 400),
        ({"data": good, "files": [*file.items(), *file.items()]}, 400),
        ({"data": {"source": "en"}, "files": file}, 400),
        ({"data": good | {"target": "zz"}, "files": file}, 400),
        ({"data": good, "files": file, "headers": {"host": 'evil/"<x>'}}, 400),
    ):
        answer = client.post("/translate_file", **parts)
        assert (answer.status_code, list(answer.json())) == (status, ["error"]), parts
    answer = client.post("/translate_file", data=good, files=file, headers={"x-forwarded-proto": "https"})
    assert answer.json()["translatedFileUrl"].startswith("https://")
    for name in ("none.txt", "..%2f..%2fetc%2fpasswd", "%00", "a" * 300):
        assert client.get(f"/download_file/{name}").status_code == 404


def test_a_file_has_one_deadline_for_its_turn_its_language_and_its_translation(translator, monkeypatch):
    deadlines: list[float] = []

    async def main() -> None:
        engine = Engine(translator)
        engine.start()
        service = Service({("en", "de"): engine})
        in_time, translations = service.in_time, service.translations
        monkeypatch.setattr(service, "in_time", lambda deadline: deadlines.append(deadline) or in_time(deadline))
        monkeypatch.setattr(
            service,
            "translations",
            lambda *texts, deadline: deadlines.append(deadline) or translations(*texts, deadline=deadline),
        )
        await translate_file(service, b"three", "text", DocumentOptions(language="auto", target="de"))
        assert len(deadlines) > 4 and len(set(deadlines)) == 1
        service.limits = Limits(timeout_seconds=0.1)
        for worker in service.document_workers._for_files:
            await worker._turn.acquire()
        with pytest.raises(TooLate):
            await asyncio.wait_for(
                translate_file(service, b"three", "text", DocumentOptions(language="auto", target="de")), 20
            )
        await service.close()

    asyncio.run(main())


class Forgetful(Translator):
    """Of some hypotheses the text is blank."""

    loses: Callable[[str], bool] = staticmethod(lambda text: False)

    def text_of(self, hypothesis: Hypothesis) -> str:
        text = super().text_of(hypothesis)
        return "" if self.loses(text) else text


def test_no_words_vanish_where_a_translation_is_blank(model_folder):
    reports: list[str] = []
    translator = Forgetful.load(model_folder, precision="fp32", report=reports.append)
    first, second, *_ = translator.translate("seven", n_best=3).alternatives

    async def served(n_best: int) -> str:
        engine = Engine(translator)
        engine.start()
        service = Service({(pair := ("en", "de")): engine})
        drafts = await service.drafts(["seven"], [pair], DocumentOptions(language="en"))
        [found] = await service.translate(drafts, [pair], n_best=n_best)
        assert service.metrics.value("heed_blank_translations_total") == 1
        await service.close()
        return found.text

    # The next that is not blank; if there is none, the source.
    for loses, expected in ((first.text.__eq__, second.text.strip()), (lambda text: True, "seven")):
        translator.loses = loses
        reports.clear()
        assert translated("seven", translator.translate_aligned, "text") == expected
        assert any("'seven …' is empty" in line for line in reports)
        assert [asyncio.run(served(n_best)) for n_best in (1, 2)] == [expected] * 2
        assert translator.translate("seven").text == ""  # line by line, it is what the search finds


def test_stored_files_make_room_and_go():
    def gone(store: FileStore, key: str) -> bool:
        found = store.open(key)
        if found is not None:
            found[1].close()
        return found is None

    async def main() -> None:
        store = FileStore(max_files=3, max_bytes=100)
        keys = [await store.add(b"x" * 30, f"{i}.txt") for i in range(4)]
        assert [gone(store, key) for key in keys] == [True, False, False, False]
        stored, opened = store.open(keys[1])
        large = await store.add(b"x" * 90, "large.txt")
        assert [gone(store, key) for key in (*keys, large)] == [True] * 4 + [False]
        assert opened.read() == b"x" * 30 and not stored.path.exists()  # whoever has begun to read it can go on
        assert stored.path.parent.stat().st_mode & 0o777 == 0o700
        opened.close()
        folder = stored.path.parent
        store.close()
        assert not folder.exists()

        store = FileStore(seconds=0.1)
        brief = await store.add(b"x", "brief.txt")
        folder = store._open_folder()
        await asyncio.sleep(0.2)
        assert gone(store, brief) and not list(folder.iterdir())
        await store.add(b"x", "last.txt")
        store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("letter.docx", "letter_de.docx"),
        ("/etc/../passwd.txt", "passwd_de.txt"),
        ("C:\\a\\b.md", "b_de.md"),
        ('a\r\nb";\u202e.srt', "ab;_de.srt"),
    ],
)
def test_translated_files_are_named_safely(name, expected):
    assert name_of_translation(name, "de") == expected
    disposition(name_of_translation(name, "de")).encode("ascii")


def test_what_a_client_keeps_stays_in_plain_texts_and_in_tags(client):
    for fields in ({"format": "text"}, {"format": "html"}):
        asked = {"q": "Seven Acme Corp hundred", "source": "en", "target": "de", "keep": ["Acme( Corp)?"]} | fields
        assert client.post("/translate", json=asked).json()["translatedText"].count("Acme Corp") == 1
    asked = {"text": "Seven Acme", "source_lang": "EN", "target_lang": "DE", "keep": "Acme", "tag_handling": "xml"}
    assert "Acme" in client.post("/v2/translate", json=asked).json()["translations"][0]["text"]
    answer = client.post("/translate", json={"q": "a", "source": "en", "target": "de", "keep": r".*x"})
    assert answer.status_code == 400 and "leaves nothing for x" in answer.json()["error"]
