"""Progress of commands: a bar at a terminal, lines in a log, nothing of either on standard output."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heed.apps.cli import progress_bar as shown
from heed.runtime.progress import displayed_on, progress

# The real command line, which shows progress earlier than a user would see it.
HASTY = """
import sys
from heed.apps.cli import progress_bar
from heed.apps.commands import main
progress_bar.BAR_AFTER = progress_bar.FIRST_LINE_AFTER = 0.0
progress_bar.LOOK_EVERY = 0.01
main()
"""


@pytest.fixture(scope="module")
def trees(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trees") / "gold.trees"
    path.write_text("(S (NP (DT the) (NN dog)) (VP (VBZ runs) (RB fast)))\n" * 6000)
    return path


def command(trees: Path, **kwargs) -> subprocess.Popen:
    arguments = [sys.executable, "-c", HASTY, "evalb", str(trees), str(trees), "--json"]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, **kwargs)


@pytest.mark.slow
def test_a_log_has_plain_lines_with_the_work_done(trees):
    done = command(trees, stderr=subprocess.PIPE)
    stdout, stderr = done.communicate(timeout=60)
    assert done.returncode == 0 and stdout.startswith(b"{") and b"Scoring" not in stdout
    lines = stderr.decode().splitlines()
    assert any(line.startswith("Scoring trees: ") and line.endswith(" a second.") for line in lines), lines
    assert "\x1b" not in stderr.decode() and "\r" not in stderr.decode()


@pytest.mark.slow
def test_a_terminal_has_a_bar_that_leaves_nothing_behind(trees):
    leader, follower = os.openpty()
    done = command(trees, stderr=follower, env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"})
    os.close(follower)
    drawn = b""
    try:
        while block := os.read(leader, 65536):
            drawn += block
    except OSError:  # Linux: the other side is closed
        pass
    os.close(leader)
    stdout, _ = done.communicate(timeout=60)
    assert done.returncode == 0 and stdout.startswith(b"{") and b"\x1b" not in stdout
    assert b"Scoring trees" in drawn and b" trees" in drawn
    assert drawn.rstrip(b"\r\n").endswith((b"\x1b[2K", b"\x1b[?25h"))  # erased; the cursor is back


def test_a_log_is_not_silent_for_more_than_five_seconds_even_in_one_long_step(capsys, monkeypatch):
    assert shown.FIRST_LINE_AFTER + shown.LOOK_EVERY < 5
    monkeypatch.setattr(shown, "FIRST_LINE_AFTER", 0.1)
    monkeypatch.setattr(shown, "LOOK_EVERY", 0.02)
    with displayed_on(shown.StandardErrorProgress()), progress("Importing"):
        said, deadline = "", time.monotonic() + 60
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
            said = capsys.readouterr().err
    assert re.fullmatch(r"(Importing: \d+s so far\.\n)+", said)


def test_what_waits_for_its_input_says_nothing(capsys, monkeypatch):
    monkeypatch.setattr(shown, "FIRST_LINE_AFTER", 0.05)
    monkeypatch.setattr(shown, "LOOK_EVERY", 0.02)
    with displayed_on(shown.StandardErrorProgress()), progress("Translating", unit="lines"):
        time.sleep(0.2)
    assert capsys.readouterr().err == ""
