"""Rows of input files in batches: Parquet, JSON Lines, and text with tabs between columns."""

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from heed.config import shown
from heed.data.reading.lines import MAX_LINE_BYTES, decode_line, not_of_another_kind
from heed.errors import HeedError
from heed.leases.packages import needed
from heed.leases.storage import HashingFile, is_url, open_file, unpacked

Format = Literal["parquet", "jsonl", "text"]
FORMATS: tuple[Format, ...] = get_args(Format)
BATCH_ROWS = 1024
BATCH_BYTES = 2**22  # of lines
INFERRED_ROWS = 1000  # from which the columns of Parquet are inferred where the input is JSON Lines


def format_of(name: str) -> Format:
    """As the file's name says; .gz and .zst may follow."""
    stem = name.removesuffix(".gz").removesuffix(".zst").lower()
    if stem.endswith(".parquet"):
        return "parquet"
    return "jsonl" if stem.endswith((".jsonl", ".ndjson", ".json")) else "text"


def is_packed(name: str) -> bool:
    """Whether it must be read from its beginning."""
    return name.endswith((".gz", ".zst"))


@dataclass(frozen=True)
class Columns:
    """The columns that are read: the texts', and to score, that of their translations.

    schema: Arrow's, in base 64, if the output is Parquet and the input JSON Lines.
    """

    read: tuple[str, ...]
    schema: str | None = None


class Range(NamedTuple):
    """Rows of one input. offset: the byte of the unpacked content that the first of them begins at."""

    input: int
    first: int
    rows: int
    offset: int


@dataclass
class Rows:
    """Consecutive rows of one file. `texts`: of each row its columns that are read. `faults`: what is wrong, by place.

    content: a pyarrow.Table where Parquet is written, else a dictionary of each row.
    """

    file: str
    first: int
    texts: list[tuple[str, ...]]
    content: Any
    faults: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)


class Examined(NamedTuple):
    """An input, read to its end. offsets: the byte that each row in `at` begins at."""

    rows: int
    digest: str | None
    offsets: dict[int, int]


def examine(name: str, columns: Sequence[str], *, every: int, before: int) -> Examined:
    """The number of rows of a file, and where every part of `every` rows begins, if `before` rows were counted before.

    HeedError if it is damaged, of another kind, or lacks one of the columns, of which those that are there are named.
    """
    with open_file(name) as file:
        if format_of(name) == "parquet":
            parquet = _parquet(file, name)
            _check_texts(name, columns, parquet.schema_arrow)
            rows = parquet.metadata.num_rows
            if is_url(name):
                return Examined(rows, None, {})
            file.seek(0)
            return Examined(rows, HashingFile(file).hexdigest(), {})
        hashing = HashingFile(file)
        pieces = unpacked(hashing, name)
        rows, offsets = _count_lines(_check_beginning(pieces, name, columns), every=every, before=before)
        return Examined(rows, None if is_url(name) else hashing.hexdigest(), offsets)


def _check_beginning(pieces: Iterator[bytes], name: str, columns: Sequence[str]) -> Iterator[bytes]:
    """The pieces of a text. HeedError if its first line shows that it is of another kind, or lacks a column."""
    beginning = b""
    for piece in pieces:
        beginning += piece
        if b"\n" in beginning or len(beginning) > MAX_LINE_BYTES:
            break
    if not beginning:
        return
    first, end, _ = beginning.partition(b"\n")
    if not end and len(first) > MAX_LINE_BYTES:
        raise HeedError(f"{name}: its first line is longer than {MAX_LINE_BYTES:,} bytes; expected text, a row a line.")
    list(not_of_another_kind([first, end] if end else [first], name))
    if format_of(name) == "jsonl":
        record = _record(first, name)
        if isinstance(record, str):
            raise HeedError(f"{name}, row 1: {record}.")
        check_columns(name, columns, list(record))
    yield beginning
    yield from pieces


