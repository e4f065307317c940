"""Parquet: columns of typed values, read by row groups."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from heed.config import shown
from heed.data.reading.lines import MAX_LINE_BYTES
from heed.data.reading.rows import BATCH_ROWS, Contents, Rows, find_path, refuse_missing
from heed.errors import HeedError
from heed.leases.packages import needed
from heed.leases.plan import Range
from heed.leases.storage import HashingFile, is_url, open_file

BATCH_UNPACKED_BYTES = 2**26  # of rows that all have the largest entry of a dictionary, which is seldom so
# A column of a row group may unpack to this, and a larger one to this many times its size: as archives may.
MAX_UNPACKED_BYTES, MAX_EXPANSION = 2**26, 100
DICTIONARY_PAGE = 2


def examine_parquet(name: str, columns: Sequence[str]) -> Contents:
    """The number of rows. HeedError if the file is damaged, or a column is missing or holds no text."""
    with open_file(name) as file:
        parquet = _parquet(file, name)
        _check_texts(name, columns, parquet.schema_arrow)
        rows = parquet.metadata.num_rows
        if is_url(name):
            return rows, None, {}
        file.seek(0)
        return rows, HashingFile(file).hexdigest(), {}


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
            own = _parquet(file, name).schema_arrow.remove_metadata()
        if schema is None:
            schema = own
        elif not own.equals(schema):
            differing = next(
                (field.name for field in [*schema, *own] if field not in schema or field not in own), "their order"
            )
            raise HeedError(
                f"{name}: has other columns than {first} (see {shown(differing)}); translate them into a folder each."
            )
    _check_texts(first, columns, schema)
    return schema


def _found(schema: Any, column: str) -> tuple[list[str], Any] | None:
    """The names that lead to a column, as `find_path` finds it, and its type; None if it is not there."""

    def fields(path: list[str]) -> dict[str, Any]:
        inside = list(schema)
        for name in path:
            inside = next((_fields(one.type) for one in inside if one.name == name), [])
        return {one.name: one.type for one in inside}

    path = find_path(column, fields)
    return None if path is None else (path, fields(path[:-1])[path[-1]])


def _check_texts(name: str, columns: Sequence[str], schema: Any) -> None:
    """HeedError if a column is missing or holds no text."""
    types = needed("pyarrow", "Parquet is read with").types
    if twice := [one for one, n in Counter(schema.names).items() if n > 1]:
        raise HeedError(f"{name}: has several columns {shown(twice[0])}; rename all but one.")
    inside = [f"{field.name}.{one.name}" for field in schema for one in _fields(field.type)]
    places = {column: _found(schema, column) for column in columns}
    refuse_missing(name, [column for column, place in places.items() if place is None], [*schema.names, *inside])
    for column, (_, kind) in ((column, place) for column, place in places.items() if place):
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise HeedError(f"{name}: the column {shown(column)} holds {kind}, not text.")


def _fields(kind: Any) -> list[Any]:
    """The columns within one."""
    types = needed("pyarrow", "Parquet is read with").types
    return [kind.field(number) for number in range(kind.num_fields)] if types.is_struct(kind) else []


def _for_json(kind: Any) -> Any:
    """The type in which a column becomes JSON: times become text, which Python's have no nanoseconds for."""
    arrow = needed("pyarrow", "Parquet is read with")
    types = arrow.types
    if types.is_duration(kind):
        return arrow.duration("us")
    if types.is_timestamp(kind) or types.is_time(kind) or types.is_date(kind):
        return arrow.large_string()
    if types.is_dictionary(kind):
        inside = _for_json(kind.value_type)
        return kind if inside.equals(kind.value_type) else inside
    if types.is_struct(kind):
        return arrow.struct([(field.name, _for_json(field.type)) for field in _fields(kind)])
    if types.is_map(kind):
        return arrow.map_(_for_json(kind.key_type), _for_json(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return arrow.large_list(_for_json(kind.value_type))
    return kind


def _rows_for_json(table: Any) -> list[dict[str, Any]]:
    """The rows, their times as text: 2026-11-28T12:00:00.123456789."""
    arrow = needed("pyarrow", "Parquet is read with")
    compute = needed("pyarrow.compute", "Parquet is read with")
    for number, field in enumerate(table.schema):
        kind = _for_json(field.type)
        if not kind.equals(field.type):
            column = table.column(number).cast(kind, safe=False)
            if arrow.types.is_timestamp(field.type):
                column = compute.replace_substring(column, " ", "T", max_replacements=1)
            table = table.set_column(number, field.name, column)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _without_views(table: Any) -> Any:
    """The table with Arrow's string_view, of which it can hardly take rows, as strings; polars writes it."""
    arrow = needed("pyarrow", "Parquet is read with")
    for number, field in enumerate(table.schema):
        if arrow.types.is_string_view(field.type):
            table = table.set_column(number, field.name, table.column(number).cast(arrow.large_string()))
    return table


class ParquetReader:
    """Reads a Parquet file by its row groups."""

    def __init__(self, name: str, *, as_table: bool, columns: Sequence[str], whole: bool = True):
        """whole: whether the columns that are not read are part of the rows' content."""
        self._name, self._as_table, self._columns, self._whole = name, as_table, columns, whole
        self._file = open_file(name)
        self._parquet = _parquet(self._file, name)
        # Of a column that was not there when the file was planned, Arrow says that it is not.
        places = [_found(self._parquet.schema_arrow, column) for column in columns]
        self._paths = [one[0] if one else [column] for one, column in zip(places, columns, strict=True)]

    def read(self, rows: Range) -> Iterator[Rows]:
        """Implements `LineReader.read`."""
        arrow = needed("pyarrow", "Parquet is read with")
        begin, end = 0, rows.first + rows.rows
        for group in range(self._parquet.num_row_groups):
            n = self._parquet.metadata.row_group(group).num_rows
            if begin + n > rows.first and begin < end:
                place, n_rows = begin, self._rows_at_a_time(group)
                if not n_rows:
                    fault = f"in a row group that unpacks to more than {MAX_EXPANSION} times its size"
                    yield from self._unread(max(begin, rows.first), min(begin + n, end), fault)
                for batch in self._batches(group, n_rows) if n_rows else ():
                    first, last = max(place, rows.first), min(place + len(batch), end)
                    if first < last:
                        table = arrow.Table.from_batches([batch.slice(first - place, last - first)])
                        yield from self._good_rows(table, first)
                    place += len(batch)
            begin += n

    def _rows_at_a_time(self, group: int) -> int:
        """How many rows of a row group are read at once, by its footer; 0 if it unpacks to more than is allowed.

        Each value of a column that has a dictionary may be as large as that.
        """
        footer = self._parquet.metadata.row_group(group)
        row_bytes = 1.0
        for number in range(footer.num_columns):
            column = footer.column(number)
            if self._whole or column.path_in_schema.partition(".")[0] in [path[0] for path in self._paths]:
                size, values = column.total_uncompressed_size, 8 * column.num_values
                allowed = max(MAX_UNPACKED_BYTES, MAX_EXPANSION * column.total_compressed_size)
                is_nested = self._parquet.schema.column(number).max_repetition_level > 0
                if size > allowed or (is_nested and values > allowed):
                    return 0
                row_bytes += (size + values) / max(1, footer.num_rows)
                row_bytes += 0 if is_nested else self._dictionary_bytes(column)
        return int(max(1, min(BATCH_ROWS, BATCH_UNPACKED_BYTES // row_bytes)))

    def _dictionary_bytes(self, column: Any) -> int:
        """Unpacked bytes of a column's dictionary, 0 without one: by its first page's head, of Thrift's varints."""
        places = (column.dictionary_page_offset, column.data_page_offset)
        self._file.seek(min(place for place in places if place))
        head, numbers = iter(self._file.read(16)), []
        for _ in range(2):  # kind and size, each after a byte that names the field
            next(head, None)
            number, shift = 0, 0
            for byte in head:
                number, shift = number | (byte & 127) << shift, shift + 7
                if byte < 128:
                    break
            numbers.append(number >> 1)
        kind, size = numbers
        return size if kind == DICTIONARY_PAGE else 0

    def _batches(self, group: int, n_rows: int) -> Iterator[Any]:
        arrow = needed("pyarrow", "Parquet is read with")
        wanted = None if self._whole else [".".join(path) for path in self._paths]
        batches = self._parquet.iter_batches(n_rows, row_groups=[group], columns=wanted)
        while True:
            try:
                batch = next(batches, None)
            except (arrow.ArrowException, OSError) as error:
                _refuse_damage(self._name, error)
                raise
            if batch is None:
                return
            yield batch

    def _unread(self, first: int, last: int, fault: str) -> Iterator[Rows]:
        """The rows of this range, all of them bad."""
        for begin in range(first, last, BATCH_ROWS):
            n = min(BATCH_ROWS, last - begin)
            content = _without_views(self._parquet.schema_arrow.empty_table()) if self._as_table else [{}] * n
            yield Rows(self._name, begin, [("",) * len(self._columns)] * n, content, dict.fromkeys(range(n), fault))

    def _good_rows(self, table: Any, first: int) -> Iterator[Rows]:
        """The rows; where a text is not UTF-8, in halves down to the row that holds it."""
        try:
            yield self._rows(table, first)
        except UnicodeDecodeError:
            half = len(table) // 2
            if half:
                yield from self._good_rows(table.slice(0, half), first)
                yield from self._good_rows(table.slice(half), first + half)
            else:
                yield from self._unread(first, first + 1, "holds text that is not UTF-8")

    def _rows(self, table: Any, first: int) -> Rows:
        table = _without_views(table)
        texts = list(zip(*(self._texts(table, path) for path in self._paths), strict=True))
        faults = {}
        for place, of in enumerate(texts):
            if None in of:
                faults[place] = f"{shown(self._columns[of.index(None)])} is null"
            elif any(4 * len(text) > MAX_LINE_BYTES and len(text.encode()) > MAX_LINE_BYTES for text in of):
                faults[place] = f"longer than {MAX_LINE_BYTES:,} bytes"
                texts[place] = ("",) * len(of)
        content = table if self._as_table else _rows_for_json(table)
        return Rows(self._name, first, texts, content, faults)

    def _texts(self, table: Any, path: list[str]) -> list[str | None]:
        column = table.column(path[0])
        for name in path[1:]:
            column = needed("pyarrow.compute", "Parquet is read with").struct_field(column, name)
        texts: list[str | None] = column.to_pylist()
        return texts

    def close(self) -> None:
        self._parquet.close()
        self._file.close()
