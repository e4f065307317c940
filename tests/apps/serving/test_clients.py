"""Real clients against a real server."""

import asyncio
import io
import json
import shutil
import subprocess
import sys
from xml.sax.saxutils import escape

import deepl
import httpx
import pytest
from deep_translator import DeeplTranslator, LibreTranslator
from hypothesis import given
from hypothesis import strategies as st
from libretranslatepy import LibreTranslateAPI
from tests.apps.documents.translators import translated
from tests.samples import sample

from heed.apps.documents.formats.html import read_html, write_html
from heed.apps.documents.markup import XMLText
from heed.apps.serving.glossaries import GlossaryStore
from heed.apps.serving.http_error import HTTPError
from heed.errors import HeedError

TEXT = "seven hundred twelve. Forty-two!\n\n  three"


@pytest.fixture(scope="module")
def expected(server, translator) -> str:
    return translated(TEXT, translator.translate_aligned, "text")


@pytest.mark.slow
def test_libretranslatepy(server, expected):
    client = LibreTranslateAPI(server.url)
    assert client.translate(TEXT, "en", "de") == expected
    assert client.languages() == [
        {"code": "en", "name": "English", "targets": ["de", "en"]},
        {"code": "de", "name": "German", "targets": ["de"]},
    ]
    assert client.detect("The house is on fire.")[0]["language"] == "en"


def test_deep_translator(server, expected):
    client = LibreTranslator(source="en", target="de", api_key="x", custom_url=server.url + "/")
    assert client.translate(TEXT) == expected
    assert client.translate_batch(["three", TEXT])[1] == expected
    client = DeeplTranslator(source="en", target="de", api_key="x")
    client._base_url = server.url + "/v2/"  # it has no other way to name a server
    assert client.translate(TEXT) == expected


def test_deepl(server, expected):
    client = deepl.Translator("key", server_url=server.url)
    one = client.translate_text(TEXT, target_lang="DE")
    assert (one.text, one.detected_source_lang, one.billed_characters) == (expected, "EN", len(TEXT))
    assert [found.text for found in client.translate_text([TEXT, ""], source_lang="EN", target_lang="DE")] == [
        expected,
        "",
    ]
    assert [str(language) for language in client.get_source_languages()] == ["EN"]
    assert [(language.code, language.name) for language in client.get_target_languages()] == [
        ("DE", "German"),
        ("EN-GB", "English (British)"),
        ("EN-US", "English (American)"),
    ]
    for target in ("EN-US", "EN-GB"):
        assert client.translate_text("three", source_lang="EN", target_lang=target).text == "three"
    (one,) = client.translate_text(["three"], target_lang="DE", model_type="prefer_quality_optimized")
    assert one.model_type_used == "quality_optimized"
    for languages in ({"target_lang": "XX"}, {"source_lang": "XX", "target_lang": "DE"}):
        with pytest.raises(deepl.DeepLException, match=f"'{next(iter(languages))}' not supported: xx"):
            client.translate_text("three", **languages)
    many = client.translate_text(["three"] * 150, source_lang="EN", target_lang="DE")
    assert len({found.text for found in many}) == 1 and len(many) == 150
    for texts in (["three"] * 1025, ["three " * 22_000]):
        with pytest.raises(deepl.DeepLException, match="413 Request Entity Too Large, content: .*the most are 1024"):
            client.translate_text(texts, target_lang="DE")


def test_usage_counts_what_every_endpoint_translates(server, client):
    counting = deepl.Translator("key", server_url=server.url)
    fields = {"q": "three", "source": "en", "target": "de"}
    for path, request in (
        ("/translate", {"json": fields}),
        ("/translate", {"json": fields | {"format": "html"}}),
        ("/translate_file", {"data": fields, "files": {"file": ("a.txt", b"three")}}),
        ("/v1/translate", {"json": fields}),
        ("/v1/attention", {"json": fields}),
        ("/v2/translate", {"json": {"text": ["three"], "target_lang": "DE"}}),
    ):
        before = counting.get_usage().character.count
        assert client.post(path, **request).status_code == 200
        assert counting.get_usage().character.count == before + len("three"), path


