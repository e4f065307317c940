"""Prefixes of a stream: the text that each line's translation must begin with."""

from collections.abc import Callable, Iterable, Iterator, Sized
from functools import lru_cache

from heed.errors import HeedError
from heed.text.prefix import Prefix

CACHED = 256  # prefixes that are made once although several lines have them


class LinePrefixes:
    """One prefix for all lines, or one for each line in order.

    name: what errors call the prefixes, such as their file. HeedError if their number differs from that of the lines,
    as soon as it is known.
    """

    def __init__(
        self, prefix: str | Iterable[str], lines: Iterable[object], read: Callable[[str], Prefix], *, name: str
    ):
        self._name = name
        self._read = lru_cache(maxsize=CACHED)(read)
        self._all = self._read(prefix) if isinstance(prefix, str) else None
        self._rest: Iterator[str] = iter(()) if isinstance(prefix, str) else iter(prefix)
        self._n_read = 0
        if not isinstance(prefix, str) and isinstance(prefix, Sized) and isinstance(lines, Sized):
            self._check(len(prefix), len(lines))

    def next(self) -> Prefix:
        """The prefix of the next line."""
        if self._all is not None:
            return self._all
        text = next(self._rest, None)
        if text is None:
            self._check(self._n_read, self._n_read + 1, more=" or more")
        assert text is not None
        self._n_read += 1
        try:
            return self._read(text)
        except HeedError as error:
            raise HeedError(f"{self._name}, line {self._n_read:,}: {error}") from None

    def end(self) -> None:
        """No other line comes."""
        self._check(self._n_read + sum(1 for _ in self._rest), self._n_read)

    def _check(self, n_prefixes: int, n_lines: int, *, more: str = "") -> None:
        if n_prefixes != n_lines:
            raise HeedError(
                f"{self._name} has {n_prefixes:,} lines, but {n_lines:,}{more} are to be translated: both must have "
                "the same number."
            )
