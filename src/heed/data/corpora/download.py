"""Downloads of named corpora, verified and unpacked.

Only this and apps/exchange/hub.py, which fetches models by huggingface_hub, reach into the network.
"""

import gzip
import hashlib
import http.client
import lzma
import math
import os
import re
import shutil
import stat
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from heed.config import shown
from heed.data.corpora.catalogue import Corpus, Text, file_of_member, file_of_url, find
from heed.data.reading.lines import CHUNK_BYTES, decode_lines, plain_pieces
from heed.data.reading.pairs import FilePair
from heed.data.reading.text_files import TextFiles
from heed.errors import HeedError
from heed.runtime.files import remove_unfinished, whole_file
from heed.runtime.locks import locked
from heed.runtime.progress import progress

Report = Callable[[str], None]
# The catalogue's size of a corpus is that of its archives; a mirror's plain texts may be larger.
MIN_BOUND_BYTES, BOUND_RATIO = 64 * 2**20, 2
# Bounds on archives, which a stranger may have chosen: text shrinks to a third or a tenth, and names are short.
MAX_UNPACKED_RATIO, MIN_UNPACKED_BYTES, MAX_TAR_HEADER_BYTES = 100, 2**24, 2**20
LONG_TAR_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
# Of a damaged archive tarfile raises ValueError as well, zipfile RuntimeError and the decompressors each their own.
ARCHIVE_FAULTS = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError),
    *(ValueError, RuntimeError),
)
ADVICE = "name a copy with --mirror"  # ends messages about the network
NETWORK_FAULTS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


@dataclass(frozen=True)
class Corpora:
    """Where named corpora and treebanks are, where they come from, and who is told.

    folder: of downloads, one below it for each corpus. mirror: in place of where a corpus was published, a folder,
    whose files are used where they are, or an address that serves files of the same names. report: takes lines for
    people to read.
    """

    folder: Path = Path("corpora")
    mirror: str | None = None
    report: Report = lambda line: None

    def without_reports(self) -> "Corpora":
        """Equal corpora, of which nothing is reported."""
        return Corpora(self.folder, self.mirror)

    def options(self) -> list[str]:
        """The options of a command that shall take the same corpora."""
        return ["--dir", str(self.folder), *([] if self.mirror is None else ["--mirror", self.mirror])]


def fetch(name: str, *, src: str, tgt: str, variant: str, corpora: Corpora, fetching: bool = True) -> TextFiles:
    """The files of a named corpus, verified; those that are missing are downloaded into a folder of its name.

    With `fetching` False nothing is downloaded: NotHere names the first file that is missing.
    HeedError for an unknown name, pair or variant, a missing or altered file, a network fault.
    """
    corpus = find(name)
    corpus.check_offers(src, tgt, variant)
    size = corpus.settings.download_bytes
    store = Store(
        corpora.folder / name,
        mirror=corpora.mirror,
        corpus=name,
        report=corpora.report,
        fetching=fetching,
        max_bytes=size and max(MIN_BOUND_BYTES, BOUND_RATIO * size),
    )
    splits = corpus.settings.splits()[variant]

    def pair(sides: Mapping[str, Text]) -> FilePair:
        src_file, tgt_file = (_file(store, corpus, sides[language]) for language in (src, tgt))
        return src_file, tgt_file

    return TextFiles(
        train=tuple(map(pair, splits.train)),
        dev=pair(splits.dev),
        tests={name: pair(sides) for name, sides in splits.tests.items()},
    )


def _file(store: "Store", corpus: Corpus, text: Text) -> Path:
    """The path of a text, which is fetched or unpacked if it is not there."""
    if text.url is not None:
        name = file_of_url(text.url).removesuffix(".gz")
        return store.text(Remote(name=name, address=text.url, sha256=text.sha256))
    if text.path is not None:
        assert corpus.folder is not None  # Heed's own corpora have no files of their own
        return local_file(corpus.folder, text)
    assert text.archive is not None and text.member is not None  # Text checks it
    archive = corpus.settings.archives[text.archive]
    remote = Remote(name=file_of_url(archive.url), address=archive.url, sha256=archive.sha256, is_archive=True)
    return store.member(remote, text.member)