def test_deepl_leaves_tags_and_refuses_what_it_cannot_do(server, translator):
    client = deepl.Translator("key", server_url=server.url)
    page = "<p>seven <b>hundred</b> twelve. <i>Forty-two</i>!</p>"
    expected = translated(page, translator.translate_aligned, "html")
    for source in ("EN", None):
        found = client.translate_text([page, page], source_lang=source, target_lang="DE", tag_handling="html")
        assert [(one.text, one.detected_source_lang) for one in found] == [(expected, "EN")] * 2
    for options, message in (
        ({"glossary": "7"}, "no such glossary"),
        ({"tag_handling": "tex"}, "tag_handling must be html or xml"),
        ({"formality": "more"}, "formality is not supported"),
        ({"split_sentences": "2"}, "split_sentences must be 0, 1 or nonewlines"),
    ):
        with pytest.raises(deepl.DeepLException, match=message):
            client.translate_text("a", source_lang="EN", target_lang="DE", **options)
    lines = {"source_lang": "EN", "target_lang": "DE"}
    (joined,) = client.translate_text(["seven\nhundred"], split_sentences="nonewlines", **lines)
    assert joined.text == client.translate_text("seven hundred", **lines).text
    hints = {"context": "numbers", "tag_handling": "html", "split_sentences": "0"}
    assert client.translate_text(page, **lines, **hints).text == expected


def test_glossaries_are_made_listed_read_and_deleted_and_a_file_keeps_them(serve, model_folder, tmp_path):
    entries = {"Δぁ": "深", "A%=&": "B&=%", "seven hundred": "siebenhundert", "\U0001faa8": "\U0001fab5"}
    options = ("--glossaries", tmp_path / "kept.json")
    server = serve(model_folder, *options)
    client = deepl.Translator("key", server_url=server.url)
    (pair,) = client.get_glossary_languages()
    assert (pair.source_lang, pair.target_lang) == ("en", "de")
    made = client.create_glossary("numbers", "EN", "DE", entries)
    assert (made.name, made.source_lang, made.target_lang, made.entry_count) == ("numbers", "EN", "DE", 4)
    large = {f"term {i}": f"Begriff {i}" for i in range(10_000)}
    other = client.create_glossary_from_csv(
        "large", "EN", "DE", "\n".join(f'"{src}",{tgt},en,de' for src, tgt in large.items())
    )
    server.stop()
    client = deepl.Translator("key", server_url=serve(model_folder, *options).url)
    assert {found.glossary_id for found in client.list_glossaries()} == {made.glossary_id, other.glossary_id}
    assert client.get_glossary(made.glossary_id).creation_time == made.creation_time
    assert client.get_glossary_entries(made) == entries and client.get_glossary_entries(other) == large
    client.delete_glossary(other)
    options = {"source_lang": "EN", "target_lang": "DE", "glossary": made.glossary_id}
    found = client.translate_text(["Seven hundred", "A%=& \U0001faa8", "twelve, seven hundred."], **options)
    assert [one.text for one in found[:2]] == ["Siebenhundert", "B&=% \U0001fab5"] and "siebenhundert" in found[2].text
    for handling in ("html", "xml"):
        found = client.translate_text(
            "<p>Seven <b>hundred</b></p> &amp; <i>seven hundred</i>", tag_handling=handling, **options
        )
        assert "<i>siebenhundert</i>" in found.text
    output = io.BytesIO()
    client.translate_document(b"# Seven hundred\n", output, filename="a.md", **options)
    assert output.getvalue() == b"# Siebenhundert\n"
    fields = {"text": "one", "target_lang": "DE", "glossary_id": made.glossary_id}
    for more, message in (({}, "'source_lang' required"), ({"source_lang": "DE"}, "the glossary's languages are not")):
        answer = httpx.post(f"{client.server_url}/v2/translate", json=fields | more)
        assert answer.status_code == 400 and message in answer.json()["message"]
    for ask in (client.get_glossary, client.get_glossary_entries, client.delete_glossary):
        for glossary_id in (other.glossary_id, "7"):
            with pytest.raises(deepl.GlossaryNotFoundException, match="no such glossary"):
                ask(glossary_id)


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"target_lang": "xx"}, 400, "'target_lang' not supported: xx"),
        ({"target_lang": "en"}, 400, "'source_lang' not supported in a glossary"),
        ({"name": ""}, 400, "missing name"),
        ({"entries": "one"}, 400, "entry 1: expected a term and its translation"),
        ({"entries": "one\teins\n\nOne\t"}, 400, "entry 3: expected a term"),
        ({"entries": "one\teins\none\tein"}, 400, "entry 2: its term has been given before"),
        ({"entries": " \n"}, 400, "there are none"),
        ({"entries": f"{'a ' * 21}\tb"}, 400, "entry 1: its term has more than 20 words"),
        ({"entries": f"one\t{'x' * 1025}"}, 400, "entry 1: a term is longer than 1,024 bytes"),
        ({"entries": 'one,"ei"ns', "entries_format": "csv"}, 400, "not CSV"),
        ({"entries": "\n".join(f"{i}\t{'x' * 1000}" for i in range(1100))}, 413, "larger than 1,048,576 bytes"),
        ({"entries": "x" * 4_000_000}, 413, "Request entity too large"),
        ({"entries_format": "xls"}, 400, "entries_format must be tsv or csv"),
    ],
)
def test_what_is_no_glossary_is_refused(server, changes, status, message):
    fields = {"name": "g", "source_lang": "en", "target_lang": "de", "entries": "one\teins", "entries_format": "tsv"}
    answer = httpx.post(f"{server.url}/v2/glossaries", json=fields | changes)
    assert answer.status_code == status and message in answer.json()["message"]


