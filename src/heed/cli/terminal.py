"""What the verbs share: options of one meaning, what they read and what they print."""

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from heed.data.lines import lines_of_standard_input
from heed.errors import HeedError
from heed.text.printable import is_hidden, printable

JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Mirror = Annotated[
    str | None, typer.Option(help="Take the corpus from this local folder or address instead of its published one.")
]
Directory = Annotated[Path, typer.Option("--dir", help="Where downloaded corpora lie.")]

Beam = Annotated[
    int | None, typer.Option(min=1, help="Hypotheses kept a sentence; 1 is greedy. Default: the model's recipe.")
]
Alpha = Annotated[
    float | None,
    typer.Option(
        help="α of the length penalty, in the paper's form ((5 + length) / 6)^α. Default: the model's recipe."
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        "--precision",
        help="fp32: a line's translation is the same bits whatever is translated beside it; bf16 or int8: faster.",
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … Default: the fastest at hand.")]


# Zero-width joiners, which Persian, Hindi and others are written with, and tabs.
KEPT_IN_TEXT = "\u200c\u200d\t"


def say(line: str) -> None:
    """A message on standard error; results go to standard output. Always one line, whatever strangers put into it."""
    message(f"{printable(line)}\n")


def show(value: object) -> None:
    """A line of results for people, with names and values that strangers may have written."""
    print(printable(str(value)))


def message(text: str) -> None:
    """Writes on standard error as it is; where nobody can read it, it is lost and the work goes on."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def drop(stream: IO[str]) -> None:
    """From now on what is written to a standard stream, which has failed, goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_text(text: str) -> None:
    """Prints a translation or a tree: as it is for a program, without hidden characters for a person at a terminal."""
    print(printable(text, kept=KEPT_IN_TEXT) if sys.stdout.isatty() else text)


def print_json(value: Any, *, indent: int | None = 1) -> None:
    """Prints JSON; numbers that JSON does not have (NaN, ±∞) are null."""
    text = json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False, default=str)
    if not text.replace("\n", "").isprintable():
        text = "".join(_escaped(c) if is_hidden(c) and c != "\n" else c for c in text)
    print(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def _escaped(character: str) -> str:
    """As JSON writes it in ASCII; json.dumps leaves only DEL as it is."""
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def standard_input() -> Iterator[str]:
    """Its lines. HeedError if it is closed."""
    if sys.stdin is None:
        raise HeedError("standard input is closed; give it text, such as < FILE.")
    return lines_of_standard_input()


def decoding_precision(name: str) -> Any:
    """The name, if it is one that decoding knows; else HeedError lists them."""
    if name not in ("fp32", "bf16", "int8"):
        raise HeedError(f"--precision {name}: expected fp32, bf16 or int8.")
    return name
