"""Bytes of a document → its text and the codec that writes it back."""

from typing import NamedTuple

from heed.apps.documents.formats.html import find_charset
from heed.apps.documents.words import table
from heed.errors import HeedError

MARKS = (  # byte order marks, the longer ones first
    (b"\xff\xfe\0\0", "utf-32-le"),
    (b"\0\0\xfe\xff", "utf-32-be"),
    ("\ufeff".encode(), "utf-8"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_CODECS = {label: codec for codec, labels in table("charsets").items() for label in labels.split()}


class Decoded(NamedTuple):
    """A text without its byte order mark, which is `mark`, and the codec of its bytes."""

    text: str
    mark: bytes
    codec: str


def decode(content: bytes, *, name: str, is_html: bool = False) -> Decoded:
    """The text of a document. HeedError, which calls it `name`, if its bytes are not what it says, or else UTF-8.

    A byte order mark decides, then what a page declares. One that declares nothing and is not UTF-8 is windows-1252, as
    in browsers; one of ASCII is written in ASCII: browsers would not read it as UTF-8.
    """
    mark, codec = next(((mark, codec) for mark, codec in MARKS if content.startswith(mark)), (b"", "utf-8"))
    charset = find_charset(content) if is_html and not mark else None
    if charset is not None:
        if charset not in _CODECS:
            raise HeedError(f"{name}: declares charset {charset[:40]}, which Heed cannot read; convert it to UTF-8.")
        codec = _CODECS[charset]
    elif is_html and not mark:
        codec = "ascii" if content.isascii() else "utf-8" if is_utf8(content) or b"\0" in content else "cp1252"
    content = content.removeprefix(mark)
    try:
        return Decoded(content.decode(codec), mark, codec)
    except UnicodeDecodeError as error:
        if codec in ("cp1252", "cp1254"):  # bytes that these leave open, which browsers take for control characters
            return Decoded(content.decode("latin-1"), mark, "latin-1")
        place, byte = len(mark) + error.start + 1, content[error.start]
        if codec == "utf-8":
            raise HeedError(
                f"{name}: byte {place} (0x{byte:02x}) is not UTF-8; convert it, with iconv for example."
            ) from None
        raise HeedError(
            f"{name}: byte {place} (0x{byte:02x}) is not {charset or codec}, which it declares; correct one of them."
        ) from None


def is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
