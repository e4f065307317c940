"""The formats by name and by file suffix; jobs.py translates a document of any, and is imported when it is needed."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from heed.errors import HeedError

if TYPE_CHECKING:
    from heed.apps.documents.formats.jobs import document_job as document_job
    from heed.apps.documents.formats.jobs import text_job as text_job
else:

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module("heed.apps.documents.formats.jobs"), name)


Format = Literal[
    "text", "md", "srt", "ass", "html", "docx", "odf", "pptx", "xlsx", "epub", "po", "json", "xliff", "properties",
    "strings", "android", "resx", "yaml", "table",
]  # fmt: skip
FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES: dict[str, Format] = {
    ".txt": "text", ".text": "text", ".md": "md", ".markdown": "md", ".srt": "srt", ".vtt": "srt", ".sub": "srt",
    ".html": "html", ".htm": "html", ".xhtml": "html", ".docx": "docx",
    ".po": "po", ".pot": "po", ".json": "json", ".arb": "json",
    ".epub": "epub", ".odt": "odf", ".ott": "odf", ".odp": "odf", ".otp": "odf", ".ods": "odf", ".ots": "odf",
    ".pptx": "pptx", ".xlsx": "xlsx", ".ass": "ass", ".ssa": "ass",
    ".xlf": "xliff", ".xliff": "xliff", ".properties": "properties", ".strings": "strings", ".xml": "android",
    ".resx": "resx", ".resw": "resx", ".yml": "yaml", ".yaml": "yaml", ".csv": "table", ".tsv": "table",
}  # fmt: skip
# Zip archives, of which the length of the text in them is bounded.
PACKAGES: tuple[Format, ...] = ("docx", "epub", "odf", "pptx", "xlsx")
MAX_BYTES = 2**25  # of a document
MAX_PACKAGE_BYTES = 2**27  # of a package, which may hold pictures
PRINTED: tuple[Format, ...] = tuple(format for format in FORMATS if format not in PACKAGES)
# Of keys and texts: an earlier translation is taken as it is.
UPDATED: tuple[Format, ...] = ("po", "json", "xliff", "properties", "strings", "android", "resx", "yaml")
# What is not translated here, and what to do about it.
ADVICE = {
    ".pdf": "a PDF has no paragraphs that could be put back; translate the document that it was made from, as "
    "a .docx, or its text (pdftotext FILE.pdf FILE.txt)",
    ".tmx": "a translation memory is data to train on; export the texts as .xlf",
    **{
        old: f"an old format of Office; save it as {new}"
        for old, new in ((".doc", ".docx"), (".rtf", ".docx"), (".xls", ".xlsx"), (".ppt", ".pptx"))
    },
    **dict.fromkeys((".mobi", ".azw", ".azw3", ".kf8"), "a book of Kindle; convert it to .epub"),
}


def most_bytes(format: Format) -> int:
    """The bytes that a file of a format may have."""
    return MAX_PACKAGE_BYTES if format in PACKAGES else MAX_BYTES


def format_of(path: Path) -> Format:
    """The format that the file's suffix names. HeedError if none does."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        advice = f"its suffix names no format; rename it, or give --format: {', '.join(FORMATS)}"
        raise HeedError(f"{path}: {ADVICE.get(suffix, advice)}.")
    return SUFFIXES[suffix]
