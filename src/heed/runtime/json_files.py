"""JSON files as Heed writes and reads them."""

import json
import os
from pathlib import Path
from typing import Any

from heed.errors import HeedError
from heed.runtime.reading import read_bounded

MAX_JSON_BYTES = 2**24  # of what Heed writes itself; a larger one would only fill the memory
MAX_LIST_BYTES = 2**30  # of a list that has an entry for each file of text, or for each shard
RESTORE = "restore the folder from a backup, or train it again."


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes an object for `read_json`."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The object in a JSON file that Heed wrote. HeedError if it is missing or damaged."""
    if not os.path.lexists(path):
        raise HeedError(f"{path}: missing; {RESTORE}")
    return json_object(path, limit)


def json_object(path: Path, limit: int) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes, whoever wrote it. HeedError if it is damaged."""
    try:
        content = json.loads(read_bounded(path, limit).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise HeedError(f"{path}: damaged ({error}).") from None
    if not isinstance(content, dict):
        raise HeedError(f"{path}: damaged (no JSON object).")
    return content
