"""Lines of text from files and streams. What cannot be read is a `LineFault`; the table of what follows is FAULTS.

Text that is learned from goes without its faulty lines, which are counted and listed. Where each line counts, as in dev
and test sets and in text to translate, one ends the work, with its file and number.
"""

import codecs
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePath

from heed.errors import HeedError
from heed.leases.storage import unpacked, unpacked_name
from heed.text.character_references import resolved

MAX_LINE_BYTES = 2**20  # a file without line ends, or a bomb of gzip, would fill the memory
CHUNK_BYTES = 2**16
MOST_FAULTY = 0.1  # share of the lines of a file to learn from

UTF_16 = "UTF-16, not UTF-8; convert the text, with iconv for example"
# What a file begins with that is no text, at which place.
OTHER_KINDS = {
    (b"\x1f\x8b", 0): "compressed with gzip; unpack it, or end its name with .gz",
    (b"\xfd7zXZ\0", 0): "compressed with xz; unpack it, or compress it with gzip",
    (b"1AY&SY", 4): "compressed with bzip2; unpack it, or compress it with gzip",
    (b"\x28\xb5\x2f\xfd", 0): "compressed with zstd; unpack it, or end its name with .zst",
    (b"\x04\x22\x4d\x18", 0): "compressed with lz4; unpack it, or compress it with gzip",
    (b"7z\xbc\xaf\x27\x1c", 0): "a 7z archive, not text; unpack it",
    (b"PK\3\4", 0): "a zip archive, not text; unpack it",
    (b"%PDF-", 0): "a PDF document, not text",
    (codecs.BOM_UTF32_LE, 0): UTF_16.replace("16", "32"),
    (codecs.BOM_UTF32_BE, 0): UTF_16.replace("16", "32"),
    (codecs.BOM_UTF16_LE, 0): UTF_16,
    (codecs.BOM_UTF16_BE, 0): UTF_16,
}


# Formats that are read by other programs, by the ends of their names.
OTHER_SUFFIXES = {
    **dict.fromkeys((".xlf", ".xliff", ".sdlxliff"), "a file of translations; export it as .tmx"),
    **dict.fromkeys((".xml",), "text between tags"),
    **dict.fromkeys((".po",), "a catalogue of messages"),
    **dict.fromkeys((".srt", ".vtt"), "subtitles with times"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "a spreadsheet; save it as .csv"),
    **dict.fromkeys((".html", ".htm", ".docx", ".odt", ".pdf"), "a document"),
    **dict.fromkeys((".arrow", ".feather"), "Arrow's own format; save it as .parquet"),
    **dict.fromkeys((".bz2", ".xz", ".lz4", ".7z", ".zip", ".tgz"), "a packed file; unpack it, or pack it by gzip"),
}


def refuse_other_formats(name: str) -> None:
    """HeedError if a file, by its name, is of a format that is no text with a line a sentence."""
    kind = OTHER_SUFFIXES.get(PurePath(unpacked_name(name).lower()).suffix)
    if kind:
        what, _, to_do = kind.partition("; ")
        to_do = to_do or "write its sentences as text, a line each, or as a table"
        raise HeedError(f"{name}: {what}, which is not read here; {to_do}.")


class LineFault(ValueError):
    """A line that cannot be read, such as "byte 3 (0xff) is not UTF-8". hint: what to do."""

    def __init__(self, what: str, hint: str = ""):
        super().__init__(what)
        self.hint = hint


def text_of(line: bytes | None) -> str:
    """A line of UTF-8 without its end and without a byte order mark. LineFault if it cannot be read.

    A mark may begin any line: files that were put together have several. line: None for one that is too long.
    """
    if line is None:
        raise LineFault(f"longer than {MAX_LINE_BYTES:,} bytes", "expected text, a sentence a line")
    try:
        return line.removeprefix(codecs.BOM_UTF8).removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        if b"\0" in line:
            raise LineFault("binary data, not text") from None
        fault = f"byte {error.start + 1} (0x{error.object[error.start]:02x}) is not UTF-8"
        raise LineFault(fault, "convert the text, with iconv for example") from None


def refuse_faulty(names: Sequence[str], n_faults: int, n_lines: int, first: str) -> None:
    """HeedError if more than one line in ten of a source cannot be read, so that the rest cannot be trusted either.

    names: of its files. first: the place and the fault of the first one.
    """
    if n_faults > MOST_FAULTY * n_lines:
        raise HeedError(
            f"{' and '.join(names)}: {n_faults:,} of {n_lines:,} lines cannot be read, more than one in ten (first: "
            f"{first}); mend the file, or leave it out."
        )


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a UTF-8 file, plain, .gz or .zst. HeedError names the file, and the line that cannot be read."""
    try:
        with path.open("rb") as file:  # a FIFO, too
            yield from decode_lines(plain_pieces(unpacked(file, str(path)), str(path)), name=str(path))
    except OSError as error:
        raise HeedError(f"{path}: cannot be read ({error.strerror}).") from None


def lines_of_standard_input() -> Iterator[str]:
    """The lines of standard input, read without Python's buffer, whose lock is held while a thread waits for input."""
    name = "standard input"
    try:
        yield from decode_lines(iter(partial(os.read, 0, CHUNK_BYTES), b""), name=name)
    except OSError as error:
        raise HeedError(f"{name}: cannot be read ({error.strerror}).") from None


