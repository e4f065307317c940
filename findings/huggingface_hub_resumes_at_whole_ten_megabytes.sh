#!/usr/bin/env bash
# A download of a model's file by huggingface_hub, whose connection breaks after 9 MB, and another after 21 MB, as on a
# mirror that does not speak Xet.
# Expected: "Trying to resume download..." asks for the rest, from the byte at which the connection broke.
# Happens: it asks for what follows the last whole 10 MiB, the first time for all: pieces of 10 MiB are read, and a piece
# that is not complete is dropped. A line that breaks every few megabytes never gets a whole piece.
# Seen with huggingface_hub 2.4.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q huggingface_hub==2.4.0
HF_HOME="$folder/cache" HF_HUB_DISABLE_PROGRESS_BARS=1 HF_HUB_DISABLE_XET=1 venv/bin/python - <<'EOP'
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from huggingface_hub import hf_hub_download

COMMIT, DATA = "0123456789abcdef0123456789abcdef01234567", bytes(24 * 2**20)
breaks, ranges = [9 * 10**6, 21 * 10**6], []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer(DATA)

    def do_GET(self):
        if "/resolve/" not in self.path:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        ranges.append(begin)
        self.answer(DATA[begin:], partial=begin > 0)
        end = breaks.pop(0) if breaks else len(DATA)
        self.wfile.write(DATA[begin:end])
        self.close_connection = True

    def answer(self, data, partial=False):
        self.send_response(206 if partial else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(DATA).hexdigest()}"')
        self.send_header("Content-Length", str(len(data)))
        if partial:
            self.send_header("Content-Range", f"bytes {len(DATA) - len(data)}-{len(DATA) - 1}/{len(DATA)}")
        self.end_headers()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
path = hf_hub_download("one/model", "weights.bin", endpoint=f"http://127.0.0.1:{server.server_port}")
assert open(path, "rb").read() == DATA
print("asked for the bytes from", ranges)
assert ranges == [0, 0, 20 * 2**20], ranges
EOP
