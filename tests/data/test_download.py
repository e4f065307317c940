"""Named corpora from a real server on this machine, from a folder, and with every fault that downloads have."""

import gzip
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.data.conftest import sha256, tar_of, zip_of

from heed.data.corpora.download import Corpora, Remote, Store, fetch
from heed.data.reading.pairs import read_pairs
from heed.errors import HeedError

TEXT = "".join(f"line {i}\n" for i in range(5000)).encode()
ZIPPED = gzip.compress(TEXT)


@pytest.fixture
def reports() -> list[str]:
    return []


def store(tmp_path, reports, **changes) -> Store:
    return Store(tmp_path / "corpora", corpus="small", report=reports.append, retry_seconds=0.0, **changes)


def files_below(folder) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]


def flipped(data: bytes, every: int) -> Iterator[bytes]:
    """The data with one byte inverted, at every so many places."""
    for place in range(0, len(data), every):
        yield data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


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


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_another_version_of_a_corpus_is_not_taken_for_this_ones(server, tmp_path, reports, zipped):
    wanted = remote(server, zipped=zipped)
    store(tmp_path, reports).text(wanted)
    with pytest.raises(HeedError, match="fetched for another version of this corpus; delete it"):
        store(tmp_path, reports).text(replace(wanted, sha256="0" * 64))


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


def test_two_who_want_the_same_file_at_once_fetch_it_once(server, tmp_path, reports):
    wanted = replace(remote(server, zipped=False), sha256=None)
    server.pause = 0.5

    def fetched(delay: float) -> bytes:
        time.sleep(delay)
        return store(tmp_path, reports).text(wanted).read_bytes()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(fetched, [0, 0.2])) == [TEXT, TEXT]
    assert len(server.requests) == 1


def test_a_wrong_checksum_removes_the_file_and_names_both_hashes(server, tmp_path, reports):
    wanted = remote(server, expected=b"something else")
    with pytest.raises(HeedError, match=f"{sha256(TEXT)}, expected {sha256(b'something else')}"):
        store(tmp_path, reports).text(wanted)
    assert not files_below(tmp_path)


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


@pytest.mark.parametrize(("name", "pack"), [("all.tgz", tar_of), ("all.zip", zip_of)])
def test_members_of_an_archive_become_plain_text(server, tmp_path, reports, name, pack):
    sgm = b'<refset>\n<doc>\n<seg id="1"> Tom &amp; Anna </seg>\n<seg id="2">two</seg>\n</doc>\n'
    contents = {"dev/test-src.de.sgm": sgm, "training/corpus.de": TEXT, "giga.fr.gz": ZIPPED}
    packed = pack(contents)
    server.files[f"/{name}"] = packed
    archive = Remote(name=name, address=f"{server.address}/{name}", sha256=sha256(packed), is_archive=True)
    place = store(tmp_path, reports)
    assert place.member(archive, "dev/test-src.de.sgm").read_bytes() == b"Tom & Anna\ntwo\n"
    assert place.member(archive, "training/corpus.de").read_bytes() == TEXT
    assert place.member(archive, "giga.fr.gz").read_bytes() == TEXT
    assert len(server.requests) == 1
    with pytest.raises(HeedError, match="has no member nothing"):
        place.member(archive, "nothing")
    (tmp_path / "corpora" / name).write_bytes(packed[:500])
    with pytest.raises(HeedError, match="altered since it was fetched"):
        place.member(archive, "training/other")


