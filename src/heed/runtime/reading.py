"""Files are read only where they are files, and up to a limit."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from heed.errors import HeedError

# Errors that say nothing about what is in a file.
NOT_NOW = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# Windows lacks the flag, and FIFOs as a danger.
UNBLOCKED = getattr(os, "O_NONBLOCK", 0)


class NotNow(HeedError):
    """The system does not let a file be read, which says nothing about what is in it."""


def read_error(path: Path, error: OSError | ValueError) -> HeedError:
    kind = NotNow if getattr(error, "errno", None) in NOT_NOW else HeedError
    return kind(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}).")


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. HeedError for a longer one and for all else.

    Links are followed. What could block or never end (a FIFO, a device) is not read.
    """
    try:
        with regular_file(path) as file:
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:  # a ValueError: a name that no file can have
        raise read_error(path, error) from None
    if len(content) > limit:
        raise HeedError(f"{path}: longer than {limit:,} bytes, which no good file of this kind is.")
    return content


def regular_file(path: Path) -> BinaryIO:
    """A regular file, opened to be read; never waits, as opening a FIFO would. OSError if it is of another kind."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | UNBLOCKED))  # noqa: SIM115  # caller's
    mode = os.fstat(file.fileno()).st_mode
    if not stat.S_ISREG(mode):
        file.close()
        raise OSError(errno.EINVAL, f"it is {kind_of_file(mode)}, not a file", str(path))
    return file


def kind_of_file(mode: int) -> str:
    """The kind of something other than a regular file, such as "a folder", by its st_mode."""
    for test, kind in ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket")):
        if test(mode):
            return kind
    return "a device"
