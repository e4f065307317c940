"""Files that need not be hashed again, since the system says that they are the ones that were hashed before.

A file is the same if its device, inode, size and both times are: programs can set the time of modification, but not
st_ctime, which every write, rename, link and change of attributes sets to now. So one that was edited in place or
replaced is another, whatever its size and time of modification, and so is a copy; one whose folder was moved is the
same. Two changes within a tick of the file system's clock have one time: what was changed less than SETTLED seconds
before it was hashed is not noted.

This notices changes; it proves no content. Some are not seen: on file systems that invent st_ctime (sshfs), and through
a memory mapping whose page was changed before and is not on the disk yet. So what is read is hashed, each time, and
only what was made from verified bytes, and is named by their hash, may be used without reading them.
"""

import hashlib
import os
import time
from pathlib import Path

from heed.runtime.device import cache_folder
from heed.runtime.manifest import check, manifest

SETTLED = 3.0  # seconds; FAT's clock ticks every two
MOST_NOTES = 1000  # the ones that were made first go first


def is_verified(folder: Path, name: str) -> bool:
    """Whether this file was found before to be what the folder's manifest says, and has not changed since."""
    try:
        return os.name == "posix" and _note(folder, name, _identity(folder / name)).exists()
    except (OSError, KeyError):  # such as a manifest that does not name it
        return False


def verify(folder: Path, name: str) -> None:
    """Hashes the file as `manifest.check` does, and notes that it is right. HeedError if it is not."""
    path, begun = folder / name, time.time()
    try:
        before = _identity(path)
        check(folder, [name])
        if before == _identity(path) and before[-1] < (begun - SETTLED) * 1e9:
            note = _note(folder, name, before)
            note.parent.mkdir(exist_ok=True)
            note.touch()
            notes = sorted(note.parent.iterdir(), key=lambda one: one.stat().st_mtime)
            for old in notes[:-MOST_NOTES]:
                old.unlink()
    except OSError:  # without the note, it is hashed again the next time
        check(folder, [name])


def _identity(path: Path) -> tuple[int, ...]:
    state = path.stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _note(folder: Path, name: str, identity: tuple[int, ...]) -> Path:
    """An empty file, whose name says what has been verified; in a folder of this user's own."""
    fact = f"{identity} {manifest(folder)[name]}"
    return cache_folder() / "verified" / hashlib.sha256(fact.encode()).hexdigest()
