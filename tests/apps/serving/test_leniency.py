"""What clients send that is not quite as documented, and what proxies add, through a real server."""

import httpx
import pytest

from heed.apps.serving.doors import AccessPolicy
from heed.apps.serving.doors import root_path as checked_root_path
from heed.apps.serving.files import with_plain_filename
from heed.apps.serving.http_error import HTTPError
from heed.errors import HeedError
from heed.text.languages import known_code

FIELDS = {"q": "three", "source": "en", "target": "de"}


@pytest.fixture(scope="module")
def three(client) -> str:
    return client.post("/translate", json=FIELDS).json()["translatedText"]


@pytest.mark.parametrize(("source", "target"), [("EN", "DE"), ("en-US", "de_AT"), ("En_gb", " de ")])
def test_codes_of_languages_in_any_case_and_with_regions(client, three, source, target):
    codes = {"source": source, "target": target}
    assert client.post("/translate", data=FIELDS | codes).json() == {"translatedText": three}
    assert f'"{three}"' in client.post("/v1/translate", json=FIELDS | codes).text
    deepl = {"text": "three", "source_lang": source, "target_lang": target}
    [found] = client.post("/v2/translate", data=deepl).json()["translations"]
    assert (found["text"], found["detected_source_language"]) == (three, "EN")
    file = {"file": ("a.txt", b"three")}
    assert client.post("/translate_file", data=codes, files=file).status_code == 200
    assert client.post("/translate", data=FIELDS | codes | {"source": "AUTO"}).json()["translatedText"] == three


def test_a_region_is_only_needed_to_tell_codes_apart():
    known = ["en", "pt-BR", "zh-Hans", "zh-Hant"]
    codes = ["EN_us", "pt", "PT_br", "pt-PT", "ZH-hant", "zh", "eng", ""]
    found = [known_code(code, known) for code in codes]
    assert found == ["en", "pt-BR", "pt-BR", "pt-pt", "zh-Hant", "zh-Hans", "en", ""]


def test_more_alternatives_than_there_are_give_as_many_as_there_are(client):
    answers = [client.post("/translate", json=FIELDS | {"alternatives": n}).json() for n in (4, 10, 100_000_000)]
    assert answers[0]["alternatives"] and answers[0] == answers[1] == answers[2]


def test_deeplx_fields_are_read_and_answered(client, three):
    answer = client.post("/translate", json={"text": "three", "source_lang": "EN", "target_lang": "DE"}).json()
    assert answer["data"] == answer["translatedText"] == three and answer["code"] == 200


def test_json_that_does_not_call_itself_so_gets_a_hint(client):
    body = b' {"q": "three", "source": "en", "target": "de"}'
    for kind in ("application/x-www-form-urlencoded", "text/plain", None):
        for path, name in (("/translate", "error"), ("/v2/translate", "message")):
            headers = {} if kind is None else {"content-type": kind}
            answer = client.post(path, content=body, headers=headers)
            assert answer.status_code == 415
            assert answer.json()[name].endswith("send the header Content-Type: application/json"), answer.text
    assert client.post("/translate", data=FIELDS | {"{": "a form's field"}).status_code == 200


def test_whole_numbers_may_have_a_fraction_of_zeros(client):
    for number, n_found in ((1.0, 1), ("1.0", 1), (0.0, None), (1e0, 1)):
        answer = client.post("/translate", json=FIELDS | {"alternatives": number})
        found = answer.json().get("alternatives")
        assert answer.status_code == 200 and (found is None if n_found is None else len(found) == n_found)
    for number in (1.5, "1.5", "nan", "inf", True, [1]):
        answer = client.post("/translate", json=FIELDS | {"alternatives": number})
        assert "is not a whole number" in answer.json()["error"], number
    assert client.post("/translate", content=b'{"alternatives": NaN, "q": "", "source": "en", "target": "de"}',
                       headers={"content-type": "application/json"}).status_code == 400  # fmt: skip


def test_needless_slashes_do_not_matter(client, three):
    for path in ("//translate", "///translate//"):
        url = str(client.base_url).rstrip("/") + path
        assert httpx.post(url, data=FIELDS).json() == {"translatedText": three}


NAMES = [
    (b"filename*=utf-8''Gr%C3%BC%C3%9Fe.txt", "Grüße.txt"),
    (b"filename=\"x.pdf\"; filename*=ISO-8859-1'de'Gr%FC%DFe.txt", "Grüße.txt"),
    (b'filename="=?utf-8?B?R3LDvMOfZS50eHQ=?="', "Grüße.txt"),
    (b'filename="=?utf-8?Q?Gr=C3=BC?= =?utf-8?Q?=C3=9Fe.txt?="', "Grüße.txt"),
    (b"filename*=utf-8''a%22%5Cb.txt; filename=c.txt", "b.txt"),
    (b"filename=\"=?utf-8?B?R3LDvMOfZS50eHQ=?=\"; filename*=utf-8''Gr%%C3%%BC.txt", "Grüße.txt"),
    (b"filename=a.txt; filename*=klingon''b%20c.pdf", "a.txt"),
    (b"filename=a.txt; filename*=utf-8''%ff.pdf", "a.txt"),
]


