"""The package of a .docx: its files, and which of them hold text (ECMA-376, part 2: Open Packaging Conventions)."""

import posixpath
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from heed.apps.documents.formats.packages import Files, read_files, write_files
from heed.config import reason
from heed.errors import HeedError

WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
# The names that Strict Open XML has for those of the usual form.
_STRICT = {
    b"http://purl.oclc.org/ooxml/wordprocessingml/main": WORD[1:-1].encode(),
    b"http://purl.oclc.org/ooxml/officeDocument/math": b"http://schemas.openxmlformats.org/officeDocument/2006/math",
}
_RELATIONSHIP = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"
_WITH_TEXT = ("header", "footer", "footnotes", "endnotes", "comments")  # kinds of parts besides the main one
_NAME_WITH_TEXT = re.compile(rf"(?:{'|'.join(_WITH_TEXT)})\d*\.xml", re.IGNORECASE)
_OTHER_MAIN_PARTS = {
    "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}": "an Excel workbook",
    "{http://schemas.openxmlformats.org/presentationml/2006/main}": "a PowerPoint presentation",
}


@dataclass
class Package:
    """files: in their order; parts: the root of each part with text, by the name of its file, the main part first."""

    files: Files
    parts: dict[str, Any]
    n_xml: int  # bytes of the parts with text

    def write(self, changed: set[str]) -> bytes:
        """The package with these parts as they are now, and all other files byte for byte."""
        contents: dict[str, bytes] = {}
        for entry, data in self.files:
            if entry.filename in changed:
                content = _serialize(self.parts[entry.filename])
                for strict, usual in _STRICT.items():
                    content = content.replace(usual, strict) if strict in data else content
                contents[entry.filename] = content
        return write_files(self.files, contents)


def read_package(content: bytes, *, name: str, max_xml: int) -> Package:
    """A .docx. HeedError, which calls it `name`, if it is damaged, too large, hostile, or of another kind.

    max_xml: bytes of the parts with text, which take many times as much memory.
    """
    files = read_files(content, name=name, kind=".docx")
    by_name = {entry.filename.lower(): (entry.filename, data) for entry, data in files}
    main, others = _names_of_parts(by_name, name)
    n_xml = sum(len(by_name[part][1]) for part in (main, *others))
    if n_xml > max_xml:
        raise HeedError(f"{name}: its text is longer than {max_xml:,} bytes of XML; split the document.")
    parts = {}
    for part in (main, *others):
        filename, data = by_name[part]
        for strict, usual in _STRICT.items():
            data = data.replace(strict, usual)
        parts[filename] = _parse(data, name)
        _check_root(parts[filename], filename, name)
    return Package(files, parts, n_xml)


def _names_of_parts(by_name: dict[str, tuple[str, bytes]], name: str) -> tuple[str, list[str]]:
    """The main part, and the other parts with text, in lower case. HeedError if there is no main part."""
    main = next(
        (part for kind, part in _relationships("", by_name, name) if kind == "officedocument"), "word/document.xml"
    )
    if main not in by_name:
        if "mimetype" in by_name and b"opendocument" in by_name["mimetype"][1]:
            raise HeedError(f"{name}: no .docx document but OpenDocument (.odt); save it as .docx.")
        raise HeedError(f"{name}: no .docx document: {main} is not there.")
    folder = posixpath.dirname(main)
    parts = [part for kind, part in _relationships(main, by_name, name) if kind in _WITH_TEXT]
    for part in by_name:
        within, filename = posixpath.split(part)
        if within == folder and _NAME_WITH_TEXT.fullmatch(filename):
            parts.append(part)
    return main, [part for part in dict.fromkeys(parts) if part in by_name and part != main]


def _relationships(part: str, by_name: dict[str, tuple[str, bytes]], name: str) -> list[tuple[str, str]]:
    """The kinds and names, in lower case, of the parts that a part (the package, for "") refers to."""
    folder, filename = posixpath.split(part)
    relationships = posixpath.join(folder, "_rels", filename + ".rels")
    if relationships not in by_name:
        return []
    targets = []
    for element in _parse(by_name[relationships][1], name).iter(_RELATIONSHIP):
        target = unquote(element.get("Target", "")).replace("\\", "/")
        if target and element.get("TargetMode") != "External":
            path = posixpath.normpath(posixpath.join("/", folder, target))
            targets.append((element.get("Type", "").rpartition("/")[2].lower(), path.lstrip("/").lower()))
    return targets


def _parse(data: bytes, name: str) -> Any:
    """The root of a part. HeedError if it is damaged, declares entities or is nested too deeply."""
    try:
        from lxml import etree
    except ImportError:
        raise HeedError(f"{name}: .docx is read with lxml, which is not installed: pip install heed-mt.") from None
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, remove_pis=False)
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise HeedError(f"{name}: damaged ({reason(error)}).") from None
    if root.getroottree().docinfo.doctype:
        raise HeedError(f"{name}: declares a document type, which no good .docx does.")
    return root


def _check_root(root: Any, filename: str, name: str) -> None:
    tag = str(root.tag)
    if not tag.startswith(WORD):
        kind = next((kind for space, kind in _OTHER_MAIN_PARTS.items() if tag.startswith(space)), None)
        reason = f"{kind}, not a .docx document" if kind else f"{filename} is not a part of a Word document"
        raise HeedError(f"{name}: {reason}.")
    if next(root.iter(WORD + "altChunk"), None) is not None:
        raise HeedError(f"{name}: {filename} includes another document (altChunk); open it in Word and save it again.")


def _serialize(root: Any) -> bytes:
    from lxml import etree

    data: bytes = etree.tostring(root.getroottree(), xml_declaration=True, encoding="UTF-8", standalone=True)
    return data
