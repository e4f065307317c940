"""Commands for the user's shell to continue with: real paths, quoted."""

import os
import shlex
from itertools import islice
from pathlib import Path

from heed.data.reading.lines import read_lines

MAX_CHARACTERS = 80  # of a sentence in a command
MAX_LINES = 100  # in which one is sought


def command(*words: str | Path) -> str:
    """The words as a shell takes them; paths below the current folder are relative to it."""
    return shlex.join(_file_argument(word) if isinstance(word, Path) else word for word in words)


def with_input(sentences: Path, *words: str | Path) -> str:
    """A command that reads a sentence of this file from standard input, or the whole file if none of them is short."""
    for line in islice(read_lines(sentences), MAX_LINES):
        # What a shell's own echo might take for an option or an escape is left out.
        if line.strip() and len(line) <= MAX_CHARACTERS and line.isprintable() and line[0] != "-" and "\\" not in line:
            return f"{command('echo', line)} | {command(*words)}"
    whole = command("gzip", "-dc", sentences) if sentences.suffix == ".gz" else command("cat", sentences)
    return f"{whole} | {command(*words)}"


def _file_argument(path: Path) -> str:
    absolute, here = os.path.abspath(path), os.getcwd()
    name = os.path.relpath(absolute, here) if absolute.startswith(here.rstrip("/") + "/") else absolute
    return f"./{name}" if name.startswith("-") else name  # no option
