"""What is not a regular file, in each of its kinds."""

import os
import socket
from pathlib import Path

import pytest


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
