"""A server of this machine is used by no page that its owner has not named, under no name but its own."""

import hashlib
import http.client
import json
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from heed.apps.serving.doors import LOOPBACK, AccessPolicy, host_name, network
from heed.apps.serving.http_error import HTTPError
from heed.apps.serving.service import ApiKeys
from heed.errors import HeedError

FORM = {"content-type": "application/x-www-form-urlencoded"}
BODY = "q=seven&source=en&target=de"
UPLOAD = (
    b'--B\r\nContent-Disposition: form-data; name="source"\r\n\r\nen\r\n'
    b'--B\r\nContent-Disposition: form-data; name="target"\r\n\r\nde\r\n'
    b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nseven\r\n--B--\r\n'
)
MULTIPART = {"content-type": "multipart/form-data; boundary=B"}


def status(server, method: str, path: str, body: str | bytes | None = None, **headers: str) -> int:
    """Of a request with these headers, whose Host is the server's own address if none is given."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body=body, headers=sent)
    found = connection.getresponse().status
    connection.close()
    return found


REQUESTS = [("GET", "/", None, {}), ("GET", "/metrics", None, {}), ("GET", "/languages", None, {})]
REQUESTS += [("POST", "/translate", BODY, FORM), ("POST", "/translate_file", UPLOAD, MULTIPART)]
REQUESTS += [("POST", "/v2/translate", "text=seven&target_lang=DE", FORM), ("HEAD", "/", None, {})]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path", "body", "headers"), REQUESTS, ids=lambda value: str(value)[:20])
def test_pages_of_other_origins_and_rebound_names_are_refused(server, method, path, body, headers):
    def ask(**more: str) -> int:
        return status(server, method, path, body, **headers, **more)

    good = ask()
    assert good < 500 and good != 403
    own = f"127.0.0.1:{server.port}"
    for host in (own, f"localhost:{server.port}", "localhost", "LOCALHOST.", "a.localhost:1", "[::1]:5000", "10.1.2.3"):
        assert ask(host=host) == good, host
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "localhost.evil.example"):
        assert ask(host=host) == 403, host
        assert ask(host=host, x_forwarded_host=own) == 403, host
    for origin in (f"http://{own}", f"HTTP://{own}"):
        assert ask(origin=origin) == good, origin
    others = ["https://evil.example", "null", "", "file://", f"http://127.0.0.1:{server.port + 1}", f"http://x.{own}"]
    others += [
        "http://127.0.0.1",
        f"http://localhost:{server.port}",
        f"http://{own}@evil.example",
        "chrome-extension://a",
    ]
    for origin in others:
        assert ask(origin=origin) == 403, origin
    assert ask(host="evil.example", origin="http://evil.example") == 403


@pytest.mark.slow
def test_pages_of_other_sites_can_link_to_this_server_and_no_more(server):
    """A browser sends no Origin with the GET of an image, a script or a link, but where that stands."""
    reads = [path for path, methods in json.loads(server.get("/spec"))["paths"].items() if "get" in methods]
    link = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    for path in (*reads, "/v2/translate?text=seven&target_lang=DE"):
        good = status(server, "GET", path)
        for own in ("same-origin", "none"):
            assert status(server, "GET", path, sec_fetch_site=own) == good != 403, path
        for other in ("cross-site", "same-site"):
            for mode in ({}, {"sec_fetch_mode": "no-cors"}, {**link, "sec_fetch_dest": "iframe"}):
                assert status(server, "GET", path, sec_fetch_site=other, **mode) == 403, (path, mode)
            followed = status(server, "GET", path, sec_fetch_site=other, **link)
            assert followed == (403 if path.startswith("/v2/") or path.startswith("/v3/") else good), path
    own = f"http://127.0.0.1:{server.port}"
    assert status(server, "GET", "/languages", sec_fetch_site="cross-site", origin=own) == 200


@pytest.mark.slow
def test_names_and_origins_that_the_owner_gives_are_let_in(serve, model_folder):
    options = ["--allow-host", "Translate.example.org", "--cors", "https://my.example", "--cors", "moz-extension://*"]
    server = serve(model_folder, *options)
    ask = lambda **headers: status(server, "POST", "/translate", BODY, **FORM, **headers)  # noqa: E731
    assert ask(host="translate.example.org") == ask(host="translate.example.org:443") == 200
    assert ask(host="translate.example.org", origin="https://translate.example.org") == 200
    named = {"origin": "https://my.example", "sec_fetch_site": "cross-site"}
    assert status(server, "GET", "/v2/translate?text=seven&target_lang=DE", **named) == 200
    assert ask(origin="https://my.example") == 200 and ask(origin="https://my.example:8443") == 403
    assert ask(origin="moz-extension://5f5b") == 200 and ask(origin="chrome-extension://abcd") == 403
    assert ask(host="other.example.org") == 403
    proxied = {"host": f"127.0.0.1:{server.port}", "x_forwarded_host": "translate.example.org"}
    assert ask(**proxied, origin="https://translate.example.org") == 200  # of a proxy on this machine
    assert server.stop() == 0


@pytest.mark.slow
def test_a_server_of_a_network_says_that_it_asks_for_no_name(serve, model_folder):
    server = serve(model_folder, "--host", "0.0.0.0")
    assert any("--allow-host NAME restricts it" in line for line in server.lines)
    assert status(server, "POST", "/translate", BODY, **FORM, host="any.example") == 200
    assert status(server, "POST", "/translate", BODY, **FORM, origin="https://evil.example") == 403
    server = serve(model_folder, "--host", "0.0.0.0", "--allow-host", "one.example")
    assert status(server, "GET", "/languages", host="any.example") == 403
    assert status(server, "GET", "/languages", host="one.example") == 200


def scope(client: str, **headers: str) -> dict:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "scheme": "http", "server": ("127.0.0.1", 80), "client": (client, 1), "headers": pairs}


def test_what_a_proxy_says_counts_only_from_a_trusted_one():
    said = {"host": "10.0.0.1:5000", "x_forwarded_proto": "https", "x_forwarded_host": "evil.example, a.example"}
    assert AccessPolicy().scheme_and_host(scope("127.0.0.1", **said)) == ("https", "a.example")
    assert AccessPolicy().scheme_and_host(scope("10.0.0.7", **said)) == ("http", "10.0.0.1:5000")
    trusting = AccessPolicy(proxies=(*LOOPBACK, network("10.0.0.0/24")))
    assert trusting.scheme_and_host(scope("10.0.0.7", **said)) == ("https", "a.example")
    forwarded = {"host": "x", "forwarded": 'for=1.2.3.4;host=evil.example, proto=https;host="b.example:8443"'}
    assert trusting.scheme_and_host(scope("10.0.0.7", **forwarded)) == ("https", "b.example:8443")
    with pytest.raises(HTTPError, match="names no host"):
        trusting.scheme_and_host(scope("10.0.0.7", host="x", x_forwarded_host='"<evil>'))
    with pytest.raises(HeedError, match="--trusted-proxy 10.0.0.1/24"):
        network("10.0.0.1/24")
    for name in ("a.example:80", "https://a.example", ""):
        with pytest.raises(HeedError, match="--allow-host"):
            host_name(name)


@pytest.mark.parametrize("key", [b"", b"\n", b" "])
def test_the_hash_of_no_key_is_refused(tmp_path, key):
    lines = [hashlib.sha256(b"sesame").hexdigest(), hashlib.sha256(key).hexdigest().upper() + "  -"]
    (tmp_path / "keys").write_text("\n".join(lines))
    with pytest.raises(HeedError, match=r"keys, line 2: the SHA-256 of an empty key"):
        ApiKeys.read(tmp_path / "keys")
    assert not ApiKeys([hashlib.sha256(b"").hexdigest()]).holds("")


@pytest.mark.slow
def test_strangers_uploads_leave_room_for_those_with_a_key(serve, model_folder, tmp_path):
    (tmp_path / "keys").write_text(hashlib.sha256(b"sesame").hexdigest())
    server = serve(model_folder, "--api-keys", tmp_path / "keys")

    def upload(**headers: str) -> int:
        return status(server, "POST", "/translate_file", UPLOAD, **MULTIPART, **headers)

    assert upload(authorization="Bearer sesame") == 200
    assert status(server, "GET", "/metrics", authorization="Bearer another's") == 200  # which needs no key
    head = b"POST /translate_file HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=B\r\n"
    strangers = []
    for more in (b"", b"Authorization: Basic x\r\n", b"", b"", b""):
        strangers.append(socket.create_connection(("127.0.0.1", server.port)))
        with suppress(ConnectionError):  # the last finds no room
            strangers[-1].sendall(head + more + b"Content-Length: 9400000\r\n\r\n" + b"x" * 9_388_000)
    time.sleep(0.5)
    assert upload(authorization="Bearer sesame") == 200
    refused = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    refused.sendall(head + b"Authorization: Bearer wrong\r\nContent-Length: 9400000\r\n\r\n")  # and no body
    assert b" 403 " in refused.recv(100)
    for connection in (*strangers, refused):
        connection.close()


@pytest.mark.slow
def test_options_that_name_nothing_are_one_line(model_folder):
    for option, value in (("--allow-host", "http://x"), ("--trusted-proxy", "proxy")):
        command = [sys.executable, "-m", "heed", "serve", model_folder, option, value]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and done.stderr.startswith(f"heed: {option} {value}: expected"), done.stderr
