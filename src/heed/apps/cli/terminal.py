"""Standard input, and printing that is safe for terminals."""

import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from heed.data.reading.lines import count_lines_of_standard_input, lines_of_standard_input
from heed.errors import HeedError
from heed.runtime.progress import Task, progress
from heed.text.printable import KEPT_IN_TEXT, is_hidden, printable


def say(line: str) -> None:
    """Prints a message on standard error, as one line whatever it contains; results go to standard output."""
    message(f"{printable(line)}\n")


def show(value: object) -> None:
    """Prints a line of results for people. Names and values from strangers cannot control the terminal."""
    print(printable(str(value)))


_last_message = [0.0]  # by time.monotonic


def last_message_time() -> float:
    """When `message` wrote last, by time.monotonic; 0 before."""
    return _last_message[0]


def message(text: str) -> None:
    """Writes to standard error as it is. If that is closed, the text is lost and work continues."""
    _last_message[0] = time.monotonic()
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def drop(stream: IO[str]) -> None:
    """Discards all further output to a standard stream that has failed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_text(text: str) -> None:
    """Prints a translation or a tree; to a terminal, without hidden characters."""
    print(printable(text, kept=KEPT_IN_TEXT) if sys.stdout.isatty() else text)


@contextmanager
def printing_progress(title: str, *, unit: str) -> Iterator[Task | None]:
    """A task whose results are printed while it runs, of as many units as a file at standard input has lines.

    At a terminal the results show how far it is, and there is no task.
    """
    if sys.stdout.isatty():
        yield None
        return
    with progress(title, total=count_lines_of_standard_input(), unit=unit) as task:
        yield task


def print_json(value: Any, *, indent: int | None = 1) -> None:
    """Prints JSON; numbers that JSON does not have (NaN, ±∞) are null."""
    text = json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False, default=str)
    if not text.replace("\n", "").isprintable():
        text = "".join(_escape(c) if is_hidden(c) and c != "\n" else c for c in text)
    print(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def _escape(character: str) -> str:
    """The escape that JSON has for a character; json.dumps leaves only DEL as it is."""
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def standard_input() -> Iterator[str]:
    """Its lines. HeedError if it is closed."""
    if sys.stdin is None:
        raise HeedError("standard input is closed; give it text, such as < FILE.")
    return lines_of_standard_input()
