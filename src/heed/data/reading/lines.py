"""Lines of text from files and streams, with errors that say which file and line."""

import codecs
import gzip
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

from heed.errors import HeedError
from heed.text.line_rules import is_blank

T = TypeVar("T")
FilePair = tuple[Path, Path]

UTF_16 = "UTF-16, not UTF-8; convert the text, with iconv for example"
# What a file begins with that is no text, at which place.
OTHER_KINDS = {
    (b"\x1f\x8b", 0): "compressed with gzip; unpack it, or end its name with .gz",
    (b"\xfd7zXZ\0", 0): "compressed with xz; unpack it, or compress it with gzip",
    (b"1AY&SY", 4): "compressed with bzip2; unpack it, or compress it with gzip",
    (b"\x28\xb5\x2f\xfd", 0): "compressed with zstd; unpack it, or compress it with gzip",
    (b"\x04\x22\x4d\x18", 0): "compressed with lz4; unpack it, or compress it with gzip",
    (b"7z\xbc\xaf\x27\x1c", 0): "a 7z archive, not text; unpack it",
    (b"PK\3\4", 0): "a zip archive, not text; unpack it",
    (b"%PDF-", 0): "a PDF document, not text",
    (codecs.BOM_UTF32_LE, 0): UTF_16.replace("16", "32"),
    (codecs.BOM_UTF32_BE, 0): UTF_16.replace("16", "32"),
    (codecs.BOM_UTF16_LE, 0): UTF_16,
    (codecs.BOM_UTF16_BE, 0): UTF_16,
}

MAX_LINE_BYTES = 2**20  # a file without line ends, or a bomb of gzip, would fill the memory
CHUNK_BYTES = 2**16
MAX_AHEAD = 4096  # lines that are read while others are translated
MAX_CHARACTERS = 2**20  # of lines that are read ahead, and of lines that are sorted or encoded together


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a plain or gzipped UTF-8 file, as `decode_lines` gives them. HeedError names the file."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield from decode_lines(bounded_lines(file.read), name=str(path))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise HeedError(f"{path}: damaged gzip file ({error}).") from None
    except OSError as error:
        raise HeedError(f"{path}: cannot be read ({error.strerror}).") from None


def lines_of_standard_input() -> Iterator[str]:
    """As `read_lines`. Read without Python's own buffer, whose lock would be held while a thread waits for input."""
    name = "standard input"
    try:
        yield from decode_lines(bounded_lines(partial(os.read, 0)), name=name)
    except OSError as error:
        raise HeedError(f"{name}: cannot be read ({error.strerror}).") from None


def decode_lines(lines: Iterable[bytes], *, name: str) -> Iterator[str]:
    """Lines of UTF-8, without their ends (Unix or Windows) and without a byte order mark.

    A mark may begin any line: files that were put together have several. HeedError names the line that is not UTF-8 or
    longer than MAX_LINE_BYTES, and says what a file is that is compressed, UTF-16, binary or without line ends.
    """
    for number, line in enumerate(not_of_another_kind(lines, name), start=1):
        line = line.removesuffix(b"\n")
        if len(line) > MAX_LINE_BYTES:
            raise HeedError(
                f"{name}, line {number}: longer than {MAX_LINE_BYTES:,} bytes; expected text, a sentence a line."
            )
        yield decode_line(line, where=f"{name}, line {number}")


def decode_line(line: bytes, *, where: str) -> str:
    """A line of UTF-8 without its end and without a byte order mark. HeedError says where it is not UTF-8."""
    try:
        return line.removeprefix(codecs.BOM_UTF8).removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        if b"\0" in line:
            raise HeedError(f"{where}: binary data, not text.") from None
        raise HeedError(
            f"{where}: byte {error.start + 1} (0x{error.object[error.start]:02x}) is not UTF-8; convert the text, with "
            "iconv for example."
        ) from None


