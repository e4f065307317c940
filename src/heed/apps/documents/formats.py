"""The formats by name and by file suffix, and how a document of any is translated."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from heed.apps.documents.charsets import decode
from heed.apps.documents.html import read_html, with_target_language, write_html
from heed.apps.documents.items import Item
from heed.apps.documents.plain_text import read_text, write_text
from heed.apps.documents.sentences import splitter
from heed.apps.documents.subtitles import read_srt, write_srt
from heed.apps.documents.translation import Translate, TranslationJob, items_job, run_job
from heed.apps.documents.words_in_markup import divide_words
from heed.errors import HeedError

Format = Literal["text", "md", "srt", "html", "docx"]
FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES: dict[str, Format] = {
    ".txt": "text", ".text": "text", ".md": "md", ".markdown": "md", ".srt": "srt", ".vtt": "srt", ".sub": "srt",
    ".html": "html", ".htm": "html", ".xhtml": "html", ".docx": "docx",
}  # fmt: skip
MAX_BYTES = 2**25  # of a document


def _read_markdown(text: str) -> list[Item]:
    from heed.apps.documents.markdown import read_markdown  # needs a package that is not everywhere

    return read_markdown(text)


def _write_markdown(items: list[Item]) -> str:
    from heed.apps.documents.markdown import write_markdown

    return write_markdown(items)


_READERS: dict[str, Callable[[str], list[Item]]] = {
    "text": read_text,
    "md": _read_markdown,
    "srt": read_srt,
    "html": read_html,
}
_WRITERS: dict[str, Callable[[list[Item]], str]] = {
    "text": write_text,
    "md": _write_markdown,
    "srt": write_srt,
    "html": write_html,
}


def format_of(path: Path) -> Format:
    """The format that the file's suffix names. HeedError if none does."""
    found = SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise HeedError(f"{path}: its suffix names no format; rename it, or give --format: {', '.join(FORMATS)}.")
    return found


def text_job(
    text: str, *, format: Format, language: str, target: str = "", keep: tuple[str, ...] = (), attributes: bool = True
) -> TranslationJob[str]:
    """The document in the other language, in the same format; format: any but docx. language: the source's code.

    target: the code that a page's `lang` becomes where it names the source. keep: expressions of what stays, as for
    `kept_patterns`. attributes: whether words in the markup, such as a picture's description, are translated.
    HeedError if a package is missing.
    """
    items = _READERS[format](text)
    translated = yield from _items_job(
        items, format, language=language, target=target, keep=keep, attributes=attributes
    )
    return _WRITERS[format](translated)


def _items_job(
    items: list[Item], format: Format, *, language: str, target: str, keep: tuple[str, ...], attributes: bool
) -> TranslationJob[list[Item]]:
    left: list[Item] = []
    if not attributes:
        items, left = divide_words(items, of_attributes=True)
    items = [*(yield from items_job(items, split=splitter(language), keep=keep)), *left]
    return with_target_language(items, language, target) if format == "html" and target else items


def document_job(
    content: bytes,
    *,
    format: Format,
    language: str,
    name: str,
    target: str = "",
    keep: tuple[str, ...] = (),
    attributes: bool = True,
    max_text: int | None = None,
) -> TranslationJob[bytes]:
    """A file's content in the other language. HeedError, which calls it `name`, if it is damaged, too long or no text.

    A byte order mark stays, and in a page so does the charset; other texts are written in UTF-8.
    target, keep, attributes: as for `text_job`. max_text: bytes of the text, or of the XML in a .docx.
    """
    most = MAX_BYTES if max_text is None or format == "docx" else max_text
    if len(content) > most:
        raise HeedError(f"{name}: longer than {most:,} bytes; split it.")
    if format == "docx":
        from heed.apps.documents.docx import docx_job
        from heed.apps.documents.docx_package import MAX_UNPACKED

        limit = MAX_UNPACKED if max_text is None else max_text
        job = docx_job(
            content,
            split=splitter(language),
            name=name,
            keep=keep,
            languages=(language, target),
            attributes=attributes,
            max_xml=limit,
        )
        return (yield from job)
    text, mark, codec = decode(content, name=name, is_html=format == "html")
    try:
        items = _READERS[format](text)
        items = yield from _items_job(items, format, language=language, target=target, keep=keep, attributes=attributes)
    except HeedError as error:
        raise HeedError(f"{name}: {error}") from None
    if format == "html":
        # Servers often call pages in Latin 1 UTF-8, which overrides what they declare; ASCII is both.
        written = write_html(items, "ascii" if codec in ("cp1252", "latin-1") else codec)
        return mark + written.encode(codec, errors="replace")
    return ("\ufeff" * bool(mark) + _WRITERS[format](items)).encode(errors="replace")


def translate_text(text: str, translate: Translate, *, format: Format, language: str) -> str:
    """As `text_job`, with a function that translates all its sentences."""
    return run_job(text_job(text, format=format, language=language), translate)


def translate_document(
    content: bytes,
    translate: Translate,
    *,
    format: Format,
    language: str,
    name: str,
    target: str = "",
    keep: tuple[str, ...] = (),
    attributes: bool = True,
) -> bytes:
    """As `document_job`, with a function that translates all its sentences."""
    job = document_job(
        content, format=format, language=language, name=name, target=target, keep=keep, attributes=attributes
    )
    return run_job(job, translate)
