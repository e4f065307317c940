"""Word's .docx: the paragraphs of its text, headers, footers and notes are translated; all else keeps its bytes.

A run of the commonest format of a paragraph is plain text, any other run is an element that its words take along.
"""

import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from heed.apps.documents.items import Item, Tag
from heed.apps.documents.sentences import Splitter
from heed.apps.documents.translation import Asking, translating_items
from heed.config import reason
from heed.errors import HeedError

MAX_UNPACKED = 2**27  # bytes of all files of a document
MAX_FILES = 10_000
MAX_COPIED = 2**20  # bytes of formats that are copied, besides four times those of the text
WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
SPACE = "{http://www.w3.org/XML/1998/namespace}space"
# What may be within a paragraph and holds runs. All else stands between words or ends the sentence.
_HOLDERS = {WORD + name for name in ("hyperlink", "smartTag", "ins", "moveTo", "sdt", "sdtContent", "customXml", "dir",
                                     "bdo")}  # fmt: skip
_PROPERTIES = {WORD + name for name in ("pPr", "sdtPr", "sdtEndPr", "customXmlPr", "smartTagPr")}  # of what holds runs
_TEXT_CONTROL = {WORD + name for name in ("alias", "tag", "id", "lock", "rPr", "placeholder", "showingPlcHdr",
                                          "temporary", "text", "richText")}  # fmt: skip
_BETWEEN_WORDS = {WORD + name for name in ("bookmarkStart", "bookmarkEnd", "proofErr", "commentRangeStart",
                                           "commentRangeEnd", "lastRenderedPageBreak")} | {MATH + "oMath"}  # fmt: skip
_IN_RUN = {WORD + name for name in ("footnoteReference", "endnoteReference", "commentReference",
                                    "lastRenderedPageBreak", "sym", "drawing", "object")}  # fmt: skip
_HYPHENS = {WORD + "noBreakHyphen": "-", WORD + "softHyphen": ""}  # part of a word


