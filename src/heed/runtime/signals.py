"""SIGINT and SIGTERM while a run must not be cut off in the middle of a step."""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class StopSignals:
    """The number of the signal that asked to stop, or 0, and when it came, by `time.monotonic`."""

    signal: int = 0
    time: float = math.inf


_asked = StopSignals()  # those of the innermost `stop_signals` block


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Within the block the first SIGINT or SIGTERM only asks; the next one acts as it would outside."""
    global _asked
    outer, _asked = _asked, StopSignals()
    asked = _asked
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, _: object) -> None:
        asked.signal, asked.time = number, time.monotonic()
        restore()

    try:
        for number in before:
            signal.signal(number, ask)
    except ValueError:  # not the main thread: signals are another's business
        before = {}
    try:
        yield asked
    finally:
        restore()
        _asked = outer


def overdue_signal(seconds: float) -> int:
    """The signal that asked to stop at least this long ago, or 0."""
    return _asked.signal if time.monotonic() - _asked.time >= seconds else 0
