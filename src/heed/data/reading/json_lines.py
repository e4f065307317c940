"""JSON Lines: an object a line."""

import base64
import json
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

from heed.config import shown
from heed.data.reading.line_files import LineReader
from heed.data.reading.lines import LineFault, text_of
from heed.data.reading.rows import find_path, refuse_missing
from heed.errors import HeedError
from heed.leases.packages import needed
from heed.leases.plan import Range

MAX_KEYS = 4096  # of a row, with those of objects within it
INFERRED_ROWS = 1000  # from which the columns of Parquet are inferred where the input is JSON Lines


class JsonReader(LineReader):
    """Reads JSON Lines."""

    def row(self, line: bytes | None) -> tuple[dict[str, Any], Sequence[str]] | None:
        if line is not None and not line.strip():
            return None
        record, texts = _record(line), []
        for column in self._columns:
            text = value_of(record, column)
            if not isinstance(text, str):
                raise LineFault(f"{shown(column)} is {'missing' if text is MISSING else 'not text'}")
            if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
                raise LineFault(f"{shown(column)} holds half a surrogate pair, which is no text")
            texts.append(text)
        return record, texts

    def check(self) -> None:
        with closing(self):
            self.names()

    def names(self) -> list[str]:
        """The keys of the first rows. HeedError if none is a row, or all lack a column that is read."""
        names, first, missing = dict[str, None](), "", list(self._columns)  # with those of objects within objects
        for number, line in enumerate(self.lines(Range(0, 0, INFERRED_ROWS), ends=True), start=1):
            try:
                record = _record(line) if line is None or line.strip() else {}
            except LineFault as fault:
                hint = fault.hint or "expected an object a line, as jq -c '.[]' makes of an array"
                first = first or f"row {number}: {fault}; {hint}"
                continue
            for name, value in record.items():
                inside = value if isinstance(value, dict) else ()
                names |= dict.fromkeys([name, *(f"{name}.{key}" for key in inside)])
            missing = [column for column in missing if value_of(record, column) is MISSING]
        if first and not names:
            raise HeedError(f"{self._name}, {first}.")
        refuse_missing(self._name, missing, list(names))
        return list(dict.fromkeys(name.partition(".")[0] for name in names))


MISSING = object()


def value_of(record: dict[str, Any], column: str) -> Any:
    """The value of a column, which may lie within others, as `find_path` says."""
    if column in record:
        return record[column]

    def at(path: list[str]) -> Any:
        value: Any = record
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    path = find_path(column, lambda path: within if isinstance(within := at(path), dict) else ())
    return MISSING if path is None else at(path)


def _record(line: bytes | None) -> dict[str, Any]:
    """The object on a line. LineFault if there is none."""
    text = text_of(line)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise LineFault("not JSON") from None
    if not isinstance(record, dict):
        raise LineFault("not a JSON object")
    if text.count(":") > MAX_KEYS and len(_key_paths(record)) > MAX_KEYS:
        raise LineFault(f"has more than {MAX_KEYS:,} keys")
    return record


def _key_paths(record: dict[str, Any]) -> set[int]:
    """A number for each key of an object and of those within it, the same for the same key at the same place."""
    paths, inside = set[int](), list[tuple[int, Any]]([(0, record)])
    while inside:
        path, value = inside.pop()
        if isinstance(value, dict):
            keys = {hash((path, key)): one for key, one in value.items()}
            paths |= keys.keys()
            inside += keys.items()
        elif isinstance(value, list):
            inside += [(path, one) for one in value]
    return paths


def infer_schema(name: str) -> str:
    """Arrow's schema of the first rows of a file of JSON Lines, in base 64."""
    arrow = needed("pyarrow", "Parquet is written with")
    records, paths = [], set[int]()
    with closing(JsonReader(name)) as reader:
        for line in reader.lines(Range(0, 0, INFERRED_ROWS), ends=True):
            with suppress(LineFault):
                records += [row[0]] if (row := reader.row(line)) else []
    for record in records:
        paths |= _key_paths(record)
        if len(paths) > MAX_KEYS:
            raise HeedError(f"{name}: its first rows have more than {MAX_KEYS:,} different keys; write --format jsonl.")
    try:
        # By the columns of all of them: Arrow would take those of the first one.
        names = dict.fromkeys(name for record in records for name in record)
        schema = arrow.Table.from_pylist([{name: record.get(name) for name in names} for record in records]).schema
    except (arrow.ArrowException, TypeError, OverflowError, ValueError) as error:
        raise HeedError(f"{name}: its rows do not fit into columns ({error}); write --format jsonl.") from None
    return _written(arrow.schema([(f.name, arrow.string() if arrow.types.is_null(f.type) else f.type) for f in schema]))


def text_schema(names: Sequence[str]) -> str:
    """Arrow's schema of columns of text, as `infer_schema` writes one."""
    arrow = needed("pyarrow", "Parquet is written with")
    return _written(arrow.schema([(name, arrow.string()) for name in names]))


def _written(schema: Any) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_of(text: str) -> Any:
    """The schema that `infer_schema` wrote."""
    arrow = needed("pyarrow", "Parquet is written with")
    return arrow.ipc.read_schema(arrow.py_buffer(base64.b64decode(text)))
