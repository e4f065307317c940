"""What the verbs share: options of one meaning, and what they print."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from heed.config import HeedError

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


def say(line: str) -> None:
    """Progress goes to standard error, results to standard output."""
    print(line, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, ensure_ascii=False, default=str))


def decoding_precision(name: str) -> Any:
    """The name, if it is one that decoding knows; else HeedError lists them."""
    if name not in ("fp32", "bf16", "int8"):
        raise HeedError(f"--precision {name}: expected fp32, bf16 or int8.")
    return name
