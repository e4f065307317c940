"""The signals that ask a process to end, also while a run must not be cut off in the middle of a step."""

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


def end_signals() -> list[signal.Signals]:
    """SIGINT, SIGTERM and SIGHUP, which comes when a terminal closes; without the last where `nohup` has it ignored."""
    hangup = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []  # Windows has none
    return [signal.SIGINT, signal.SIGTERM, *(one for one in hangup if signal.getsignal(one) != signal.SIG_IGN)]


_asked = StopSignals()  # those of the innermost `stop_signals` block


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Within the block the first of `end_signals` only asks; the next one acts as it would outside."""
    global _asked
    outer, _asked = _asked, StopSignals()
    asked = _asked
    before = {number: signal.getsignal(number) for number in end_signals()}

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
