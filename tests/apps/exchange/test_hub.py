"""`heed import NAME`: from a server on this machine that answers as the Hugging Face hub does."""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from safetensors.torch import load, save
from tests.apps.exchange.folders import imported
from tests.apps.exchange.test_opus_mt import SMALL, opus_mt

from heed.apps.exchange.hub import HubModel, hub_model
from heed.model_folder import load_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".bin", ".spm")  # which the hub keeps as LFS
REPOSITORY = "Helsinki-NLP/opus-mt-en-de"
OTHER_FILES = {"rust_model.ot": b"not for Heed", "README.md": b"---\nlicense: cc-by-4.0\n---\n"}


class Hub(ThreadingHTTPServer):
    """Serves `files` of REPOSITORY at COMMIT, those that are LFS by a redirect to another name of this machine.

    break_after: bytes behind which the first connection of a large file ends. altered: a file of other bytes.
    gated: files need a token. size: of large files, as the listing has it. requests: (path, Range, Authorization).
    """

    daemon_threads = True
    files: dict[str, bytes]
    break_after: int | None = None
    altered: str | None = None
    gated = False
    size: int | None = None

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.requests = files, []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def listing(self) -> bytes:
        siblings = []
        for name, data in self.files.items():
            entry = {"rfilename": name, "size": len(data), "blobId": git_hash(data)}
            if name.endswith(LARGE):
                size = self.size or len(data)
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": size, "pointerSize": 134}
            siblings.append(entry)
        answer = {"id": REPOSITORY, "sha": COMMIT, "gated": self.gated and "auto", "siblings": siblings}
        return json.dumps({**answer, "cardData": {"license": "cc-by-4.0"}}).encode()


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path, wanted, self.headers.get("Authorization")))
        path, _, name = self.path.rpartition("/")
        revisions = [f"/api/models/{REPOSITORY}/revision/{revision}" for revision in ("main", COMMIT)]
        if self.path.partition("?")[0] in revisions:
            self.answer(self.server.listing())
        elif self.path.startswith(f"/api/models/{REPOSITORY}/"):
            self.refuse(404, "RevisionNotFound")
        elif self.path.startswith("/api/"):
            self.refuse(401, "RepoNotFound")
        elif path in (f"/{REPOSITORY}/resolve/{revision}" for revision in ("main", COMMIT)):
            data = self.server.files.get(name)
            if data is None:
                self.refuse(404, "EntryNotFound")
            elif self.server.gated and self.headers.get("Authorization") != "Bearer hf_secret":
                self.refuse(401, "GatedRepo")
            elif name.endswith(LARGE):
                self.send_response(302)
                self.send_header("Location", f"http://localhost:{self.server.server_port}/cdn/{name}")
                linked = {"Etag": hashlib.sha256(data).hexdigest(), "Size": len(data)}
                for key, value in linked.items():
                    self.send_header(f"X-Linked-{key}", str(value))
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self.answer(self.content(name), etag=git_hash(data))
        else:
            self.answer(self.content(name), int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0)

    def content(self, name: str) -> bytes:
        data = self.server.files[name]
        return bytes([data[0] ^ 1]) + data[1:] if name == self.server.altered else data

    def answer(self, data: bytes, start: int = 0, etag: str = "") -> None:
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        data = data[start:]
        if self.command == "HEAD":
            return
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


# huggingface_hub reads its environment when it is imported, so that each fetch needs a process.
FETCH = """
import sys
from heed.apps.exchange.hub import fetch, hub_model
from heed.errors import HeedError
try:
    fetch(hub_model(sys.argv[1]), report=print)
except HeedError as error:
    print(error)
    sys.exit(1)
"""


