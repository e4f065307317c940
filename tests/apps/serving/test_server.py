"""Servers under load, and their end; each is a process of its own."""

import asyncio
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import deepl
import httpx
import pytest

from heed.apps.documents.text.translation import LINE_ENDS_AS_SPACES
from heed.apps.serving.command import serve as heed_serve
from heed.apps.serving.files import FileStore
from heed.apps.serving.http_error import HTTPError
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.text.numbers import english

pytestmark = pytest.mark.slow
# A client of its own for each request would read the system's certificates 200 times. No connection is used twice.
HTTP = httpx.Client(timeout=60, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))


def post(url: str, text: str, **options) -> httpx.Response:
    fields = {"q": text, "source": "en", "target": "de"}
    return HTTP.post(url + "/translate", json=fields | options)


def wait_until(condition) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def request_bytes(path: str, content: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    return f"{head}\r\n\r\n{content}".encode()


def processor_seconds(server) -> float:
    times = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]  # user, system
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def n_accepted(server) -> float:
    """Sentences that are in the queue, or have left it: these have a time that they waited."""
    return sum(map(server.metrics().get, ("heed_queue_sentences", "heed_queue_seconds_count")))


def test_50_clients_at_once_get_the_bytes_that_each_gets_alone(serve, model_folder, translator):
    server = serve(model_folder)
    texts = [f"{english(7 * n)}.\n{english(1000 + n)}" for n in range(50)]
    # A translation is one line, whatever this untrained model writes.
    lines = [[t.text.translate(LINE_ENDS_AS_SPACES) for t in translator.translate(text.split("\n"))] for text in texts]
    expected = ["\n".join(of_text) for of_text in lines]
    with ThreadPoolExecutor(50) as clients:
        found = list(clients.map(lambda text: post(server.url, text).json(), texts * 2))
    assert [answer["translatedText"] for answer in found] == expected * 2
    alternatives = post(server.url, "seven", alternatives=4).json()
    n_best = [found.text for found in translator.translate(["seven"], n_best=3)[0].alternatives]
    assert [alternatives["translatedText"], *alternatives["alternatives"]] == n_best
    assert server.stop() == 0


def test_clients_that_leave_take_their_sentences_with_them(serve, slow_model_folder):
    server = serve(slow_model_folder)
    content = request_bytes("/v1/translate", json.dumps({"q": ["one", "two", "three"] * 8}))
    before = n_accepted(server)  # the warm-up's
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port))).sendall(content)
        wait_until(lambda: n_accepted(server) >= before + 8 * 24)
    wait_until(lambda: server.metrics()["heed_cancelled_total"] == 8)
    wait_until(lambda: server.metrics()["heed_batch_sentences"] == server.metrics()["heed_queue_sentences"] == 0)
    assert server.metrics()['heed_requests_total{endpoint="/v1/translate",status="499"}'] == 8
    assert post(server.url, "one").status_code == 200
    assert server.stop() == 0


def test_a_full_queue_answers_429_at_once_and_a_late_request_503_or_413(serve, slow_model_folder):
    server = serve(slow_model_folder, "--queue", 2, "--timeout", 1.5, "--max-texts", 3000)
    with ThreadPoolExecutor(13) as clients:
        book = clients.submit(HTTP.post, server.url + "/v1/translate", json={"q": ["one"] * 3000})
        wait_until(lambda: server.metrics()["heed_queue_sentences"] > 0)
        answers = list(clients.map(lambda _: post(server.url, "one"), range(12)))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert {answer.status_code for answer in answers} <= {200, 429, 503} and refused
        for answer in refused:
            assert 1 <= int(answer.headers["retry-after"]) <= 60 and "queue is full" in answer.json()["error"]
        *_, last = book.result().text.splitlines()
    assert json.loads(last) == {"error": "not finished in time"}
    wait_until(lambda: server.metrics()["heed_batch_sentences"] == 0)
    assert server.metrics()['heed_rejected_total{reason="full"}'] == len(refused)
    late = HTTP.post(server.url + "/translate", json={"q": ["one"] * 3000, "source": "en", "target": "de"})
    assert late.status_code == 413
    assert late.json() == {"error": "not finished in time: too long for this server; send it in parts"}
    deepl = HTTP.post(server.url + "/v2/translate", json={"text": ["one"] * 1000, "target_lang": "de"})
    assert deepl.status_code == 413 and "send it in parts" in deepl.json()["message"]


