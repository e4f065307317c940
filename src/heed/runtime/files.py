"""Files that appear whole or not at all, and manifests that say what a folder's files must be."""

import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from heed.errors import HeedError

log = logging.getLogger(__name__)
UNFINISHED = ".part"  # how the names of files and folders end until they are whole
UNFINISHED_NAME = re.compile(r"\.(.+)\.[0-9a-z_]{8}" + re.escape(UNFINISHED))
MANIFEST = "manifest.json"
UNSEALED = "README.md"  # which is for people to change
QUIET_SECONDS = 1.0  # of waiting for another process, before it is said
POLLED_SECONDS = 0.05
MAX_JSON_BYTES = 2**24  # of what Heed writes itself; a larger one would only fill the memory
RESTORE = "restore the folder from a backup, or train it again."
# Errors that say nothing about what is in a file.
NOT_NOW = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# Of a folder: its file system cannot flush it, or it may not be listed and so cannot be opened.
UNFLUSHABLE = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)
# Windows lacks both flags, and links and FIFOs as a danger.
NO_LINKS, UNBLOCKED = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, moved onto it when the block ends well: the file appears whole or not at all.

    It is on the disk, not only in the system's memory, before it has its name. A full or read-only disk becomes a
    HeedError, as does a `path` where something other than a file is. A new file has the usual mode; one that is
    replaced never becomes open to more people than it was.
    """
    check_target(path)
    temporary = _unfinished(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Exclusive: a link that somebody put there is not followed.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        if path.is_file() and not path.is_symlink():
            temporary.chmod(temporary.stat().st_mode & path.stat().st_mode & 0o777)
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
        _flush(path.parent)
    except OSError as error:
        raise _disk_error(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path`, which replaces it when the block ends well: all of it appears or nothing.

    As with `whole_file`, its files are on the disk first, and the folder never becomes open to more people than the one
    that it replaces. A folder of another kind is never replaced: see `check_replaceable`.
    """
    path = Path(os.path.realpath(path))  # what a link stands for is replaced, not the link
    temporary, old = _unfinished(path), _unfinished(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        if path.exists():
            own, replaced = (stat.S_IMODE(folder.stat().st_mode) for folder in (temporary, path))
            temporary.chmod(own & (replaced | 0o7000) | stat.S_IRWXU)
        yield temporary
        for file in temporary.iterdir():
            _flush(file)
        _flush(temporary)
        check_replaceable(path, [file.name for file in temporary.iterdir()])
        try:
            if path.exists():
                old.mkdir()
                os.replace(path, old / path.name)
            os.replace(temporary, path)
        except BaseException:  # such as a signal between the two renames
            if (old / path.name).exists() and not os.path.lexists(path):
                os.replace(old / path.name, path)
            raise
        _flush(path.parent)
    except OSError as error:
        raise _disk_error(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if os.path.lexists(path):  # if not, `old` holds the only copy
            shutil.rmtree(old, ignore_errors=True)


def check_target(path: Path) -> None:
    """HeedError unless a file can be put at `path`. What is there and is no regular file is not replaced."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        _check_parent(Path(os.path.abspath(path)))
    except OSError as error:
        raise _disk_error(path, error) from error
    except ValueError:  # a null byte
        raise HeedError(f"{str(path)!r}: cannot be the name of a file; choose another name.") from None
    else:
        if not stat.S_ISREG(mode):
            raise HeedError(f"{path}: is {_kind(mode)}, not a file; choose another name.")


def check_replaceable(folder: Path, names: Collection[str]) -> None:
    """HeedError unless a new folder can be put at `folder`.

    There may be one that is empty, or that Heed wrote: its manifest lists its files, and all have one of these names.
    """
    folder = Path(os.path.realpath(folder))
    try:
        if os.path.lexists(folder):
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            for entry in entries:
                if not names:
                    raise HeedError(f"{folder}: is not empty; choose a new or an empty folder.")
                if entry.name not in names or not entry.is_file(follow_symlinks=False):
                    raise HeedError(
                        f"{folder}: would be replaced, but holds {entry.name}, which does not belong there; choose "
                        "another folder."
                    )
            if entries and not _lists(folder, [entry.name for entry in entries]):
                raise HeedError(
                    f"{folder}: would be replaced, but has no {MANIFEST} of Heed's that lists its files; choose "
                    "another folder, or delete this one."
                )
    except OSError as error:
        raise _disk_error(folder, error) from error
    _check_parent(folder)


def _check_parent(path: Path) -> None:
    """HeedError unless something can be made at this path, with the folders before it."""
    parent = next(parent for parent in path.parents if os.path.lexists(parent))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise HeedError(f"{path}: cannot be made in {parent}; choose another place.")


def _lists(folder: Path, names: Iterable[str]) -> bool:
    """Whether the manifest in a folder lists these files."""
    try:
        return set(names) <= {*manifest(folder), MANIFEST, UNSEALED}
    except HeedError:
        return False


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}")


def no_temporary_files(error: OSError) -> HeedError:
    """What to say where a temporary file cannot be written; the system's error does not name its folder."""
    try:
        folder = tempfile.gettempdir()
    except OSError as none:  # which names those that were tried
        return HeedError(f"{none.strerror or none}; set TMPDIR to a folder that can be written.")
    reason = error.strerror or str(error)
    return HeedError(f"{folder}: no temporary file can be written ({reason}); make room, or set TMPDIR to another one.")


class Busy(HeedError):
    """Another process is at work in a folder."""


class NotNow(HeedError):
    """The system does not let a file be read, which says nothing about what is in it."""


class NoLocks(HeedError):
    """A file system has no locks."""


@contextmanager
def locked(folder: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Keeps every other process out of a folder that does the same, however this one ends.

    If one is in, its end is awaited for `wait` seconds (a second of which is not mentioned), then Busy is raised.
    NoLocks where the file system has none, unless HEED_LOCKS=0 says that nobody else is there.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    path = folder / ".lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+", encoding="ascii", errors="replace", opener=own_file)  # noqa: SIM115  # below
    except OSError as error:
        raise _disk_error(path, error) from error
    with file:
        begun, said = time.monotonic(), False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder, waited = _holder(file) or "another", time.monotonic() - begun
                if waited >= wait:
                    raise Busy(
                        f"{folder}: process {holder} is at work there; wait for it, or use another folder."
                    ) from None
                if waited > QUIET_SECONDS and not said:
                    log.warning("Waiting for process %s, which is at work in %s.", holder, folder)
                    said = True
                time.sleep(POLLED_SECONDS)
            except OSError as error:  # a network's file system, for example
                if os.environ.get("HEED_LOCKS") == "0":
                    yield
                    return
                raise NoLocks(
                    f"{folder}: its file system has no locks ({error.strerror}), so a second process could write there "
                    "at the same time; use another one, or see to it that no other does and set HEED_LOCKS=0."
                ) from None
        if _holder(file) is None:
            raise HeedError(f"{path}: not a lock of Heed's; choose another folder.")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def own_file(path: str, flags: int) -> int:
    """An opener for `open` of files that Heed locks or appends to: regular ones, created as needed, no links followed.

    Through a link somebody else could choose which file is written to.
    """
    if os.path.islink(path):  # clearer than the system's "Too many levels of symbolic links"
        raise OSError(errno.ELOOP, "it is a symbolic link; delete the link", path)
    descriptor = os.open(path, flags | NO_LINKS | UNBLOCKED, 0o666)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"it is {_kind(mode)}, not a file", path)
    return descriptor


def _holder(lock: TextIO) -> str | None:
    """The process that a lock names, or "" if it names none; None if this is no lock."""
    lock.seek(0)
    text = lock.read(32)
    return text if not text or (text.isascii() and text.isdecimal()) else None


def remove_unfinished(folder: Path) -> None:
    """Removes what a process that was killed left half-written in a folder. Nobody else may be writing there.

    A folder that was being replaced, and whose successor has not got its name, gets it back. Only names of the form
    that Heed gives to unfinished files and folders are touched, never links.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        match = UNFINISHED_NAME.fullmatch(path.name)
        if match is None or path.is_symlink():
            continue
        old, name = path / match[1], folder / match[1]
        if old.is_dir() and not os.path.lexists(name):
            os.replace(old, name)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_file():
            path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Waits until a file's content is on the disk, or a folder's list of names where its file system can do that."""
    if os.name != "posix" and path.is_dir():
        return  # only files can be flushed there
    try:
        descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in UNFLUSHABLE or not path.is_dir():
            raise


def _disk_error(path: Path, error: OSError) -> HeedError:
    reason = " ".join((error.strerror or str(error)).split())
    return HeedError(f"{path}: cannot be written ({reason}); nothing was left half-written.")


def _read_error(path: Path, error: OSError | ValueError) -> HeedError:
    kind = NotNow if getattr(error, "errno", None) in NOT_NOW else HeedError
    return kind(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}).")


