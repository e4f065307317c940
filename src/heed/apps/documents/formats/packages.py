"""Zip archives that are documents: their files, read within bounds, and written with some of them changed."""

import io
import zipfile
import zlib
from collections.abc import Container, Mapping

from heed.config import reason
from heed.errors import HeedError

MAX_UNPACKED = 2**27  # bytes of all files of a document
MAX_FILES = 10_000
Files = list[tuple[zipfile.ZipInfo, bytes]]
# What is sometimes called so, by its first bytes.
_OTHERS = {
    b"\xd0\xcf\x11\xe0": "an old file of Office, or one with a password; save it as {kind} without a password",
    b"{\\rtf": "Rich Text (.rtf); save it as {kind}",
    b"%PDF": "a PDF; it has no paragraphs that could be translated",
    b"<": "a page or XML, not a zip archive; save it as {kind}, or translate it with the format html",
}


def read_files(content: bytes, *, name: str, kind: str) -> Files:
    """The files of a package in their order. HeedError, which calls it `name`, if it is damaged or hostile.

    kind: the suffix that the document has.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as package:
            return _files(package, name, kind)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError, ValueError, OSError) as error:
        start = content[:1000].removeprefix(b"\xef\xbb\xbf").lstrip()
        for first, other in _OTHERS.items():
            if start.startswith(first):
                raise HeedError(f"{name}: no {kind} document but {other.format(kind=kind)}.") from None
        raise HeedError(f"{name}: no {kind} document, or a damaged one ({reason(error)}).") from None


def _files(package: zipfile.ZipFile, name: str, kind: str) -> Files:
    entries = package.infolist()
    if len(entries) > MAX_FILES:
        raise HeedError(f"{name}: holds {len(entries):,} files; at most {MAX_FILES:,} are read.")
    for entry in entries:
        entry.filename = entry.filename.replace("\\", "/")  # some programs write Windows' separator
        if entry.filename.startswith("/") or ".." in entry.filename.split("/"):
            raise HeedError(f"{name}: holds a file whose name leads out of it; no good {kind} does.")
    names = [entry.filename.lower() for entry in entries if not entry.filename.endswith("/")]
    if len(set(names)) < len(names):
        raise HeedError(f"{name}: damaged: a file is in it twice.")
    files, left = [], MAX_UNPACKED
    for entry in entries:
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise HeedError(f"{name}: {entry.filename} is compressed in another way than a {kind} may be.")
        with package.open(entry) as file:
            data = file.read(left + 1)  # the size that the package states may be a lie
        left -= len(data)
        if left < 0:
            raise HeedError(f"{name}: unpacks to more than {MAX_UNPACKED:,} bytes; split the document.")
        files.append((entry, data))
    return files


def check_length(files: Files, parts: Container[str], most: int | None, name: str) -> None:
    """HeedError if the files with text are longer than `most` together."""
    most = MAX_UNPACKED if most is None else most
    if sum(len(data) for entry, data in files if entry.filename in parts) > most:
        raise HeedError(f"{name}: its text is longer than {most:,} bytes of XML; split the document.")


def write_files(files: Files, changed: Mapping[str, bytes]) -> bytes:
    """The package with these files as they are now, and all others byte for byte."""
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as package:
        for entry, data in files:
            package.writestr(entry, changed.get(entry.filename, data), compress_type=entry.compress_type)
    return output.getvalue()
