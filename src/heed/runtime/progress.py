"""How far long work is. Code that does such work counts it in a task; a program may install a display that shows tasks.

Without a display, as in a program that imports Heed, nothing is shown.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

T = TypeVar("T")


@dataclass
class Task:
    """Work that is counted. total: None if it is not known. unit: what is counted, in the plural; "" if nothing is."""

    title: str
    total: int | None = None
    unit: str = ""
    done: int = 0
    started: float = field(default_factory=time.monotonic)
    # What was done before the work was started, as of a resumed run: it tells nothing about the speed.
    done_before: int = 0

    def advance(self, n: int = 1) -> None:
        """Counts n more."""
        self.done += n

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    @property
    def per_second(self) -> float:
        """The mean speed since the start."""
        return (self.done - self.done_before) / max(1e-9, self.seconds)

    @property
    def seconds_left(self) -> float | None:
        """At the mean speed; None while nothing is done, and if the total is not known."""
        if self.total is None or self.done <= self.done_before:
            return None
        return max(0, self.total - self.done) / self.per_second

    def __str__(self) -> str:
        """The line of a log."""
        if not self.unit:
            return f"{self.title}: {duration(self.seconds)} so far."
        if self.total is None:
            return f"{self.title}: {self.done:,} {self.unit}, {self.per_second:,.0f} a second."
        left = "" if self.seconds_left is None else f", {duration(self.seconds_left)} left"
        return f"{self.title}: {self.done:,} of {self.total:,} {self.unit}{left}."


class Display(Protocol):
    """Shows the tasks that run; both methods are called by the task's thread."""

    def begin(self, task: Task) -> None: ...
    def end(self, task: Task) -> None: ...


_displays: list[Display] = []  # the last one is in use


@contextmanager
def displayed_on(display: Display) -> Iterator[None]:
    """Shows the main thread's tasks on this display meanwhile. Other threads, such as a server's, work unseen."""
    _displays.append(display)
    try:
        yield
    finally:
        _displays.remove(display)


@contextmanager
def progress(title: str, *, total: int | None = None, unit: str = "", done: int = 0) -> Iterator[Task]:
    """A task, which is displayed while the block runs. done: how much was done before."""
    task = Task(title, total, unit, done, done_before=done)
    display = _displays[-1] if _displays and threading.current_thread() is threading.main_thread() else None
    if display is None:
        yield task
        return
    display.begin(task)
    try:
        yield task
    finally:
        display.end(task)


def track(items: Iterable[T], title: str, *, total: int | None = None, unit: str, done: int = 0) -> Iterator[T]:
    """The items, as a task that counts those that were worked on."""
    with progress(title, total=total, unit=unit, done=done) as task:
        for item in items:
            yield item
            task.advance()


def counted(n: int, noun: str) -> str:
    """The number and the noun, such as "1 part" or "2 parts"."""
    return f"{n:,} {noun}{'' if n == 1 else 'es' if noun.endswith('s') else 's'}"


def duration(seconds: float) -> str:
    """4000 → "1h06m", 75 → "1m15s"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