def translating_docx(content: bytes, *, split: Splitter, name: str, max_xml: int = MAX_UNPACKED) -> Asking[bytes]:
    """The document in the other language. HeedError, which calls it `name`, if it is damaged, too large or hostile.

    max_xml: bytes of the parts with text, which take many times as much memory.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as package:
            files = _files(package, name)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError, ValueError, OSError) as error:
        raise HeedError(f"{name}: no .docx document, or a damaged one ({reason(error)}).") from None
    if sum(len(data) for entry, data in files if _has_text(entry.filename)) > max_xml:
        raise HeedError(f"{name}: its text is longer than {max_xml:,} bytes of XML; split the document.")
    parts = {entry.filename: _parsed(data, name) for entry, data in files if _has_text(entry.filename)}
    copier = _Copier(sum(len(data) for entry, data in files if entry.filename in parts), name)
    paragraphs = {part: [_Paragraph(p, copier) for p in root.iter(WORD + "p")] for part, root in parts.items()}
    # All at once, which a search translates faster than one after the other.
    items: list[Item] = []
    for paragraph in (paragraph for some in paragraphs.values() for paragraph in some if paragraph.has_words):
        items += [*paragraph.items(), Tag("cut", paragraph)]
    own: list[Item] = []
    for item in (yield from translating_items(items, split=split)):
        if isinstance(item, Tag) and isinstance(item.markup, _Paragraph):
            item.markup.write(own)
            own = []
        else:
            own.append(item)
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as written:
        for entry, data in files:
            if any(paragraph.has_words for paragraph in paragraphs.get(entry.filename, ())):
                data = _serialized(parts[entry.filename])
            written.writestr(entry, data, compress_type=entry.compress_type)
    return output.getvalue()


def _files(package: zipfile.ZipFile, name: str) -> list[tuple[zipfile.ZipInfo, bytes]]:
    """The files of a package. HeedError if they are too many or too large together, or without a document."""
    entries = package.infolist()
    names = {entry.filename for entry in entries}
    if len(entries) > MAX_FILES:
        raise HeedError(f"{name}: holds {len(entries):,} files; at most {MAX_FILES:,} are read.")
    if len(names) < len(entries) or "word/document.xml" not in names:
        raise HeedError(f"{name}: no .docx document: word/document.xml is not there, or a file is there twice.")
    files, left = [], MAX_UNPACKED
    for entry in entries:
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise HeedError(f"{name}: {entry.filename} is compressed in another way than a .docx may be.")
        with package.open(entry) as file:
            data = file.read(left + 1)  # the size that the package states may be a lie
        left -= len(data)
        if left < 0:
            raise HeedError(f"{name}: unpacks to more than {MAX_UNPACKED:,} bytes; split the document.")
        files.append((entry, data))
    return files


def _has_text(filename: str) -> bool:
    folder, _, part = filename.rpartition("/")
    kinds = ("document.xml", "header", "footer", "footnotes.xml", "endnotes.xml")
    return folder == "word" and part.endswith(".xml") and part.startswith(kinds)


def _parsed(data: bytes, name: str) -> Any:
    """The root of a part. HeedError if it is damaged, declares entities or is nested too deeply."""
    try:
        from lxml import etree
    except ImportError:
        raise HeedError(
            f"{name}: .docx is read with lxml, which is not installed: pip install 'heed-mt[serve]'."
        ) from None
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, remove_pis=False)
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise HeedError(f"{name}: damaged ({reason(error)}).") from None
    if root.getroottree().docinfo.doctype:
        raise HeedError(f"{name}: declares a document type, which no good .docx does.")
    if not str(root.tag).startswith(WORD):
        raise HeedError(f"{name}: written as Strict Open XML; save it as an ordinary .docx.")
    return root


def _serialized(root: Any) -> bytes:
    from lxml import etree

    data: bytes = etree.tostring(root.getroottree(), xml_declaration=True, encoding="UTF-8", standalone=True)
    return data


class _Copier:
    """Makes runs in the format of others. HeedError once the copies would take far more than the document."""

    def __init__(self, n_bytes: int, name: str):
        """n_bytes: of the document's text."""
        self._left, self._name = MAX_COPIED + 4 * n_bytes, name

    def run_with(self, run: Any, children: list[Any]) -> Any:
        """A run of the same format with other content."""
        from lxml import etree

        properties = run.find(WORD + "rPr")
        self._left -= sum(len(key) + len(value) for key, value in run.attrib.items())
        # Without the namespaces of the document, which are written once.
        self._left -= 0 if properties is None else len(etree.tostring(properties, method="c14n", exclusive=True))
        if self._left < 0:
            raise HeedError(f"{self._name}: its runs have too many properties.")
        copy = run.makeelement(run.tag, dict(run.attrib), nsmap={run.prefix: WORD[1:-1]})  # the tree has the others
        if properties is not None:
            copy.append(deepcopy(properties))
        copy.extend(children)
        return copy