def check_columns(name: str, columns: Sequence[str], there: list[str]) -> None:
    """HeedError names a column that is missing, and those that are there."""
    for column in columns:
        if column not in there:
            raise HeedError(
                f"{name}: has no column {shown(column)}; it has {', '.join(map(shown, there[:20])) or 'none'}: choose "
                "one with --column, or in a recipe with data.columns."
            )


def _count_lines(pieces: Iterable[bytes], *, every: int, before: int) -> tuple[int, dict[int, int]]:
    """Their number, and the byte that each row begins at which is the first of the file or of a part."""
    rows, offset, offsets, ends_open = 0, 0, {0: 0}, False
    for piece in pieces:
        n, place = piece.count(b"\n"), 0
        first = rows  # the number of the row that goes on or begins with this piece
        while (next_part := (before + first) // every * every + every - before) <= rows + n:
            for _ in range(next_part - first):
                place = piece.index(b"\n", place) + 1
            offsets[next_part] = offset + place
            first = next_part
        rows += n
        offset += len(piece)
        ends_open = not piece.endswith(b"\n")
    return rows + ends_open, offsets


def _parquet(file: Any, name: str) -> Any:
    arrow = needed("pyarrow", "Parquet is read with")
    parquet = needed("pyarrow.parquet", "Parquet is read with")
    try:
        return parquet.ParquetFile(file)
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError, OSError) as error:
        _refuse_damage(name, error)
        raise


def _refuse_damage(name: str, error: Exception) -> None:
    """HeedError for an error of Arrow's reader, unless it is the system's own, which may pass."""
    if not (isinstance(error, OSError) and error.errno is not None):
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise HeedError(f"{name}: damaged or not a Parquet file ({reason}).") from None


def common_schema(names: Sequence[str], columns: Sequence[str]) -> Any:
    """Arrow's schema of these Parquet files. HeedError if they differ, or a column is missing or holds no text."""
    schema: Any = None
    first = names[0]
    for name in names:
        with open_file(name) as file:
            found = _parquet(file, name).schema_arrow.remove_metadata()
        if schema is None:
            schema = found
        elif not found.equals(schema):
            differing = next(
                (field.name for field in [*schema, *found] if field not in schema or field not in found), "their order"
            )
            raise HeedError(
                f"{name}: has other columns than {first} (see {shown(differing)}); translate them into a folder each."
            )
    _check_texts(first, columns, schema)
    return schema


def _check_texts(name: str, columns: Sequence[str], schema: Any) -> None:
    """HeedError if a column is missing or holds no text."""
    types = needed("pyarrow", "Parquet is read with").types
    check_columns(name, columns, schema.names)
    for column in columns:
        kind = schema.field(column).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(kind) or types.is_large_string(kind)):
            raise HeedError(f"{name}: the column {shown(column)} holds {kind}, not text.")


def check_json_types(schema: Any, name: str) -> None:
    """HeedError if JSON has no type for one of the columns."""
    types = needed("pyarrow", "Parquet is read with").types
    for column in schema:
        if types.is_binary(column.type) or types.is_large_binary(column.type):
            raise HeedError(
                f"{name}: the column {shown(column.name)} is binary, which JSON cannot hold; write Parquet."
            )


def infer_schema(name: str) -> str:
    """Arrow's schema of the first rows of a file of JSON Lines, in base 64."""
    arrow = needed("pyarrow", "Parquet is written with")
    reader, records = LineReader(name, as_table=None, columns=()), []
    for rows in reader.read(Range(0, 0, INFERRED_ROWS, 0), ends=True):
        records += [record for place, record in enumerate(rows.content) if place not in rows.faults]
    reader.close()
    try:
        # By the columns of all of them: Arrow would take those of the first one.
        names = dict.fromkeys(name for record in records for name in record)
        schema = arrow.Table.from_pylist([{name: record.get(name) for name in names} for record in records]).schema
    except (arrow.ArrowException, TypeError, OverflowError, ValueError) as error:
        raise HeedError(f"{name}: its rows do not fit into columns ({error}); write --format jsonl.") from None
    schema = arrow.schema(
        [arrow.field(f.name, arrow.string() if arrow.types.is_null(f.type) else f.type) for f in schema]
    )
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_of(text: str) -> Any:
    """The schema that `infer_schema` wrote."""
    arrow = needed("pyarrow", "Parquet is written with")
    return arrow.ipc.read_schema(arrow.py_buffer(base64.b64decode(text)))


