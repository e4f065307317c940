"""What serving/connection.py relies on in uvicorn and httptools is still there, and what it adds to them works."""

import asyncio
import inspect
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

import httptools
import httpx
import pytest
import uvicorn
from tests.apps.serving.test_faults import raw
from tests.apps.serving.test_server import wait_until
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from heed.apps.serving.connection import MAX_HEAD_BYTES

VERSION = f"uvicorn {uvicorn.__version__}"
RELIED = "heed/apps/serving/connection.py relies on this; adapt it, or bound uvicorn's version in pyproject.toml"
METHODS = {
    "connection_made": ["transport"],
    "connection_lost": ["exc"],
    "data_received": ["data"],
    "eof_received": [],
    "pause_writing": [],
    "resume_writing": [],
    "on_message_begin": [],
    "on_url": ["url"],
    "on_header": ["name", "value"],
    "on_headers_complete": [],
    "send_400_response": ["msg"],
    "_should_upgrade": [],
}
GET = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = 2**25  # more bytes than the system keeps for a reader who does not read


@pytest.mark.parametrize("name", METHODS)
def test_uvicorns_protocol_has_every_method_that_is_overridden(name):
    found = getattr(HttpToolsProtocol, name, None)
    assert found is not None, f"{VERSION}: HttpToolsProtocol.{name} is gone; {RELIED}"
    parameters = list(inspect.signature(found).parameters)[1:]
    assert parameters == METHODS[name], f"{VERSION}: HttpToolsProtocol.{name} takes {parameters}; {RELIED}"


class Witness(HttpToolsProtocol):
    """Notes each call of a method, and of its application, with the state after it; the tests look at these notes."""

    def __init__(self, *, seen: list[tuple], **parts):
        super().__init__(**parts)
        self.seen, self.first_app = seen, getattr(self, "app", None)

    def note(self, name: str) -> None:
        cycle = getattr(self, "cycle", "gone")
        state = cycle and (getattr(cycle, "response_started", "gone"), getattr(cycle, "response_complete", "gone"))
        self.seen.append((name, state))

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self.note("connection_made")
        for name, expected in (("transport", transport), ("loop", asyncio.get_running_loop())):
            if getattr(self, name, None) is not expected:
                self.seen.append((f"{name} is gone", None))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self.note("on_header")
        if name == b"Bad":
            raise httptools.HttpParserError("too long")

    def on_headers_complete(self) -> None:
        self.app = partial(self.witnessed, self.first_app)
        super().on_headers_complete()
        self.note("on_headers_complete")

    async def witnessed(self, first_app, scope, receive, send) -> None:
        self.note("app")
        await first_app(scope, receive, send)
        self.note("answered")


def noted(name: str):
    def method(self, *values) -> None:
        getattr(super(Witness, self), name)(*values)
        self.note(name)

    return method


for name in METHODS.keys() - vars(Witness).keys():
    setattr(Witness, name, noted(name))


async def app(scope, receive, send) -> None:
    """Reads the body, then answers with the path, or with a lot."""
    while (await receive()).get("more_body"):
        pass
    body = b"x" * LARGE if scope["path"] == "/large" else scope["path"].encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def watched() -> Iterator[tuple[list[tuple], socket.socket]]:
    """What is called in a server of uvicorn's own, and a connection to it."""
    seen: list[tuple] = []
    options = {"ws": "none", "lifespan": "off", "loop": "asyncio", "log_config": None, "log_level": "critical"} | {
        "timeout_graceful_shutdown": 5
    }
    server = uvicorn.Server(uvicorn.Config(app, http=partial(Witness, seen=seen), **options))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with socket.create_connection(listener.getsockname(), timeout=30) as connection:
                yield seen, connection
        finally:
            server.should_exit = True
            thread.join()


def names(seen: list[tuple]) -> list[str]:
    return [name for name, _ in seen]


def wait_for(seen: list[tuple], name: str, times: int = 1) -> None:
    try:
        wait_until(lambda: names(seen).count(name) >= times)
    except AssertionError:
        raise AssertionError(f"{VERSION} does not come to {name}, only to {names(seen)}; {RELIED}") from None


def test_requests_reach_the_application_that_is_set_while_their_head_is_read():
    with watched() as (seen, connection):
        connection.sendall(GET % b"one")
        wait_for(seen, "answered")
        first = [one for one in seen if one[0] != "data_received"]  # which returns before or after the answer
        connection.sendall(GET % b"two" + GET % b"three")  # the third waits for the second
        wait_for(seen, "answered", times=3)
    assert first == [
        ("connection_made", None),
        ("on_message_begin", None),
        ("on_url", None),
        ("on_header", None),
        ("on_headers_complete", (False, False)),
        ("app", (False, False)),
        ("answered", (True, True)),
    ], f"{VERSION} calls other methods, or the cycle's response_started and response_complete are others; {RELIED}"
    wait_for(seen, "connection_lost")


def test_an_error_in_a_field_or_a_trailer_is_answered_by_the_method_that_is_overridden():
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
    for content in (head + b"Bad: 1\r\n\r\n", head + b"Transfer-Encoding: chunked\r\n\r\n0\r\nBad: 1\r\n\r\n"):
        with watched() as (seen, connection):
            connection.sendall(content)
            wait_for(seen, "send_400_response")
            wait_for(seen, "connection_lost")


