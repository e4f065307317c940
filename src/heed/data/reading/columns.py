"""Rows of input files in batches, whatever their format."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from heed.data.reading.json_lines import JsonReader, schema_of
from heed.data.reading.line_files import LineReader
from heed.data.reading.lines import refuse_other_formats
from heed.data.reading.parquet import ParquetReader, examine_parquet
from heed.data.reading.rows import Columns, Examined, Format, Range, Reader, Rows
from heed.data.reading.tables import TableReader
from heed.errors import HeedError
from heed.leases.packages import needed
from heed.leases.plan import Input
from heed.leases.storage import facts, unpacked_name


def format_of(name: str) -> Format | Literal["table"]:
    """As the file's name says; .gz and .zst may follow."""
    stem = unpacked_name(name).lower()
    if stem.endswith(".parquet"):
        return "parquet"
    if stem.endswith((".csv", ".tsv")):
        return "table"
    return "jsonl" if stem.endswith((".jsonl", ".ndjson", ".json")) else "text"


def has_lines(name: str) -> bool:
    """Whether the rows of a file of this name are lines."""
    return format_of(name) != "parquet"


def holds_both_sides(name: str | Path) -> bool:
    """Whether a file of this name holds sources and targets."""
    return format_of(str(name)) != "text"


def _line_reader(name: str) -> type[LineReader]:
    return {"jsonl": JsonReader, "table": TableReader}.get(format_of(name), LineReader)


def examine(name: str, columns: Sequence[str], *, every: int, before: int) -> Examined:
    """The number of rows of a file, and where every part of `every` rows begins, if `before` rows were counted before.

    HeedError if it is damaged, of another kind, or lacks one of the columns, of which those that are there are named.
    """
    if format_of(name) == "parquet":
        return examine_parquet(name, columns)
    return _line_reader(name)(name, columns=columns).examine(every=every, before=before)


def examine_input(name: str, columns: Sequence[str], *, every: int, before: int) -> tuple[Input, dict[int, int]]:
    """The file as it is now, and the offsets of `examine`. HeedError as there, or if it is written to meanwhile."""
    refuse_other_formats(name)
    found = facts(name)
    if found is None:
        raise HeedError(f"{name}: no such file.")
    try:
        examined = examine(name, columns, every=every, before=before)
    except OSError as error:
        raise HeedError(f"{name}: cannot be read ({error.strerror or error}).") from None
    if facts(name) != found:
        raise HeedError(f"{name}: was written to while it was read; run this again when it is complete.")
    digest = found.version if examined.digest is None else examined.digest
    return Input(name, found.n_bytes, digest, found.version, examined.rows), examined.offsets


class Sources:
    """The inputs of a plan, of which one is open at a time."""

    def __init__(self, names: Sequence[str], columns: Columns, *, output: Format):
        self._names, self._columns, self._output = names, columns, output
        self._open: tuple[str, Reader] | None = None

    def read(self, ranges: Iterable[Range]) -> Iterator[Rows]:
        for rows in ranges:
            yield from self._reader(self._names[rows.input]).read(rows)

    def _reader(self, name: str) -> Reader:
        if self._open is None or self._open[0] != name:
            self.close()
            self._open = name, self._new(name)
        return self._open[1]

    def _new(self, name: str) -> Reader:
        columns, as_table = self._columns.read, self._output == "parquet"
        if format_of(name) == "parquet":
            return ParquetReader(name, as_table=as_table, columns=columns, whole=self._output != "text")
        schema = None
        if as_table:
            arrow = needed("pyarrow", "Parquet is written with")
            texts = arrow.schema([(column, arrow.string()) for column in columns])
            schema = schema_of(self._columns.schema) if self._columns.schema else texts
        return _line_reader(name)(name, as_table=schema, columns=columns)

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None
