"""The examples of proxies work: with TLS, under a path, for clients and pages."""

import shutil
import socket
import ssl
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import deepl
import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

EXAMPLES = Path(__file__).parents[3] / "examples" / "proxy"
pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def nginx(folder: Path, server, port: int) -> list[object]:
    text = (EXAMPLES / "nginx.conf").read_text()
    for theirs, ours in (
        ("/etc/ssl/certs/translate.example.org.pem", folder / "certificate.pem"),
        ("/etc/ssl/private/translate.example.org.key", folder / "key.pem"),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("127.0.0.1:5000", f"127.0.0.1:{server.port}"),
    ):
        assert theirs in text
        text = text.replace(theirs, str(ours))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder / kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder / 'pid'}; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {places}\n{text}\n}}"
    )
    return ["nginx", "-e", "stderr", "-p", folder, "-c", folder / "nginx.conf"]


def caddy(folder: Path, server, port: int) -> list[object]:
    text = (EXAMPLES / "Caddyfile").read_text()
    for theirs, ours in (
        (
            "\ntranslate.example.org {\n",
            f"\n{{\n\tadmin off\n\tauto_https off\n}}\nhttps://localhost:{port} {{\n"
            f"\ttls {folder / 'certificate.pem'} {folder / 'key.pem'}\n",
        ),
        ("127.0.0.1:5000", f"127.0.0.1:{server.port}"),
    ):
        assert theirs in text
        text = text.replace(theirs, ours)
    (folder / "Caddyfile").write_text(text.partition("\n{")[1][1:] + text.partition("\n{")[2])
    return ["caddy", "run", "--adapter", "caddyfile", "--config", folder / "Caddyfile"]


@pytest.fixture(params=[nginx, caddy])
def address(request, server, tmp_path, monkeypatch):
    """Of the server behind a proxy."""
    program = request.param.__name__
    if not shutil.which(program) or not shutil.which("openssl"):
        pytest.skip(f"no {program} or openssl")
    certificate = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    certificate += ["-addext", "subjectAltName=DNS:localhost", "-keyout", tmp_path / "key.pem"]
    subprocess.run([*certificate, "-out", tmp_path / "certificate.pem"], check=True, capture_output=True, timeout=60)
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.setenv(name, str(tmp_path / "certificate.pem"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    port = free_port()
    with (tmp_path / "log").open("w") as log:
        proxy = subprocess.Popen(request.param(tmp_path, server, port), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while proxy.poll() is None and time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        else:
            raise AssertionError((tmp_path / "log").read_text())
        yield f"https://localhost:{port}/heed"
    finally:
        proxy.terminate()
        proxy.wait(timeout=120)


def test_clients_and_pages_behind_the_proxy_of_an_example(address, server, translator, tmp_path):
    (three,) = (found.text for found in translator.translate(["three"]))
    fields = {"q": "three", "source": "en", "target": "de"}
    trusting = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
    with httpx.Client(verify=trusting, timeout=60) as client:
        # Pages of the server's own origin may use it, others not; what a client says of itself does not count.
        origin = address.removesuffix("/heed")
        assert client.post(f"{address}/translate", json=fields, headers={"origin": origin}).status_code == 200
        assert client.post(f"{address}/translate", json=fields, headers={"origin": "https://a.example"}).is_error
        lies = {"x-forwarded-host": "a.example", "x-forwarded-prefix": "/a", "forwarded": "host=a.example"}
        file = {"file": ("a.txt", b"three")}
        answer = client.post(f"{address}/translate_file", data=fields, files=file, headers=lies).json()
        assert answer["translatedFileUrl"].startswith(f"{address}/download_file/")
        assert client.get(answer["translatedFileUrl"]).text == three
        assert client.get(address, follow_redirects=True).headers["content-type"].startswith("text/html")
    assert LibreTranslateAPI(address).translate("three", "en", "de") == three
    # The official client drops what follows the last slash.
    official = deepl.Translator("key", server_url=f"{address}/", verify_ssl=str(tmp_path / "certificate.pem"))
    assert official.translate_text("three", target_lang="DE").text == three
