"""Files and folders that appear whole or not at all."""

import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from heed.errors import HeedError
from heed.runtime.manifest import MANIFEST, UNSEALED, manifest
from heed.runtime.reading import UNBLOCKED, kind_of_file

UNFINISHED = ".part"  # how the names of files and folders end until they are whole
UNFINISHED_NAME = re.compile(r"\.(.+)\.[0-9a-z_]{8}" + re.escape(UNFINISHED))
# Of a folder: its file system cannot flush it, or it may not be listed and so cannot be opened.
UNFLUSHABLE = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)
# Windows lacks the flag, and links as a danger.
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


def as_path(name: object) -> Path:
    """The path of a file or folder that a program names. HeedError for anything else, such as None."""
    if not isinstance(name, (str, os.PathLike)):
        raise HeedError(f"a file or folder is named by a text or a Path; found {type(name).__name__}.")
    return Path(name)


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
        raise disk_error(path, error) from error
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
        raise disk_error(path, error) from error
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
        raise disk_error(path, error) from error
    except ValueError:  # a null byte
        raise HeedError(f"{str(path)!r}: cannot be the name of a file; choose another name.") from None
    else:
        if not stat.S_ISREG(mode):
            raise HeedError(f"{path}: is {kind_of_file(mode)}, not a file; choose another name.")


def check_replaceable(folder: Path, names: Collection[str]) -> None:
    """HeedError unless a new folder can be put at `folder`.

    There may be one that is empty, or that Heed wrote: its manifest lists its files, and all have one of these names.
    """
    folder = Path(os.path.realpath(folder))
    try:
        if os.path.lexists(folder):
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
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
        raise disk_error(folder, error) from error
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
    """The error for a temporary file that cannot be written; the system's own does not name its folder."""
    try:
        folder = tempfile.gettempdir()
    except OSError as none:  # which names those that were tried
        return HeedError(f"{none.strerror or none}; set TMPDIR to a folder that can be written.")
    reason = error.strerror or str(error)
    return HeedError(f"{folder}: no temporary file can be written ({reason}); make room, or set TMPDIR to another one.")


def base_folder(variable: str, default: str) -> Path:
    """The folder that a variable of the XDG Base Directory Specification names, or this one of the user's home.

    As the specification says, a relative path is ignored. RuntimeError without a home: HOME is not set, and the system
    does not know the user.
    """
    named = os.environ.get(variable, "")
    return Path(named) if os.path.isabs(named) else Path.home() / default


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
        raise OSError(errno.EINVAL, f"it is {kind_of_file(mode)}, not a file", path)
    return descriptor


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


def disk_error(path: Path, error: OSError) -> HeedError:
    reason = " ".join((error.strerror or str(error)).split())
    return HeedError(f"{path}: cannot be written ({reason}); nothing was left half-written.")
