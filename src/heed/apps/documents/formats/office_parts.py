"""The parts of an Office document with texts: which they are, and how all of them are translated at once."""

import re
from collections.abc import Callable, Iterator
from functools import partial

from heed.apps.documents.formats.html import spelled_words, with_target_named, write_value
from heed.apps.documents.formats.office_runs import Runs, read_runs
from heed.apps.documents.formats.packages import Files
from heed.apps.documents.formats.texts import Text
from heed.apps.documents.formats.xml_tokens import XMLDocument, XMLToken, of_characters, read_xml
from heed.apps.documents.text.items import Item
from heed.apps.documents.text.translation import DocumentOptions
from heed.errors import HeedError

_DRAWING = ("http://schemas.openxmlformats.org/drawingml/2006/main", "http://purl.oclc.org/ooxml/drawingml/main")
_OF_RUN = re.compile(r"<\w{1,20}:rPr\s[^<>]*+>")
_DESCRIPTION = re.compile(r"""\s(?:descr|title|alt)\s*=\s*("[^"]*"|'[^']*')""")


def drawn_texts(document: XMLDocument, options: DocumentOptions) -> Iterator[Text]:
    """The paragraphs of a drawing, and the descriptions of pictures."""

    def writer(runs: Runs) -> Callable[[list[Item]], str]:
        # Runs name their language for the spelling checker.
        return lambda items: with_target_named(runs.write(items), options, "lang", _OF_RUN)

    for place, token in enumerate(document.tokens):
        if token.kind != "open":
            continue
        space, _, local = token.name.rpartition(" ")
        if local == "p" and space in _DRAWING and (runs := read_runs(document, place)):
            yield runs.text(document, writer(runs))
        elif local == "cNvPr" and options.attributes:
            yield from descriptions(token)


def descriptions(token: XMLToken) -> Iterator[Text]:
    """The descriptions of a picture, with their quotes."""
    for match in _DESCRIPTION.finditer(token.markup):
        start, end = (token.start + place for place in match.span(1))
        items = spelled_words(match[1][1:-1])
        yield Text(start=start, end=end, items=items, write=partial(_write_quoted, quoted=match[1]), raw=match[1])


def _write_quoted(items: list[Item], *, quoted: str) -> str:
    return write_value(of_characters(items), quoted[0], quoted)


def types_of(files: Files, name: str) -> dict[str, str]:
    """The content type of each file that the package declares one for by its name."""
    listed = next((data for entry, data in files if entry.filename == "[Content_Types].xml"), None)
    if listed is None:
        raise HeedError(f"{name}: no document of Office: [Content_Types].xml is not there.")
    names = {entry.filename.lower(): entry.filename for entry, _ in files}
    types: dict[str, str] = {}
    for token in read_xml(listed, name=f"{name}: [Content_Types].xml").tokens:
        part = names.get(token.attributes.get("PartName", "").lstrip("/").lower())
        if token.local == "Override" and part is not None:
            types[part] = token.attributes.get("ContentType", "")
    return types


def parts_of_types(files: Files, kinds: tuple[str, ...], name: str) -> list[str]:
    """The files of content types that end so."""
    return [part for part, kind in types_of(files, name).items() if kind.rpartition(".")[2] in kinds]
