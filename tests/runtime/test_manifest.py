"""A manifest says what a folder's files must be."""

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest
from tests.runtime.conftest import one_line

from heed.errors import HeedError
from heed.runtime.manifest import check, seal, sha256_of


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