def test_the_room_for_glossaries_is_bounded(monkeypatch):
    monkeypatch.setattr("heed.apps.serving.glossaries.MAX_GLOSSARIES", 2)
    store = GlossaryStore()
    for name in ("a", "b"):
        asyncio.run(store.add(name, "en", "de", {"one": "eins"}))
    with pytest.raises(HTTPError, match="delete some"):
        asyncio.run(store.add("c", "en", "de", {"one": "eins"}))


def test_a_file_of_something_else_is_no_file_of_glossaries(tmp_path):
    for content in ("{}", "[1]", '[{"glossary_id": 1}]', ""):
        path = tmp_path / "kept.json"
        path.write_text(content)
        with pytest.raises(HeedError, match="not a file of glossaries"):
            GlossaryStore(path)
        assert path.read_text() == content


def test_deepl_keeps_tags_of_xml_and_what_is_ignored(server, translator):
    client = deepl.Translator("key", server_url=server.url)
    options = {"source_lang": "EN", "target_lang": "DE", "tag_handling": "xml"}
    three, four = (found.text for found in translator.translate(["three", "four"]))
    text = '<doc id="7"><para n="1">three</para><key>seven</key><para>four</para><br/><Key a=">">three</Key></doc>'
    kept = text.replace(">three</para>", f">{three}</para>").replace(">four<", f">{four}<")
    for ignored in ("key,Key", ["key", "Key"]):
        assert client.translate_text(text, ignore_tags=ignored, **options).text == kept
    # Case counts in XML, not in HTML.
    assert client.translate_text(text, ignore_tags="key", **options).text == kept.replace(">three<", f">{three}<")
    assert client.translate_text(text, ignore_tags="KEY", **options | {"tag_handling": "html"}).text == kept
    found = client.translate_text(text, target_lang="DE", tag_handling="xml", ignore_tags=["key", "Key"])
    assert (found.text, found.detected_source_lang) == (kept, "EN")


def test_deepl_says_which_tags_of_xml_end_a_sentence(server, translator):
    client = deepl.Translator("key", server_url=server.url)
    options = {"source_lang": "EN", "target_lang": "DE", "tag_handling": "xml"}
    seven, hundred, both = (found.text for found in translator.translate(["seven", "hundred", "seven hundred"]))
    apart = f"{seven} <x/>{hundred}"

    def words(text: str, **more) -> str:
        return client.translate_text(text, **options | more).text

    assert words("seven <x/>hundred").replace("<x/>", "").split() == both.split()
    assert words("seven <x/>hundred", splitting_tags=["x", "y"]) == apart
    assert words("seven <x/>hundred", splitting_tags="y,x", non_splitting_tags="x", outline_detection=False) == apart
    divided = "<m>seven</m><m>hundred</m>"
    assert words(divided) == f"<m>{seven}</m><m>{hundred}</m>"
    for more in ({"outline_detection": False}, {"non_splitting_tags": "b,m"}):
        assert words("<d><m>seven</m> <m>hundred</m></d>", **more) != f"<d><m>{seven}</m> <m>{hundred}</m></d>"
    assert (
        words('<?xml version="1.0"?>\n<code n="1">seven</code>') == f'<?xml version="1.0"?>\n<code n="1">{seven}</code>'
    )


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("one\n<b>two", {}, "line 2, column 7: <b> has no end tag"),
        ("one</b>", {}, "line 1, column 4: no tag opens this"),
        ("<b n=1/>", {}, "line 1, column 6: not well-formed"),
        ("one</text><text>", {}, "text 1 is not well-formed XML: line 1"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', {}, "text 1 declares entities"),
        ("one", {"splitting_tags": "b", "tag_handling": "html"}, "splitting_tags needs tag_handling=xml"),
        ("one", {"ignore_tags": ["b"] * 101}, "ignore_tags has 101 names, more than 100"),
        ("one", {"splitting_tags": ",b" * 101}, "splitting_tags has 101 names, more than 100"),
        ("one", {"non_splitting_tags": "b" * 101}, "non_splitting_tags has a name of 101 characters, more than 100"),
        ("one", {"outline_detection": "2"}, "outline_detection must be 0 or 1"),
    ],
)
def test_xml_that_cannot_be_read_is_refused(server, text, more, message):
    fields = {"text": [text], "target_lang": "DE", "tag_handling": "xml"} | more
    answer = httpx.post(f"{server.url}/v2/translate", json=fields)
    assert answer.status_code == 400 and message in answer.json()["message"]


