"""The formats by name and by file suffix, and how a document of any is translated."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from heed.apps.documents.html import read_html, write_html
from heed.apps.documents.items import Item
from heed.apps.documents.markdown import read_markdown, write_markdown
from heed.apps.documents.plain_text import read_text, write_text
from heed.apps.documents.sentences import splitter
from heed.apps.documents.subtitles import read_srt, write_srt
from heed.apps.documents.translation import Asking, Translate, answered, translating_items
from heed.errors import HeedError

Format = Literal["text", "md", "srt", "html", "docx"]
FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES: dict[str, Format] = {
    ".txt": "text", ".text": "text", ".md": "md", ".markdown": "md", ".srt": "srt", ".vtt": "srt", ".sub": "srt",
    ".html": "html", ".htm": "html", ".xhtml": "html", ".docx": "docx",
}  # fmt: skip
MAX_BYTES = 2**25  # of a document
_MARKS = {  # byte order marks; the longer ones first
    b"\xff\xfe\0\0": "utf-32-le",
    b"\0\0\xfe\xff": "utf-32-be",
    b"\xff\xfe": "utf-16-le",
    b"\xfe\xff": "utf-16-be",
}
_READERS: dict[str, Callable[[str], list[Item]]] = {
    "text": read_text,
    "md": read_markdown,
    "srt": read_srt,
    "html": read_html,
}
_WRITERS: dict[str, Callable[[list[Item]], str]] = {
    "text": write_text,
    "md": write_markdown,
    "srt": write_srt,
    "html": write_html,
}


def format_of(path: Path) -> Format:
    """The format that the file's suffix names. HeedError if none does."""
    found = SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise HeedError(f"{path}: its suffix names no format; rename it, or give --format: {', '.join(FORMATS)}.")
    return found


def translating_text(text: str, *, format: Format, language: str) -> Asking[str]:
    """The document in the other language, in the same format; format: any but docx. language: the source's code.

    HeedError if a package is missing.
    """
    items = yield from translating_items(_READERS[format](text), split=splitter(language))
    return _WRITERS[format](items)


def translating_document(
    content: bytes, *, format: Format, language: str, name: str, max_text: int | None = None
) -> Asking[bytes]:
    """A file's content in the other language. HeedError, which calls it `name`, if it is damaged, too long or no text.

    It is written in UTF-8, with a byte order mark if it had one. max_text: bytes of the text, or of the XML in a .docx.
    """
    most = MAX_BYTES if max_text is None or format == "docx" else max_text
    if len(content) > most:
        raise HeedError(f"{name}: longer than {most:,} bytes; split it.")
    if format == "docx":
        from heed.apps.documents.docx import translating_docx
        from heed.apps.documents.docx_package import MAX_UNPACKED

        limit = MAX_UNPACKED if max_text is None else max_text
        return (yield from translating_docx(content, split=splitter(language), name=name, max_xml=limit))
    text = _decoded(content, format, name)
    mark = "\ufeff" * text.startswith("\ufeff")
    try:
        text = yield from translating_text(text.removeprefix(mark), format=format, language=language)
    except HeedError as error:
        raise HeedError(f"{name}: {error}") from None
    return (mark + text).encode("utf-8", errors="replace")


def _decoded(content: bytes, format: Format, name: str) -> str:
    """The text: UTF-8, or in a file that does not declare what it is another encoding that a byte order mark names."""
    marks = _MARKS.items() if format != "html" else ()
    encoding = next((encoding for mark, encoding in marks if content.startswith(mark)), "utf-8")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        told = "UTF-8; convert it, with iconv for example" if encoding == "utf-8" else f"{encoding}, as it begins"
        raise HeedError(f"{name}: byte {error.start + 1} (0x{content[error.start]:02x}) is not {told}.") from None


def translate_text(text: str, translate: Translate, *, format: Format, language: str) -> str:
    """As `translating_text`, with a function that translates all its sentences."""
    return answered(translating_text(text, format=format, language=language), translate)


def translate_document(content: bytes, translate: Translate, *, format: Format, language: str, name: str) -> bytes:
    """As `translating_document`, with a function that translates all its sentences."""
    return answered(translating_document(content, format=format, language=language, name=name), translate)