def test_a_gzip_file_with_a_flipped_byte_is_refused_or_reads_the_same(server, tmp_path, reports):
    wanted = remote(server)
    (tmp_path / "mirror").mkdir()
    path, refused = tmp_path / "mirror" / "train.en.gz", 0
    for damaged in flipped(ZIPPED, 101):
        path.write_bytes(damaged)
        try:
            store(tmp_path, reports, mirror=str(tmp_path / "mirror")).text(wanted)
        except HeedError as error:
            assert f"expected {sha256(TEXT)}" in str(error)
            refused += 1
        else:
            assert gzip.decompress(damaged) == TEXT
    assert refused > 20


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz", "zip"])
def test_an_archive_with_a_flipped_byte_is_refused_or_unpacked(tmp_path, reports, mode):
    (tmp_path / "mirror").mkdir()
    name = "all.zip" if mode == "zip" else "all.tgz"
    archive = Remote(name=name, address=f"http://nowhere.invalid/{name}", sha256=None, is_archive=True)
    place, refused = store(tmp_path, reports, mirror=str(tmp_path / "mirror")), 0
    packed = zip_of({"giga.fr.gz": ZIPPED}) if mode == "zip" else tar_of({"giga.fr.gz": ZIPPED}, mode)
    for damaged in flipped(packed, 101):
        (tmp_path / "mirror" / name).write_bytes(damaged)
        try:
            place.member(archive, "giga.fr.gz").unlink()
        except HeedError as error:
            assert "damaged archive" in str(error) or "has no member" in str(error)
            refused += 1
        assert files_below(tmp_path) == [name]
    assert refused > 20


@pytest.mark.parametrize("said", ["abc", "-5", "²", "1e9", "9" * 5000])
def test_a_content_length_that_is_no_number_is_named(server, tmp_path, reports, said):
    wanted = remote(server)
    server.content_length = said
    with pytest.raises(HeedError, match="train.en.gz: the server's Content-Length is .* no number of bytes") as caught:
        store(tmp_path, reports).text(wanted)
    assert len(str(caught.value)) < 300 and not files_below(tmp_path)


def test_a_download_above_its_bound_is_stopped_and_removed(server, tmp_path, reports):
    wanted, bounded = remote(server, zipped=False), store(tmp_path, reports, max_bytes=1_000_000)
    (tmp_path / "corpora").mkdir()
    for said, n_bytes in (("1000001", "1,000,001"), ("", r"[\d,]+")):  # "": without end
        server.content_length = said
        (tmp_path / "corpora" / "train.en.part").write_bytes(TEXT[:10])
        server.ranges = False
        with pytest.raises(
            HeedError, match=rf"train.en: sends {n_bytes} bytes or more, expected 1,000,000 at most.*--mirror"
        ):
            bounded.text(wanted)
        assert not files_below(tmp_path)
    server.content_length = None
    assert store(tmp_path, reports, max_bytes=len(TEXT)).text(wanted).read_bytes() == TEXT


def test_the_command_refuses_a_mirror_that_sends_more_than_the_corpus_has(server, tmp_path, heed):
    server.files = {f"/{split}.{language}.gz": TEXT for split in ("train", "val") for language in ("en", "de")}
    server.content_length = str(10**12)
    done = heed("data", "get", "multi30k", "--dir", tmp_path, "--mirror", server.address)
    assert done.returncode == 1 and "expected 67,108,864 at most" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not files_below(tmp_path)


@pytest.mark.parametrize(
    "address", ["http://[", "http://a..b", f"http://{'a' * 64}.com", "http://127.0.0.1:x", "http://é/é"]
)
def test_an_address_that_is_none_is_named(tmp_path, reports, address):
    wanted = Remote(name="x", address="http://127.0.0.1:9/x", sha256=None)
    with pytest.raises(HeedError, match="cannot be fetched"):
        store(tmp_path, reports, mirror=address).text(wanted)


@pytest.mark.parametrize("marker", [b"", b" \n", b"\xff\xfe", b"garbage\n", b"0" * 64])
def test_a_damaged_hash_beside_a_file_makes_it_an_altered_one(server, tmp_path, reports, marker):
    wanted = remote(server)
    path = store(tmp_path, reports).text(wanted)
    path.with_name(path.name + ".sha256").write_bytes(marker)
    with pytest.raises(HeedError, match="altered since it was fetched; delete it"):
        store(tmp_path, reports).text(wanted)
    path.unlink()
    assert store(tmp_path, reports).text(wanted) == path


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["train.en.gz", "train.en.gz.sha256", "train.en.gz.part", "corpus.de"])
def test_what_is_no_regular_file_is_never_read(server, tmp_path, reports, name, make):
    place, wanted = store(tmp_path, reports), remote(server)
    if name.endswith(".sha256"):
        place.text(wanted)
        (place.folder / name).unlink()
    place.folder.mkdir(exist_ok=True)
    make(place.folder / name)
    with pytest.raises(HeedError, match=f"{name}: not a regular file"):
        place.member(wanted, f"training/{name}") if name == "corpus.de" else place.text(wanted)


