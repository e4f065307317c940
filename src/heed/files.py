"""Files that appear whole or not at all, and manifests that say what a folder's files must be."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heed.config import HeedError

UNFINISHED = ".part"  # how the names of files and folders end until they are whole
MANIFEST = "manifest.json"
MAX_JSON_BYTES = 2**24  # of what Heed writes itself; a larger one would only fill the memory


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, moved onto it when the block ends well: the file appears whole or not at all.

    It is on the disk, not only in the system's memory, before it has its name. A full or read-only disk becomes a
    HeedError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
        _flush(path.parent)
    except OSError as error:
        raise _disk_error(path, error) from error
    finally:
        temporary.unlink(missing_ok=True) if temporary.parent.is_dir() else None


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path`, which replaces it when the block ends well: all of it appears or nothing.

    As with `whole_file`, its files are on the disk first.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=UNFINISHED, dir=path.parent))
        temporary.chmod(0o755)
        yield temporary
        for file in temporary.iterdir():
            _flush(file)
        _flush(temporary)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=UNFINISHED, dir=path.parent))
            os.replace(path, old / path.name)
            try:
                os.replace(temporary, path)
            except OSError:
                os.replace(old / path.name, path)
                raise
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(temporary, path)
        _flush(path.parent)
    except OSError as error:
        raise _disk_error(path, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


class Busy(HeedError):
    """Another process is at work in a folder."""


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Keeps every other process out of a folder that does the same, however this one ends.

    If one is in: Busy, or with `wait` its end is awaited.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    path = folder / ".lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise _disk_error(path, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.seek(0)
            raise Busy(
                f"{folder}: process {file.read().strip() or 'another'} is at work there; wait for it, or take another "
                "--run."
            ) from None
        except OSError:  # a network's file system without locks
            yield
            return
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def remove_unfinished(folder: Path) -> None:
    """Removes what a process that was killed left half-written in a folder. Nobody else may be writing there.

    A folder that was being replaced, and whose successor has not got its name, gets it back.
    """
    for path in folder.glob(f".*{UNFINISHED}") if folder.is_dir() else ():
        for inner in path.iterdir() if path.is_dir() else ():
            if inner.is_dir() and path.name.startswith(f".{inner.name}.") and not (folder / inner.name).exists():
                os.replace(inner, folder / inner.name)
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    if os.name != "posix" and path.is_dir():
        return  # only files can be flushed there
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _disk_error(path: Path, error: OSError) -> HeedError:
    return HeedError(f"{path}: cannot be written ({error.strerror or error}); nothing was left half-written.")


def seal(folder: Path) -> None:
    """Writes the manifest: size and SHA-256 of every file but README.md, which is for people to change."""
    files = {path.name: _size_and_hash(path) for path in sorted(folder.iterdir()) if path.name != "README.md"}
    write_json(folder / MANIFEST, {"files": files})


def check(folder: Path, names: Iterable[str]) -> None:
    """HeedError if one of these files is not what the manifest says, byte for byte."""
    files = manifest(folder)
    for name in names:
        path = folder / name
        if name not in files:
            raise HeedError(f"{folder / MANIFEST}: damaged: does not name {name}; take a good copy of the folder.")
        if not path.is_file():
            raise HeedError(f"{path}: missing; take a good copy of the folder.")
        # A size that differs spares reading the file, which may be endless.
        if path.stat().st_size != files[name]["bytes"] or _size_and_hash(path) != files[name]:
            raise HeedError(f"{path}: damaged: not what {MANIFEST} says; take a good copy of the folder.")


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
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ValueError(f"{path.stat().st_size:,} bytes, expected {MAX_JSON_BYTES:,} at most")
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        return found
    except FileNotFoundError:
        raise HeedError(f"{path}: missing; take a good copy of the folder.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise HeedError(f"{path}: damaged ({error}).") from None


def sha256_of(path: Path) -> str:
    """Of the file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size_and_hash(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
