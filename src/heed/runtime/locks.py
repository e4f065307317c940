"""Locks, which keep other processes out of a folder."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from heed.errors import HeedError
from heed.runtime.files import disk_error, own_file

log = logging.getLogger(__name__)
LOCK = ".lock"
QUIET_SECONDS = 1.0  # of waiting for another process, before it is said
POLLED_SECONDS = 0.05


class Busy(HeedError):
    """Another process is at work in a folder."""


class NoLocks(HeedError):
    """A file system has no locks."""


@contextmanager
def locked(folder: Path, *, wait: float = 0.0, shared: bool = False, stays: bool = True) -> Iterator[None]:
    """Keeps every other process out of a folder that does the same, however this one ends.

    shared: lets others in that share the folder, too. stays: whether the lock's file stays there afterwards.

    If one is in, its end is awaited for `wait` seconds (a second of which is not mentioned), then Busy is raised.
    NoLocks where the file system has none, unless HEED_LOCKS=0 says that nobody else is there.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+", encoding="ascii", errors="replace", opener=own_file)  # noqa: SIM115  # below
    except OSError as error:
        raise disk_error(path, error) from error
    with file:
        begun, is_reported = time.monotonic(), False
        while True:
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder, waited = _holder(file) or "another", time.monotonic() - begun
                if waited >= wait:
                    raise Busy(
                        f"{folder}: process {holder} is at work there; wait for it, or use another folder."
                    ) from None
                if waited > QUIET_SECONDS and not is_reported:
                    log.warning("Waiting for process %s, which is at work in %s.", holder, folder)
                    is_reported = True
                time.sleep(POLLED_SECONDS)
            except OSError as error:  # a network's file system, for example
                if os.environ.get("HEED_LOCKS") == "0":
                    yield
                    return
                raise NoLocks(
                    f"{folder}: its file system has no locks ({error.strerror}), so a second process could write there "
                    "at the same time; use another one, or see to it that no other does and set HEED_LOCKS=0."
                ) from None
        if not _is(file, path):  # whoever held it has removed it
            with locked(folder, wait=wait, shared=shared, stays=stays):
                yield
            return
        if _holder(file) is None:
            raise HeedError(f"{path}: not a lock of Heed's; choose another folder.")
        with suppress(OSError):  # of a full disk: the lock holds without a name
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), str(os.getpid()).encode())
        try:
            yield
        finally:
            if not stays:
                with suppress(OSError):
                    path.unlink()


def _is(file: TextIO, path: Path) -> bool:
    """Whether the open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _holder(lock: TextIO) -> str | None:
    """The process that a lock names, or "" if it names none; None if this is no lock."""
    lock.seek(0)
    text = lock.read(32)
    return text if not text or (text.isascii() and text.isdecimal()) else None
