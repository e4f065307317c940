"""Parquet: columns of typed values, read by row groups."""

from collections.abc import Iterator, Sequence
from typing import Any

from heed.config import shown
from heed.data.reading.lines import MAX_LINE_BYTES
from heed.data.reading.rows import BATCH_ROWS, Examined, Range, Reader, Rows, check_columns
from heed.errors import HeedError
from heed.leases.packages import needed
from heed.leases.storage import HashingFile, is_url, open_file

BATCH_UNPACKED_BYTES = 2**24
# A column of a row group may unpack to this, and a larger one to this many times its size: as archives may.
MAX_UNPACKED_BYTES, MAX_EXPANSION = 2**26, 100
DICTIONARY_PAGE = 2


def examine_parquet(name: str, columns: Sequence[str]) -> Examined:
    """The number of rows. HeedError if the file is damaged, or a column is missing or holds no text."""
    with open_file(name) as file:
        parquet = _parquet(file, name)
        _check_texts(name, columns, parquet.schema_arrow)
        rows = parquet.metadata.num_rows
        if is_url(name):
            return Examined(rows, None, {})
        file.seek(0)
        return Examined(rows, HashingFile(file).hexdigest(), {})


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
                place, n_rows = begin, self._rows_at_a_time(group)
                if not n_rows:
                    yield from self._unread(max(begin, rows.first), min(begin + n, end))
                for batch in self._batches(group, n_rows) if n_rows else ():
                    first, last = max(place, rows.first), min(place + len(batch), end)
                    if first < last:
                        table = arrow.Table.from_batches([batch.slice(first - place, last - first)])
                        yield self._rows(table, first)
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
            if self._whole or column.path_in_schema.partition(".")[0] in self._columns:
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
        wanted = None if self._whole else list(self._columns)
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

    def _unread(self, first: int, last: int) -> Iterator[Rows]:
        """These rows, all of them bad."""
        fault = f"in a row group that unpacks to more than {MAX_EXPANSION} times its size"
        for begin in range(first, last, BATCH_ROWS):
            n = min(BATCH_ROWS, last - begin)
            content = self._parquet.schema_arrow.empty_table() if self._as_table else [{}] * n
            yield Rows(self._name, begin, [("",) * len(self._columns)] * n, content, dict.fromkeys(range(n), fault))

    def _rows(self, table: Any, first: int) -> Rows:
        texts = list(zip(*(table.column(name).to_pylist() for name in self._columns), strict=True))
        faults = {}
        for place, of in enumerate(texts):
            if None in of:
                faults[place] = f"{shown(self._columns[of.index(None)])} is null"
            elif any(4 * len(text) > MAX_LINE_BYTES and len(text.encode()) > MAX_LINE_BYTES for text in of):
                faults[place] = f"longer than {MAX_LINE_BYTES:,} bytes"
                texts[place] = ("",) * len(of)
        content = table if self._as_table else table.to_pylist()
        return Rows(self._name, first, texts, content, faults)

    def close(self) -> None:
        self._parquet.close()
        self._file.close()