def not_of_another_kind(lines: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The lines. HeedError if the first one shows that it is no text in UTF-8 with a line a sentence."""
    lines = iter(lines)
    first = next(lines, None)
    if first is None:
        return
    for (beginning, place), kind in OTHER_KINDS.items():
        if first.startswith(beginning, place):
            raise HeedError(f"{name}: {kind}.")
    if 3 * first.count(0) > len(first):
        is_utf_16 = 0 in (first[::2].count(0), first[1::2].count(0))
        raise HeedError(f"{name}: {UTF_16 if is_utf_16 else 'binary data, not text'}.")
    if first.count(b"\r") > 1:  # perhaps the only line
        if (second := next(lines, None)) is None:
            raise HeedError(
                f"{name}: {first.count(13):,} carriage returns and no line feed: its lines end as on old Macs; convert "
                "it, with tr '\\r' '\\n' for example."
            )
        lines = chain([second], lines)
    yield from chain([first], lines)


def bounded_lines(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """The lines, without newlines, of the bytes that `read(n)` returns, at most n at a time and none at the end.

    Reading stops after a line that is longer than MAX_LINE_BYTES.
    """
    rest = b""
    while chunk := read(CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if len(rest) > MAX_LINE_BYTES:
            break
    if rest:
        yield rest


def read_pairs(files: FilePair) -> Iterator[tuple[str, str]]:
    """Lines of both files side by side. HeedError if one is longer, or if there is no line at all."""
    src_lines, tgt_lines = read_lines(files[0]), read_lines(files[1])
    n_pairs, hint = 0, ""
    while True:
        src, tgt = next(src_lines, None), next(tgt_lines, None)
        if src is None or tgt is None:
            break
        n_pairs += 1
        if not hint and ("\r" in src or "\r" in tgt):
            file = files[0] if "\r" in src else files[1]
            hint = (
                f" ({file}, line {n_pairs:,} has a carriage return within, which some programs take for a line's end.)"
            )
        yield src, tgt
    if src is not None or tgt is not None:
        rest = [is_blank(line) for line in chain([src or tgt or ""], tgt_lines if src is None else src_lines)]
        n_src, n_tgt = n_pairs + len(rest) * (src is not None), n_pairs + len(rest) * (tgt is not None)
        if all(rest):
            hint = f" (What {files[0] if tgt is None else files[1]} has more is blank.)"
        raise HeedError(
            f"{files[0]} has {n_src:,} lines, {files[1]} {n_tgt:,}: both sides of a corpus must have the same number."
            + hint
        )
    if n_pairs == 0:
        raise HeedError(f"{files[0]} and {files[1]} are empty: a corpus needs at least one pair of lines.")


def read_sides(files: FilePair) -> tuple[list[str], list[str]]:
    """All lines of each file. Errors as in `read_pairs`."""
    src_lines, tgt_lines = map(list, zip(*read_pairs(files), strict=True))
    return src_lines, tgt_lines


def count_pairs(files: FilePair) -> int:
    """Number of pairs of lines, all of which are read. Errors as in `read_pairs`."""
    return sum(1 for _ in read_pairs(files))


class DeferredError(Generic[T]):
    """Items up to a faulty one, so that those before it are still used; then `raise_error`."""

    def __init__(self, items: Iterable[T]):
        self._items = items
        self._error: HeedError | None = None

    def __iter__(self) -> Iterator[T]:
        try:
            yield from self._items
        except HeedError as error:
            self._error = error

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error


class Arriving(Generic[T]):
    """Items that a thread reads ahead: the next one, or None while no other has come; `wait` blocks until one has.

    size: the characters of an item. What the reading raises is raised here.
    """

    def __init__(self, items: Iterable[T], *, size: Callable[[Any], int]):
        self._size = size
        self._ahead: deque[T] = deque()
        self._n_characters = 0
        self._end: BaseException | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._read, args=(items,), daemon=True).start()

    def _read(self, items: Iterable[T]) -> None:
        end: BaseException = StopIteration()
        try:
            for item in items:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._ahead) < MAX_AHEAD and self._n_characters < MAX_CHARACTERS)
                    self._ahead.append(item)
                    self._n_characters += self._size(item)
                    self._changed.notify()
        except BaseException as error:
            end = error
        with self._changed:
            self._end = end
            self._changed.notify()

    def __iter__(self) -> Iterator[T | None]:
        return self

    def __next__(self) -> T | None:
        with self._changed:
            if self._ahead:
                item = self._ahead.popleft()
                self._n_characters -= self._size(item)
                self._changed.notify()
                return item
            if self._end is not None:
                raise self._end
            return None

    def wait(self) -> None:
        """Until there is another item, or the end; a signal interrupts it."""
        with self._changed:
            self._changed.wait_for(lambda: self._ahead or self._end is not None)


def wait_for_more(items: object) -> Callable[[], object]:
    """The function that waits for the next item of a stream whose last one was None: its `wait`, else a short sleep."""
    return getattr(items, "wait", partial(time.sleep, 0.001))


def windows(items: Iterable[T | None], *, first: int, last: int, size: Callable[[T], int]) -> Iterator[list[T] | None]:
    """Lists of consecutive items: `first` items, then twice as many each time up to `last`.

    A list ends early with the item that brings it to MAX_CHARACTERS characters; `size` gives those of an item.

    None in place of an item means that the next one has not arrived yet: the items before it are yielded at once, or
    None if there are none.
    """
    window: list[T] = []
    n_items, n_characters = first, 0
    for item in items:
        if item is not None:
            window.append(item)
            n_characters += size(item)
        if len(window) == n_items or n_characters >= MAX_CHARACTERS or (item is None and window):
            yield window
            window, n_items, n_characters = [], min(2 * n_items, last), 0
        elif item is None:
            yield None
    if window:
        yield window