@pytest.mark.parametrize(("parameters", "name"), NAMES)
def test_names_of_files_as_clients_send_them(client, parameters, name):
    head = b'--X\r\nContent-Disposition: form-data; name="file"; ' + parameters
    fields = b"".join(
        b'--X\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % pair
        for pair in ((b"source", b"en"), (b"target", b"de"))
    )
    body = head + b"\r\n\r\nthree\r\n" + fields + b"--X--\r\n"
    answer = client.post("/translate_file", content=body, headers={"content-type": "multipart/form-data; boundary=X"})
    assert answer.status_code == 200, answer.text
    found = client.get(answer.json()["translatedFileUrl"]).headers["content-disposition"]
    stem = name.removesuffix(".txt")
    assert found.endswith(f"''{httpx.QueryParams({'': stem + '_de.txt'})}".replace("''=", "''")), found


FORM = {"content-type": "multipart/form-data; boundary=X"}


def form(*parts: bytes, padding: bytes = b"") -> bytes:
    """A form of these parts and the languages."""
    languages = (b"name=source\r\n\r\nen", b"name=target\r\n\r\nde")
    heads = (b"--X" + padding + b"\r\nContent-Disposition: form-data; " + part for part in (*parts, *languages))
    return b"\r\n".join(heads) + b"\r\n--X--" + padding + b"\r\n"


def test_a_preamble_and_blanks_behind_a_boundary_are_read(client, three):
    part = b'name="q"\r\n\r\nthree'
    file = b'name="file"; filename="a.txt"\r\n\r\nthree --X \r\n --X'
    for before in (b"", b"\r\n", b"This is a form.\r\n--XY is no boundary.\r\n"):
        for padding in (b"", b" ", b" \t "):
            answer = client.post("/translate", content=before + form(part, padding=padding), headers=FORM)
            assert answer.json() == {"translatedText": three}, (before, padding, answer.text)
            answer = client.post("/translate_file", content=before + form(file, padding=padding), headers=FORM)
            assert answer.status_code == 200, (before, padding, answer.text)


@pytest.mark.parametrize("encoding", [b"base64", b"Quoted-Printable", b"x-uuencode"])
def test_a_part_in_an_encoding_of_mail_is_refused_by_its_name(client, three, encoding):
    header = b"\r\nContent-Transfer-Encoding: "
    for path, part in (("/translate", b'name="q"'), ("/translate_file", b'name="file"; filename="a.txt"')):
        answer = client.post(path, content=form(part + header + encoding + b"\r\n\r\ndGhyZWU="), headers=FORM)
        said = f"Content-Transfer-Encoding {encoding.decode().lower()} is not supported: send the part as it is"
        assert answer.status_code == 415 and answer.json()["error"] == said
    plain = form(b'name="q"' + header + b"8Bit\r\n\r\nthree")
    assert client.post("/translate", content=plain, headers=FORM).json() == {"translatedText": three}


@pytest.mark.parametrize("names", [("q[]",), ("q[0]",), ("q[]", "q[]"), ("q[0]", "q[1]"), ("q", "q")])
def test_lists_are_read_as_php_and_others_write_them(client, three, names):
    languages = [("source", "en"), ("target", "de")]
    body = str(httpx.QueryParams([*((name, "three") for name in names), *languages]))
    kind = {"content-type": "application/x-www-form-urlencoded"}
    answer = client.post("/translate", content=body, headers=kind)
    assert answer.json() == {"translatedText": [three] * len(names)}


def test_a_header_that_is_too_long_is_not_searched():
    header = b"form-data; " + b"a" * 5000 + b"; filename*=utf-8''b.txt"
    assert with_plain_filename(header) == header


