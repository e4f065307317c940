"""Locks keep other processes out, and harm no file of others."""

import errno
import os
import subprocess
import sys

import pytest
from tests.runtime.conftest import one_line

from heed.errors import HeedError
from heed.runtime.locks import Busy, NoLocks, locked


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


def test_those_who_share_a_folder_keep_others_out_and_a_lock_that_was_removed_keeps_nobody(tmp_path):
    with locked(tmp_path, shared=True):
        with locked(tmp_path, shared=True), pytest.raises(Busy), locked(tmp_path):
            pass
        with pytest.raises(Busy), locked(tmp_path):
            pass
    with locked(tmp_path), pytest.raises(Busy), locked(tmp_path, shared=True):
        pass
    with locked(tmp_path):
        (tmp_path / ".lock").unlink()
        with locked(tmp_path):
            assert (tmp_path / ".lock").exists()


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


def test_a_lock_holds_on_a_disk_that_is_full(tmp_path):
    """A process may write no byte to any file; what it wants to write next says so."""
    code = (
        "import pathlib, resource, sys\nfrom heed.runtime.files import whole_file\n"
        "from heed.runtime.locks import locked\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); folder = pathlib.Path(sys.argv[1])\n"
        "with locked(folder), whole_file(folder / 'a') as path: path.write_text('a')"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert f"HeedError: {tmp_path}/a: cannot be written (File too large)" in ended.stderr
