"""`heed import NAME`: from a server on this machine that answers as the Hugging Face hub does."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load
from tests.apps.exchange.folders import imported
from tests.apps.exchange.test_opus_mt import SMALL, opus_mt

from heed.apps.exchange.hub import HubModel, fetch, hub_model
from heed.errors import HeedError
from heed.model_folder import load_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".bin", ".spm")  # which the hub keeps as LFS
REPOSITORY = "Helsinki-NLP/opus-mt-en-de"
OTHER_FILES = {"rust_model.ot": b"not for Heed", "README.md": b"---\nlicense: cc-by-4.0\n---\n"}


class Hub(ThreadingHTTPServer):
    """Serves `files` of REPOSITORY at COMMIT, those that are LFS by a redirect to another name of this machine.

    break_after: bytes behind which the first connection of a large file ends. altered: a file of other bytes.
    gated: files need a token. requests: (path, Range, Authorization).
    """

    daemon_threads = True
    files: dict[str, bytes]
    break_after: int | None = None
    altered: str | None = None
    gated = False

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.requests = files, []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def listing(self) -> bytes:
        siblings = []
        for name, data in self.files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            entry = {"rfilename": name, "size": len(data), "blobId": blob}
            if name.endswith(LARGE):
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        answer = {"id": REPOSITORY, "sha": COMMIT, "gated": self.gated and "auto", "siblings": siblings}
        return json.dumps({**answer, "cardData": {"license": "cc-by-4.0"}}).encode()


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path, wanted, self.headers.get("Authorization")))
        name = self.path.rsplit("/", 1)[-1]
        if self.path in (f"/api/models/{REPOSITORY}/revision/{r}?blobs=true" for r in ("main", COMMIT)):
            self.answer(self.server.listing())
        elif self.path.startswith(f"/api/models/{REPOSITORY}/"):
            self.refuse(404, "RevisionNotFound")
        elif self.path.startswith("/api/"):
            self.refuse(401, "RepoNotFound")
        elif self.path == f"/{REPOSITORY}/resolve/{COMMIT}/{name}":
            if self.server.gated and self.headers.get("Authorization") != "Bearer hf_secret":
                self.refuse(401, "GatedRepo")
            elif name.endswith(LARGE):
                self.send_response(302)
                self.send_header("Location", f"http://localhost:{self.server.server_port}/cdn/{name}")
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self.answer(self.content(name))
        else:
            self.answer(self.content(name), int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0)

    def content(self, name: str) -> bytes:
        data = self.server.files[name]
        return bytes([data[0] ^ 1]) + data[1:] if name == self.server.altered else data

    def answer(self, data: bytes, start: int = 0) -> None:
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        data = data[start:]
        if self.path.endswith("/model.safetensors") and self.server.break_after is not None:
            data, self.server.break_after = data[: self.server.break_after], None
            self.close_connection = True
        self.wfile.write(data)

    def refuse(self, code: int, reason: str) -> None:
        self.send_response(code)
        self.send_header("X-Error-Code", reason)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> dict[str, bytes]:
    folder = opus_mt(tmp_path_factory.mktemp("hub") / "theirs", **SMALL)
    return {path.name: path.read_bytes() for path in folder.iterdir()} | OTHER_FILES


@pytest.fixture
def hub(published) -> Iterator[Hub]:
    with Hub(dict(published)) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def cache(hub, tmp_path, monkeypatch) -> Path:
    """An empty cache for downloads from the hub, which this process and its commands use."""
    for name, value in (("HF_ENDPOINT", hub.address), ("XDG_CACHE_HOME", str(tmp_path / "cache"))):
        monkeypatch.setenv(name, value)
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("heed.data.corpora.download.time.sleep", lambda seconds: None)
    return tmp_path / "cache"


def fetched(name: str) -> tuple[Path, str]:
    """The folder of what a name of the hub leads to, and what is reported."""
    model, lines = hub_model(name), []
    assert model is not None
    return fetch(model, report=lines.append), "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("opus-mt-en-de", HubModel(REPOSITORY, "main")),
        (f"opus-mt-en-de@{COMMIT}", HubModel(REPOSITORY, COMMIT)),
        ("someone/model@refs/pr/1", HubModel("someone/model", "refs/pr/1")),
        *((path, None) for path in ("model", "./model", "/a/b", "a/b/c", "../model", "a/..", "a/b@../../x", "")),
    ],
)
def test_only_a_name_of_the_hub_is_looked_for_there(text, expected):
    assert hub_model(text) == expected


def test_a_name_becomes_a_model_folder(heed, hub, cache, published, tmp_path):
    done = heed("import", "opus-mt-en-de", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    weights = published["model.safetensors"]
    digest = hashlib.sha256(weights).hexdigest()
    assert f"{REPOSITORY} at commit {COMMIT}" in done.stderr and "cc-by-4.0" in done.stderr
    assert f"model.safetensors: {len(weights):,} bytes, sha256 {digest}, verified" in done.stderr
    assert load_model(tmp_path / "models" / "opus-mt-en-de").card.src == "en"
    assert not any("rust_model" in path for path, *_ in hub.requests)
    done = heed("import", "nobody/nothing", "out", cwd=tmp_path)
    assert done.returncode == 1 and "no such model" in done.stderr and done.stderr.count("\n") == 1
    done = heed("import", "models", cwd=tmp_path)
    assert done.returncode == 1 and "name the model folder to write" in done.stderr


def test_offline_the_same_files_are_used_again_and_nothing_is_asked(hub, cache, monkeypatch):
    folder, _ = fetched("opus-mt-en-de")
    hub.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetched("opus-mt-en-de")[0] == folder and not hub.requests
    with pytest.raises(HeedError, match="not fetched yet, and HF_HUB_OFFLINE is set"):
        fetched("opus-mt-de-en")


def test_without_safetensors_the_guarded_reader_takes_the_pickle(hub, cache, published, tmp_path):
    del hub.files["model.safetensors"]
    torch.save(load(published["model.safetensors"]), tmp_path / "pickle")
    hub.files["pytorch_model.bin"] = (tmp_path / "pickle").read_bytes()
    folder, _ = fetched(f"{REPOSITORY}@{COMMIT}")
    assert imported(folder, tmp_path / "out", "huggingface").is_dir()


def test_a_broken_download_is_resumed(hub, cache):
    hub.break_after = 1000
    fetched("opus-mt-en-de")
    assert ("/cdn/model.safetensors", "bytes=1000-", None) in hub.requests


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])  # sha256, and git's hash
def test_a_file_of_another_hash_is_removed(hub, cache, name):
    hub.altered = name
    with pytest.raises(HeedError, match=f"{name}.* is [0-9a-f]+, expected [0-9a-f]+; it was removed; fetch it again"):
        fetched("opus-mt-en-de")
    assert not [path for path in cache.rglob(f"{name}*") if path.is_file()]


def test_the_token_goes_to_the_hub_alone(hub, cache, monkeypatch):
    hub.gated = True
    with pytest.raises(HeedError, match="accept its terms at .* and set HF_TOKEN"):
        fetched("opus-mt-en-de")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetched("opus-mt-en-de")
    sent = {path: token for path, _, token in hub.requests}
    assert sent[f"/{REPOSITORY}/resolve/{COMMIT}/model.safetensors"] == "Bearer hf_secret"
    assert sent["/cdn/model.safetensors"] is None


def test_what_is_wrong_with_a_revision_the_files_or_the_network_is_said(hub, cache, monkeypatch):
    with pytest.raises(HeedError, match="no such branch, tag or commit"):
        fetched("opus-mt-en-de@v9")
    hub.files = {"config.json": b"{}", "pytorch_model.bin.index.json": b"{}"}
    with pytest.raises(HeedError, match="has no config.json with model.safetensors or pytorch_model.bin"):
        fetched("opus-mt-en-de")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HeedError, match="127.0.0.1:9 cannot be reached .* name that folder"):
        fetched("opus-mt-en-de")


def test_a_disk_without_room_is_reported_before_the_download(hub, cache, monkeypatch):
    monkeypatch.setattr("heed.apps.exchange.hub.shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(HeedError, match="the disk has 10 left; make room"):
        fetched("opus-mt-en-de")
    assert len(hub.requests) == 1
