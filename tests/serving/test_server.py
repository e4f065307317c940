"""Servers under load, and their end; each is a process of its own."""

import hashlib
import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from heed.cli.serving import serve as heed_serve
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
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def leave_after(url: str, content: bytes, seconds: float) -> None:
    """Sends a request and closes the connection before the answer."""
    host, port = url.removeprefix("http://").split(":")
    head = f"POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode() + content)
        time.sleep(seconds)


def test_50_clients_at_once_get_the_bytes_that_each_gets_alone(serve, model_folder, translator):
    server = serve(model_folder)
    texts = [f"{english(7 * n)}.\n{english(1000 + n)}" for n in range(50)]
    expected = ["\n".join(t.text for t in translator.translate(text.split("\n"))) for text in texts]
    with ThreadPoolExecutor(50) as clients:
        found = list(clients.map(lambda text: post(server.url, text).json(), texts * 2))
    assert [answer["translatedText"] for answer in found] == expected * 2
    alternatives = post(server.url, "seven", alternatives=4).json()
    n_best = [found.text for found in translator.translate(["seven"], n_best=3)[0].alternatives]
    assert [alternatives["translatedText"], *alternatives["alternatives"]] == list(dict.fromkeys(n_best))
    assert server.stop() == 0


def test_clients_that_leave_take_their_sentences_with_them(serve, slow_model_folder):
    server = serve(slow_model_folder)
    content = json.dumps({"q": ["one", "two", "three"] * 8}).encode()
    with ThreadPoolExecutor(8) as clients:
        list(clients.map(lambda _: leave_after(server.url, content, 0.2), range(8)))
    wait_until(lambda: server.metrics()["heed_cancelled_total"] == 8)
    wait_until(lambda: server.metrics()["heed_batch_sentences"] == server.metrics()["heed_queue_sentences"] == 0)
    assert server.metrics()['heed_requests_total{endpoint="/v1/translate",status="499"}'] == 8
    assert post(server.url, "one").status_code == 200
    assert server.stop() == 0


def test_a_full_queue_answers_429_at_once_and_a_late_request_503(serve, slow_model_folder):
    server = serve(slow_model_folder, "--queue", 2, "--timeout", 0.8)
    with ThreadPoolExecutor(13) as clients:
        book = clients.submit(HTTP.post, server.url + "/v1/translate", json={"q": ["one"] * 128})
        wait_until(lambda: server.metrics()["heed_queue_sentences"] > 0)
        answers = list(clients.map(lambda _: post(server.url, "one"), range(12)))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert {answer.status_code for answer in answers} <= {200, 429, 503} and refused
        for answer in refused:
            assert 1 <= int(answer.headers["retry-after"]) <= 60 and "queue is full" in answer.json()["error"]
            assert answer.elapsed.total_seconds() < 0.5  # not a search's time
        *_, last = book.result().text.splitlines()
    assert json.loads(last) == {"error": "not finished in time"}
    wait_until(lambda: server.metrics()["heed_batch_sentences"] == 0)
    assert server.metrics()['heed_rejected_total{reason="full"}'] == len(refused)


def test_sigterm_under_load_loses_nothing_that_was_accepted(serve, slow_model_folder):
    server = serve(slow_model_folder)
    translator = Translator.load(slow_model_folder, precision="fp32")
    texts = [english(n) for n in range(20)]
    with ThreadPoolExecutor(20) as clients:
        answers = [clients.submit(post, server.url, "\n".join([text] * 5)) for text in texts]
        # All are accepted: a sentence that has left the queue has a time that it waited.
        wait_until(lambda: sum(map(server.metrics().get, ("heed_queue_sentences", "heed_queue_seconds_count"))) > 100)
        assert server.stop() == 0
        found = [answer.result() for answer in answers]
    expected = ["\n".join([translation.text] * 5) for translation in translator.translate(texts)]
    assert [answer.status_code for answer in found] == [200] * 20
    assert [answer.json()["translatedText"] for answer in found] == expected


def test_keys_are_asked_for_and_never_logged(serve, model_folder, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"# of the tests\n{hashlib.sha256(b'sesame').hexdigest()}\n")
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
    assert {"endpoint", "status", "seconds", "time"} == set(records[0])
    assert not any(word in "".join(server.lines) for word in ("secret", "sesame", "seven", "127.0.0.1:5"))


def test_a_slow_sender_is_not_waited_for_and_silence_neither(serve, model_folder):
    server = serve(model_folder, "--timeout", 0.5)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    assert post(server.url, "one").status_code == 200
    for connection in silent:
        connection.close()


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
            ([model_folder], {"host": "198.51.100.1"}, "cannot listen at 198.51.100.1:5000"),
        ):
            with pytest.raises(HeedError, match=message) as refused:
                heed_serve(folders, **options)
            assert "\n" not in str(refused.value)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "uvicorn" else name)
    with pytest.raises(HeedError, match=re.escape("uvicorn, which is not installed: pip install 'heed[serve]'.")):
        heed_serve([model_folder])


def test_several_models_serve_their_pairs(serve, model_folder, slow_model_folder):
    server = serve("--pair", f"en-de={model_folder}", "--pair", f"fr-en={slow_model_folder}")
    languages = HTTP.get(server.url + "/languages").json()
    assert [(entry["code"], entry["targets"]) for entry in languages] == [("en", ["de", "en"]), ("fr", ["en", "fr"])]
    texts = ["This is a house and a garden.", "C'est une maison avec un jardin."]
    fields = {"q": texts, "source": "auto", "target": "en"}
    answer = HTTP.post(server.url + "/translate", json=fields).json()
    assert [found["language"] for found in answer["detectedLanguage"]] == ["en", "fr"]
    assert answer["translatedText"][0] == texts[0]  # English already
    refused = HTTP.post(server.url + "/translate", json=fields | {"source": "fr", "target": "de"})
    assert refused.json() == {"error": "de is not available as a target language from fr"}
