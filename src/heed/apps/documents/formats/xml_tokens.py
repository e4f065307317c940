"""XML as its tags and the texts between them, so that a document can be edited in place: all other bytes stay."""

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol
from xml.parsers import expat

from heed.apps.documents.formats.charsets import MARKS
from heed.apps.documents.formats.html import spelled_words, write_elements
from heed.apps.documents.formats.html_tokens import CDATA, END_OF_CDATA
from heed.apps.documents.formats.packages import Files
from heed.apps.documents.formats.texts import Edit, Edits, Text, edited, keyed_texts_job, texts_job
from heed.apps.documents.text.items import Item, Tag
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions, TranslationJob
from heed.errors import HeedError

MAX_DEPTH = 256  # elements within each other
XML = "http://www.w3.org/XML/1998/namespace "  # how the names of its attributes begin
_ENCODING = re.compile(rb"<\?xml[^>]{0,200}?\sencoding\s*=\s*[\"']([\w.-]{1,40})")
OPENING_TAG = re.compile(r"<[^<>!?/][^<>]*+>")
# What XML does not have, whatever a model writes.
_NO_CHARACTERS = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(slots=True)
class XMLToken:
    """A tag, the text between two of them, or what is neither, such as a comment; markup: as it stands.

    name: of a tag: its namespace, a space and its local name. end: of an opening tag: the place of the closing one,
    which follows it, with empty markup, if it closes itself. The text of a CDATA section is named so.
    """

    kind: Literal["open", "close", "text", "cdata", "other"]
    start: int
    name: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    markup: str = ""
    end: int = -1

    @property
    def local(self) -> str:
        return self.name.rpartition(" ")[2]


@dataclass(frozen=True)
class XMLDocument:
    """A document's text and its tokens, which together are that; and its byte order mark and charset."""

    text: str
    tokens: list[XMLToken]
    mark: bytes
    codec: str

    @property
    def root(self) -> XMLToken:
        return next(token for token in self.tokens if token.kind == "open")

    def at(self, place: int) -> int:
        """Where a token begins in the text."""
        return self.tokens[place].start if place < len(self.tokens) else len(self.text)

    def raw(self, first: int, stop: int) -> str:
        return self.text[self.at(first) : self.at(stop)]

    def content(self, place: int) -> str:
        """What stands in the element whose opening tag is at this place."""
        return self.raw(place + 1, self.tokens[place].end)

    def edit(self, first: int, stop: int, text: str) -> Edit:
        """The change that puts a text in the place of tokens."""
        return Edit(self.at(first), self.at(stop), text)

    def edited(self, edits: Iterable[Edit]) -> bytes:
        return self.encode(edited(self.text, edits))

    def encode(self, text: str) -> bytes:
        """The bytes of a text in the document's charset; what that lacks as references."""
        return self.mark + text.encode(self.codec, errors="xmlcharrefreplace")


Reader = Callable[[XMLDocument], Iterable[Text]]


def read_xml(content: bytes, *, name: str) -> XMLDocument:
    """HeedError, which calls it `name`, if it is not well-formed, declares entities or is nested too deeply."""
    mark, codec = next(((mark, codec) for mark, codec in MARKS if content.startswith(mark)), (b"", "utf-8"))
    if not mark and (stated := _ENCODING.match(content)):
        codec = stated[1].decode().lower()
    try:
        text = content.removeprefix(mark).decode(codec)
        data = text.encode()
    except (LookupError, UnicodeError):
        raise HeedError(f"{name}: its text is not in the charset {codec}, which it declares.") from None
    # The parser counts bytes, everybody else characters.
    tokens, length = _tokens(data, name), 0
    for token, end in zip(tokens, [*(token.start for token in tokens[1:]), len(data)], strict=True):
        token.markup = data[token.start : end].decode()
        token.start = length
        length += len(token.markup)
    return XMLDocument(text, tokens, mark, codec)


