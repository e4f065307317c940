"""Whatever a client sends, the server answers in JSON, never with a 500, and lives on."""

import json

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
        ({"alternatives": "many"}, "Invalid request: alternatives parameter is not a number"),
        ({"alternatives": 10_000}, "Invalid request: alternatives (10000) exceeds limit (4)"),
        ({"format": "docx"}, "docx format is not supported"),
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
    ],
)
def test_malformed_requests_have_their_status_in_json(client, method, path, headers, content, status):
    answer = client.request(method, path, headers=headers, content=content)
    assert answer.status_code == status
    if status != 200:
        assert set(answer.json()) == {"message" if path.startswith("/v2/") else "error"}
    assert answer.headers["x-content-type-options"] == "nosniff" and "server" not in answer.headers


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
NAMES = [
    "q",
    "source",
    "target",
    "format",
    "alternatives",
    "text",
    "target_lang",
    "source_lang",
    "prefix",
    "translation",
]
FIELDS = st.dictionaries(st.sampled_from(NAMES), VALUE, max_size=6)
ENDPOINTS = ["/translate", "/detect", "/v1/translate", "/v1/attention", "/v2/translate", "/v2/languages", "/v2/usage"]


@pytest.mark.slow
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(ENDPOINTS),
    st.one_of(
        FIELDS.map(lambda fields: json.dumps(GOOD | {"text": "one", "target_lang": "de"} | fields).encode()),
        st.binary(),
    ),
    st.sampled_from([JSON, JSON, JSON, FORM, PARTS, {"content-type": "application/json; charset=;;="}]),
)
def test_no_request_is_answered_by_an_internal_error(client, endpoint, content, headers):
    answer = client.post(endpoint, content=content, headers=headers)
    assert answer.status_code in (200, 400, 405, 413, 415), (answer.status_code, answer.text)
    if not endpoint.startswith("/v1/translate"):
        assert isinstance(answer.json(), dict | list)
    assert "error" not in answer.text or answer.status_code != 200


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server.url, timeout=30) as found:
        yield found
