"""Signals within a block ask, once; outside they act as before."""

import math
import os
import signal
import threading
import time

import pytest

from heed.runtime.signals import StopSignals, overdue_signal, stop_signals

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers():
    """SIGINT and SIGTERM raise, so that a test survives the signals that it sends itself.

    In the background of a shell Python would ignore SIGINT.
    """

    def terminate(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGTERM, terminate)
    yield
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0)  # Python runs its handler between two of its operations


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_the_first_signal_asks_and_the_second_acts(number, raised):
    with pytest.raises(raised), stop_signals() as asked:
        assert (asked.signal, asked.time) == (0, math.inf)
        send(number)
        assert asked.signal == number and asked.time <= time.monotonic()
        send(number)
    assert asked.signal == number


def test_sighup_asks_too_unless_nohup_has_it_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as asked:
            send(signal.SIGHUP)
        assert asked.signal == 0
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with stop_signals() as asked:
            send(signal.SIGHUP)
        assert asked.signal == signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_come_back_also_after_an_exception():
    before = [signal.getsignal(number) for number in NUMBERS]
    with stop_signals():
        assert [signal.getsignal(number) for number in NUMBERS] != before
    with pytest.raises(ZeroDivisionError), stop_signals():
        _ = 1 / 0
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_an_inner_block_hears_its_own_signals_and_the_outer_one_goes_on_listening():
    with stop_signals() as outer:
        with stop_signals() as inner:
            send(signal.SIGTERM)
        assert (inner.signal, outer.signal) == (signal.SIGTERM, 0)
        send(signal.SIGINT)
        assert outer.signal == signal.SIGINT


def test_a_signal_is_overdue_once_so_many_seconds_have_passed():
    assert overdue_signal(0.0) == 0
    with stop_signals() as asked:
        assert overdue_signal(0.0) == 0
        send(signal.SIGTERM)
        assert overdue_signal(0.0) == signal.SIGTERM
        assert overdue_signal(3600.0) == 0
        asked.time -= 3600.0
        assert overdue_signal(3600.0) == signal.SIGTERM
    assert overdue_signal(0.0) == 0


def test_another_thread_may_open_a_block_and_leaves_signals_alone():
    seen: list[StopSignals] = []

    def work() -> None:
        with stop_signals() as asked:
            seen.append(asked)

    before = [signal.getsignal(number) for number in NUMBERS]
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [StopSignals()] and [signal.getsignal(number) for number in NUMBERS] == before