def seal(folder: Path) -> None:
    """Writes the manifest: size and SHA-256 of every file but UNSEALED."""
    files = {path.name: _size_and_hash(path) for path in sorted(folder.iterdir()) if path.name != UNSEALED}
    write_json(folder / MANIFEST, {"files": files})


def check(folder: Path, names: Iterable[str]) -> None:
    """HeedError if one of these files is not what the manifest says, byte for byte; NotNow if it may not be read."""
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        raise NotNow(f"{folder}: cannot be read ({os.strerror(errno.EACCES)}).")
    files = manifest(folder)
    for name in names:
        path = folder / name
        if name not in files:
            raise HeedError(f"{folder / MANIFEST}: damaged: does not name {name}; {RESTORE}")
        if not path.is_file():
            raise HeedError(f"{path}: missing; {RESTORE}")
        try:
            # A size that differs spares reading the file.
            good = path.stat().st_size == files[name]["bytes"] and _size_and_hash(path) == files[name]
        except OSError as error:
            raise _read_error(path, error) from None
        if not good:
            raise HeedError(f"{path}: damaged: not what {MANIFEST} says; {RESTORE}")


def manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Size ("bytes") and "sha256" of each file by name. HeedError if it is missing or damaged."""
    path = folder / MANIFEST
    files = read_json(path).get("files")
    if not isinstance(files, dict) or not all(
        isinstance(facts, dict) and facts.keys() == {"bytes", "sha256"} for facts in files.values()
    ):
        raise HeedError(f"{path}: damaged: no list of files with their sizes and hashes.")
    return files


def write_json(path: Path, content: dict[str, Any]) -> None:
    """As `read_json` reads it."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file that Heed wrote. HeedError if it is missing or damaged."""
    if not os.path.lexists(path):
        raise HeedError(f"{path}: missing; {RESTORE}")
    return json_object(path, MAX_JSON_BYTES)


