"""Rows of input files in batches, whatever their format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from heed.data.reading.json_lines import JsonReader, schema_of
from heed.data.reading.line_files import LineReader
from heed.data.reading.lines import refuse_other_formats
from heed.data.reading.memories import MemoryReader
from heed.data.reading.parquet import ParquetReader, examine_parquet
from heed.data.reading.rows import Columns, Format
from heed.data.reading.tables import TableReader
from heed.errors import HeedError
from heed.leases.packages import needed
from heed.leases.plan import Examined, Input
from heed.leases.storage import facts, unpacked_name


def format_of(name: str) -> Format | Literal["table"]:
    """The format that a file's name ends in; .gz and .zst may follow."""
    stem = unpacked_name(name).lower()
    if stem.endswith(".parquet"):
        return "parquet"
    if stem.endswith((".csv", ".tsv", ".tmx")):
        return "table"
    return "jsonl" if stem.endswith((".jsonl", ".ndjson", ".json")) else "text"


def has_lines(name: str) -> bool:
    """Whether the rows of a file of this name are lines."""
    return format_of(name) != "parquet"


def holds_both_sides(name: str | Path) -> bool:
    """Whether a file of this name holds sources and targets."""
    return format_of(str(name)) != "text"


def row_of(name: str, number: int) -> str:
    """The place of a row: its line, unless rows of such a file may have several lines or none."""
    return f"{'row' if holds_both_sides(name) else 'line'} {number:,}"


def line_reader(name: str) -> type[LineReader]:
    """The reader of a file whose rows are lines, or parts of it that are read as lines."""
    table = MemoryReader if unpacked_name(name).lower().endswith(".tmx") else TableReader
    return {"jsonl": JsonReader, "table": table}.get(format_of(name), LineReader)


def examine(name: str, columns: Sequence[str], *, every: int, before: int) -> Examined:
    """A file as it is now, and where every part of `every` rows begins in it, if `before` rows were counted before.

    HeedError if it is damaged, of another kind, written to meanwhile, or lacks one of the columns, of which those that
    are there are named.
    """
    refuse_other_formats(name)
    of_file = facts(name)
    if of_file is None:
        raise HeedError(f"{name}: no such file.")
    try:
        if format_of(name) == "parquet":
            rows, digest, offsets = examine_parquet(name, columns)
        else:
            rows, digest, offsets = line_reader(name)(name, columns=columns).examine(every=every, before=before)
    except OSError as error:
        raise HeedError(f"{name}: cannot be read ({error.strerror or error}).") from None
    if facts(name) != of_file:
        raise HeedError(f"{name}: was written to while it was read; run this again when it is complete.")
    file = Input(name, of_file.n_bytes, digest or of_file.version, of_file.version, rows)
    return Examined((file,), {row: (offset,) for row, offset in offsets.items()})


def reader_of(name: str, columns: Columns, *, output: Format) -> LineReader | ParquetReader:
    """A reader of a file's rows, with the columns that the output has."""
    read, as_table = columns.read, output == "parquet"
    if format_of(name) == "parquet":
        return ParquetReader(name, as_table=as_table, columns=read, whole=output != "text")
    schema = None
    if as_table:
        arrow = needed("pyarrow", "Parquet is written with")
        texts = arrow.schema([(column, arrow.string()) for column in read])
        schema = schema_of(columns.schema) if columns.schema else texts
    return line_reader(name)(name, as_table=schema, columns=read)
