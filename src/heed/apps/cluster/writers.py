"""Parts of output: Parquet, JSON Lines, and text with tabs between columns."""

import base64
import json
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

from heed.data.reading.rows import Format, Rows
from heed.leases.packages import needed

GROUP_ROWS = 2**14  # of a Parquet file that is written
GROUP_BYTES = 2**26
TYPES = {"translation": "string", "score": "float64", "log_prob": "float64", "ended": "bool_"}


class LineWriter:
    """Writes JSON Lines, or text: the columns with tabs between them, in which tabs and line ends become spaces."""

    def __init__(self, path: Path, *, output: Format):
        """Text has the columns that are read and the added ones, in this order."""
        self._file, self._output = path.open("w", encoding="utf-8", newline="\n"), output

    def add(self, rows: Rows, kept: list[int], added: dict[str, list[Any]]) -> None:
        """Writes the rows at the places `kept`, with these columns added."""
        for number, place in enumerate(kept):
            new = {name: values[number] for name, values in added.items()}
            if self._output == "jsonl":
                line = _json(rows.content[place] | new)
            else:
                line = "\t".join(map(_cell, [*rows.texts[place], *new.values()]))
            self._file.write(line + "\n")

    def close(self) -> None:
        """Completes the file."""
        self._file.close()


def _json(row: dict[str, Any]) -> str:
    try:
        text = json.dumps(row, ensure_ascii=False, default=_plain, allow_nan=False)
    except ValueError:
        row = _without_nan(row)
        text = json.dumps(row, ensure_ascii=False, default=_plain)
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):  # in a column that nobody reads
        return json.dumps(row, default=_plain)
    return text


def _plain(value: Any) -> str:
    """Text for what JSON has no type for: base 64 for bytes, ISO 8601 for times."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return f"PT{value.total_seconds():.6f}S" if isinstance(value, timedelta) else str(value)


def _without_nan(value: Any) -> Any:
    """The value with null for numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value.translate({9: " ", 10: " ", 13: " "})
    return str(value).lower() if isinstance(value, bool) else f"{value:.4f}"


class ParquetWriter:
    """Writes Parquet, its row groups full or at the end, so that the same rows give the same bytes."""

    def __init__(self, path: Path):
        self._path = path
        self._writer: Any = None
        self._tables: list[Any] = []
        self._rows = self._bytes = 0

    def add(self, rows: Rows, kept: list[int], added: dict[str, list[Any]]) -> None:
        """Implements `LineWriter.add`."""
        arrow = needed("pyarrow", "Parquet is written with")
        table = rows.content if len(kept) == len(rows) else rows.content.take(arrow.array(kept, type=arrow.int64()))
        for name, values in added.items():
            kind = TYPES[next(one for one in TYPES if name.endswith(one))]
            table = table.append_column(name, arrow.array(values, type=getattr(arrow, kind)()))
        self._tables.append(table)
        self._rows += len(kept)
        self._bytes += table.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        arrow = needed("pyarrow", "Parquet is written with")
        if self._tables:
            table = arrow.concat_tables(self._tables)
            if self._writer is None:
                parquet = needed("pyarrow.parquet", "Parquet is written with")
                self._writer = parquet.ParquetWriter(str(self._path), table.schema, compression="zstd")
            self._writer.write_table(table)
        self._tables, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        """Completes the file."""
        self._flush()
        if self._writer is not None:
            self._writer.close()


def writer_of(path: Path, output: Format) -> LineWriter | ParquetWriter:
    """A writer of the format."""
    return ParquetWriter(path) if output == "parquet" else LineWriter(path, output=output)
