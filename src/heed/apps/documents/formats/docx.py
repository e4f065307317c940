"""Word's .docx: paragraphs, headers, footers, notes and comments are translated; all else keeps its bytes."""

import posixpath
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from heed.apps.documents.formats.docx_part import WORD, Part, word
from heed.apps.documents.formats.docx_text import DocxText
from heed.apps.documents.formats.html import with_target_named
from heed.apps.documents.formats.office_parts import descriptions
from heed.apps.documents.formats.packages import check_length, read_files, write_files
from heed.apps.documents.formats.texts import Edit, Edits, Span, Text
from heed.apps.documents.formats.xml_tokens import Placed, XMLDocument, parts_job, read_xml
from heed.apps.documents.text.items import Item
from heed.apps.documents.text.sentences import needs_translation
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError

_WITH_TEXT = ("header", "footer", "footnotes", "endnotes", "comments")  # kinds of parts besides the main one
_NAME_WITH_TEXT = re.compile(rf"(?:{'|'.join(_WITH_TEXT)})\d*\.xml", re.IGNORECASE)
_OTHER_MAIN_PARTS = {"spreadsheetml": "an Excel workbook", "presentationml": "a PowerPoint presentation"}
_LANGUAGE = re.compile(r"<\w{1,20}:lang\s[^<>]*+>")
_BLOCKS = frozenset("p tbl sdt sectPr".split())


def docx_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The document in the other language. HeedError, which calls it `name`, if it is damaged, too large or hostile.

    max_text: bytes of the parts with text, which take many times as much memory.
    """
    files = read_files(content, name=name, kind=".docx")
    by_name = {entry.filename.lower(): (entry.filename, data) for entry, data in files}
    names = _names_of_parts(by_name, name)
    check_length(files, {by_name[part][0] for part in names}, max_text, name)
    parts: list[Part] = []
    for filename, data in (by_name[part] for part in names):
        document = read_xml(data, name=f"{name}: {filename}")
        _check(document, filename, name)
        parts.append(Part(document, name))
    texts: dict[str, tuple[XMLDocument, Sequence[Placed]]] = {}
    for key, part in zip(names, parts, strict=True):
        own = list(_texts(part, options))
        if not all(isinstance(text, _Binding) for text in own):
            texts[by_name[key][0]] = part.document, own
    return write_files(files, (yield from parts_job(texts, options, lambda _, text: _in_target(text, options))))


@dataclass(frozen=True)
class _Binding:
    """What binds a control to a property of the document: Word would show this, in the source language. It goes."""

    span: Span
    items: list[Item] = field(default_factory=list)

    def put(self, items: list[Item], edits: Edits) -> None:
        edits.add(Edit(*self.span, ""))


def _texts(part: Part, options: DocumentOptions) -> Iterator[DocxText | Text | _Binding]:
    """What is written anew in a part, in the order of the document, each followed by the texts within it."""
    done: set[int] = set()
    tokens = part.document.tokens
    for place, token in enumerate(tokens):
        if token.kind != "open":
            continue
        if token.local in ("docPr", "cNvPr", "shape") and options.attributes:
            yield from (text for text in descriptions(token) if needs_translation(text.raw))
        if part.names[place] == "sdt":
            yield from _bindings(part, place)
        if part.names[place] != "p" or place in done or part.is_code(place):
            continue
        cap, paragraphs = -1, [place]
        following = _next_paragraph(part, place) if _is_dropped_cap(part, place) else -1
        if following >= 0 and part.begins_with_words(following):
            # The words are those of the paragraph behind it, and its first letter goes back into this one.
            cap, paragraphs = place, [following]
        while _is_end_deleted(part, paragraphs[-1]):
            following = _next_paragraph(part, paragraphs[-1])
            if following < 0 or not part.words(following).strip():
                break
            paragraphs.append(following)
        done.update(paragraphs)
        waiting = deque([DocxText.of_paragraphs(part, paragraphs, cap=cap)])
        while waiting:
            text = waiting.popleft()
            if text.has_words:
                text.read()
                yield text
                waiting.extend(text.within)


def _bindings(part: Part, control: int) -> Iterator[_Binding]:
    within = range(control, part.document.tokens[control].end)
    for place in part.children(part.child(control, "sdtPr")):
        is_binding = part.document.tokens[place].local == "dataBinding"
        if is_binding and any(part.names[inner] == "t" and part.string(inner) for inner in within):
            yield _Binding(part.span(place))


def _is_dropped_cap(part: Part, paragraph: int) -> bool:
    """Whether it holds nothing but the large first letter of the next one."""
    frame = part.property(paragraph, "framePr")
    return part.value(frame, "dropCap") not in ("", "none") and bool(part.words(paragraph).strip())


def _is_end_deleted(part: Part, paragraph: int) -> bool:
    """Whether its end is deleted or moved away, with changes tracked, so that Word joins it with the next one."""
    properties = part.child(part.child(paragraph, "pPr"), "rPr")
    marks = (part.child(properties, mark) for mark in ("del", "moveFrom"))
    return any(mark >= 0 for mark in marks) and bool(part.words(paragraph).strip())


def _next_paragraph(part: Part, paragraph: int) -> int:
    """The paragraph behind it, if no table or other block is; marks such as a bookmark's may be between. Else −1."""
    tokens = part.document.tokens
    place = tokens[paragraph].end + 1
    while place < len(tokens) and tokens[place].kind != "close":
        if tokens[place].kind == "open":
            if word(tokens[place]) in _BLOCKS:
                return place if word(tokens[place]) == "p" else -1
            place = tokens[place].end
        place += 1
    return -1


def _in_target(text: str, options: DocumentOptions) -> str:
    """The text, which names the target for the spelling checker."""
    return with_target_named(text, options, r"\w{1,20}:(?:val|eastAsia|bidi)", _LANGUAGE)


def _names_of_parts(by_name: dict[str, tuple[str, bytes]], name: str) -> list[str]:
    """The parts with text, in lower case, the main part first. HeedError if there is no main part."""
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
    return [part for part in dict.fromkeys((main, *parts)) if part in by_name]


def _relationships(part: str, by_name: dict[str, tuple[str, bytes]], name: str) -> list[tuple[str, str]]:
    """The kinds and names, in lower case, of the parts that a part (the package, for "") refers to."""
    folder, filename = posixpath.split(part)
    relationships = posixpath.join(folder, "_rels", filename + ".rels")
    if relationships not in by_name:
        return []
    targets = []
    for token in read_xml(by_name[relationships][1], name=f"{name}: {relationships}").tokens:
        target = unquote(token.attributes.get("Target", "")).replace("\\", "/")
        if token.local == "Relationship" and target and token.attributes.get("TargetMode") != "External":
            path = posixpath.normpath(posixpath.join("/", folder, target))
            targets.append((token.attributes.get("Type", "").rpartition("/")[2].lower(), path.lstrip("/").lower()))
    return targets


def _check(document: XMLDocument, filename: str, name: str) -> None:
    space = next(token.name for token in document.tokens if token.kind == "open").rpartition(" ")[0]
    if space not in WORD:
        kind = next((kind for part, kind in _OTHER_MAIN_PARTS.items() if f"/{part}/" in space), None)
        reason = f"{kind}, not a .docx document" if kind else f"{filename} is not a part of a Word document"
        raise HeedError(f"{name}: {reason}.")
    if any(word(token) == "altChunk" for token in document.tokens):
        raise HeedError(f"{name}: {filename} includes another document (altChunk); open it in Word and save it again.")
