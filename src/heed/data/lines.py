"""Lines of text from files and streams, with errors that say which file and line."""

import gzip
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Generic, TypeVar

from heed.config import HeedError

T = TypeVar("T")
FilePair = tuple[Path, Path]


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a plain or gzipped UTF-8 file, as `decoded_lines` gives them. HeedError names the file."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield from decoded_lines(file, name=str(path))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise HeedError(f"{path}: damaged gzip file ({error}).") from None
    except OSError as error:
        raise HeedError(f"{path}: cannot be read ({error.strerror}).") from None


def decoded_lines(file: Iterable[bytes], *, name: str) -> Iterator[str]:
    """Lines of UTF-8, without their ends (Unix or Windows) and without a byte order mark.

    HeedError names the line that is not UTF-8.
    """
    for number, line in enumerate(file, start=1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise HeedError(
                f"{name}, line {number}: byte {error.start + 1} (0x{error.object[error.start]:02x}) is not UTF-8; "
                "convert the text, with iconv for example."
            ) from None


def read_pairs(files: FilePair) -> Iterator[tuple[str, str]]:
    """Lines of both files side by side. HeedError if one is longer, or if there is no line at all."""
    src_lines, tgt_lines = read_lines(files[0]), read_lines(files[1])
    n_pairs = 0
    while True:
        src, tgt = next(src_lines, None), next(tgt_lines, None)
        if src is None or tgt is None:
            break
        n_pairs += 1
        yield src, tgt
    if src is not None or tgt is not None:
        rest = 1 + sum(1 for _ in (tgt_lines if src is None else src_lines))
        n_src, n_tgt = n_pairs + rest * (src is not None), n_pairs + rest * (tgt is not None)
        raise HeedError(
            f"{files[0]} has {n_src:,} lines, {files[1]} {n_tgt:,}: both sides of a corpus must have the same number."
        )
    if n_pairs == 0:
        raise HeedError(f"{files[0]} and {files[1]} are empty: a corpus needs at least one pair of lines.")


class UntilError(Generic[T]):
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


def as_they_come(lines: Iterable[str]) -> Iterator[str | None]:
    """The lines, read ahead by a thread; None while no other has come. What the reading raises is raised here."""
    queue: Queue[str | BaseException | None] = Queue(maxsize=4096)

    def read() -> None:
        try:
            for line in lines:
                queue.put(line)
            queue.put(None)
        except BaseException as error:
            queue.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            item = queue.get_nowait()
        except Empty:
            yield None
            continue
        if isinstance(item, BaseException):
            raise item
        if item is None:
            return
        yield item


def windows(items: Iterable[T | None], *, first: int, last: int) -> Iterator[list[T] | None]:
    """Some items at a time, to be sorted together: `first`, then twice as many each time up to `last`.

    A None among the items says that no other is at hand yet: what has come is given out at once, and None while nothing
    has.
    """
    window: list[T] = []
    size = first
    for item in items:
        if item is not None:
            window.append(item)
        if len(window) == size or (item is None and window):
            yield window
            window, size = [], min(2 * size, last)
        elif item is None:
            yield None
    if window:
        yield window
