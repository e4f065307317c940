"""Files are read only where they are files, and up to a limit."""

import os
from pathlib import Path

import pytest
from tests.runtime.conftest import one_line

from heed.errors import HeedError
from heed.runtime.json_files import read_json
from heed.runtime.manifest import sha256_of
from heed.runtime.reading import read_bounded


def test_what_is_no_regular_file_is_never_read(not_a_file):
    for read in (lambda: read_bounded(not_a_file, 100), lambda: read_json(not_a_file)):
        with pytest.raises(HeedError) as error:
            read()
        one_line(error, not_a_file)
    with pytest.raises(OSError):
        sha256_of(not_a_file)


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
