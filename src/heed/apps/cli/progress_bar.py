"""Progress on standard error: a bar with the time left at a terminal, plain lines at intervals in a log."""

import os
import sys
import threading
import time
from typing import Any

from heed.apps.cli.terminal import last_message_time, say
from heed.runtime.progress import Task
from heed.text.printable import printable

BAR_AFTER = 1.0  # seconds: shorter work shows no bar
FIRST_LINE_AFTER, MOST_SILENT = 4.0, 60.0  # seconds without a line in a log: at first, and later on
LOOK_EVERY = 0.25  # seconds


class StandardErrorProgress:
    """Shows tasks from a thread of its own, so that a single long step is not silent either."""

    def __init__(self) -> None:
        self._tasks: list[Task] = []  # the innermost last
        self._shown: dict[int, int] = {}  # by task: how much was done when its last line was written
        self._bars: Any = None  # rich.progress.Progress, with the tasks' numbers in it
        self._numbers: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._thread: threading.Thread | None = None
        self._at_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._silence = FIRST_LINE_AFTER

    def begin(self, task: Task) -> None:
        with self._lock:
            self._tasks.append(task)
        if self._thread is None:
            self._idle.clear()
            self._silence = FIRST_LINE_AFTER
            self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
            self._thread.start()

    def end(self, task: Task) -> None:
        with self._lock:
            self._tasks = [other for other in self._tasks if other is not task]
            self._shown.pop(id(task), None)
            number = self._numbers.pop(id(task), None)
            if number is not None:
                self._bars.remove_task(number)
            if self._tasks:
                return
            if self._bars is not None:
                self._bars.stop()
                self._bars = None
        self._idle.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        begun = time.monotonic()
        while not self._idle.wait(LOOK_EVERY):
            with self._lock:
                if not self._tasks:
                    return
                if self._at_terminal:
                    self._draw()
                else:
                    self._write(begun)

    def _draw(self) -> None:
        for task in self._tasks:
            if task.seconds < BAR_AFTER:
                continue
            if self._bars is None:
                self._bars = _new_bars()
                self._bars.start()
            if id(task) not in self._numbers:
                self._numbers[id(task)] = self._bars.add_task(printable(task.title), total=task.total, counts="")
            self._bars.update(self._numbers[id(task)], completed=task.done, total=task.total, counts=_counts(task))

    def _write(self, begun: float) -> None:
        """A line of the innermost task, if nothing has been written for long enough."""
        silent_since = max(begun, last_message_time())
        task = self._tasks[-1]
        if time.monotonic() - silent_since < self._silence:
            return
        before = self._shown.get(id(task), 0)
        if task.unit and task.total is None and task.done == before:  # it waits, perhaps for its input
            return
        self._shown[id(task)] = task.done
        self._silence = min(MOST_SILENT, 2 * self._silence)
        say(str(task))


def _new_bars() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[counts]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left:", markup=False),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,  # results are not messages: they go where standard output leads
    )


def _counts(task: Task) -> str:
    if not task.unit:
        return ""
    total = "" if task.total is None else f" of {task.total:,}"
    return f"{task.done:,}{total} {task.unit}"
