"""How a document of any format is translated."""

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from heed.apps.documents.formats import PACKAGES, Format, most_bytes
from heed.apps.documents.formats.ass import read_ass, write_ass
from heed.apps.documents.formats.charsets import decode
from heed.apps.documents.formats.cues import cues_job
from heed.apps.documents.formats.html import read_html, with_target_language, write_html
from heed.apps.documents.formats.plain_text import read_text, write_text
from heed.apps.documents.formats.subtitles import read_srt, write_srt
from heed.apps.documents.formats.words_in_markup import divide_words
from heed.apps.documents.text.items import Item
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions, TranslationJob, items_job
from heed.errors import HeedError

# Formats that are read and written as bytes: the module of each, and its function, imported when it is needed.
_JOBS: dict[Format, tuple[str, str]] = {
    "docx": ("docx", "docx_job"), "po": ("po", "po_job"), "json": ("json_locale", "json_job"),
    "epub": ("epub", "epub_job"), "odf": ("odf", "odf_job"), "pptx": ("pptx", "pptx_job"), "xlsx": ("xlsx", "xlsx_job"),
    "xliff": ("xliff", "xliff_job"), "properties": ("keys_and_values", "properties_job"),
    "strings": ("keys_and_values", "strings_file_job"), "android": ("android", "android_job"),
    "resx": ("resx", "resx_job"), "yaml": ("yaml_locale", "yaml_job"), "table": ("table", "table_job"),
}  # fmt: skip
Reader = Callable[[str], list[Item]]
Writer = Callable[[list[Item]], str]


class Job(Protocol):
    """The translation of a file's content; name, max_text: as for `document_job`."""

    def __call__(
        self, content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None
    ) -> DocumentJob: ...


def _reader_and_writer(format: Format) -> tuple[Reader, Writer]:
    if format == "md":
        from heed.apps.documents.formats.markdown import (  # needs a package that is not everywhere
            read_markdown,
            write_markdown,
        )

        return read_markdown, write_markdown
    known: dict[Format, tuple[Reader, Writer]] = {
        "text": (read_text, write_text), "srt": (read_srt, write_srt), "html": (read_html, write_html),
        "ass": (read_ass, write_ass),
    }  # fmt: skip
    return known[format]


def text_job(text: str, format: Format, options: DocumentOptions, *, codec: str | None = None) -> TranslationJob[str]:
    """The document in the other language, in the same format: any but docx. HeedError if a package is missing.

    codec: for which a page's characters are written, as for `write_html`.
    """
    read, write = _reader_and_writer(format)
    items = read(text)
    left: list[Item] = []
    if not options.attributes:
        items, left = divide_words(items, of_attributes=True)
    job = cues_job if format == "srt" and options.cues == "joined" else items_job
    items = [*(yield from job(items, options)), *left]
    if format != "html":
        return write(items)
    return write_html(with_target_language(items, options), codec)


def document_job(
    content: bytes, format: Format, options: DocumentOptions, *, name: str, max_text: int | None = None
) -> DocumentJob:
    """A file's content in the other language. HeedError, which calls it `name`, if it is damaged, too long or no text.

    A byte order mark stays, and in a page so does the charset; other texts are written in UTF-8. max_text: bytes of the
    text, or of the XML in a package such as a .docx.
    """
    most = most_bytes(format) if max_text is None or format in PACKAGES else max_text
    if len(content) > most:
        raise HeedError(f"{name}: longer than {most:,} bytes; split it.")
    if format in _JOBS:
        module, function = _JOBS[format]
        job: Job = getattr(import_module(f"heed.apps.documents.formats.{module}"), function)
        return (yield from job(content, options, name=name, max_text=max_text))
    text, mark, codec = decode(content, name=name, is_html=format == "html")
    # Servers often call pages in Latin 1 UTF-8, which overrides what they declare; ASCII is both.
    written_for = "ascii" if codec in ("cp1252", "latin-1") else codec
    try:
        written = yield from text_job(text, format, options, codec=written_for)
    except HeedError as error:
        raise HeedError(f"{name}: {error}") from None
    if format == "html":
        return mark + written.encode(codec, errors="replace")
    return ("\ufeff" * bool(mark) + written).encode(errors="replace")