def test_a_test_set_that_is_not_utf8_is_named_with_its_line(server, tmp_path, reports):
    packed = tar_of({"dev/test.sgm": b"<doc>\n<seg>sch\xf6n</seg>\n"})
    server.files["/dev.tgz"] = packed
    archive = Remote(name="dev.tgz", address=f"{server.address}/dev.tgz", sha256=sha256(packed), is_archive=True)
    with pytest.raises(HeedError, match=r"dev.tgz: dev/test.sgm, line 1: byte 4 \(0xf6\) is not UTF-8"):
        store(tmp_path, reports).member(archive, "dev/test.sgm")
    assert not (tmp_path / "corpora" / "test").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "multi3k"}, "did you mean multi30k?"),
        ({"name": "zzz"}, "known: multi30k, wmt14-en-de, wmt14-en-fr"),
        ({"tgt": "xx"}, "no pair en-xx; it offers en-de, en-fr, en-cs, de-fr, de-cs, fr-cs, in both"),
        ({"variant": "bpe"}, "no variant 'bpe'; it offers raw, lc.norm.tok"),
        ({"mirror": "/nowhere/at/all"}, "no such folder"),
    ],
)
def test_what_is_not_offered_is_refused_with_what_is(tmp_path, changes, message):
    wanted = {"name": "multi30k", "src": "en", "tgt": "de", "variant": "raw", "mirror": None} | changes
    corpora = Corpora(tmp_path, wanted.pop("mirror"))
    with pytest.raises(HeedError, match=message):
        fetch(**wanted, corpora=corpora)


@pytest.mark.parametrize("variant", ["raw", "lc.norm.tok"])
@pytest.mark.parametrize("tgt", ["de", "fr"])
def test_the_published_files_have_the_expected_hashes(data_folder, tmp_path, variant, tgt):
    files = fetch("multi30k", src="en", tgt=tgt, variant=variant, corpora=Corpora(tmp_path, str(data_folder)))
    assert [sum(1 for _ in read_pairs(pair)) for pair in (files.train[0], files.dev, files.tests["test2016"])] == [
        29_000, 1_014, 1_000,
    ]  # fmt: skip


@pytest.mark.parametrize(("tgt", "n_train"), [("de", 3), ("fr", 5)])
def test_the_splits_of_wmt14_are_those_of_the_paper(tmp_path, tgt, n_train):
    """Section 5.1: newstest2013 to develop with, newstest2014 to test. Unpacked files are read where they are."""
    folder = tmp_path / f"wmt14-en-{tgt}"
    folder.mkdir()
    train = [f"europarl-v7.{tgt}-en", f"commoncrawl.{tgt}-en", f"news-commentary-v9.{tgt}-en", "undoc.2000.fr-en",
             "giga-fren.release2.fixed"][:n_train]  # fmt: skip
    test = {"en": f"newstest2014-{tgt}en-ref.en", tgt: f"newstest2014-{tgt}en-src.{tgt}"}
    for language in ("en", tgt):
        for name in [*(f"{part}.{language}" for part in (*train, "newstest2013")), test[language]]:
            (folder / name).write_text("a line\n")
    for src, other in (("en", tgt), (tgt, "en")):
        files = fetch(
            f"wmt14-en-{tgt}", src=src, tgt=other, variant="raw", corpora=Corpora(tmp_path, None, pytest.fail)
        )
        assert files.train == tuple((folder / f"{part}.{src}", folder / f"{part}.{other}") for part in train)
        assert files.dev == (folder / f"newstest2013.{src}", folder / f"newstest2013.{other}")
        assert files.tests == {"newstest2014": (folder / test[src], folder / test[other])}