def local_file(folder: Path, text: Text) -> Path:
    """The path of a text in its corpus's folder. HeedError if it is missing, altered, or leads out of the folder."""
    assert text.path is not None
    path = folder / text.path
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise HeedError(f"{path}: leads out of {folder}, the corpus's folder; put the file itself there.")
    if not _is_there(path):
        raise HeedError(f"{path}: missing; a corpus names this file.")
    if text.sha256 is not None and (digest := _sha256(path, unzip=path.suffix == ".gz")) != text.sha256:
        raise HeedError(f"{path}: sha256 is {digest}, expected {text.sha256}; put the corpus's own file there.")
    return path


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file to fetch: of a text the hash is that of its lines, unzipped; of an archive that of its bytes."""

    name: str
    address: str
    sha256: str | None  # None where nobody published one: then the first download's hash is kept and checked
    is_archive: bool = False


class NotHere(HeedError):
    """A file that is still to be fetched or unpacked."""


class Store:
    """The folder that one corpus is kept in, and the mirror that may stand in for the published addresses.

    With `fetching` False nothing is fetched, unpacked or written: NotHere names what would be.
    max_bytes: no file of the corpus is larger; a server that sends more is cut off.
    """

    def __init__(
        self,
        folder: Path,
        *,
        corpus: str,
        report: Report,
        mirror: str | None = None,
        retry_seconds: float = 2.0,
        fetching: bool = True,
        max_bytes: int | None = None,
    ):
        self.folder, self._corpus, self._report = folder, corpus, report
        self._retry_seconds, self._fetching = retry_seconds, fetching
        self._max_bytes = max_bytes
        self._mirror_folder: Path | None = None
        self._mirror_address: str | None = None
        if mirror is not None and re.match(r"(https?|file)://", mirror):
            self._mirror_address = mirror.rstrip("/")
        elif mirror is not None:
            self._mirror_folder = Path(mirror)
            if not self._mirror_folder.is_dir():
                raise HeedError(f"--mirror {mirror}: no such folder (an address begins with https://).")

    def text(self, remote: Remote) -> Path:
        """The path of a text file, plain or gzipped."""
        names = f"{remote.name}.gz", remote.name
        return self._in_mirror(remote, *names) or self._download(remote, self.folder / Path(remote.address).name)

    def member(self, archive: Remote, member: str) -> Path:
        """The path of a plain text file out of an archive, unpacked once: SGM becomes plain lines, .gz is unzipped."""
        target = self.folder / file_of_member(member)
        if not _is_there(target):
            path = self._in_mirror(archive, archive.name) or self._download(archive, self.folder / archive.name)
            if not self._fetching:
                raise NotHere(f"{target}: still to be unpacked from {path}.")
            with locked(self.folder, wait=math.inf):  # nobody else writes here meanwhile
                remove_unfinished(self.folder)
                if not _is_there(target):
                    self._report(f"Unpacking {Path(member).name} from {path.name}.")
                    _unpack(path, member, target)
        return target

    def _in_mirror(self, remote: Remote, *names: str) -> Path | None:
        """The first of these files in the local mirror, verified: in the folder, or in one named after the corpus.

        None without such a mirror. HeedError if none of them is there.
        """
        mirror = self._mirror_folder
        if mirror is None:
            return None
        for path in (folder / name for name in names for folder in (mirror, mirror / self._corpus)):
            if path.is_file():
                self._verify(path, remote)
                return path
        missing = f"{names[0]} is not" if len(names) == 1 else f"neither {' nor '.join(names)} is"
        raise HeedError(f"--mirror {mirror}: {missing} there.")

    def _download(self, remote: Remote, target: Path) -> Path:
        """Fetches a file unless it is there, going on where a broken download stopped; verified before it appears."""
        marker = target.with_name(target.name + ".sha256")
        if _is_there(target):
            if not _is_there(marker):  # not fetched by Heed: it is verified now
                self._verify(target, remote)
                if self._fetching:
                    self._note_hash(marker, target)
            elif _read_hash(marker) != _sha256(target, unzip=False).encode():
                raise HeedError(f"{target}: altered since it was fetched; delete it to fetch it again.")
            elif remote.sha256 is not None and remote.sha256 != self._expected_hash(target, remote):
                raise HeedError(f"{target}: fetched for another version of this corpus; delete it to fetch it again.")
            return target
        if not self._fetching:
            raise NotHere(f"{target}: still to be fetched from {remote.address}.")
        with locked(target.parent, wait=math.inf):  # two processes would write into the same part
            if not _is_there(target):
                return self._fetch(remote, target, marker)
        return self._download(remote, target)

    def _expected_hash(self, target: Path, remote: Remote) -> str:
        """The hash that `remote.sha256` must be equal to, of a file as it was fetched."""
        if target.suffix == ".gz" and not remote.is_archive:
            return _sha256(target, unzip=True)
        return _read_hash(target.with_name(target.name + ".sha256")).decode("ascii")

    def _fetch(self, remote: Remote, target: Path, marker: Path) -> Path:
        address = remote.address
        if self._mirror_address is not None:
            address = f"{self._mirror_address}/{Path(remote.address).name}"
        part = target.with_name(target.name + ".part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            for attempt in range(1, 4):
                try:
                    self._transfer(address, part)
                    break
                except (*NETWORK_FAULTS, ValueError) as error:  # ValueError: no address, such as http://[
                    refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
                    permanent = refused or isinstance(error, ValueError)
                    if permanent or attempt == 3:
                        why = getattr(error, "reason", None) or error
                        raise HeedError(
                            f"{address}: cannot be fetched ({why}); try again later, or {ADVICE}."
                        ) from None
                    time.sleep(self._retry_seconds * attempt)
            self._verify(part, remote, remove=True, zipped=target.suffix == ".gz")
            part.replace(target)
            self._note_hash(marker, target)
        except OSError as error:
            raise HeedError(f"{target}: cannot be written ({error.strerror or error}).") from None
        return target

    def _transfer(self, address: str, part: Path) -> None:
        """Appends to `part` what is still missing; starts again where the server knows no ranges."""
        done = part.stat().st_size if _is_there(part) else 0
        request = urllib.request.Request(address, headers={"Range": f"bytes={done}-"} if done else {})
        try:
            response = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            if error.code == 416:  # nothing is missing, or the part is of another file: the hash tells
                return
            raise
        with response:
            if getattr(response, "status", 200) != 206:
                done = 0
            left = _content_length(response.headers.get("Content-Length"), address)
            total = None if left is None else done + left
            if total is not None:
                self._refuse_above(self._max_bytes, total, address, part)
            self._report(f"Fetching {address}" + (f", from byte {done:,}." if done else "."))
            with (
                progress(f"Fetching {part.name.removesuffix('.part')}", total=total, unit="bytes", done=done) as task,
                part.open("ab" if done else "wb") as file,
            ):
                while block := _receive(response, 1 << 18):
                    self._refuse_above(self._max_bytes if total is None else total, done + len(block), address, part)
                    file.write(block)
                    done += len(block)
                    task.advance(len(block))
        if total is not None and done < total:
            raise ConnectionError(f"broken off at byte {done:,} of {total:,}")

    def _refuse_above(self, bound: int | None, n_bytes: int, address: str, part: Path) -> None:
        """HeedError, with nothing kept of a download that is larger than its file can be."""
        if bound is not None and n_bytes > bound:
            part.unlink(missing_ok=True)
            raise HeedError(
                f"{address}: sends {n_bytes:,} bytes or more, expected {bound:,} at most; what had come was removed; "
                f"{ADVICE}."
            )

    def _verify(self, path: Path, remote: Remote, *, remove: bool = False, zipped: bool | None = None) -> None:
        """HeedError if a file's hash is not the expected one; `remove` deletes it, so that the next run starts anew."""
        if remote.sha256 is None:
            self._report(f"{remote.name}: no published checksum is known; its own is recorded.")
            return
        zipped = path.suffix == ".gz" if zipped is None else zipped
        digest = _sha256(path, unzip=zipped and not remote.is_archive)
        if digest != remote.sha256:
            if remove:
                path.unlink()
            kept = "it was removed; fetch it again" if remove else "put the published file there"
            raise HeedError(f"{path}: sha256 is {digest}, expected {remote.sha256}; {kept}.")

    def _note_hash(self, marker: Path, target: Path) -> None:
        with whole_file(marker) as temporary:
            temporary.write_text(f"{_sha256(target, unzip=False)}  {target.name}\n", encoding="ascii")


