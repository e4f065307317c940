"""Named corpora from a real server on this machine, from a folder, and with every fault that downloads have."""

import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from heed.config import HeedError
from heed.data.lines import read_pairs
from heed.data.sources import Member, Remote, Store, catalogue, fetch, sgm_lines

TEXT = "".join(f"line {i}\n" for i in range(5000)).encode()
ZIPPED = gzip.compress(TEXT)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files`; `break_after` bytes it drops the first connection; `ranges` says whether it knows Range."""

    daemon_threads = True
    files: dict[str, bytes]
    break_after: int | None = None
    ranges = True

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
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        body = data[start:]
        if self.server.break_after is not None:
            body, self.server.break_after = body[: self.server.break_after], None
            self.close_connection = True
        self.wfile.write(body)

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


@pytest.fixture
def reports() -> list[str]:
    return []


def store(tmp_path, reports, **changes) -> Store:
    return Store(tmp_path / "corpora", corpus="small", report=reports.append, retry_seconds=0.0, **changes)


def remote(server, name="train.en", *, zipped=True, expected=TEXT) -> Remote:
    path = f"/published/{name}" + (".gz" if zipped else "")
    server.files[path] = ZIPPED if zipped else TEXT
    return Remote(name=name, address=server.address + path, sha256=sha256(expected))


def test_a_file_is_fetched_once_and_verified(server, tmp_path, reports):
    wanted = remote(server)
    for _ in range(2):
        path = store(tmp_path, reports).text(wanted)
        assert path.read_bytes() == ZIPPED
    assert len(server.requests) == 1
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
def test_a_broken_download_goes_on_where_it_stopped(server, tmp_path, reports, ranges):
    wanted = remote(server, zipped=False)
    server.break_after, server.ranges = 1000, ranges
    assert store(tmp_path, reports).text(wanted).read_bytes() == TEXT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=1000-"]


def test_a_download_that_another_process_began_is_taken_up(server, tmp_path, reports):
    wanted = remote(server, zipped=False)
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "train.en.part").write_bytes(TEXT[:700])
    assert store(tmp_path, reports).text(wanted).read_bytes() == TEXT
    assert server.requests == [("/published/train.en", "bytes=700-")]


def test_a_wrong_checksum_removes_the_file_and_names_both_hashes(server, tmp_path, reports):
    wanted = remote(server, expected=b"something else")
    with pytest.raises(HeedError, match=f"{sha256(TEXT)}, expected {sha256(b'something else')}"):
        store(tmp_path, reports).text(wanted)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_missing_file_and_a_dead_server_are_named(server, tmp_path, reports):
    wanted = remote(server)
    server.files.clear()
    with pytest.raises(HeedError, match=r"published/train.en.gz: cannot be fetched \(Not Found\).*--mirror"):
        store(tmp_path, reports).text(wanted)
    assert len(server.requests) == 1  # a 404 is not tried again
    nobody = Remote(name="x", address="http://127.0.0.1:9/x", sha256=None)
    with pytest.raises(HeedError, match="127.0.0.1:9/x: cannot be fetched"):
        store(tmp_path, reports).text(nobody)


def test_without_a_published_hash_the_file_is_taken_and_that_is_said(server, tmp_path, reports):
    wanted = remote(server)
    path = store(tmp_path, reports).text(Remote(name=wanted.name, address=wanted.address, sha256=None))
    assert any("no published checksum" in line for line in reports)
    assert sha256(ZIPPED) in path.with_name(path.name + ".sha256").read_text()
    path.write_bytes(gzip.compress(b"altered"))
    with pytest.raises(HeedError, match="altered since it was fetched"):
        store(tmp_path, reports).text(Remote(name=wanted.name, address=wanted.address, sha256=None))


@pytest.mark.parametrize("inner", ["", "small"])
@pytest.mark.parametrize("name", ["train.en", "train.en.gz"])
def test_a_mirror_folder_is_read_in_place(server, tmp_path, reports, inner, name):
    folder = tmp_path / "mirror" / inner
    folder.mkdir(parents=True)
    (folder / name).write_bytes(ZIPPED if name.endswith(".gz") else TEXT)
    found = store(tmp_path, reports, mirror=str(tmp_path / "mirror")).text(remote(server))
    assert found == folder / name
    assert not server.requests and not (tmp_path / "corpora").exists()
    (folder / name).write_bytes(gzip.compress(b"altered\n") if name.endswith(".gz") else b"altered\n")
    with pytest.raises(HeedError, match="expected"):
        store(tmp_path, reports, mirror=str(tmp_path / "mirror")).text(remote(server))
    assert (folder / name).exists()  # what is the user's own is not removed


def test_a_mirror_address_takes_the_place_of_the_published_one(server, tmp_path, reports):
    server.files["/mirror/train.en.gz"] = ZIPPED
    wanted = Remote(name="train.en", address="http://nowhere.invalid/deep/train.en.gz", sha256=sha256(TEXT))
    path = store(tmp_path, reports, mirror=f"{server.address}/mirror/").text(wanted)
    assert path.read_bytes() == ZIPPED


def test_members_of_an_archive_become_plain_text(server, tmp_path, reports):
    sgm = b'<refset>\n<doc>\n<seg id="1"> Tom &amp; Anna </seg>\n<seg id="2">two</seg>\n</doc>\n'
    contents = {"dev/test-src.de.sgm": sgm, "training/corpus.de": TEXT, "giga.fr.gz": ZIPPED}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    server.files["/all.tgz"] = buffer.getvalue()
    archive = Remote(name="all.tgz", address=f"{server.address}/all.tgz", sha256=sha256(buffer.getvalue()))
    place = store(tmp_path, reports)
    assert place.member(Member(archive=archive, path="dev/test-src.de.sgm")).read_bytes() == b"Tom & Anna\ntwo\n"
    assert place.member(Member(archive=archive, path="training/corpus.de")).read_bytes() == TEXT
    assert place.member(Member(archive=archive, path="giga.fr.gz")).read_bytes() == TEXT
    assert len(server.requests) == 1
    with pytest.raises(HeedError, match="has no member nothing"):
        place.member(Member(archive=archive, path="nothing"))
    (tmp_path / "corpora" / "all.tgz").write_bytes(buffer.getvalue()[:500])
    with pytest.raises(HeedError, match="altered since it was fetched"):
        place.member(Member(archive=archive, path="training/other"))


def test_sgm_keeps_only_segments():
    assert list(sgm_lines([b"<doc>\n", b'<seg id="3">a &lt;b&gt; \n'.replace(b"\n", b"</seg>\n")])) == ["a <b>"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "multi3k"}, "did you mean multi30k?"),
        ({"name": "zzz"}, "known: multi30k, wmt14-en-de, wmt14-en-fr"),
        ({"tgt": "xx"}, "no pair en-xx; it offers en-de, en-fr, en-cs"),
        ({"variant": "bpe"}, "no variant 'bpe'; it offers raw, lc.norm.tok"),
        ({"mirror": "/nowhere/at/all"}, "no such folder"),
    ],
)
def test_what_is_not_offered_is_refused_with_what_is(tmp_path, changes, message):
    wanted = {"name": "multi30k", "src": "en", "tgt": "de", "variant": "raw", "mirror": None} | changes
    with pytest.raises(HeedError, match=message):
        fetch(**wanted, directory=tmp_path, report=lambda line: None)


@pytest.mark.parametrize("variant", ["raw", "lc.norm.tok"])
@pytest.mark.parametrize("tgt", ["de", "fr"])
def test_the_published_files_have_the_expected_hashes(data_folder, tmp_path, variant, tgt):
    files = fetch("multi30k", src="en", tgt=tgt, variant=variant, directory=tmp_path, mirror=str(data_folder),
                  report=lambda line: None)  # fmt: skip
    assert [sum(1 for _ in read_pairs(pair)) for pair in (files.train[0], files.dev, files.tests["test2016"])] == [
        29_000, 1_014, 1_000,
    ]  # fmt: skip


def test_every_corpus_says_what_it_is():
    assert [info.name for info in catalogue()] == ["multi30k", "wmt14-en-de", "wmt14-en-fr"]
    assert all(info.title and info.licence and info.languages for info in catalogue())
