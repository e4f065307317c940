"""Inputs and parts in an object store, moto's server, which may be gone for a while.

HEED_OUTAGE: for how long, in seconds.
"""

import contextlib
import os
import select
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from tests.apps.cluster.places import MODEL, command, lines

pytestmark = pytest.mark.slow
OUTAGE_SECONDS = float(os.environ.get("HEED_OUTAGE", "8"))  # s3fs itself waits for some three


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Door(socketserver.ThreadingTCPServer):
    """Passes connections on to a port. While it is shut, it ends them all."""

    daemon_threads = True

    def __init__(self, port: int):
        super().__init__(("127.0.0.1", 0), Passage)
        self.port, self.inside, self.shut = self.server_address[1], port, False

    def shut_until(self, is_noticed: Callable[[], bool], *, seconds: float) -> None:
        """For some seconds, and on until that is noticed: by a slow processor, later."""
        self.shut = True
        until = time.monotonic() + seconds
        while time.monotonic() < until or not is_noticed():
            time.sleep(0.1)
        self.shut = False


class Passage(socketserver.BaseRequestHandler):
    def handle(self):
        with socket.create_connection(("127.0.0.1", self.server.inside)) as inside, contextlib.suppress(OSError):
            both = {self.request: inside, inside: self.request}
            while not self.server.shut:
                for end in select.select(list(both), [], [], 0.1)[0]:
                    if not (content := end.recv(2**16)):
                        return
                    both[end].sendall(content)


class Store:
    """moto's server behind a door, both on loopback."""

    def __init__(self):
        for name in ("moto", "s3fs", "werkzeug"):
            pytest.importorskip(name, reason=f"{name} is not installed")
        port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline and self.process.poll() is None
                time.sleep(0.1)
        self.door = Door(port)
        self.port = self.door.port
        threading.Thread(target=self.door.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Ends both."""
        self.door.shutdown()
        self.door.server_close()
        self.process.kill()
        self.process.wait()

    def write(self, key: str, content: bytes) -> None:
        """Puts an object into the bucket, which is made as needed."""
        import s3fs

        store = s3fs.S3FileSystem(endpoint_url=f"http://127.0.0.1:{self.port}")
        if not store.exists("bucket"):
            store.mkdir("bucket")
        store.pipe_file(f"bucket/{key}", content)

    def read(self, pattern: str) -> dict[str, bytes]:
        """Objects by name."""
        import s3fs

        store = s3fs.S3FileSystem(endpoint_url=f"http://127.0.0.1:{self.port}", use_listings_cache=False)
        return {name.rpartition("/")[2]: store.cat_file(name) for name in sorted(store.glob(f"bucket/{pattern}"))}


@pytest.fixture
def store(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # else botocore waits too, for some seconds
    found = Store()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{found.port}")
    yield found
    found.close()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # of botocore and s3fs
def test_a_store_that_is_gone_for_a_while_is_waited_for(store, tmp_path):
    texts = ("\n".join(lines(900)) + "\n").encode()
    store.write("web/a.txt", texts[:20_000])
    store.write("web/b.txt", texts[20_000:])
    (tmp_path / "a.txt").write_bytes(texts[:20_000])
    (tmp_path / "b.txt").write_bytes(texts[20_000:])
    words = ["translate-shards", MODEL, "--part-lines", 30, "--precision", "fp32"]
    plain = command(*words, "--in", tmp_path / "?.txt", "--out", tmp_path / "whole")
    assert subprocess.run(plain, capture_output=True).returncode == 0
    log = tmp_path / "log"
    remote = command(*words, "--in", "s3://bucket/web/*.txt", "--out", "s3://bucket/out")
    with log.open("wb") as file:
        process = subprocess.Popen(remote, stderr=file)
    deadline = time.monotonic() + 100
    while len(store.read("out/part-*.json")) < 2:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
    store.door.shut_until(
        lambda: process.poll() is not None or "Next attempt" in log.read_text(), seconds=OUTAGE_SECONDS
    )
    assert process.wait(300) == 0, log.read_text()
    assert "Next attempt" in log.read_text()
    parts = {name: content for name, content in store.read("out/part-*.txt").items()}
    assert parts == {path.name: path.read_bytes() for path in (tmp_path / "whole").glob("part-*.txt")}
    assert "_SUCCESS" in store.read("out/_*")

    again = subprocess.run(remote, capture_output=True, text=True)
    assert again.returncode == 0 and "parts are already there" in again.stderr
    store.write("web/b.txt", texts[20_001:])
    changed = subprocess.run(remote, capture_output=True, text=True)
    assert changed.returncode == 1 and "b.txt.hash" in changed.stderr and changed.stderr.count("\n") == 1
