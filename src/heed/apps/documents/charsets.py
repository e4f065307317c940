"""Bytes of a document → its text and the codec that writes it back."""

from typing import NamedTuple

from heed.apps.documents.html import find_charset
from heed.errors import HeedError

_MARKS = (  # the longer ones first
    (b"\xff\xfe\0\0", "utf-32-le"),
    (b"\0\0\xfe\xff", "utf-32-be"),
    ("\ufeff".encode(), "utf-8"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
# Labels of charsets and the codecs that browsers take for them: https://encoding.spec.whatwg.org/#names-and-labels
_CODECS = {
    **dict.fromkeys("utf-8 utf8 unicode-1-1-utf-8 utf-16 utf-16le utf-16be".split(), "utf-8"),
    **dict.fromkeys(
        "ascii us-ascii iso-8859-1 iso8859-1 iso_8859-1 latin1 latin-1 l1 windows-1252 cp1252 x-cp1252".split(),
        "cp1252",
    ),
    **dict.fromkeys("iso-8859-9 latin5 windows-1254 cp1254".split(), "cp1254"),
    **{f"iso-8859-{n}": f"iso8859-{n}" for n in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
    **{f"windows-{n}": f"cp{n}" for n in (874, 1250, 1251, 1253, 1255, 1256, 1257, 1258)},
    **dict.fromkeys("tis-620 iso-8859-11".split(), "cp874"),
    **{name: name for name in ("koi8-r", "koi8-u", "euc-jp", "iso-2022-jp", "gb18030")},
    **dict.fromkeys("gb2312 gbk x-gbk gb_2312-80".split(), "gb18030"),
    **dict.fromkeys("shift_jis shift-jis sjis x-sjis windows-31j ms_kanji".split(), "cp932"),
    **dict.fromkeys("euc-kr ks_c_5601-1987 korean windows-949".split(), "cp949"),
    **dict.fromkeys("big5 big5-hkscs x-x-big5".split(), "big5hkscs"),
    **dict.fromkeys("macintosh mac x-mac-roman".split(), "mac-roman"),
    "ibm866": "cp866",
    "cp866": "cp866",
}


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
    mark, codec = next(((mark, codec) for mark, codec in _MARKS if content.startswith(mark)), (b"", "utf-8"))
    charset = find_charset(content) if is_html and not mark else None
    if charset is not None:
        if charset not in _CODECS:
            raise HeedError(f"{name}: declares charset {charset[:40]}, which Heed cannot read; convert it to UTF-8.")
        codec = _CODECS[charset]
    elif is_html and not mark:
        codec = "ascii" if content.isascii() else "utf-8" if _is_utf8(content) or b"\0" in content else "cp1252"
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


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
