"""Files in, translated files out, and where these lie until they are fetched."""

import asyncio
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import quote, unquote

from starlette.responses import Response, StreamingResponse

from heed.apps.documents.formats import ADVICE, SUFFIXES, Format
from heed.apps.serving.http_error import HTTPError
from heed.runtime.files import no_temporary_files

PREFIX = "heed-files-"  # of their folder
MAX_FILES = 1_000  # that wait to be fetched
MAX_BYTES = 2**28  # of them together
KEPT_SECONDS = 1_800.0
CHUNK_BYTES = 2**16  # of a file on its way to a client
MAX_NAME = 100  # characters

MAX_DISPOSITION_BYTES = 4096  # of a header that is searched for other forms of a name
_EXTENDED_NAME = re.compile(r""";\s*filename\*\s*=\s*"?([\w.:-]*)'[^']*'([^;"\s]+)""", re.IGNORECASE)
_ENCODED_WORDS = re.compile(r';\s*filename\s*=\s*"?((?:=\?[\w*.:-]+\?[BQ]\?[^?\s"]*\?=\s*)+)', re.IGNORECASE)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\"\\/:*?<>|\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class StoredFile:
    """A file to be fetched: its path, its name for the client, its size in bytes, and the characters translated."""

    path: Path
    name: str
    size: int
    n_characters: int


class FileStore:
    """Translated files in a private folder, under names that cannot be guessed.

    A file goes after `seconds`, or when there is no room for a newer one; the folder goes at the end. It is locked, so
    that `remove_abandoned` knows the folders of servers that were killed.
    """

    def __init__(self, *, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES, seconds: float = KEPT_SECONDS):
        self._max_files, self._max_bytes, self._seconds = max_files, max_bytes, seconds
        self._files: dict[str, StoredFile] = {}  # the oldest first
        self._expiries: dict[str, asyncio.TimerHandle] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lock: int | None = None

    async def add(self, content: bytes, name: str, *, n_characters: int = 0) -> str:
        """Keeps a file, and gives the name that it is fetched under. HTTPError if the disk has no room."""
        while self._files and (len(self._files) >= self._max_files or self._n_bytes + len(content) > self._max_bytes):
            self.remove(next(iter(self._files)))
        key = secrets.token_urlsafe(18) + PurePosixPath(name).suffix
        try:
            stored = StoredFile(self._open_folder() / key, name, len(content), n_characters)
            self._files[key] = stored
            self._expiries[key] = asyncio.get_running_loop().call_later(self._seconds, self.remove, key)
            await asyncio.to_thread(stored.path.write_bytes, content)
        except OSError as error:
            self.remove(key)
            reason = str(no_temporary_files(error)).partition(";")[0]
            raise HTTPError(503, f"no room for the translated file: {reason}", {"retry-after": "60"}) from None
        if key not in self._files:  # it had to go while it was written
            stored.path.unlink(missing_ok=True)
        return key

    def _open_folder(self) -> Path:
        """The folder, made anew if somebody has removed it."""
        if self._folder is None or not Path(self._folder.name).is_dir():
            self._release()
            self._folder = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
            self._lock = _lock(Path(self._folder.name))
            if not Path(self._folder.name).is_dir():  # a server that starts took it for an abandoned one
                return self._open_folder()
        return Path(self._folder.name)

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def _n_bytes(self) -> int:
        return sum(stored.size for stored in self._files.values())

    def open(self, key: str) -> tuple[StoredFile, BinaryIO] | None:
        """The file of this name, or None if there is none, or no more. What is open stays readable."""
        stored = self._files.get(key)
        try:
            return None if stored is None else (stored, stored.path.open("rb"))
        except OSError:  # somebody emptied the folder
            return None

    def remove(self, key: str) -> None:
        """Removes a file, if it is there; what is open stays readable."""
        stored = self._files.pop(key, None)
        if stored is not None:
            stored.path.unlink(missing_ok=True)
        if expiry := self._expiries.pop(key, None):
            expiry.cancel()

    def close(self) -> None:
        """Removes all of it."""
        for key in list(self._files):
            self.remove(key)
        if self._folder is not None:
            self._folder.cleanup()
        self._release()


def remove_abandoned() -> None:
    """Removes the folders that servers of this user left when they were killed: those whose lock no process holds."""
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            if (lock := _lock(folder)) is not None:
                if os.fstat(lock).st_uid == os.geteuid():
                    shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock(folder: Path) -> int | None:
    """A descriptor that has a folder's lock until it is closed; None if another process has it, or it cannot be had."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def send_file(stored: StoredFile, opened: BinaryIO) -> Response:
    """The answer that sends a file, and closes it."""

    async def content() -> AsyncGenerator[bytes]:
        with opened:
            while chunk := await asyncio.to_thread(opened.read, CHUNK_BYTES):
                yield chunk

    headers = {"content-length": str(stored.size), "content-disposition": disposition(stored.name)}
    return StreamingResponse(content(), media_type="application/octet-stream", headers=headers)


def kind_of_file(name: str) -> Format:
    """The format that an upload's suffix names. HTTPError if none does."""
    suffix = PurePosixPath(name).suffix.lower()
    kind = SUFFIXES.get(suffix)
    if kind is None:
        advice = ADVICE.get(suffix, f"expected {', '.join(SUFFIXES)}")
        raise HTTPError(400, f"Invalid file: file format not supported; {advice}")
    return kind


def name_of_translation(name: str, language: str) -> str:
    """The name of a file's translation: letter.docx becomes letter_de.docx."""
    path = PurePosixPath(_UNSAFE.sub("", re.split(r"[\\/]", name)[-1])[-MAX_NAME:])
    return f"{path.stem}_{_UNSAFE.sub('', language)}{path.suffix}"


def with_plain_filename(header: bytes) -> bytes:
    """A part's Content-Disposition with its file's name as `filename`, in UTF-8.

    RFC 7578 allows nothing else, but .NET's HttpClient sends encoded words (RFC 2047), and it and older clients of
    Python send `filename*` (RFC 5987).
    """
    if len(header) > MAX_DISPOSITION_BYTES:
        return header
    text = header.decode("utf-8", errors="replace")
    name = _extended_name(text) or _encoded_name(text)
    if not name:
        return header
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return header + f'; filename="{quoted}"'.encode(errors="replace")  # the last one counts


def _extended_name(text: str) -> str:
    """The name in `filename*`; "" if there is none, or if its bytes are not in its charset."""
    match = _EXTENDED_NAME.search(text)
    try:
        return unquote(match[2], encoding=match[1] or "utf-8", errors="strict") if match else ""
    except (LookupError, ValueError):
        return ""


def _encoded_name(text: str) -> str:
    """The name in a `filename` of encoded words; "" as for `_extended_name`."""
    match = _ENCODED_WORDS.search(text)
    try:
        return str(make_header(decode_header(match[1]))) if match else ""
    except (LookupError, ValueError, HeaderParseError):
        return ""


def disposition(name: str) -> str:
    """The header that makes a browser save a file under this name (RFC 6266), whatever characters it has."""
    plain = name.encode("ascii", errors="replace").decode().replace("?", "_")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