def test_a_text_of_malformed_xml_fails_alone(server, translator):
    (three,) = (found.text for found in translator.translate(["three"]))
    texts = ["<p>three</p>", "<p>three", "<p>a&nbsp;b &copy; c & d &lt; e</p>", "<!-- a --> <!DOCTYPE p>\n<p>three</p>"]
    fields = {"text": texts, "source_lang": "EN", "target_lang": "DE", "tag_handling": "xml"}
    one, two, three_, four = httpx.post(f"{server.url}/v2/translate", json=fields).json()["translations"]
    assert one["text"] == f"<p>{three}</p>" and four["text"] == f"<!-- a --> <!DOCTYPE p>\n<p>{three}</p>"
    assert two["text"] == texts[1] and "text 2 is not well-formed XML: line 1" in two["message"]
    assert three_["text"].startswith("<p>") and not {"message"} & (one.keys() | three_.keys() | four.keys())
    same = httpx.post(f"{server.url}/v2/translate", json=fields | {"target_lang": "EN", "text": [texts[2]]}).json()
    assert same["translations"][0]["text"] == texts[2]


TEXTS_OF_XML = st.recursive(
    st.text(st.sampled_from("a ä\n<&>\"'"), max_size=4).map(escape),
    lambda inner: st.builds(
        lambda name, end, inside: (
            f"<{name} n='>'{end}>{''.join(inside)}</{name}{end}>" if inside else f"<{name}{end}/>"
        ),
        st.sampled_from(["b", "x", "p:q", "ä", "br", "code", "script"]),
        st.sampled_from(["", " ", "\n"]),
        st.lists(inner, max_size=3),
    ),
    max_leaves=8,
)


@given(st.lists(TEXTS_OF_XML | st.sampled_from(["<!-- <a> -->", "<![CDATA[<b>]]>", "<?a <b> ?>"]), max_size=4))
def test_texts_of_xml_come_back_from_their_pages(parts):
    text = "".join(parts)
    ways = (XMLText(), XMLText(ignored=["b"], splitting=["x"], non_splitting=["br"], outline=False))
    for markup in ways:
        page = markup.page(text, 1)
        assert markup.text(page) == text
        assert markup.text(write_html(read_html(page))) == text


def test_deepl_translates_a_document_that_is_fetched_once(server, translator):
    client = deepl.Translator("key", server_url=server.url)
    (expected,) = (found.text for found in translator.translate(["three"]))
    output = io.BytesIO()
    status = client.translate_document(b"three\n", output, target_lang="DE", filename="a.txt")
    assert status.done and status.billed_characters == len("three") and output.getvalue().decode() == f"{expected}\n"
    handle = client.translate_document_upload(b"three", source_lang="EN", target_lang="DE", filename="a.txt")
    other = deepl.DocumentHandle(handle.document_id, "0" * 64)
    with pytest.raises(deepl.DeepLException, match="Not found"):
        client.translate_document_download(other)
    assert httpx.get(f"{server.url}/download_file/{handle.document_id}").status_code == 404  # without its key
    output = io.BytesIO()
    client.translate_document_download(handle, output)
    assert output.getvalue().decode() == expected
    with pytest.raises(deepl.DeepLException, match="Not found"):
        client.translate_document_download(handle, io.BytesIO())
    for name, content, message in (
        ("a.pdf", b"%PDF", "Invalid file: file format not supported"),
        ("a.txt", b"\xff", "not UTF-8"),
        ("a.txt", b"a" * 1_000_001, "longer than 1,000,000 bytes"),
        ("a.txt", b"a" * 10_000_000, "Request entity too large"),
    ):
        with pytest.raises(deepl.DeepLException, match=message):
            client.translate_document_upload(content, target_lang="DE", filename=name)
    assert client.translate_document_upload(b"a", target_lang="DE", filename="a.htm", output_format="html").document_id
    for options, message in (
        ({"output_format": "pdf"}, "a document keeps its format"),
        ({"formality": "more"}, "formality is not supported"),
        ({"glossary": "7"}, "no such glossary"),
    ):
        with pytest.raises(deepl.DeepLException, match=message):
            client.translate_document_upload(b"a", target_lang="DE", source_lang="EN", filename="a.txt", **options)


