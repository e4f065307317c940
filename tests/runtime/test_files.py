"""Files are read and written only where they are files, and only what Heed made is replaced."""

import errno
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from heed.errors import HeedError
from heed.runtime.files import (
    Busy,
    NoLocks,
    check,
    check_replaceable,
    locked,
    read_bounded,
    read_json,
    remove_unfinished,
    seal,
    sha256_of,
    whole_file,
    whole_folder,
)


@pytest.fixture(params=["fifo", "socket", "device", "folder", "link to a fifo"])
def not_a_file(request, tmp_path, monkeypatch) -> Path:
    path = tmp_path / "thing"
    if request.param == "folder":
        path.mkdir()
    elif request.param == "socket":
        monkeypatch.chdir(tmp_path)  # the name of a socket must be short
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("thing")
    elif request.param == "device":
        path.symlink_to("/dev/zero")
    elif request.param == "fifo":
        os.mkfifo(path)
    else:
        os.mkfifo(tmp_path / "fifo")
        path.symlink_to("fifo")
    return path


def one_line(error: pytest.ExceptionInfo, *parts: object) -> None:
    text = str(error.value)
    assert "\n" not in text
    assert all(str(part) in text for part in parts), text


def test_what_is_no_regular_file_is_never_read(not_a_file):
    for read in (lambda: read_bounded(not_a_file, 100), lambda: read_json(not_a_file)):
        with pytest.raises(HeedError) as error:
            read()
        one_line(error, not_a_file)
    with pytest.raises(OSError):
        sha256_of(not_a_file)


def test_what_is_no_regular_file_is_never_replaced(not_a_file):
    with pytest.raises(HeedError) as error, whole_file(not_a_file) as temporary:
        temporary.write_text("new")
    one_line(error, not_a_file, "not a file")
    assert not stat.S_ISREG(not_a_file.stat().st_mode)
    assert not list(not_a_file.parent.glob(".*.part"))


def test_a_bounded_read_gives_all_up_to_the_limit_and_nothing_beyond(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_bounded(path, 100) == b"x" * 100
    (tmp_path / "link").symlink_to(path)
    assert read_bounded(tmp_path / "link", 100) == b"x" * 100
    for bad, part in (
        (path, "longer than 99 bytes"),
        (tmp_path / "none", "No such file"),
        (Path("a\0b"), "cannot be read"),
        (tmp_path / ("a" * 300), "name too long"),
    ):
        with pytest.raises(HeedError) as error:
            read_bounded(bad, 99)
        one_line(error, part)


def test_a_file_without_permission_is_one_line(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path = tmp_path / "file"
    path.touch(mode=0)
    with pytest.raises(HeedError) as error:
        read_bounded(path, 1)
    one_line(error, path, "Permission denied")


@pytest.mark.parametrize(
    "content",
    [
        b"[1]",
        b"null",
        b"",
        b'{"a": ',
        b"\xff\xfe",
        b'{"a": ' + b"9" * 100_000 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b" " * (2**24 + 1),
    ],
    ids=["list", "null", "empty", "cut", "no UTF-8", "long integer", "deep", "long"],
)
def test_json_of_any_other_form_is_one_line(tmp_path, content):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(HeedError) as error:
        read_json(path)
    one_line(error, path)


@pytest.mark.parametrize(
    "files",
    [1, [], {"a": 1}, {"a": {"bytes": 1}}, {"a": {"bytes": "1", "sha256": 5}}, {"a": {"bytes": [], "sha256": {}}}, {}],
)
def test_a_manifest_of_any_other_form_is_one_line(tmp_path, files):
    (tmp_path / "a").write_text("content")
    (tmp_path / "manifest.json").write_text(json.dumps({"files": files}))
    with pytest.raises(HeedError) as error:
        check(tmp_path, ["a"])
    one_line(error, tmp_path, "damaged")


def test_a_sealed_file_may_be_a_link_but_not_a_fifo(tmp_path):
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "a"
    path.write_text("content")
    seal(tmp_path / "model")
    path.rename(tmp_path / "blob")
    path.symlink_to("../blob")  # as the caches of model hubs do
    check(tmp_path / "model", ["a"])
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(HeedError) as error:
        check(tmp_path / "model", ["a"])
    one_line(error, path)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_of_a_file_that_grows_only_what_its_size_said_is_hashed():
    path = Path("/proc/self/status")
    assert path.stat().st_size == 0 and path.read_bytes()  # as if all of it had come since
    assert sha256_of(path) == hashlib.sha256(b"").hexdigest()


def test_a_link_in_place_of_the_temporary_file_is_never_written_through(tmp_path):
    """Names cannot be foreseen, and one that is there already is not opened."""
    for _ in range(2):
        with whole_file(tmp_path / "a") as temporary:
            assert stat.S_ISREG(temporary.lstat().st_mode)  # made before anything is written
            assert str(os.getpid()) not in temporary.name.split(".")
            first = temporary.name
            temporary.write_text("new")
    with whole_file(tmp_path / "a") as temporary:
        assert temporary.name != first
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "b").symlink_to(victim)
    with whole_file(tmp_path / "b") as temporary:
        temporary.write_text("new")
    assert victim.read_text() == "precious" and (tmp_path / "b").read_text() == "new"


def test_modes_are_those_of_a_plain_file_and_never_wider_than_before(tmp_path):
    before = os.umask(0o027)
    try:
        for name in ("new", "secret"):
            if name == "secret":
                (tmp_path / name).touch(mode=0o600)
            with whole_file(tmp_path / name) as temporary:
                temporary.write_text("x")
        with whole_folder(tmp_path / "folder") as temporary:
            (temporary / "a").touch()
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "secret", "folder")}
    assert modes == {"new": 0o640, "secret": 0o600, "folder": 0o750}