def test_the_head_of_an_answer_leaves_with_its_body(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(GET % b"health")
        assert connection.recv(65536).endswith(b'\r\n\r\n{"status":"ok"}')


def test_a_client_that_does_not_read_pauses_writing_until_it_does():
    with watched() as (seen, connection):
        connection.sendall(GET % b"large")
        wait_for(seen, "pause_writing")
        assert "resume_writing" not in names(seen)
        n_bytes = 0
        while n_bytes < LARGE:
            n_bytes += len(connection.recv(2**20))
        wait_for(seen, "resume_writing")


@pytest.mark.slow
def test_a_client_that_never_reads_its_answers_is_left(serve, model_folder):
    server = serve(model_folder, "--timeout", 3, "--max-chars", 100_000)
    large = {"file": ("a.html", b"<!--" + b"x" * 9_000_000 + b"-->")}
    answer = httpx.post(f"{server.url}/translate_file", data={"source": "en", "target": "de"}, files=large)
    path = urlsplit(answer.json()["translatedFileUrl"]).path
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)  # the system would keep megabytes
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(GET % path[1:].encode())
        left = 'heed_requests_total{endpoint="/download_file/{name}",status="499"}'
        wait_until(lambda: server.metrics().get(left) == 1)
    assert server.stop() == 0


@pytest.mark.slow
def test_requests_that_come_together_are_answered_in_their_order(server):
    answer = raw(
        server, GET % b"health" + GET % b"nothing" + (GET % b"ready").replace(b"Host", b"Connection: close\r\nHost")
    )
    places = [
        answer.index(content) for content in (b'{"status":"ok"}', b'{"error":"Not Found"}', b'{"status":"ready"}')
    ]
    assert places == sorted(places)


@pytest.mark.slow
def test_a_client_that_sends_nothing_more_gets_its_answers(serve, slow_model_folder):
    """One that leaves instead takes its request with it: test_clients_that_leave_take_their_sentences_with_them."""
    server = serve(slow_model_folder)
    body = b'{"q": "one", "source": "en", "target": "de"}'
    head = (
        b"POST /translate HTTP/1.%d\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    for version, content, n_answers in ((1, GET % b"health", 1), (0, None, 1), (1, None, 3)):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall((content or head % (version, len(body)) + body) * n_answers)
            connection.shutdown(socket.SHUT_WR)
            found = connection.makefile("rb").read()
        assert found.count(b"HTTP/1.1 200 OK\r\n") == n_answers
        # What is answered at once may be written before the server has heard that the client sends no more.
        assert content or b"\r\nconnection: close\r\n" in found
        assert found.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").startswith(b"HTTP/1.1 200 OK\r\n")
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head % (1, len(body) + 1) + body)  # not all of it
        connection.shutdown(socket.SHUT_WR)
        assert connection.makefile("rb").read() == b""


# What clients send on a plain connection, of their own accord or, curl, by --http2.
OFFERS = {
    "curl 7.88": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n",
    "Java 17": b"Connection: Upgrade, HTTP2-Settings\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\nUpgrade: h2c\r\n",
    "Apache HttpClient 5.4": b"Upgrade: TLS/1.2\r\nConnection: Upgrade\r\n",
    "another": b"uPGRADE: a\r\nupgrade: websocket\r\nCONNECTION: UPGRADE\r\n",
}
FIELDS = b'{"q":"seven","source":"en","target":"de"}'
BODIES = [
    b"Content-Length: 41\r\n\r\n" + FIELDS,
    b"Transfer-Encoding: chunked\r\n\r\n29\r\n" + FIELDS + b"\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("client", OFFERS)
@pytest.mark.parametrize("in_pieces", [False, True])
def test_requests_that_offer_another_protocol_are_answered_as_without_the_offer(server, client, in_pieces):
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\n%bContent-Type: application/json\r\n"
    last = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") % b"health"
    plain, offering = (b"".join(head % offer + body for body in BODIES) + last for offer in (b"", OFFERS[client]))
    expected, answer = raw(server, plain), raw(server, offering, size=7 if in_pieces else None)
    assert without_dates(answer) == without_dates(expected) and answer.count(b'{"translatedText":') == 2


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length:\r\n 4\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Content-Length: +4\r\n",
    ],
)
def test_an_offer_makes_no_body_end_elsewhere(server, fields):
    for offer in OFFERS.values():
        head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\n" + offer
        for content in (head + fields, head.replace(offer, fields + offer)):
            answer = raw(server, content + b"\r\n0\r\n\r\n" + GET % b"health")
            assert answer.startswith(b"HTTP/1.1 400 ") and b'"ok"' not in answer


def without_dates(answer: bytes) -> bytes:
    return re.sub(rb"date: [^\r]*", b"", answer)


@pytest.mark.parametrize("place", ["path", "field", "fields"])
def test_a_head_that_is_too_long_is_refused_in_json(server, place):
    long = b"x" * MAX_HEAD_BYTES
    content = {
        "path": GET % long,
        "field": GET.replace(b"Host", b"A: " + long + b"\r\nHost") % b"health",
        "fields": GET.replace(b"Host", b"a:b\r\n" * (MAX_HEAD_BYTES // 32) + b"Host") % b"health",
    }[place]
    head, _, body = raw(server, content).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and set(json.loads(body)) == {"error"}