def keyed_xml_job(document: XMLDocument, options: DocumentOptions, texts: Reader) -> DocumentJob:
    """A file of keys and texts in the other language."""
    edits = keyed_texts_job(list(texts(document)), options, lambda file, name: texts(read_xml(file, name=name)))
    return document.edited((yield from edits))


def read_parts(files: Files, parts: Container[str], name: str) -> dict[str, XMLDocument]:
    """The files of a package that are among these parts."""
    return {
        entry.filename: read_xml(data, name=f"{name}: {entry.filename}")
        for entry, data in files
        if entry.filename in parts
    }


class Placed(Protocol):
    """A text at its place, or several."""

    @property
    def items(self) -> list[Item]: ...

    def put(self, items: list[Item], edits: Edits) -> None: ...


def parts_job(
    parts: Mapping[str, tuple[XMLDocument, Sequence[Placed]]],
    options: DocumentOptions,
    finish: Callable[[str, str], str] = lambda _, text: text,
) -> TranslationJob[dict[str, bytes]]:
    """The parts of a package with their texts, each in the order of its document, in the other language.

    All are asked for at once, which a search translates faster than one after the other. finish: what becomes of the
    text of a part, by its name.
    """
    texts = [text for _, own in parts.values() for text in own]
    translated = iter((yield from texts_job([text.items for text in texts], options)))
    changed: dict[str, bytes] = {}
    for name, (document, own) in parts.items():
        edits = Edits(document.text)
        for text, items in reversed([(text, next(translated)) for text in own]):
            text.put(items, edits)
        changed[name] = document.encode(finish(name, edits.written()))
    return changed


def _tokens(data: bytes, name: str) -> list[XMLToken]:
    tokens: list[XMLToken] = []
    nesting: list[int] = []
    is_cdata = False
    parser = expat.ParserCreate("utf-8", " ")
    parser.ordered_attributes = False

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(nesting) == MAX_DEPTH:
            raise HeedError(f"{name}: more than {MAX_DEPTH} elements within each other.")
        nesting.append(len(tokens))
        tokens.append(XMLToken("open", parser.CurrentByteIndex, tag, attributes))

    def end(tag: str) -> None:
        tokens[nesting.pop()].end = len(tokens)
        tokens.append(XMLToken("close", parser.CurrentByteIndex, tag))

    def text(_: str) -> None:
        if not tokens or tokens[-1].kind != "text":
            tokens.append(XMLToken("text", parser.CurrentByteIndex, CDATA if is_cdata else ""))

    def cdata() -> None:
        nonlocal is_cdata
        is_cdata = not is_cdata
        tokens.append(XMLToken("cdata", parser.CurrentByteIndex))

    def other(*_: object) -> None:
        tokens.append(XMLToken("other", parser.CurrentByteIndex))

    # A few declarations can expand to gigabytes, and no good file of these formats has any.
    def entity(*_: object) -> None:
        raise HeedError(f"{name}: declares entities; write what they stand for instead.")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.StartCdataSectionHandler = parser.EndCdataSectionHandler = cdata
    parser.CommentHandler = parser.ProcessingInstructionHandler = parser.DefaultHandler = other
    parser.EntityDeclHandler = entity
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise HeedError(f"{name}: damaged: line {error.lineno}, column {error.offset + 1}: {reason}.") from None
    return tokens


def words_of(token: XMLToken) -> list[Item]:
    """A text with its references resolved; what is no text stays."""
    if token.kind == "text" and token.name == CDATA:  # where nothing is a reference
        return [token.markup]
    if token.kind == "text":
        return spelled_words(token.markup)
    if token.kind == "cdata":
        is_end = token.markup == END_OF_CDATA
        return [Tag("close" if is_end else "open", token.markup, CDATA)]
    return [Tag("atom", token.markup)] if token.markup else []


def write_xml(items: Iterable[Item]) -> str:
    """The items as XML: no word becomes markup, and no character is written that XML lacks."""
    return write_elements(of_characters(items))


def of_characters(items: Iterable[Item]) -> list[Item]:
    """The items without the characters that XML lacks."""
    return [_NO_CHARACTERS.sub("", item) if isinstance(item, str) else item for item in items]