class _Paragraph:
    """A paragraph's content as items, and back. Markup is the element that stands there."""

    def __init__(self, element: Any, copier: _Copier):
        self._element, self._copier = element, copier
        runs = [run for run in _own_runs(element) if _words(run)]
        formats = Counter[bytes]()
        for run in runs:
            formats[_format(run)] += len(_words(run))
        self._plain = max(formats, key=lambda key: formats[key]) if formats else b""
        self._model = next((run for run in runs if _format(run) == self._plain), None)

    @property
    def has_words(self) -> bool:
        """Whether there is anything to translate; if not, it is neither read nor written."""
        return self._model is not None

    def items(self) -> Iterator[Item]:
        """The paragraph's words and tags, which are taken out of it."""
        yield from self._within(self._element)

    def _within(self, holder: Any) -> Iterator[Item]:
        children = [child for child in holder if child.tag not in _PROPERTIES]
        place = 0
        while place < len(children):
            child = children[place]
            if child.tag == WORD + "r":
                # Word splits runs anywhere, for instance where spelling was checked.
                stop = place + 1
                while (
                    stop < len(children)
                    and children[stop].tag == child.tag
                    and (_format(children[stop]) == _format(child))
                ):
                    stop += 1
                yield from self._of_runs(children[place:stop])
                place = stop
                continue
            if _holds_runs(child):
                yield Tag("open", child, "holder")
                yield from self._within(child)
                yield Tag("close", child, "holder")
            else:
                yield Tag("atom" if child.tag in _BETWEEN_WORDS else "cut", child)
            place += 1

    def _of_runs(self, runs: list[Any]) -> Iterator[Item]:
        marked = _format(runs[0]) != self._plain and any(map(_words, runs))
        if marked:
            yield Tag("open", runs[0], "run")
        for run in runs:
            for child in list(run):  # which is taken apart
                if child.tag == WORD + "t":
                    yield _text(child)
                elif child.tag in _HYPHENS:
                    yield _HYPHENS[child.tag]
                elif child.tag != WORD + "rPr":
                    yield Tag("atom" if child.tag in _IN_RUN else "cut", self._copier.run_with(run, [child]))
        if marked:
            yield Tag("close", runs[0], "run")

    def write(self, items: list[Item]) -> None:
        """Puts these items in the place of the paragraph's content."""
        holder_children = [(self._element, _properties(self._element))]
        formats = [self._model]
        for item in items:
            children = holder_children[-1][1]
            if isinstance(item, str):
                if item:
                    children.append(self._copier.run_with(formats[-1], [_text_element(self._model, item)]))
            elif item.name == "run":
                if _is_opening(item, formats):
                    formats.append(item.markup)
                else:
                    formats.pop()
            elif item.name == "holder":
                if holder_children[-1][0] is item.markup:
                    _set_children(*holder_children.pop())
                else:
                    children.append(item.markup)
                    holder_children.append((item.markup, _properties(item.markup)))
            else:
                children.append(item.markup)
        while holder_children:
            _set_children(*holder_children.pop())


def _properties(holder: Any) -> list[Any]:
    return [child for child in holder if child.tag in _PROPERTIES]


def _holds_runs(element: Any) -> bool:
    """Whether words in it are translated; those of a checkbox, a list, a date or a citation belong to the control."""
    properties = element.find(WORD + "sdtPr")
    return element.tag in _HOLDERS and (properties is None or all(child.tag in _TEXT_CONTROL for child in properties))


def _own_runs(holder: Any) -> Iterator[Any]:
    """The runs of a paragraph, without those of text boxes in it, which have paragraphs of their own."""
    for child in holder:
        if child.tag == WORD + "r":
            yield child
        elif _holds_runs(child):
            yield from _own_runs(child)


def _is_opening(tag: Tag, formats: list[Any]) -> bool:
    """A cut is what was an opening or a closing tag: it closes what is open."""
    return tag.kind == "open" or (tag.kind == "cut" and formats[-1] is not tag.markup)


def _set_children(element: Any, children: list[Any]) -> None:
    for child in list(element):
        element.remove(child)
    element.extend(children)


def _words(run: Any) -> str:
    return "".join(_text(child) for child in run if child.tag == WORD + "t")


def _text(element: Any) -> str:
    """Its words, also those behind a comment."""
    return "".join(element.xpath("text()"))


def _format(run: Any) -> bytes:
    """A run's properties as bytes, by which formats are compared."""
    from lxml import etree

    properties = run.find(WORD + "rPr")
    if properties is None:
        return b""
    kept = deepcopy(properties)
    for child in list(kept):
        if child.tag in (WORD + "lang", WORD + "noProof"):  # of spelling, not of how it looks
            kept.remove(child)
    data: bytes = b"".join(etree.tostring(child) for child in kept)
    return data


def _text_element(run: Any, text: str) -> Any:
    element = run.makeelement(WORD + "t", {SPACE: "preserve"})
    element.text = "".join(c for c in text if c in "\t\n" or (c >= " " and c not in "\ufffe\uffff"))  # all that XML has
    return element