@pytest.mark.slow
def test_the_command_line_of_deepl(server, translator):
    def command(*words: str) -> str:
        line = [sys.executable, "-m", "deepl", "--auth-key", "key", "--server-url", server.url, *words]
        return subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout

    assert command("text", "--to", "DE", "three", "four").splitlines() == [
        found.text for found in translator.translate(["three", "four"])
    ]
    assert "EN: English" in command("languages")
    assert "Characters: " in command("usage")


@pytest.mark.soak
def test_libretranslate_of_npm(server, expected, tmp_path_factory):
    folder = tmp_path_factory.mktemp("npm")
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("no node or npm")
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder, "libretranslate@1"]
    try:
        if subprocess.run(install, capture_output=True, timeout=60).returncode:
            pytest.skip("npm cannot install libretranslate")
    except subprocess.TimeoutExpired:
        pytest.skip("npm cannot install libretranslate")
    code = """
        const { translate } = require("libretranslate");
        const [apiurl, query] = process.argv.slice(1), target = "de";
        (async () => {
            const found = [
                await translate({ query, source: "en", target, apiurl }),
                await translate({ query, target, apiurl, apiKey: "any" }),
                await translate({ query: "<b>three</b>", source: "en", target, format: "html", apiurl }),
            ];
            await translate({ query, source: "zz", target, apiurl }).catch((error) => found.push(error.name));
            console.log(JSON.stringify(found));
        })();
    """
    line = ["node", "-e", code, server.url, TEXT]
    shown = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout
    [plain, detected, page, refused] = json.loads(shown)
    assert plain == detected == expected and refused == "TypeError"
    assert page.startswith("<b>") and page.endswith("</b>")


def test_json_form_and_query_say_the_same(server, expected):
    fields = {"q": TEXT, "source": "en", "target": "de"}
    ways = [
        {"json": fields},
        {"data": fields},
        {"params": fields},
        {"files": {k: (None, v) for k, v in fields.items()}},
    ]
    for way in ways:
        for path in ("/translate", "/translate/"):
            response = httpx.post(server.url + path, **way)
            assert (response.status_code, response.json()) == (200, {"translatedText": expected}), way


def _offers_http2(program: str) -> bool:
    return "HTTP2" in subprocess.run([program, "--version"], capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None or not _offers_http2("curl"), reason="no curl with HTTP/2")
def test_curl_that_offers_http_2(server, translator):
    expected = translator.translate(["three"])[0].text
    fields = json.dumps({"q": "three", "source": "en", "target": "de"})
    for options in ([], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect: 100-continue"]):
        command = ["curl", "-s", "--http2", "-H", "Content-Type: application/json", "-d", fields, *options]
        done = subprocess.run([*command, f"{server.url}/translate"], capture_output=True, check=True, timeout=30)
        assert json.loads(done.stdout) == {"translatedText": expected}


JAVA = sample("Ask.java")


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java; Debian: apt-get install default-jdk-headless")
def test_the_client_of_java_that_offers_http_2(server, translator, tmp_path):
    program = tmp_path / "Ask.java"
    program.write_text(JAVA, encoding="utf-8")
    fields = json.dumps({"q": "three", "source": "en", "target": "de"})
    command = ["java", str(program), f"{server.url}/translate", fields]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    expected = {"translatedText": translator.translate(["three"])[0].text}
    assert [json.loads(line) for line in done.stdout.splitlines()] == [expected] * 3
