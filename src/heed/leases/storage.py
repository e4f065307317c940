"""Files on this machine or in an object store, by name: a path, or a URL such as s3://bucket/web-00.parquet."""

import glob
import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from heed.errors import HeedError
from heed.leases.packages import needed
from heed.runtime.files import whole_file
from heed.runtime.reading import regular_file

CHUNK_BYTES = 2**18
ZSTD_BYTES = 2**10  # compressed bytes that are unpacked at a time: a block of 128 KiB may take four
# Packages whose errors are no OSErrors: what they report (a connection, throttling) may pass.
STORES = ("aiobotocore", "aiohttp", "botocore", "gcsfs", "google", "requests", "s3fs", "urllib3")


def is_url(name: str) -> bool:
    """Whether it names something in an object store."""
    return "://" in name


def is_passing(error: BaseException | None) -> bool:
    """Whether an error may be transient: of a disk, a network or a store, or a HeedError that one caused."""
    while error is not None:
        if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in STORES:
            return True
        error = error.__cause__
    return False


def joined(folder: str, name: str) -> str:
    """The name of a file in a folder."""
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else str(Path(folder, name))


def _store(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the name there. HeedError if there is no package for it."""
    fsspec = needed("fsspec", f"{url.partition('://')[0]}:// is read and written with")
    try:
        file_system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise HeedError(f"{url}: {' '.join(str(error).split())}") from None
    file_system.invalidate_cache()  # others write there too
    return file_system, path


@dataclass(frozen=True)
class Facts:
    """Facts of a file, without reading it. version: changes with the content: an etag, or a time in ns.

    replaced: changes also if another file of the same size and time takes its place.
    """

    n_bytes: int
    version: str
    replaced: str = ""


def facts(name: str) -> Facts | None:
    """The facts of a file; None if it is not there."""
    if not is_url(name):
        try:
            state = Path(name).stat()
        except FileNotFoundError:
            return None
        return Facts(state.st_size, str(state.st_mtime_ns), f"{state.st_dev} {state.st_ino} {state.st_ctime_ns}")
    file_system, path = _store(name)
    try:
        info = file_system.info(path)
    except FileNotFoundError:
        return None
    version = next((info[key] for key in ("ETag", "etag", "md5Hash", "mtime", "created") if info.get(key)), "")
    return Facts(int(info["size"] or 0), str(version).strip('"'))


def matching(pattern: str) -> list[str]:
    """The files that a name or a pattern (*, ?, **) stands for, sorted. HeedError if there is none."""
    if is_url(pattern):
        file_system, path = _store(pattern)
        scheme = pattern.partition("://")[0]
        files = [f"{scheme}://{one}" for one in sorted(file_system.glob(path)) if not file_system.isdir(one)]
    elif os.path.isdir(pattern):
        raise HeedError(f"{pattern}: is a folder; name its files, such as --in '{joined(pattern, '*.parquet')}'.")
    else:
        names = [pattern] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
        files = [os.path.abspath(name) for name in sorted(names) if not os.path.isdir(name)]
    if not files:
        raise HeedError(f"{pattern}: no such file; expected a name, or a pattern in quotation marks.")
    return files


def open_file(name: str) -> BinaryIO:
    """A file, opened to be read."""
    if not is_url(name):
        return regular_file(Path(name))
    file_system, path = _store(name)
    return cast(BinaryIO, file_system.open(path, "rb", block_size=2**23, cache_type="readahead"))


class HashingFile:
    """A file whose content is hashed while it is read to its end."""

    def __init__(self, file: BinaryIO):
        self._file, self._digest = file, hashlib.sha256()

    def read(self, n: int = -1) -> bytes:
        content = self._file.read(n)
        self._digest.update(content)
        return content

    def hexdigest(self) -> str:
        """The hash of the whole content; reads what is left."""
        while self.read(CHUNK_BYTES):
            pass
        return self._digest.hexdigest()


def packing_of(name: str) -> str:
    """How a file is packed by its name: .gz, .zst, or not at all."""
    return next((suffix for suffix in (".gz", ".zst") if name.lower().endswith(suffix)), "")


def unpacked_name(name: str) -> str:
    """A file's name without .gz or .zst."""
    return name[: len(name) - len(packing_of(name))]


def unpacked(file: Any, name: str) -> Iterator[bytes]:
    """The content in pieces, decompressed if the name ends with .gz or .zst. HeedError for a damaged file."""
    packing = packing_of(name)
    try:
        if packing == ".gz":
            with gzip.GzipFile(fileobj=file, mode="rb") as stream:
                while piece := stream.read(CHUNK_BYTES):
                    yield piece
        elif packing == ".zst":
            yield from _zstd(file)
        else:
            while piece := file.read(CHUNK_BYTES):
                yield piece
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise HeedError(f"{name}: damaged {'zstd' if packing == '.zst' else 'gzip'} file ({error}).") from None


def _zstd(file: Any) -> Iterator[bytes]:
    zstandard = needed("zstandard", ".zst is read with")
    unpacking, between_frames = zstandard.ZstdDecompressor(), True
    frame = unpacking.decompressobj()
    while piece := file.read(CHUNK_BYTES):
        for start in range(0, len(piece), ZSTD_BYTES):
            rest = piece[start : start + ZSTD_BYTES]
            while rest:
                between_frames = False
                try:
                    content = frame.decompress(rest)
                except zstandard.ZstdError as error:
                    raise EOFError(str(error)) from None
                if content:
                    yield content
                rest = b""
                if frame.eof:
                    rest, between_frames, frame = frame.unused_data, True, unpacking.decompressobj()
    if not between_frames:
        raise EOFError("it ends within a frame")


@contextmanager
def whole(name: str) -> Iterator[Path]:
    """A temporary path whose content gets this name when the block ends well: all of it appears or nothing."""
    if not is_url(name):
        with whole_file(Path(name)) as temporary:
            yield temporary
        return
    file_system, path = _store(name)
    with tempfile.TemporaryDirectory(prefix="heed-") as folder:
        yield (temporary := Path(folder, "content"))
        file_system.put_file(str(temporary), path)


def read_whole(name: str) -> bytes | None:
    """The content of a small file, None if there is none."""
    if facts(name) is None:
        return None
    with open_file(name) as file:
        return file.read()


def write_whole(name: str, content: str) -> None:
    """Writes a small file, whole or not at all."""
    with whole(name) as path:
        path.write_text(content, encoding="utf-8")
