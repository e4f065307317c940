"""What is known of words and markup, as tables: a file each."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def table(name: str) -> dict[str, Any]:
    """The table of this name."""
    return tomllib.loads((resources.files(__name__) / f"{name}.toml").read_text("utf-8"))
