"""What the verbs share: options of one meaning, and what they print."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Mirror = Annotated[
    str | None, typer.Option(help="Take the corpus from this local folder or address instead of its published one.")
]
Directory = Annotated[Path, typer.Option("--dir", help="Where downloaded corpora lie.")]


def say(line: str) -> None:
    """Progress goes to standard error, results to standard output."""
    print(line, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, ensure_ascii=False, default=str))