def test_killed_and_started_again_a_server_answers_a_clients_next_try(serve, model_folder, translator, monkeypatch):
    monkeypatch.setattr(deepl.http_client, "max_network_retries", 10)  # a busy machine starts it slowly
    first = serve(model_folder)
    client = deepl.Translator("key", server_url=first.url)
    assert client.translate_text("three", target_lang="DE").text
    first.process.kill()
    first.process.wait()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(client.translate_text, "four", target_lang="DE")  # the client tries for a while
        second = serve(model_folder, "--port", first.port)
        assert found.result().text == translator.translate(["four"])[0].text
    assert second.stop() == 0


def test_thousands_of_silent_connections_keep_nobody_out_and_are_closed(serve, model_folder):
    server = serve(model_folder, "--timeout", 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n_silent = 3_000
    if hard != resource.RLIM_INFINITY and hard < n_silent + 500:
        pytest.skip("the system gives too few files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, n_silent + 500), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            for _ in range(n_silent)
        ]
        silent[-1].sendall(b"POST /translate HTTP/1.1\r\nHost")  # a head that never ends
        wait_until(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) < 2048 + 256)  # closing takes a moment
        for _ in range(3):
            assert post(server.url, "one").status_code == 200
        # The oldest have been closed already, the newest are soon.
        assert [connection.recv(1) for connection in (silent[0], silent[-2], silent[-1])] == [b""] * 3
    wait_until(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) < 100)
    assert server.stop() == 0


def test_a_connection_that_is_used_again_must_send_its_head_in_time_too(serve, model_folder):
    server = serve(model_folder, "--timeout", 1, "--cors", "https://example.org")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        found = b""
        while not found.endswith(b"}"):
            part = connection.recv(10_000)
            assert part  # else the connection has been closed
            found += part
        connection.sendall(b"GET /health HTTP/1.1\r\nHos")
        assert connection.recv(1) == b""
    # Pages of the origin that was given may read the answers, errors included; no others may.
    for path, origin, allowed in (
        ("/health", "https://example.org", "https://example.org"),
        ("/nothing", "https://example.org", "https://example.org"),
        ("/health", "https://example.com", None),
    ):
        answer = HTTP.get(server.url + path, headers={"origin": origin})
        assert answer.headers.get("access-control-allow-origin") == allowed
    asking = {"origin": "https://example.org", "access-control-request-method": "POST"}
    answer = HTTP.options(server.url + "/translate", headers=asking)
    assert answer.status_code == 204 and "content-type" in answer.headers["access-control-allow-headers"]
    assert HTTP.options(server.url + "/translate", headers=asking | {"origin": "null"}).status_code == 403


def test_fields_without_end_are_refused_also_behind_a_body_and_behind_another_request(serve, slow_model_folder):
    server = serve(slow_model_folder)
    chunked = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    busy = (
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    )
    question = json.dumps({"q": "one", "source": "en", "target": "de"}).encode()
    pipelined = busy % (len(question), question) + b"GET / HTTP/1.1\r\nHost: localhost\r\n"
    for begun in (chunked, pipelined):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(begun)
            sent = 0
            with suppress(ConnectionError):
                while sent < 2**24:
                    sent += connection.send(b"a:b\r\n" * 1000)
            assert sent < 2**24
    assert HTTP.get(server.url + "/health").status_code == 200


def test_sigterm_under_load_loses_nothing_that_was_accepted(serve, slow_model_folder):
    server = serve(slow_model_folder)
    translator = Translator.load(slow_model_folder, precision="fp32")
    texts = [english(n) for n in range(20)]
    with ThreadPoolExecutor(20) as clients:
        answers = [clients.submit(post, server.url, "\n".join([text] * 5)) for text in texts]
        wait_until(lambda: n_accepted(server) > 100)
        assert server.stop() == 0
        found = [answer.result() for answer in answers]
    expected = ["\n".join([translation.text.strip()] * 5) for translation in translator.translate(texts)]
    assert [answer.status_code for answer in found] == [200] * 20
    assert [answer.json()["translatedText"] for answer in found] == expected


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def test_a_second_signal_ends_a_server_at_once(serve, slow_model_folder):
    server = serve(slow_model_folder)
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(post, server.url, "\n".join(["one"] * 120))
        wait_until(lambda: server.metrics()["heed_batch_sentences"] > 0)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not listens(server.port))  # the first signal has been heard
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 128 + signal.SIGTERM
        with pytest.raises(httpx.TransportError):
            answer.result()