def json_object(path: Path, limit: int) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes, whoever wrote it. HeedError if it is damaged."""
    try:
        found = json.loads(read_bounded(path, limit).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise HeedError(f"{path}: damaged ({error}).") from None
    if not isinstance(found, dict):
        raise HeedError(f"{path}: damaged (no JSON object).")
    return found


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes. HeedError for a longer one and for all else.

    Links are followed. What could block or never end (a FIFO, a device) is not read.
    """
    try:
        with regular_file(path) as file:
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:  # a ValueError: a name that no file can have
        raise _read_error(path, error) from None
    if len(content) > limit:
        raise HeedError(f"{path}: longer than {limit:,} bytes, which no good file of this kind is.")
    return content


def regular_file(path: Path) -> BinaryIO:
    """A regular file, opened to be read; never waits, as opening a FIFO would. OSError if it is of another kind."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | UNBLOCKED))  # noqa: SIM115  # caller's
    mode = os.fstat(file.fileno()).st_mode
    if not stat.S_ISREG(mode):
        file.close()
        raise OSError(errno.EINVAL, f"it is {_kind(mode)}, not a file", str(path))
    return file


def _kind(mode: int) -> str:
    """What something that is no regular file is, by its st_mode."""
    for test, kind in ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket")):
        if test(mode):
            return kind
    return "a device"


def sha256_of(path: Path) -> str:
    """Of the file's content."""
    digest: str = _size_and_hash(path)["sha256"]
    return digest


def _size_and_hash(path: Path) -> dict[str, Any]:
    """As in a manifest. What is appended while it reads is left unread: it ends even if the writer never does."""
    digest = hashlib.sha256()
    with regular_file(path) as file:
        size = left = os.fstat(file.fileno()).st_size
        while block := file.read(min(left, 1 << 20)):
            digest.update(block)
            left -= len(block)
    return {"bytes": size - left, "sha256": digest.hexdigest()}