def _record(line: bytes, name: str) -> dict[str, Any] | str:
    """The object on a line of JSON Lines, or what is wrong with it."""
    try:
        found = json.loads(decode_line(line, where=name))
    except (ValueError, RecursionError):
        return "not JSON"
    except HeedError as error:
        return _without_place(error)
    return found if isinstance(found, dict) else "not a JSON object"


def _without_place(error: HeedError) -> str:
    return str(error).partition(": ")[2].rstrip(".")


class Reader(ABC):
    """Reads ranges of rows of one file."""

    @abstractmethod
    def read(self, rows: Range, *, ends: bool = False) -> Iterator[Rows]:
        """Rows in batches. HeedError if there are fewer, unless `ends`."""

    @abstractmethod
    def close(self) -> None: ...


class ParquetReader(Reader):
    """Reads a Parquet file by its row groups."""

    def __init__(self, name: str, *, as_table: bool, columns: Sequence[str], whole: bool = True):
        """whole: whether the columns that are not read are part of the rows' content."""
        self._name, self._as_table, self._columns, self._whole = name, as_table, columns, whole
        self._file = open_file(name)
        self._parquet = _parquet(self._file, name)

    def read(self, rows: Range, *, ends: bool = False) -> Iterator[Rows]:
        arrow = needed("pyarrow", "Parquet is read with")
        begin, end = 0, rows.first + rows.rows
        for group in range(self._parquet.num_row_groups):
            n = self._parquet.metadata.row_group(group).num_rows
            if begin + n > rows.first and begin < end:
                place = begin
                for batch in self._batches(group):
                    first, last = max(place, rows.first), min(place + len(batch), end)
                    if first < last:
                        table = arrow.Table.from_batches([batch.slice(first - place, last - first)])
                        yield self._rows(table, first)
                    place += len(batch)
            begin += n

    def _batches(self, group: int) -> Iterator[Any]:
        arrow = needed("pyarrow", "Parquet is read with")
        wanted = None if self._whole else list(self._columns)
        batches = self._parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=wanted)
        while True:
            try:
                batch = next(batches, None)
            except (arrow.ArrowException, OSError) as error:
                _refuse_damage(self._name, error)
                raise
            if batch is None:
                return
            yield batch

    def _rows(self, table: Any, first: int) -> Rows:
        texts = list(zip(*(table.column(name).to_pylist() for name in self._columns), strict=True))
        faults = {
            place: f"{shown(self._columns[of.index(None)])} is null" for place, of in enumerate(texts) if None in of
        }
        content = table if self._as_table else table.to_pylist()
        return Rows(self._name, first, texts, content, faults)

    def close(self) -> None:
        self._parquet.close()
        self._file.close()


