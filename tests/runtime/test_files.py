"""Files are written only where they are files, and only what Heed made is replaced."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.conftest import one_line

from heed.errors import HeedError
from heed.runtime.files import check_replaceable, remove_unfinished, whole_file, whole_folder
from heed.runtime.manifest import seal


def test_what_is_no_regular_file_is_never_replaced(not_a_file):
    with pytest.raises(HeedError) as error, whole_file(not_a_file) as temporary:
        temporary.write_text("new")
    one_line(error, not_a_file, "not a file")
    assert not stat.S_ISREG(not_a_file.stat().st_mode)
    assert not list(not_a_file.parent.glob(".*.part"))


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
