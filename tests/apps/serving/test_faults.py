"""Whatever a client sends, the server answers in JSON, never with a 500, and lives on."""

import json
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import n_examples

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "serve.md"
GOOD = {"q": "one", "source": "en", "target": "de"}
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
PARTS = {"content-type": "multipart/form-data; boundary=x"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": None}, "Invalid request: missing q parameter"),
        ({"source": ""}, "Invalid request: missing source parameter"),
        ({"target": None}, "Invalid request: missing target parameter"),
        ({"target": "zz"}, "zz is not supported"),
        ({"source": "de", "target": "en"}, "en is not available as a target language from de"),
        ({"q": 7}, "Invalid request: q parameter is not a text"),
        ({"q": ["a", {}]}, "Invalid request: q parameter is not a text"),
        ({"q": "x" * 10_001}, "Invalid request: request (10001) exceeds text limit (10000)"),
        ({"q": ["x"] * 129}, "Invalid request: request (129) exceeds text limit (128)"),
        ({"alternatives": "many"}, "Invalid request: alternatives parameter is not a whole number"),
        ({"alternatives": -1}, "Invalid request: alternatives (-1) is negative"),
        ({"format": "docx"}, "docx format is not supported"),
        ({"format": "\ud800"}, "? format is not supported"),
        ({"q": "\ud800"}, "Invalid request: q parameter holds half a surrogate pair"),
    ],
)
def test_a_request_that_asks_for_something_else_is_told_so(client, changes, message):
    content = json.dumps(GOOD | changes)
    answer = client.post("/translate", content=content, headers=JSON)
    assert (answer.status_code, answer.json()) == (400, {"error": message})


