"""A folder to work in, and what its parts hold."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[3]
GOLDEN = PROJECT / "tests" / "golden"
MODEL = GOLDEN / "models" / "byte-pairs"
ENDED_SECONDS = 240


def lines(n: int) -> list[str]:
    """Sentences, n of them, no two of which are equal."""
    texts = (GOLDEN / "half" / "texts" / "dev.en").read_text(encoding="utf-8").splitlines()
    return [f"{texts[i % len(texts)]} {i}" for i in range(n)]


def digest(out: Path) -> str:
    """SHA-256 over all parts, in order. They and nothing half-written are there, and _SUCCESS."""
    assert (out / "_SUCCESS").is_file(), sorted(os.listdir(out))
    assert not [name for name in os.listdir(out) if name.startswith(".")]
    found = hashlib.sha256()
    for path in sorted(path for path in out.glob("part-*") if not path.name.endswith(".json")):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def n_parts(out: Path) -> int:
    """Number of parts that are there."""
    return len(list(out.glob("part-*.json")))


def command(*words: object) -> list[str]:
    """The command line of a new process."""
    return [sys.executable, "-m", "heed", *map(str, words)]


class Run:
    """A command in a process of its own, which can be killed."""

    def __init__(self, *words: object, log: Path, out: Path):
        self._out, self._log = out, log
        with log.open("ab") as file:
            self.process = subprocess.Popen(command(*words), stderr=file)

    def wait_for(self, parts: int) -> None:
        """Until this many parts are there."""
        self.wait_until(lambda: n_parts(self._out) >= parts)

    def wait_for_line(self, text: str) -> None:
        """Until it has said this."""
        self.wait_until(lambda: text in self._log.read_text())

    def wait_until(self, done: Callable[[], Any]) -> Any:
        """What `done` gives as soon as it is true. The process must not end before."""
        deadline = time.monotonic() + ENDED_SECONDS
        while not (found := done()):
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.01)
        return found

    def kill(self) -> None:
        """SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Waits for a good end."""
        assert self.process.wait(ENDED_SECONDS) == 0, self._log.read_text()