def test_every_endpoint_that_reads_a_text_or_counts_asks_for_a_key(serve, model_folder, tmp_path):
    (tmp_path / "keys").write_text(hashlib.sha256(b"sesame").hexdigest())
    server = serve(model_folder, "--api-keys", tmp_path / "keys", "--no-metrics")
    free = {"/", "/health", "/ready", "/spec", "/docs", "/languages", "/frontend/settings", "/suggest"}
    free.add("/download_file/{name}")  # whose name only the answer to a request with a key tells
    asked = {
        (method, path)
        for path, methods in HTTP.get(server.url + "/spec").json()["paths"].items()
        for method in methods
        if path not in free
    }
    assert {"/translate", "/translate_file", "/detect", "/v1/attention", "/v2/usage"} <= {path for _, path in asked}
    for method, path in sorted(asked):
        for key, status in (({}, 400), ({"api_key": "other"}, 403)):
            form = {"data": key, "files": {"file": ("a.txt", b"one")}}
            parts = (
                form
                if path in ("/translate_file", "/v2/document")
                else {"params": key}
                if method == "get"
                else {"json": key}
            )
            answer = HTTP.request(method, server.url + path, **parts)
            assert answer.status_code in (status, 403) and "API key" in answer.text, (method, path, answer.text)


def test_keys_are_asked_for_and_never_logged(serve, model_folder, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"# of the tests\n{hashlib.sha256(b'sesame').hexdigest()}  -\n")  # as sha256sum writes it
    server = serve(model_folder, "--api-keys", keys, "--no-metrics")
    assert post(server.url, "secret seven").status_code == 400
    assert post(server.url, "secret seven", api_key="other").status_code == 403
    for name in ("api_key", "apiKey"):
        assert post(server.url, "secret seven", **{name: "sesame"}).status_code == 200
    fields = {"text": ["secret seven"], "target_lang": "DE"}
    for key, status in (("sesame", 200), ("other", 403)):
        headers = {"Authorization": f"DeepL-Auth-Key {key}"}
        answer = HTTP.post(server.url + "/v2/translate", json=fields, headers=headers)
        assert answer.status_code == status
    assert answer.json() == {"message": "Invalid API key"}
    assert HTTP.get(server.url + "/metrics").status_code == 404
    assert HTTP.get(server.url + "/languages").status_code == 200
    assert server.stop() == 0
    records = [json.loads(line) for line in server.lines if line.startswith("{")]
    assert all(set(record) == {"endpoint", "status", "seconds", "time"} for record in records)
    assert len([record for record in records if record["endpoint"] in ("/translate", "/v2/translate")]) == 6
    logged = "".join(line for line in server.lines if server.url not in line)
    assert not any(word in logged for word in ("secret", "sesame", "seven", "127.0.0.1"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads another process's processor time from /proc")
def test_no_request_takes_the_product_of_two_of_its_fields_of_the_servers_own_time(serve, model_folder):
    server = serve(model_folder)
    names = [f"b{i}" for i in range(100)]
    many = ",".join(f"b{i}" for i in range(20_000))
    tags = {"source_lang": "EN", "target_lang": "DE", "tag_handling": "xml", "text": "<a/>" * 2400 + "one"}
    pair = {"source": "en", "target": "de"}
    requests = [
        ("/v2/translate", tags | dict.fromkeys(("ignore_tags", "splitting_tags", "non_splitting_tags"), names), 200),
        ("/v2/translate", tags | {"tag_handling": "html", "text": "<a>" * 3200 + "one", "ignore_tags": names}, 200),
        ("/v2/translate", tags | {"ignore_tags": many}, 400),
        ("/v1/translate", pair | {"q": ["a"] * 128, "source": "\u00c9" * 30_000}, 400),
        ("/v1/attention", pair | {"q": "one", "translation": "eins", "views": ["cross"] * 17_000}, 200),
        ("/translate", pair | {"q": [1] * 60_000}, 400),
    ]
    # The first drawing of attention imports PyTorch.
    assert HTTP.post(server.url + "/v1/attention", json=pair | {"q": "one"}).status_code == 200
    for path, fields, status in requests:
        before = processor_seconds(server)
        assert HTTP.post(server.url + path, json=fields).status_code == status, path
        assert processor_seconds(server) - before < 0.5, (path, status)


def test_a_malformed_form_adds_no_line_of_the_parser_to_the_log(serve, model_folder):
    server = serve(model_folder)
    n_lines = len(server.lines)
    headers = {"content-type": "multipart/form-data; boundary=b"}
    for path in ("/translate", "/translate_file"):
        answer = HTTP.post(server.url + path, content=b"--b\r\nna\0me: a\r\n\r\n--b--", headers=headers)
        assert answer.status_code == 400
    assert server.stop() == 0
    assert [json.loads(line)["status"] for line in server.lines[n_lines:] if "/translate" in line] == [400, 400]
    assert all(line.startswith("{") for line in server.lines[n_lines:]), server.lines


def test_a_slow_sender_is_not_waited_for(serve, model_folder):
    server = serve(model_folder, "--timeout", 0.5)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_what_keeps_a_server_from_starting_is_one_line(model_folder, tmp_path, monkeypatch):
    keys = tmp_path / "keys"
    keys.write_text("sesame\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for folders, options, message in (
            ([model_folder], {"port": port}, f"127.0.0.1:{port} is in use"),
            ([tmp_path / "none"], {}, "no such folder"),
            ([model_folder, model_folder], {}, "both translate en-de"),
            ([], {"pair": ["en-de"]}, "expected SRC-TGT=MODEL"),
            ([], {}, "no model; expected"),
            ([model_folder], {"api_keys": keys}, "line 1: not the SHA-256 of a key"),
            ([model_folder], {"cors": ["example.org"]}, "expected an origin such as"),
            ([model_folder], {"host": "198.51.100.1"}, "cannot listen at 198.51.100.1:5000"),
            ([model_folder], {"host": "0.0..0"}, "cannot listen at 0.0..0:5000"),
            ([], {"pair": [f"zh-Hans-en={model_folder}"]}, "more than one hyphen"),
        ):
            with pytest.raises(HeedError, match=message) as refused:
                heed_serve(folders, **options)
            assert "\n" not in str(refused.value)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "uvicorn" else name)
    with pytest.raises(HeedError, match=re.escape("uvicorn, which is not installed: pip install heed-mt.")):
        heed_serve([model_folder])


def test_several_models_serve_their_pairs(serve, model_folder, slow_model_folder):
    server = serve("--pair", f"en-de={model_folder}", "--pair", f"fr-en={slow_model_folder}")
    languages = HTTP.get(server.url + "/languages").json()
    assert {entry["code"]: entry["targets"] for entry in languages} == {
        "en": ["de", "en"],
        "fr": ["en", "fr"],
        "de": ["de"],
    }
    texts = ["This is a house and a garden.", "C'est une maison avec un jardin."]
    fields = {"q": texts, "source": "auto", "target": "en"}
    answer = HTTP.post(server.url + "/translate", json=fields).json()
    assert [found["language"] for found in answer["detectedLanguage"]] == ["en", "fr"]
    assert answer["translatedText"][0] == texts[0]  # English already
    for text in ("2024", "", "…"):  # of any language
        for target in ("de", "en"):
            answer_to = HTTP.post(server.url + "/translate", json=fields | {"q": text, "target": target})
            assert answer_to.status_code == 200, answer_to.text
    refused = HTTP.post(server.url + "/translate", json=fields | {"q": texts[1], "target": "de"})
    assert refused.json() == {"error": "de is not available as a target language from fr"}
    refused = HTTP.post(server.url + "/translate", json=fields | {"source": "fr", "target": "de"})
    assert refused.json() == {"error": "de is not available as a target language from fr"}
    client = deepl.Translator("key", server_url=server.url)
    british, american = (client.translate_text(texts[1], target_lang=f"EN-{region}").text for region in ("GB", "US"))
    assert british == american == answer["translatedText"][1]
    assert [language.code for language in client.get_target_languages()] == ["DE", "EN-GB", "EN-US", "FR"]


def test_whoever_asks_for_the_head_alone_is_counted_as_answered(serve, model_folder):
    server = serve(model_folder)
    large = {"file": ("a.html", b"<!--" + b"x" * 900_000 + b"-->")}
    answer = httpx.post(f"{server.url}/translate_file", data={"source": "en", "target": "de"}, files=large)
    path = urlsplit(answer.json()["translatedFileUrl"]).path
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert connection.recv(2000).startswith(b"HTTP/1.1 200 ")

    def counted() -> dict[str, float]:
        ours = 'heed_requests_total{endpoint="/download_file/{name}",status="'
        return {name.removeprefix(ours)[:3]: n for name, n in server.metrics().items() if name.startswith(ours)}

    wait_until(lambda: sum(counted().values()) == 20)
    assert counted() == {"200": 20}


def test_no_translated_file_outlives_its_server(serve, model_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def start_with_file():
        server = serve(model_folder)
        given = {"data": {"source": "en", "target": "de"}, "files": {"file": ("a.txt", b"one")}}
        assert HTTP.post(f"{server.url}/translate_file", **given).status_code == 200
        return server

    files = lambda: {path.parent for path in tmp_path.glob("heed-files-*/*.txt")}  # noqa: E731
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "kept").touch()
    (tmp_path / "heed-files-link").symlink_to(tmp_path / "others")
    killed, living, hung_up = start_with_file(), start_with_file(), start_with_file()
    assert len(files()) == 3
    hung_up.process.send_signal(signal.SIGHUP)
    assert hung_up.process.wait(timeout=60) == 0 and len(files()) == 2
    killed.process.kill()
    killed.process.wait()
    start_with_file()
    assert len(files()) == 2  # those of the one that lives and of the new one
    assert living.stop() == 0 and (tmp_path / "others" / "kept").exists()


def test_systemd_is_told_that_a_server_is_ready_and_that_its_event_loop_runs(
    serve, model_folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        server = serve(model_folder)
        while b"READY=1" not in (told := systemd.recv(100)):
            assert told == b"WATCHDOG=1"
        assert [systemd.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        server.process.send_signal(signal.SIGSTOP)  # a loop that is stuck
        systemd.settimeout(2)
        with pytest.raises(TimeoutError):
            while True:
                systemd.recv(100)
        server.process.send_signal(signal.SIGCONT)
        assert systemd.recv(100) == b"WATCHDOG=1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_folder_of_temporary_files_is_named(model_folder, tmp_path, monkeypatch):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = FileStore()
    try:
        command = [sys.executable, "-m", "heed", "serve", "--port", "0", model_folder]
        refused = subprocess.run(command, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True)
        assert refused.returncode == 1 and "Traceback" not in refused.stderr
        expected = rf"^heed: {tmp_path}: no temporary file can be written \(No space left .*TMPDIR"
        assert re.match(expected, refused.stderr.splitlines()[-1])
        with pytest.raises(HTTPError, match=f"no room for the translated file: {tmp_path}: no temp") as full:
            asyncio.run(store.add(bytes(2_000_000), "a.txt"))
        assert full.value.status == 503
    finally:
        store.close()
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "serve.md"
SEALED = """
mount -o remount,ro,bind /
mount -t tmpfs tmpfs "$1"
shift
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can seal a process off")
def test_a_server_needs_nothing_but_its_cache_and_temporary_files(model_folder, tmp_path):
    """As the guide has systemd and Docker run it."""
    heed = [sys.executable, "-m", "heed", "serve", model_folder, "--port", "0", "--precision", "fp32"]
    command = ["unshare", "--mount", "bash", "-e", "-c", SEALED, "bash", tmp_path, *heed]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            url = next(filter(None, (re.search(r"at (http://\S+)\.$", line) for line in process.stderr)))[1]
            wait_until(lambda: httpx.get(f"{url}/ready").status_code == 200)
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert re.search(r"CapEff:\s+0+$", status, re.MULTILINE) and "NoNewPrivs:\t1" in status
            given = {"data": {"source": "en", "target": "de"}, "files": {"file": ("a.md", b"one.")}}
            answer = httpx.post(f"{url}/translate_file", **given)
            assert httpx.get(answer.json()["translatedFileUrl"]).status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


def test_the_guides_service_and_container_are_sealed_off(tmp_path):
    text = GUIDE.read_text(encoding="utf-8")
    [unit] = re.findall("```ini\n(.*?)```", text, re.DOTALL)
    for line in ("ProtectSystem=strict", "CapabilityBoundingSet=", "NoNewPrivileges=yes", "MemoryMax=4G"):
        assert f"\n{line}\n" in unit
    for option in ("--read-only", "--cap-drop ALL", "--security-opt no-new-privileges", "--memory 4g"):
        assert option in text
    if shutil.which("systemd-analyze"):
        (tmp_path / "heed.service").write_text(unit.replace("/opt/heed/bin/heed", "/bin/true"))
        done = subprocess.run(["systemd-analyze", "verify", tmp_path / "heed.service"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads another process's processor time from /proc")
def test_a_server_that_waits_uses_no_processor_time(serve, model_folder, monkeypatch):
    """The threads that have translated sleep: soon there are 2 seconds in which they compute for at most 0.02."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    server = serve(model_folder)

    before = processor_seconds(server)
    for texts in (["forty-two"], ["seven", "one hundred and one"] * 50):
        assert HTTP.post(server.url + "/v1/translate", json={"q": texts}).status_code == 200
    assert processor_seconds(server) > before
    for _ in range(30):  # until the answers' connections are closed
        before = processor_seconds(server)
        time.sleep(2)
        if processor_seconds(server) - before < 0.025:
            return
    raise AssertionError("it is never idle")
