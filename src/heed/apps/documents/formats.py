"""The formats by name and by file suffix, and how a document of any is translated."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from heed.apps.documents.charsets import decoded
from heed.apps.documents.html import read_html, with_target_language, write_html
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
    ".txt": "text", ".text": "text", ".md": "md", ".markdown": "md", ".srt": "srt", ".html": "html", ".htm": "html",
    ".xhtml": "html", ".docx": "docx",
}  # fmt: skip
MAX_BYTES = 2**25  # of a document
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


def translating_text(text: str, *, format: Format, language: str, target: str = "") -> Asking[str]:
    """The document in the other language, in the same format; format: any but docx. language: the source's code.

    target: the code that a page's `lang` becomes where it names the source. HeedError if a package is missing.
    """
    items = yield from _translating_items_of(text, format=format, language=language, target=target)
    return _WRITERS[format](items)


def _translating_items_of(text: str, *, format: Format, language: str, target: str) -> Asking[list[Item]]:
    items = yield from translating_items(_READERS[format](text), split=splitter(language))
    return with_target_language(items, language, target) if format == "html" and target else items


def translating_document(
    content: bytes, *, format: Format, language: str, name: str, target: str = "", max_text: int | None = None
) -> Asking[bytes]:
    """A file's content in the other language. HeedError, which calls it `name`, if it is damaged, too long or no UTF-8.

    A byte order mark stays, and so does the charset that it or a page declares. target: as for `translating_text`.
    max_text: bytes of the text, or of the XML in a .docx.
    """
    most = MAX_BYTES if max_text is None or format == "docx" else max_text
    if len(content) > most:
        raise HeedError(f"{name}: longer than {most:,} bytes; split it.")
    if format == "docx":
        from heed.apps.documents.docx import MAX_UNPACKED, translating_docx

        limit = MAX_UNPACKED if max_text is None else max_text
        return (yield from translating_docx(content, split=splitter(language), name=name, max_xml=limit))
    text, mark, codec = decoded(content, name=name, is_html=format == "html")
    items = yield from _translating_items_of(text, format=format, language=language, target=target)
    if format == "html":
        # Servers often call pages in Latin 1 UTF-8, which overrides what they declare; ASCII is both.
        written = write_html(items, "ascii" if codec in ("cp1252", "latin-1") else codec)
    else:
        written = _WRITERS[format](items)
    return mark + written.encode(codec, errors="replace")


def translate_text(text: str, translate: Translate, *, format: Format, language: str) -> str:
    """As `translating_text`, with a function that translates all its sentences."""
    return answered(translating_text(text, format=format, language=language), translate)


def translate_document(
    content: bytes, translate: Translate, *, format: Format, language: str, name: str, target: str = ""
) -> bytes:
    """As `translating_document`, with a function that translates all its sentences."""
    asking = translating_document(content, format=format, language=language, name=name, target=target)
    return answered(asking, translate)