NAMES = ["a", "b", "manifest.json", "README.md"]


def write_folder(path: Path, text: str = "new") -> None:
    with whole_folder(path) as temporary:
        for name in ("a", "b", "README.md"):
            (temporary / name).write_text(text)
        seal(temporary)


def test_a_folder_that_is_replaced_stays_closed(tmp_path):
    write_folder(tmp_path / "folder")
    (tmp_path / "folder").chmod(0o700)
    write_folder(tmp_path / "folder", "newer")
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o700
    assert (tmp_path / "folder" / "a").read_text() == "newer"


def test_an_interrupt_between_the_two_names_leaves_the_old_folder(tmp_path, monkeypatch):
    write_folder(tmp_path / "folder", "old")
    replace = os.replace

    def interrupted(source: Path, target: Path) -> None:
        replace(source, target)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "folder")
    assert (tmp_path / "folder" / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["folder"]


def fail_to_flush_folders(monkeypatch, code: int) -> None:
    def flush(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", flush)


def test_a_file_system_that_cannot_flush_folders_is_written_to(tmp_path, monkeypatch):
    fail_to_flush_folders(monkeypatch, errno.EINVAL)
    write_folder(tmp_path / "folder")
    with whole_file(tmp_path / "file") as temporary:
        temporary.write_text("x")
    assert (tmp_path / "folder" / "a").read_text() == "new" and (tmp_path / "file").read_text() == "x"


def test_a_folder_that_fails_to_be_flushed_is_an_error(tmp_path, monkeypatch):
    fail_to_flush_folders(monkeypatch, errno.EIO)
    with pytest.raises(HeedError, match="folder: cannot be written"):
        write_folder(tmp_path / "folder")
    with pytest.raises(HeedError, match="file: cannot be written"), whole_file(tmp_path / "file") as temporary:
        temporary.write_text("x")


@pytest.mark.parametrize("foreign", ["notes.txt", ".git/", "a/", "b -> notes", "b fifo"])
def test_a_folder_that_holds_anything_else_is_never_replaced(tmp_path, foreign):
    folder = tmp_path / "folder"
    folder.mkdir()
    if foreign != "a/":
        (folder / "a").touch()
        seal(folder)
    name = foreign.split(" ")[0].rstrip("/")
    if foreign.endswith("/"):
        (folder / name).mkdir()
    elif foreign.endswith("fifo"):
        os.mkfifo(folder / name)
    elif "->" in foreign:
        (folder / name).symlink_to("notes")
    else:
        (folder / name).write_text("mine")
    before = sorted(os.listdir(folder))
    for attempt in (lambda: check_replaceable(folder, NAMES), lambda: write_folder(folder)):
        with pytest.raises(HeedError) as error:
            attempt()
        one_line(error, folder, f"holds {name},")
    assert sorted(os.listdir(folder)) == before
    assert os.listdir(tmp_path) == ["folder"]


def test_a_folder_of_the_same_files_or_none_is_replaced_also_behind_a_link(tmp_path):
    write_folder(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "old", "old")
    (tmp_path / "old" / "a").write_text("changed by hand")
    (tmp_path / "link").symlink_to("old")
    for name in ("empty", "link", "new"):
        check_replaceable(tmp_path / name, NAMES)
        write_folder(tmp_path / name)
        assert {path.read_text() for path in (tmp_path / name).iterdir() if path.name != "manifest.json"} == {"new"}
    assert (tmp_path / "link").is_symlink() and (tmp_path / "old" / "b").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["empty", "link", "new", "old"]


@pytest.mark.parametrize("manifest", [None, "{}", '{"files": {"b": {"bytes": 0, "sha256": ""}}}', "[", "files"])
def test_a_folder_of_the_same_names_that_heed_did_not_write_is_never_replaced(tmp_path, manifest):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("mine")
    if manifest is not None:
        (folder / "manifest.json").write_text(manifest)
    for attempt in (lambda: check_replaceable(folder, NAMES), lambda: write_folder(folder)):
        with pytest.raises(HeedError) as error:
            attempt()
        one_line(error, folder, "has no manifest.json of Heed's that lists its files")
    assert (folder / "a").read_text() == "mine" and os.listdir(tmp_path) == ["folder"]


def test_where_no_folder_can_be_made_is_known_before(tmp_path):
    (tmp_path / "file").write_text("mine")
    check_replaceable(tmp_path / "x" / "y" / "z", ["a"])
    (tmp_path / "circle").symlink_to("circle")
    for path in (tmp_path / "file", tmp_path / "file" / "x", tmp_path / "circle"):
        with pytest.raises(HeedError) as error:
            check_replaceable(path, ["a"])
        one_line(error, path)
    assert sorted(os.listdir(tmp_path)) == ["circle", "file"]


def test_only_unfinished_files_and_folders_of_heed_are_removed(tmp_path):
    kept = [".bashrc.part", ".film.mp4.part", "model.0123abcd.part", ".a.0123ABCD.part", ".a.0123abcd.partial"]
    for name in kept:
        (tmp_path / name).write_text("mine")
    (tmp_path / "elsewhere" / "model").mkdir(parents=True)
    (tmp_path / ".model.0123abcd.part").symlink_to("elsewhere")
    (tmp_path / ".config.toml.89abcdef.part").write_text("half")
    (tmp_path / ".15.89abcdef.part").mkdir()
    for old in (".model.v2.fedcba98.part/model.v2", ".other.fedcba98.part/other", "other"):
        (tmp_path / old).mkdir(parents=True)
        (tmp_path / old / "file").write_text(old)
    remove_unfinished(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*kept, "elsewhere", ".model.0123abcd.part", "model.v2", "other"}
    assert (tmp_path / "model.v2" / "file").read_text() == ".model.v2.fedcba98.part/model.v2"
    assert (tmp_path / "other" / "file").read_text() == "other"
    assert (tmp_path / "elsewhere" / "model").is_dir()


def test_what_a_killed_process_leaves_is_removed(tmp_path):
    die = "import os, sys\nfrom pathlib import Path\nfrom heed.runtime.files import whole_file, whole_folder\n"
    die += "with whole_file(Path('a')), whole_folder(Path('b')): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", die], cwd=tmp_path)
    assert len(os.listdir(tmp_path)) == 2
    remove_unfinished(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_lock_is_never_taken_through_a_link_and_never_empties_a_file_of_others(tmp_path):
    keys = tmp_path / "authorized_keys"
    keys.write_text("ssh-ed25519 AAAA")
    run = tmp_path / "run"
    run.mkdir()
    lock = run / ".lock"
    plant = {
        "is a symbolic link": lambda: lock.symlink_to("../authorized_keys"),
        "symbolic link": lambda: lock.symlink_to("../missing"),
        "not a lock": lambda: os.link(keys, lock),
        "cannot be written": lambda: os.mkfifo(lock),
        "Is a directory": lock.mkdir,
    }
    for part, attack in plant.items():
        attack()
        with pytest.raises(HeedError) as error, locked(run):
            pass
        one_line(error, lock, part)
        lock.rmdir() if lock.is_dir() and not lock.is_symlink() else lock.unlink()
    assert keys.read_text() == "ssh-ed25519 AAAA" and not (tmp_path / "missing").exists()


def test_a_lock_names_who_holds_it_and_is_free_again(tmp_path):
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
        with pytest.raises(Busy, match=f"process {os.getpid()} is at work"), locked(tmp_path):
            pass
    (tmp_path / ".lock").write_text("123456789")  # of a process that was killed
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_where_there_are_no_locks_nobody_works_unless_told_to(tmp_path, monkeypatch):
    def without_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", without_locks)
    said = r"has no locks \(No locks available\), so a second .* set HEED_LOCKS=0\.$"
    with pytest.raises(NoLocks, match=said), locked(tmp_path):
        pass
    monkeypatch.setenv("HEED_LOCKS", "0")
    with locked(tmp_path):
        pass
