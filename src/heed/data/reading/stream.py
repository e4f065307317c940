"""Items that are read ahead, and windows of them."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from heed.errors import HeedError

T = TypeVar("T")

MAX_AHEAD = 4096  # lines that are read while others are translated
MAX_CHARACTERS = 2**20  # of lines that are read ahead, and of lines that are sorted or encoded together


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


class PrefetchedLines(Generic[T]):
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
            # Python acts on a signal that came just before a wait only after it: no wait is longer than a second.
            while not self._changed.wait_for(lambda: self._ahead or self._end is not None, timeout=1.0):
                pass


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