def count_lines_of_standard_input() -> int | None:
    """How many lines are still to be read, if it is a file; None for a pipe or a terminal. Nothing is read from it."""
    try:
        place, end = os.lseek(0, 0, os.SEEK_CUR), os.fstat(0).st_size
        if not stat.S_ISREG(os.fstat(0).st_mode):
            return None
        last, n_lines = b"\n", 0
        while place < end and (piece := os.pread(0, CHUNK_BYTES, place)):
            place, n_lines, last = place + len(piece), n_lines + piece.count(b"\n"), piece[-1:]
        return n_lines + (last != b"\n")
    except (OSError, AttributeError):  # no standard input, or a system without pread
        return None


def decode_lines(pieces: Iterable[bytes], *, name: str) -> Iterator[str]:
    """Lines of a text in pieces. HeedError names the line that cannot be read, or says what else the text is."""
    for number, line in enumerate(lines_of_pieces(of_text(pieces, name)), start=1):
        try:
            yield text_of(line)
        except LineFault as fault:
            hint = f"; {fault.hint}" if fault.hint else ""
            raise HeedError(f"{name}, line {number}: {fault}{hint}.") from None


def is_tagged(name: str) -> bool:
    """Whether a file of this name is one of WMT's, whose segments stand between tags."""
    return PurePath(unpacked_name(name).lower()).suffix in (".sgm", ".sgml")


def plain_pieces(pieces: Iterable[bytes], name: str) -> Iterable[bytes]:
    """The content of a file as lines of text: of one of WMT's test sets (.sgm) the texts of its `<seg>` elements."""
    return _segments(pieces, name) if is_tagged(name) else pieces


def _segments(pieces: Iterable[bytes], name: str) -> Iterator[bytes]:
    for element in elements(pieces, "seg", name):
        # Bytes that are not UTF-8 stay, for the reader of lines to name.
        text = element[element.index(b">") + 1 : element.rindex(b"<")].decode("utf-8", "surrogateescape")
        line = re.sub(r"[\r\n]", " ", resolved(text)).strip()
        yield line.encode("utf-8", "surrogateescape") + b"\n"


def elements(pieces: Iterable[bytes], name: str, file: str) -> Iterator[bytes]:
    """The elements of a name in a content in pieces, which hold none of the same name.

    HeedError if one is longer than a line may be, or never ends.
    """
    begin, end = re.compile(rb"<%b[\s>]" % name.encode(), re.IGNORECASE), f"</{name}>".encode()
    rest, number = b"", 0
    for piece in pieces:
        rest += piece
        lowered, place = rest.lower(), 0
        while (start := begin.search(lowered, place)) and (stop := lowered.find(end, start.end())) >= 0:
            number += 1
            yield rest[start.start() : stop + len(end)]
            place = stop + len(end)
        # What begins in this piece may end in the next one.
        start = begin.search(lowered, place)
        rest = rest[start.start() :] if start else rest[max(place, len(rest) - len(end)) :]
        if len(rest) > MAX_LINE_BYTES:
            raise HeedError(f"{file}: <{name}> number {number + 1:,} is longer than {MAX_LINE_BYTES:,} bytes.")
    if begin.search(rest):
        raise HeedError(f"{file}: <{name}> number {number + 1:,} has no end; is the file whole?")


def lines_of_pieces(pieces: Iterable[bytes]) -> Iterator[bytes | None]:
    """The lines, without their ends, of a content in pieces; None in place of one that is too long."""
    rest, too_long = b"", False
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if too_long:  # its end, and it has been told
                too_long = False
            else:
                yield None if len(line) > MAX_LINE_BYTES else line
        if too_long:
            rest = b""
        elif len(rest) > MAX_LINE_BYTES:
            rest, too_long = b"", True
            yield None
    if rest:
        yield rest


def of_text(pieces: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The pieces. HeedError if the first line shows that they are no text in UTF-8 with a line a sentence."""
    pieces, beginning = iter(pieces), b""
    for piece in pieces:
        beginning += piece
        if b"\n" in beginning or len(beginning) > MAX_LINE_BYTES:
            break
    first, end, _ = beginning.partition(b"\n")
    for (start, place), kind in OTHER_KINDS.items():
        if first.startswith(start, place):
            raise HeedError(f"{name}: {kind}.")
    if first and 3 * first.count(0) > len(first):
        is_utf_16 = 0 in (first[::2].count(0), first[1::2].count(0))
        raise HeedError(f"{name}: {UTF_16 if is_utf_16 else 'binary data, not text'}.")
    if first.count(b"\r") > 1 and not end:
        raise HeedError(
            f"{name}: {first.count(13):,} carriage returns and no line feed: its lines end as on old Macs; convert it, "
            "with tr '\\r' '\\n' for example."
        )
    if beginning:
        yield beginning
    yield from pieces
