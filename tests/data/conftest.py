"""A server of corpora on this machine, with the faults that servers have."""

import hashlib
import io
import tarfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files`; `break_after` bytes it drops the first connection; `ranges` says whether it knows Range.

    pause: seconds between the two halves of a file. content_length: what it says instead of the truth; with "" it says
    nothing and repeats the file until the client hangs up.
    """

    daemon_threads = True
    files: dict[str, bytes]
    break_after: int | None = None
    ranges = True
    pause = 0.0
    content_length: str | None = None

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.requests = {}, []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path, wanted))
        data = self.server.files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.ranges else 0
        if start >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if self.server.content_length is None:
            self.send_header("Content-Length", str(len(data) - start))
        elif self.server.content_length:
            self.send_header("Content-Length", self.server.content_length)
        self.end_headers()
        body = data[start:]
        if self.server.break_after is not None:
            body, self.server.break_after = body[: self.server.break_after], None
            self.close_connection = True
        try:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            time.sleep(self.server.pause)
            self.wfile.write(body[len(body) // 2 :])
            while self.server.content_length == "":
                self.wfile.write(data)
        except ConnectionError:
            pass

    def log_message(self, *args):
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def tar_of(contents: dict[str, bytes], mode="w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, data in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