def _receive(response: IO[bytes], n_bytes: int) -> bytes:
    """The next bytes of a download. ConnectionError for every fault of the network, a plain OSError too."""
    try:
        return response.read(n_bytes)
    except OSError as error:
        raise ConnectionError(str(error)) from error


def _is_there(path: Path) -> bool:
    """Whether there is such a file. HeedError if it is something else: reading a FIFO would never end."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise HeedError(f"{path}: cannot be read ({error.strerror}).") from None
    if not regular:
        raise HeedError(f"{path}: not a regular file; move it away.")
    return True


def _content_length(text: str | None, address: str) -> int | None:
    """Bytes that the server says are to come, None if it does not say."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):  # fewer than 10^18 bytes
        raise HeedError(
            f"{address}: the server's Content-Length is {shown(text)}, no number of bytes; try again later, or name a "
            "copy with --mirror."
        )
    return int(text)


def _read_hash(marker: Path) -> bytes:
    """The hash that a .sha256 file begins with, if nobody has changed it."""
    try:
        with marker.open("rb") as file:
            return file.read(hashlib.sha256().digest_size * 2)
    except OSError as error:
        raise HeedError(f"{marker}: cannot be read ({error.strerror}).") from None


def _sha256(path: Path, *, unzip: bool) -> str:
    try:
        with gzip.open(path, "rb") if unzip else path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return "of a damaged gzip file"
    except OSError as error:
        raise HeedError(f"{path}: cannot be read ({error.strerror}).") from None