class LineReader(Reader):
    """Reads text or JSON Lines. A packed file stays open, so that later rows are read from where the last were."""

    def __init__(self, name: str, *, as_table: Any, columns: Sequence[str]):
        """as_table: Arrow's schema if Parquet is written."""
        self._name, self._schema, self._columns = name, as_table, columns
        self._file: Any = None
        self._lines: Iterator[bytes | None] = iter(())
        self._row = 0

    def read(self, rows: Range, *, ends: bool = False) -> Iterator[Rows]:
        self._move_to(rows)
        batch: list[bytes | None] = []
        n_bytes, left = 0, rows.rows
        while left:
            line = next(self._lines, b"\n")
            if line == b"\n":  # which no line holds: the end
                if not ends:
                    raise HeedError(f"{self._name}: ends at row {self._row:,}; it was longer when it was planned.")
                break
            self._row += 1
            left -= 1
            batch.append(line)
            n_bytes += len(line or b"")
            if len(batch) == BATCH_ROWS or n_bytes >= BATCH_BYTES:
                yield self._rows(batch)
                batch, n_bytes = [], 0
        if batch:
            yield self._rows(batch)

    def _move_to(self, rows: Range) -> None:
        if self._file is None or rows.first < self._row or not is_packed(self._name):
            self.close()
            self._file = open_file(self._name)
            self._row = 0
            if not is_packed(self._name):
                self._file.seek(rows.offset)
                self._row = rows.first
            self._lines = lines_of_pieces(unpacked(self._file, self._name))
        while self._row < rows.first and next(self._lines, b"\n") != b"\n":
            self._row += 1

    def _rows(self, lines: list[bytes | None]) -> Rows:
        rows = Rows(self._name, self._row - len(lines), [], [])
        for place, line in enumerate(lines):
            found = self._parsed(line)
            if isinstance(found, str):
                rows.faults[place] = found
                found = {}
            rows.content.append(found)
            rows.texts.append(tuple(found.get(column) or "" for column in self._columns))
        if self._schema is not None:
            rows.content = self._table(rows)
        return rows

    def _parsed(self, line: bytes | None) -> dict[str, Any] | str:
        """A line's row, or what is wrong with it."""
        if line is None:
            return f"longer than {MAX_LINE_BYTES:,} bytes"
        if format_of(self._name) == "jsonl":
            found = _record(line, self._name)
            if not isinstance(found, str):
                for column in self._columns:
                    if not isinstance(found.get(column), str):
                        return f"{shown(column)} is {'missing' if column not in found else 'not text'}"
                    if not found[column].isascii() and any("\ud800" <= c <= "\udfff" for c in found[column]):
                        return f"{shown(column)} holds half a surrogate pair, which is no text"
            return found
        try:
            text = decode_line(line, where=self._name)
        except HeedError as error:
            return _without_place(error)
        if len(self._columns) == 1:
            return {self._columns[0]: text}
        cells = text.split("\t")
        if len(cells) < len(self._columns):
            return f"has {len(cells) - 1} tabs; expected a text, a tab and its translation"
        return dict(zip(self._columns, cells, strict=False))

    def _table(self, rows: Rows) -> Any:
        """The rows as Arrow's table; those that do not fit become faults."""
        arrow = needed("pyarrow", "Parquet is written with")
        names = set(self._schema.names)
        for place, record in enumerate(rows.content):
            if (others := set(record) - names) and place not in rows.faults:
                rows.faults[place] = f"has the column {shown(min(others))}, which the first rows lack"
        try:
            return arrow.Table.from_pylist(rows.content, schema=self._schema)
        except (arrow.ArrowException, TypeError, OverflowError, ValueError):
            pass
        for place, record in enumerate(rows.content):
            try:
                arrow.Table.from_pylist([record], schema=self._schema)
            except (arrow.ArrowException, TypeError, OverflowError, ValueError):
                rows.faults.setdefault(place, "does not fit the types of the first rows")
                rows.content[place] = {}
        return arrow.Table.from_pylist(rows.content, schema=self._schema)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def lines_of_pieces(pieces: Iterable[bytes]) -> Iterator[bytes | None]:
    """The lines, without their ends, of a content in pieces; None in place of one that is too long."""
    rest, too_long = b"", False
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield None if too_long or len(line) > MAX_LINE_BYTES else line
            too_long = False
        if len(rest) > MAX_LINE_BYTES:
            rest, too_long = b"x", True
    if rest or too_long:
        yield None if too_long else rest


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
        return LineReader(name, as_table=schema, columns=columns)

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None
