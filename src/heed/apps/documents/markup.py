"""Texts with tags of HTML or XML, as pages that the reader of HTML understands, and back."""

import json
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal
from xml.parsers import expat

from heed.apps.documents.formats.html_elements import INLINE
from heed.apps.documents.formats.jobs import text_job
from heed.apps.documents.text.translation import DocumentOptions, TranslationJob
from heed.errors import HeedError

DECLARATION = '<?xml version="1.0"?>'
# How a whole document begins, which needs no root around it.
WITH_PROLOG = re.compile(r"<\?xml|(?>\s+|<!--(?>.*?-->)|<\?(?>.*?\?>))*+<!DOCTYPE", re.DOTALL)
# What HTML calls a character, and a bare &, stand for themselves: only XML's own references are left to its parser.
_NO_REFERENCE = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9A-Fa-f]{1,6});)")


_TAG = re.compile(r"<([^\s<>/]++)(?=[\s/>])")


def markup_options(
    kind: Literal["html", "xml"],
    *,
    ignored: Collection[str] = (),
    splitting: Collection[str] = (),
    non_splitting: Collection[str] = (),
    outline: bool = True,
) -> bytes:
    """How texts with tags are read, as `marked_up_job` takes it. The last three are for XML: see `XMLText`."""
    of_xml = {"splitting": [*splitting], "non_splitting": [*non_splitting], "outline": outline}
    return json.dumps({"ignored": [*ignored]} | (of_xml if kind == "xml" else {})).encode()


def marked_up_job(text: str, markup: bytes, options: DocumentOptions, *, place: int) -> TranslationJob[str]:
    """The text in the other language, with its tags. HeedError, which says its place, if it is not well-formed XML."""
    asked = json.loads(markup)
    lists = ("ignored", "splitting", "non_splitting")
    ignored, splitting, non_splitting = (frozenset(asked.get(name, ())) for name in lists)
    marked: HTMLText | XMLText = HTMLText(ignored)
    if "outline" in asked:
        marked = XMLText(ignored=ignored, splitting=splitting, non_splitting=non_splitting, outline=asked["outline"])
        options = replace(options, attributes=False)  # what an attribute of XML means is its reader's to know
    return marked.text((yield from text_job(marked.page(text, place), "html", options)))


class HTMLText:
    """A text of HTML, in which the content of some elements stays as it is."""

    def __init__(self, ignored: Collection[str]):
        # No text holds this attribute, so that it can be taken off again.
        self._untranslated = f' translate="no" data-{secrets.token_hex(8)}=""'
        self._ignored = {name.lower() for name in ignored}

    def page(self, text: str, _: int) -> str:
        def marked(tag: re.Match[str]) -> str:
            return tag[0] + self._untranslated * (tag[1].lower() in self._ignored)

        return _TAG.sub(marked, text)

    def text(self, page: str) -> str:
        return page.replace(self._untranslated, "")


@dataclass
class _Element:
    name: str
    start: int  # where its tags begin, in bytes
    end: int = -1  # of an empty element: behind it, where the end tag of the element around it may begin
    has_words: bool = False  # between its children
    children: list["_Element"] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class XMLText:
    """A text of XML. Tags among words are within their sentence, others end it.

    ignored: elements whose content stays as it is; splitting, non_splitting: tags that always or never end a sentence.
    Without `outline`, only `splitting` do.
    """

    ignored: Collection[str] = ()
    splitting: Collection[str] = ()
    non_splitting: Collection[str] = ()
    outline: bool = True
    # No text holds it, so that the names that it marks can be found again.
    _mark: str = field(default_factory=lambda: f"heed{secrets.token_hex(8)}")

    def text(self, page: str) -> str:
        plain = page.removeprefix(DECLARATION).replace(f' {self._mark} translate="no"', "")
        return re.sub(rf"(</?)(?:span|div) {self._mark}-", r"\1", plain)

    def page(self, text: str, place: int) -> str:
        """Each tag as one of HTML within a sentence, or as one that ends it. HeedError if it is not well-formed."""
        content = text.encode()
        tags: dict[int, tuple[bytes, bytes, bytes]] = {}  # where a name begins; what goes before it, it, what behind it
        parents = [_root(text, place)]
        while parents:
            parent = parents.pop()
            parents += parent.children
            for element in parent.children:
                inline = self._is_inline(element.name, among_words=parent.has_words)
                before = f"{'span' if inline else 'div'} {self._mark}-"
                after = f' {self._mark} translate="no"' if element.name in self.ignored else ""
                tags[element.start + 1] = before.encode(), element.name.encode(), after.encode()
                if content.startswith(f"</{element.name}".encode(), element.end):
                    tags.setdefault(element.end + 2, (before.encode(), element.name.encode(), b""))
        parts: list[bytes] = []
        last = 0
        for begin, tag in sorted(tags.items()):
            parts += [content[last:begin], *tag]
            last = begin + len(tag[1])
        return DECLARATION + b"".join([*parts, content[last:]]).decode()

    def _is_inline(self, name: str, *, among_words: bool) -> bool:
        if name in self.splitting or name in self.non_splitting:
            return name not in self.splitting
        return not self.outline or (name != "br" and (among_words or name in INLINE))


def _root(text: str, place: int) -> _Element:
    """An element around those of a text. HeedError with line and column if the text is not well-formed XML."""
    # A text with a prolog is a document; any other is a fragment, which XML reads within an element only.
    head, tail = ("", "") if WITH_PROLOG.match(text) else ("<text>\n", "</text>")
    root = _Element("", -1)
    nesting = [root]
    parser = expat.ParserCreate()

    # Byte offsets are those in the text, without the element around it.
    def start(name: str, _: dict[str, str]) -> None:
        element = _Element(name, parser.CurrentByteIndex - len(head))
        nesting[-1].children.append(element)
        nesting.append(element)

    def end(_: str) -> None:
        nesting.pop().end = parser.CurrentByteIndex - len(head)

    def words(text: str) -> None:
        nesting[-1].has_words = nesting[-1].has_words or not text.isspace()

    # A few declarations can expand to gigabytes, and none is needed.
    def entity(*_: object) -> None:
        raise HeedError(f"text {place} declares entities: write the characters themselves")

    # Lines and columns of an error are counted from 1 in the text as the client sent it.
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.EntityDeclHandler = words, entity
    try:
        parser.Parse(head + _NO_REFERENCE.sub("+", text) + tail, True)
    except expat.ExpatError as error:
        line, column = error.lineno - bool(head), error.offset + 1
        reason = expat.ErrorString(error.code)
        if reason == expat.errors.XML_ERROR_TAG_MISMATCH:
            column -= 2  # expat counts from behind "</"
            reason = f"<{nesting[-1].name}> has no end tag" if len(nesting) > 1 + bool(head) else "no tag opens this"
        raise HeedError(f"text {place} is not well-formed XML: line {line}, column {column}: {reason}") from None
    return root.children[0] if head else root