class _Entry(tarfile.TarInfo):
    """An entry of an archive. ReadError for a header that is only long to fill the memory, in which it is read."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:  # Python's own place to read what belongs to a header
        if self.type in LONG_TAR_HEADERS and self.size > MAX_TAR_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(tar)  # type: ignore[misc]


def _unpack(archive: Path, member_path: str, target: Path) -> None:
    """Streams one member of an archive into a plain text file."""
    limit = max(MIN_UNPACKED_BYTES, MAX_UNPACKED_RATIO * archive.stat().st_size)
    opened = _member_of_zip if archive.suffix == ".zip" else _member_of_tar
    try:
        with (
            opened(archive, member_path, limit) as stream,
            whole_file(target) as temporary,
            temporary.open("wb") as out,
        ):
            _copy_text(stream, f"{archive}: {member_path}", out, limit=limit)
    except ARCHIVE_FAULTS as error:
        raise HeedError(f"{archive}: damaged archive ({error}); delete it and fetch it again.") from None


@contextmanager
def _member_of_tar(archive: Path, member_path: str, limit: int) -> Iterator[IO[bytes]]:
    with tarfile.open(archive, "r|*", tarinfo=_Entry) as tar:
        for entry in tar:
            if entry.offset_data + entry.size > limit:
                raise tarfile.ReadError(f"unpacks to more than {limit:,} bytes")
            if entry.name.removeprefix("./") == member_path and entry.isfile():
                stream = tar.extractfile(entry)
                assert stream is not None  # it is a file
                yield stream
                return
    raise HeedError(f"{archive}: has no member {member_path}.")


@contextmanager
def _member_of_zip(archive: Path, member_path: str, limit: int) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(archive) as file:
        if member_path not in file.namelist():
            raise HeedError(f"{archive}: has no member {member_path}.")
        entry = file.getinfo(member_path)
        if entry.file_size > limit:  # more is never read from it
            raise zipfile.BadZipFile(f"unpacks to more than {limit:,} bytes")
        with file.open(entry) as stream:
            yield stream


def _copy_text(stream: IO[bytes], name: str, out: IO[bytes], *, limit: int) -> None:
    """Copies a text as plain lines. ReadError if it is damaged, or unzips to more than `limit` bytes."""
    if name.endswith(".sgm"):
        for line in decode_lines(plain_pieces(iter(partial(stream.read, CHUNK_BYTES), b""), name), name=name):
            out.write(f"{line}\n".encode())
    elif name.endswith(".gz"):
        try:
            with gzip.open(stream, "rb") as unzipped:
                while block := unzipped.read(1 << 18):
                    out.write(block)
                    if out.tell() > limit:
                        raise tarfile.ReadError(f"{name}: unzips to more than {limit:,} bytes")
        except gzip.BadGzipFile as error:  # an OSError, but not of the disk that is written to
            raise tarfile.ReadError(f"{name}: {error}") from None
    else:
        shutil.copyfileobj(stream, out)
