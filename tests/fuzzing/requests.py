"""Any bytes, as an HTTP request: the application answers it completely, within bounded time, and never with status 500.

An input is the request as it is sent, without its length. The server's own parser takes it apart, as uvicorn does.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp, Message

from heed.apps.serving.app import make_app
from heed.apps.serving.engine import Engine
from heed.apps.serving.service import ApiKeys, Limits, Service
from heed.decoding.translator import Translator
from tests.apps.documents.test_docx import NAMESPACE, with_document

MODEL = Path(__file__).parents[1] / "golden" / "models" / "byte-pairs"
KEY = "sesame"
LIMITS = Limits(max_chars=300, max_texts=8, queue=64, timeout_seconds=15)
SECONDS = 30.0
WORDS = (
    *(b"GET ", b"POST ", b"HEAD ", b"OPTIONS ", b"PUT ", b" HTTP/1.1\r\n", b"\r\n", b"%00", b"%ff", b"%0d%0a", b"?"),
    *(b"content-type: ", b"application/json", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=b"),
    *(b"; charset=", b"content-encoding: ", b"host: ", b"origin: ", b"authorization: Bearer ", b"forwarded: host="),
    *(b"x-forwarded-host: ", b"x-forwarded-proto: ", b"range: bytes=", b"expect: ", b"accept-encoding: gzip"),
    *(b"access-control-request-method: GET", b"content-disposition: form-data; name=", b'; filename="', b"--b"),
    *(f"/{path}".encode() for path in "translate detect languages translate_file download_file/ suggest".split()),
    *(f"/{path}".encode() for path in "v1/translate v1/attention v2/translate v2/languages v2/usage".split()),
    *(f"/{path}".encode() for path in "health ready metrics openapi.json frontend/settings v3/".split()),
    *(f'"{name}":'.encode() for name in "q source target format alternatives prefix views translation api_key".split()),
    *(f'"{name}":'.encode() for name in "text target_lang source_lang tag_handling split_sentences type".split()),
    *(b'"auto"', b'"html"', b'"en"', b'"de"', b"[]", b"{}", b"null", b"true", b"1e999", b"NaN", b"-1", b"\\ud800"),
    *(b"<p>", b"</p>", b"<b>", b"&", b"=", b".html", b".docx", b".srt", b".md", b".txt", KEY.encode()),
)


@dataclass
class _Request:
    """What httptools calls with the parts of a request."""

    url: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    is_complete: bool = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True


class _Server:
    """Two applications of one model: one that serves everybody, one that asks for a key."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        # Short searches: what they find is tested elsewhere.
        translator = Translator.load(MODEL, precision="fp32", beam_size=1, max_extra_tokens=3)
        self._applications = [_Application(translator, keys) for keys in (None, ApiKeys([digest]))]
        for application in self._applications:
            self.loop.run_until_complete(application.start())
        self.open, self.keyed = (application.app for application in self._applications)

    def close(self) -> None:
        for application in self._applications:
            self.loop.run_until_complete(application.close())
        self.loop.close()


class _Application:
    """An application that is started and closed as a server does it."""

    def __init__(self, translator: Translator, keys: ApiKeys | None):
        engines = {pair: Engine(translator, max_waiting=LIMITS.queue) for pair in (("en", "de"), ("de", "en"))}
        self._service = Service(engines, limits=LIMITS, keys=keys)
        self.app = make_app(self._service, lambda _: None)
        self._events, self._answers = asyncio.Queue[Message](), asyncio.Queue[Message]()

    async def start(self) -> None:
        self._events.put_nowait({"type": "lifespan.startup"})
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
        self._life = asyncio.create_task(self.app(scope, self._events.get, self._answers.put))
        await self._answers.get()
        while not self._service.ready:
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        self._events.put_nowait({"type": "lifespan.shutdown"})
        await self._life


@cache
def _server() -> _Server:
    return _Server()


def close() -> None:
    """Ends the threads and processes that `target` has started."""
    if _server.cache_info().currsize:
        _server().close()
        _server.cache_clear()


def target(data: bytes) -> None:
    scope, body = _parsed(data)
    if scope is None:
        return
    server = _server()
    app = server.keyed if KEY.encode() in data else server.open
    messages = server.loop.run_until_complete(asyncio.wait_for(_answer(app, scope, body), SECONDS))
    _check(messages, has_body=scope["method"] != "HEAD")