@pytest.fixture
def fetched(heed, hub, tmp_path, monkeypatch) -> Callable[..., str]:
    """Fetches a model into the cache tmp_path/hf, which is empty at first; what is reported, if the status fits."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", hub.address)

    def fetched(name: str = "opus-mt-en-de", *, status: int | None = 0, **environment: str) -> str:
        done = heed(name, code=FETCH, env=environment)
        assert status in (done.returncode, None) and not done.stderr, done.stdout + done.stderr
        return done.stdout

    return fetched


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("opus-mt-en-de", HubModel(REPOSITORY, "main")),
        (f"opus-mt-en-de@{COMMIT}", HubModel(REPOSITORY, COMMIT)),
        ("nllb-200-distilled-600M", HubModel("facebook/nllb-200-distilled-600M", "main")),
        ("m2m100_418M", HubModel("facebook/m2m100_418M", "main")),
        ("mbart-large-50-many-to-many-mmt@v1", HubModel("facebook/mbart-large-50-many-to-many-mmt", "v1")),
        ("small-100", HubModel("alirezamsh/small100", "main")),
        ("someone/model@refs/pr/1", HubModel("someone/model", "refs/pr/1")),
        *((path, None) for path in ("model", "./model", "/a/b", "a/b/c", "../model", "a/..", "a/b@../../x", "")),
    ],
)
def test_only_a_name_of_the_hub_is_looked_for_there(text, expected):
    assert hub_model(text) == expected


def test_a_name_becomes_a_model_folder(heed, fetched, hub, published, tmp_path):
    done = heed("import", "opus-mt-en-de", cwd=tmp_path)
    weights = published["model.safetensors"]
    digest = hashlib.sha256(weights).hexdigest()
    assert f"{REPOSITORY} at commit {COMMIT}" in done.stderr and "cc-by-4.0" in done.stderr
    assert f"model.safetensors: {len(weights):,} bytes, sha256 {digest}, verified" in done.stderr
    assert load_model(tmp_path / "models" / "opus-mt-en-de").card.src == "en"
    assert not any("rust_model" in path for path, *_ in hub.requests)
    done = heed("import", "nobody/nothing", "out", cwd=tmp_path)
    assert done.returncode == 1 and "no such model" in done.stderr and done.stderr.count("\n") == 1
    done = heed("import", "models", cwd=tmp_path)
    assert done.returncode == 1 and "name the folder to write as well: heed import models OUT" in done.stderr


def test_offline_the_same_files_are_used_again_and_nothing_is_asked(fetched, hub, tmp_path):
    fetched()
    hub.requests.clear()
    assert "verified" in fetched(HF_HUB_OFFLINE="1") and not hub.requests
    assert "not fetched yet, and HF_HUB_OFFLINE is set" in fetched("opus-mt-de-en", status=1, HF_HUB_OFFLINE="1")
    (weights,) = (path for path in (tmp_path / "hf").rglob("snapshots/*/model.safetensors"))
    weights.write_bytes(b"!" + weights.read_bytes()[1:])
    assert "it was removed; fetch it again" in fetched(status=1, HF_HUB_OFFLINE="1") and not weights.exists()


def test_weights_in_parts_come_with_their_index(heed, fetched, hub, published, tmp_path):
    weights = load(hub.files.pop("model.safetensors"))
    parts = {f"model-0000{i}-of-00002.safetensors": dict(list(weights.items())[i - 1 :: 2]) for i in (1, 2)}
    hub.files |= {name: save(tensors) for name, tensors in parts.items()}
    listed = {name: file for file, tensors in parts.items() for name in tensors}
    hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": listed}).encode()
    hub.files["pytorch_model-00001-of-00002.bin"] = b"of another format"
    done = heed("import", "opus-mt-en-de", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not any("pytorch_model" in path for path, *_ in hub.requests)
    hub.requests.clear()
    assert "model-00002-of-00002.safetensors" in fetched(HF_HUB_OFFLINE="1") and not hub.requests


def test_without_safetensors_the_guarded_reader_takes_the_pickle(fetched, hub, published, tmp_path):
    del hub.files["model.safetensors"]
    torch.save(load(published["model.safetensors"]), tmp_path / "pickle")
    hub.files["pytorch_model.bin"] = (tmp_path / "pickle").read_bytes()
    fetched(f"{REPOSITORY}@{COMMIT}")
    (pickle,) = tmp_path.joinpath("hf").rglob("snapshots/*/pytorch_model.bin")
    assert imported(pickle.parent, tmp_path / "out", "huggingface").is_dir()


def test_a_broken_download_is_tried_again(fetched, hub):
    hub.break_after = 1000
    fetched(status=None)  # huggingface_hub before 1.0 fails once
    fetched()
    assert [path for path, *_ in hub.requests].count("/cdn/model.safetensors") == 2


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])  # sha256, and git's hash
def test_a_file_of_another_hash_is_removed(fetched, hub, tmp_path, name):
    hub.altered = name
    said = fetched(status=1)
    assert re.search(f"{name}.* is [0-9a-f]+, expected [0-9a-f]+; it was removed; fetch it again", said)
    assert not [path for path in tmp_path.joinpath("hf").rglob(name)]
    hub.altered = None
    fetched()


def test_the_token_goes_to_the_hub_alone(fetched, hub):
    hub.gated = True
    assert re.search("accept its terms at .* and set HF_TOKEN", fetched(status=1))
    fetched(HF_TOKEN="hf_secret")
    sent = {path: token for path, _, token in hub.requests}
    assert sent[f"/{REPOSITORY}/resolve/main/model.safetensors"] == "Bearer hf_secret"
    assert sent["/cdn/model.safetensors"] is None


def test_what_is_wrong_with_a_revision_the_files_the_disk_or_the_network_is_said(fetched, hub):
    assert "no such branch, tag or commit" in fetched("opus-mt-en-de@v9", status=1)
    hub.size = 10**16
    assert re.search("30,000,.* bytes are still to come, and the disk has .* left; make room", fetched(status=1))
    assert not [path for path, *_ in hub.requests if "resolve" in path]
    hub.files = {"config.json": b"{}", "tf_model.h5": b"{}"}
    assert "has no config.json with model.safetensors or pytorch_model.bin" in fetched(status=1)
    said = fetched(status=1, HF_ENDPOINT="http://127.0.0.1:9")
    assert re.search("127.0.0.1:9 cannot be reached .* name that folder", said) and said.count("\n") == 1