def address(client: httpx.Client, **headers: str) -> str:
    """Where the server says that a translated file lies."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = client.post("/translate_file", data=FIELDS, files={"file": ("a.txt", b"three")}, headers=sent)
    return answer.json().get("translatedFileUrl") or answer.json()["error"]


def test_the_address_that_a_proxy_says(client):
    said = {"x_forwarded_proto": "https, http", "x_forwarded_host": "a.example"}
    assert address(client, **said).startswith("https://a.example/download_file/")
    assert address(client, **said, x_forwarded_prefix="/heed/").startswith("https://a.example/heed/download_file/")
    assert address(client, **said, x_forwarded_prefix="/").startswith("https://a.example/download_file/")
    assert address(client, **said, x_forwarded_prefix="/a, /b").startswith("https://a.example/a/b/download_file/")
    assert "X-Forwarded-Prefix header is not a path" in address(client, x_forwarded_prefix='/"<x>')
    forwarded = "for=1.2.3.4;proto=https, for=10.0.0.1;proto=http;host=b.example"
    assert address(client, forwarded=forwarded).startswith("https://b.example/download_file/")


def test_a_prefix_is_believed_only_from_a_trusted_proxy():
    headers = [(b"host", b"10.0.0.1"), (b"x-forwarded-prefix", b"/evil")]
    scope = {"type": "http", "scheme": "http", "server": ("10.0.0.1", 80), "headers": headers}
    doors = AccessPolicy(root_path="/heed")
    assert doors.base_address(scope | {"client": ("10.0.0.7", 1)}) == "http://10.0.0.1/heed"
    assert doors.base_address(scope | {"client": ("127.0.0.1", 1)}) == "http://10.0.0.1/evil"
    with pytest.raises(HTTPError, match="not a path"):
        doors.base_address(scope | {"client": ("127.0.0.1", 1), "headers": [*headers[:1], (headers[1][0], b"/a b")]})


@pytest.mark.slow
def test_root_path(serve, model_folder):
    server = serve(model_folder, "--root-path", "heed/")
    with httpx.Client(base_url=server.url, timeout=60) as client:
        # Whether the proxy has taken the prefix off or not.
        for prefix in ("", "/heed", "//heed/"):
            assert client.get(f"{prefix}/health").json() == {"status": "ok"}
        assert client.get("/heedless/health").status_code == 404
        found = address(client)
        assert found.startswith(f"{server.url}/heed/download_file/") and client.get(found).status_code == 200
    assert [checked_root_path(text) for text in ("", "/", "a/b/", "/a")] == ["", "", "/a/b", "/a"]
    with pytest.raises(HeedError, match=r"--root-path https://x: expected a path"):
        checked_root_path("https://x")


GERMAN = "Das Haus meiner Eltern steht  am Ende der Straße.\n\n Dort wohne ich."


def test_a_text_that_is_already_in_the_target_language_stays_as_it_is(client):
    auto = {"source": "auto", "target": "de"}
    answer = client.post("/translate", json=auto | {"q": [GERMAN, "The house stands at the end of the road."]}).json()
    assert answer["translatedText"][0] == GERMAN and answer["translatedText"][1] not in (GERMAN, "")
    assert [found["language"] for found in answer["detectedLanguage"]] == ["de", "en"]
    page = f"<p>{GERMAN} <b>Das ist <i>schön</i></b>.</p>"
    assert client.post("/translate", json=auto | {"q": page, "format": "html"}).json()["translatedText"] == page
    [found] = client.post("/v2/translate", data={"text": GERMAN, "target_lang": "DE"}).json()["translations"]
    assert (found["text"], found["detected_source_language"]) == (GERMAN, "DE")
    file = client.post("/translate_file", data=auto, files={"file": ("a.txt", GERMAN.encode())}).json()
    assert client.get(file["translatedFileUrl"]).text == GERMAN


@pytest.mark.parametrize(
    ("text", "language"),
    [("Guten Tag", "de"), ("Straße", "de"), ("Danke", "de"), ("DER HUND LÄUFT", "de"), ("The dog runs", "en"),
     ("Hello", "en"), ("twelve", "en")],
)  # fmt: skip
def test_short_texts_of_the_target_language_stay_and_others_are_translated(client, text, language):
    answer = client.post("/translate", json={"q": text, "source": "auto", "target": "de"}).json()
    assert answer["detectedLanguage"]["language"] == language
    assert type(answer["detectedLanguage"]["confidence"]) is int
    assert (answer["translatedText"] == text) is (language == "de")


def test_a_text_that_tells_no_language_is_translated_into_the_target(client, three):
    for text in ("three", "12"):
        answer = client.post("/translate", json={"q": text, "source": "auto", "target": "de"}).json()
        assert answer["detectedLanguage"]["language"] == "en" and answer["detectedLanguage"]["confidence"] < 50


def test_the_confidence_of_a_detection_is_honest(client):
    for text, languages in ((GERMAN, {"de"}), ("The house is on fire.", {"en"})):
        [found] = client.post("/detect", json={"q": text}).json()
        assert {found["language"]} == languages and found["confidence"] > 80
    [other, *_] = client.post("/detect", json={"q": "Bonjour, je voudrais un café, s'il vous plaît."}).json()
    assert other["confidence"] < 1  # neither English nor German
