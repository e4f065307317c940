"""Tables from pieces, or words, to ids: vocab.json, vocab.yml, or a list of words, each in a line."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heed.config import reason, shown
from heed.errors import HeedError
from heed.runtime.reading import read_bounded
from heed.text.sentencepiece_model import MAX_FILE_BYTES, MAX_PIECES

_ID = re.compile("[0-9]{1,9}")


def read_table(path: Path) -> list[str | None]:
    """The pieces of a table to ids (.yml, .yaml, .json) or a list (else), by id. HeedError if damaged."""
    ids = _read_yaml(path) if path.suffix in (".yml", ".yaml") else _read_json_or_list(path)
    pieces: dict[int, str] = {}
    for piece, i in ids:
        if type(i) not in (int, str) or not _ID.fullmatch(str(i)) or int(i) >= MAX_PIECES:
            raise HeedError(f"{path}: the id of {shown(piece)} is {shown(i)}, expected 0 to {MAX_PIECES - 1:,}.")
        if int(i) in pieces:
            raise HeedError(f"{path}: {shown(piece)} and {shown(pieces[int(i)])} have the same id {i}.")
        pieces[int(i)] = piece
    if not pieces:
        raise HeedError(f"{path}: not a table of pieces and ids.")
    return [pieces.get(i) for i in range(max(pieces) + 1)]


def _read_json_or_list(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        text = read_bounded(path, MAX_FILE_BYTES).decode("utf-8")
        if path.suffix != ".json":
            yield from ((line.removesuffix("\r"), i) for i, line in enumerate(text.removesuffix("\n").split("\n")))
            return
        content = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise HeedError(f"{path}: damaged ({error}).") from None
    for entry in content if isinstance(content, list) else [content]:
        if not isinstance(entry, tuple):
            raise HeedError(f"{path}: not a table of pieces and ids.")
        yield entry


def _read_yaml(path: Path) -> Iterator[tuple[str, str]]:
    """The pairs of a YAML mapping, keys and values as they are written: `no` is a word.

    Read event by event: where collections are nested deeply, PyYAML's faster loaders end the process by a signal.
    """
    import yaml

    text = read_bounded(path, MAX_FILE_BYTES)
    try:
        # The parser in C is ten times as fast.
        events = yaml.parse(text.decode("utf-8"), Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        start = [next(events, None) for _ in range(3)]
        if not isinstance(start[2], yaml.MappingStartEvent):
            raise ValueError("not a table of pieces and ids")
        while isinstance(key := next(events), yaml.ScalarEvent):
            if not isinstance(value := next(events), yaml.ScalarEvent):
                raise ValueError(f"the id of {shown(key.value)} is not a number")
            yield key.value, value.value
        if not isinstance(key, yaml.MappingEndEvent):
            raise ValueError("a piece is not a word")
    except (ValueError, StopIteration, yaml.YAMLError) as error:
        raise HeedError(f"{path}: damaged ({reason(error)}).") from None