@pytest.mark.parametrize(
    ("method", "path", "headers", "content", "status"),
    [
        ("POST", "/translate", JSON, b"{", 400),
        ("POST", "/translate", JSON, b"[" * 100_000, 400),
        ("POST", "/translate", JSON, b'{"q": ' + b"9" * 10_000 + b"}", 400),
        ("POST", "/translate", JSON, b'{"q": "\xff"}', 400),
        ("POST", "/translate", JSON, b"[1]", 400),
        ("POST", "/translate", JSON | {"content-encoding": "gzip"}, b"\x1f\x8b", 415),
        ("POST", "/translate", {"content-type": "text/plain"}, b"one", 415),
        ("POST", "/translate", FORM, b"q=%ff", 400),
        ("POST", "/translate", FORM, b"&".join([b"q=1"] * 2000), 400),
        ("POST", "/translate", PARTS, b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--", 400),
        ("POST", "/translate", PARTS, b'--x\r\nContent-Disposition: form-data; name="q"; filename="a"\r\n\r\n1', 400),
        ("POST", "/translate", {"content-type": "multipart/form-data"}, b"--x", 400),
        ("POST", "/translate", JSON, b" " * 1_000_000, 413),
        ("POST", "/translate", {}, b"", 400),
        ("POST", "/suggest", {}, b"", 403),
        ("GET", "/translate", {}, b"", 405),
        ("GET", "/languages", JSON, b"{", 200),
        ("GET", "/nothing", {}, b"", 404),
        ("POST", "/v2/translate", JSON, b"{", 400),
        ("POST", "/v2/nothing", JSON, b"{", 404),
        ("POST", "/v2/document", PARTS, b"--x", 400),
        ("GET", "/v3/documents", {}, b"", 404),
    ],
)
def test_malformed_requests_have_their_status_in_json(client, method, path, headers, content, status):
    answer = client.request(method, path, headers=headers, content=content)
    assert answer.status_code == status
    if status != 200:
        assert set(answer.json()) == {"message" if path.startswith(("/v2/", "/v3/")) else "error"}
    assert answer.headers["x-content-type-options"] == "nosniff" and "server" not in answer.headers


@pytest.mark.parametrize(
    ("kind", "content"),
    [(JSON, b"\0"), (JSON, b"[]"), (FORM, b"\xff"), (PARTS, b"--x"), ({}, b"x"), ({"content-encoding": "gzip"}, b"x")],
)
def test_every_endpoint_answers_unreadable_bodies_as_the_description_says(client, description, kind, content):
    for endpoint in description:
        answer = client.request(endpoint.method, endpoint.path, content=content, headers=kind)
        assert str(answer.status_code) in endpoint.operation["responses"] and answer.status_code != 500, endpoint


VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["en", "de", "auto"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


GOOD_VALUE = st.sampled_from(
    ["one", "en", "de", "auto", "html", "0", 2, ["one", "two"], "<b>one</b>\u2028two", "\ud800"]
)
MOST_FIELDS = 8  # of an endpoint


@pytest.mark.slow
@settings(
    max_examples=n_examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    number=st.integers(0, 999),
    values=st.lists(GOOD_VALUE | GOOD_VALUE | VALUE, min_size=MOST_FIELDS, max_size=MOST_FIELDS),
    is_there=st.lists(st.booleans(), min_size=MOST_FIELDS, max_size=MOST_FIELDS),
    way=st.sampled_from(["json", "json", "data", "params", "parts", "bytes"]),
    noise=st.binary(),
    kind=st.sampled_from([JSON, FORM, PARTS, {}]),
)
def test_every_request_is_answered_as_the_description_says(
    client, description, number, values, is_there, way, noise, kind
):
    endpoint = description[number % len(description)]
    operation = endpoint.operation
    content = operation.get("requestBody", {}).get("content", {})
    body = next(iter(content.values()), {}).get("schema", {"properties": {}})
    names = [one["name"] for one in operation.get("parameters", [])] + list(body["properties"])
    drawn = {
        name: {"source": "en", "target": "de", "target_lang": "de"}.get(name, value) if number % 7 < 4 else value
        for name, value, there in zip(names, values, is_there, strict=False)
        if there or name in body.get("required", ())
    }
    shown = {name: str(value).encode(errors="replace") for name, value in drawn.items()}
    takes_files = "multipart" in str(content)
    request = {
        "json": lambda: {"content": json.dumps(drawn), "headers": JSON},
        "data": lambda: {"data": shown},
        "params": lambda: {"params": {name: value.decode() for name, value in shown.items()}},
        "parts": lambda: {"data": shown, "files": {"file": ("a.txt", b"one")} if takes_files else None},
        "bytes": lambda: {"content": noise, "headers": kind},
    }[way]()
    answer = client.request(endpoint.method, endpoint.path.replace("{name}", "x"), **request)
    assert str(answer.status_code) in operation["responses"] and answer.status_code != 500, answer.text
    [media_type] = operation["responses"].get("200", {"content": {"x": 0}})["content"]
    if answer.status_code != 200 or media_type == "application/json":
        answer.json()
    assert answer.status_code != 200 or answer.headers["content-type"].startswith(media_type)


def test_the_description_names_every_endpoint_of_the_guide(description):
    endpoints = {(endpoint.method, endpoint.path) for endpoint in description}
    found = set()
    for guide_row in re.findall(r"(?m)^\| [\w' ]+ \| (`.*?) \|$", GUIDE.read_text(encoding="utf-8")):
        for method, paths in re.findall(r"`(GET|POST) (/[^;:]*)", guide_row):
            for path in re.findall(r"(/[\w/]+)", paths):
                assert (method.lower(), path) in {(m, p.partition("/{")[0]) for m, p in endpoints}, path
                found.add(path)
    assert len(found) > 10


@dataclass(frozen=True)
class Endpoint:
    method: str
    path: str
    operation: dict = field(repr=False)  # too long beside a failing example


@pytest.fixture(scope="module")
def description(client) -> list[Endpoint]:
    content = client.get("/spec").json()
    assert content["openapi"].startswith("3.")
    return [
        Endpoint(method, path, operation)
        for path, methods in content["paths"].items()
        for method, operation in methods.items()
    ]


def raw(server, content: bytes, size: int | None = None) -> bytes:
    """The answer to these bytes, until the server closes the connection. size: bytes sent at a time; None for all."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(content), size or len(content)):
            connection.sendall(content[start : start + (size or len(content))])
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    "content",
    [
        b"GARBAGE\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\0\0\r\n\r\n",
    ],
)
def test_what_is_no_http_is_told_so_in_json(server, content):
    head, _, body = raw(server, content).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and set(json.loads(body)) == {"error"}
