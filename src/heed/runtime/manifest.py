"""Manifests, which say what a folder's files must be."""

import errno
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from heed.errors import HeedError
from heed.runtime.json_files import RESTORE, read_json, write_json
from heed.runtime.reading import NotNow, read_error, regular_file

MANIFEST = "manifest.json"
UNSEALED = "README.md"  # which is for people to change


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
            raise read_error(path, error) from None
        if not good:
            raise HeedError(f"{path}: damaged: not what {MANIFEST} says; {RESTORE}")


def manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Size ("bytes") and "sha256" of each file by name. HeedError if it is missing or damaged."""
    path = folder / MANIFEST
    files = read_json(path).get("files")
    if not isinstance(files, dict) or not all(
        isinstance(entry, dict) and entry.keys() == {"bytes", "sha256"} for entry in files.values()
    ):
        raise HeedError(f"{path}: damaged: no list of files with their sizes and hashes.")
    return files


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of the file's content."""
    digest: str = _size_and_hash(path)["sha256"]
    return digest


def _size_and_hash(path: Path) -> dict[str, Any]:
    """Returns a file's entry of a manifest; what is appended meanwhile is left unread, so this ends if the writer
    never does.
    """
    digest = hashlib.sha256()
    with regular_file(path) as file:
        size = left = os.fstat(file.fileno()).st_size
        while block := file.read(min(left, 1 << 20)):
            digest.update(block)
            left -= len(block)
    return {"bytes": size - left, "sha256": digest.hexdigest()}