def _parsed(data: bytes) -> tuple[dict[str, object] | None, bytes]:
    """The scope and the body of the request; no scope if the server's parser refuses it."""
    head, end, body = data.partition(b"\r\n\r\n")
    request = _Request()
    parser = httptools.HttpRequestParser(request)
    try:
        parser.feed_data(head + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        url = httptools.parse_url(request.url)
        path = url.path.decode("ascii")
    except (httptools.HttpParserError, httptools.HttpParserUpgrade, UnicodeDecodeError, AttributeError):
        return None, b""
    if not (end and request.is_complete):
        return None, b""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": parser.get_http_version(),
        "method": parser.get_method().decode("ascii"),
        "scheme": "http",
        "root_path": "",
        "path": unquote(path),
        "raw_path": url.path,
        "query_string": url.query or b"",
        "headers": request.headers,
        "server": ("127.0.0.1", 5000),
        "client": ("127.0.0.1", 40000),
    }
    return scope, request.body


async def _answer(app: ASGIApp, scope: dict[str, object], body: bytes) -> list[Message]:
    messages: list[Message] = []
    given = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        if (message := next(given, None)) is None:
            await asyncio.Event().wait()  # the client stays
        return message

    async def send(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, send)
    return messages


def _check(messages: list[Message], *, has_body: bool) -> None:
    start, *rest = messages
    headers = [(bytes(name), bytes(value)) for name, value in start["headers"]]
    content = b"".join(message.get("body", b"") for message in rest)
    assert start["status"] != 500, f"status 500: {content[:1000]!r}"
    assert rest and not rest[-1].get("more_body", False), "the answer has no end"
    assert not any(sign in value for _, value in headers for sign in (b"\r", b"\n", b"\0")), headers
    by_name = dict(headers)
    if has_body and b"content-length" in by_name:
        assert int(by_name[b"content-length"]) == len(content)
    if has_body and by_name.get(b"content-type") == b"application/json":
        json.loads(content)


def seeds() -> Iterator[bytes]:
    def request(line: str, body: bytes = b"", *headers: str) -> bytes:
        return "\r\n".join([f"{line} HTTP/1.1", "host: localhost", *headers, "", ""]).encode() + body

    paths = (
        "/ /health /ready /metrics /languages /frontend/settings /openapi.json /docs /v2/usage /v2/languages".split()
    )
    for path in [*paths, "/download_file/x.txt", "/v2/translate?text=one&target_lang=DE", "/v2/languages?type=target"]:
        yield request(f"GET {path}")
    yield request("OPTIONS /translate", b"", "origin: http://localhost:1", "access-control-request-method: POST")
    plain = {"q": "one two", "source": "en", "target": "de"}
    fields: list[tuple[str, dict[str, object]]] = [
        ("/translate", plain | {"alternatives": 2}),
        ("/translate", plain | {"q": ["one", "<b>two</b> three"], "source": "auto", "format": "html"}),
        ("/translate", plain | {"api_key": KEY}),
        ("/detect", {"q": "one"}),
        ("/suggest", plain | {"s": "eins"}),
        ("/v1/translate", plain | {"prefix": "eins", "alternatives": "1"}),
        ("/v1/attention", plain | {"views": ["cross", "encoder"], "translation": "eins zwei"}),
        ("/v2/translate", {"text": ["one"], "target_lang": "DE", "source_lang": "EN", "split_sentences": "nonewlines"}),
        (
            "/v2/translate",
            {"text": ["<p>one</p>"], "target_lang": "DE", "tag_handling": "html", "formality": "default"},
        ),
    ]
    for path, content in fields:
        yield request(f"POST {path}", json.dumps(content).encode(), "content-type: application/json")
    form = b"q=one&q=two&source=en&target=de&api_key=%b" % KEY.encode()
    yield request("POST /translate", form, "content-type: application/x-www-form-urlencoded")
    yield request("POST /v2/translate", b"text=one&target_lang=DE", "authorization: DeepL-Auth-Key " + KEY)
    xml = b"<w:document %b><w:body><w:p><w:r><w:t>one</w:t></w:r></w:p></w:body></w:document>" % NAMESPACE
    files = {"a.txt": b"one.\n\ntwo.", "a.html": b"<p>one <b>two</b></p>", "a.md": b"# one\n\n- two\n"}
    for name, content in {
        **files,
        "a.srt": b"1\n00:00:01,000 --> 00:00:02,000\none\n",
        "a.docx": with_document(xml),
    }.items():
        parts = {
            b'name="source"': b"en",
            b'name="target"': b"de",
            b'name="file"; filename="%b"' % name.encode(): content,
        }
        body = b"".join(
            b"--b\r\ncontent-disposition: form-data; %b\r\n\r\n%b\r\n" % (head, value) for head, value in parts.items()
        )
        yield request("POST /translate_file", body + b"--b--\r\n", "content-type: multipart/form-data; boundary=b")
