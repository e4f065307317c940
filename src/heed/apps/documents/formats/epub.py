"""EPUB 2 and 3: every page, by the reader of HTML, the navigation, and the title and language of the book.

All other files keep their bytes. A book with DRM is refused: its pages cannot be read.
"""

import posixpath
import re
from urllib.parse import unquote

from heed.apps.documents.formats.charsets import decode, is_utf8
from heed.apps.documents.formats.html import read_html, with_target_language, with_target_named, write_html
from heed.apps.documents.formats.packages import Files, check_length, read_files, write_files
from heed.apps.documents.formats.texts import Edit, Edits, Text
from heed.apps.documents.formats.words_in_markup import divide_words
from heed.apps.documents.formats.xml_texts import XMLRules, texts_of
from heed.apps.documents.formats.xml_tokens import OPENING_TAG, XMLDocument, of_characters, parts_job, read_xml
from heed.apps.documents.text.items import Item
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError

_MIMETYPE = b"application/epub+zip"
_PAGES = ("application/xhtml+xml", "text/html", "text/x-oeb1-document")
_NAVIGATION = "application/x-dtbncx+xml"
_OF_BOOK = XMLRules(texts=frozenset(("title",)))
_OF_NAVIGATION = XMLRules(texts=frozenset(("text",)), is_kept=lambda token: token.local == "docAuthor")
# Files that only protected books have, and fonts' scrambling, which any reader undoes.
_PROTECTED = {"rights.xml": "Adobe's DRM", "sinf.xml": "Apple's FairPlay", "license.lcpl": "Readium LCP"}
_SCRAMBLED = (b"http://www.idpf.org/2008/embedding", b"http://ns.adobe.com/pdf/enc#RC")
_ALGORITHM = re.compile(rb"EncryptionMethod[^>]{0,200}?Algorithm\s*=\s*[\"']([^\"']{0,200})")


def epub_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The book in the other language. HeedError, which calls it `name`, if it is damaged, protected or hostile."""
    files = read_files(content, name=name, kind=".epub")
    by_name = {entry.filename: data for entry, data in files}
    _check(by_name, name)
    book = _path_of_book(by_name, name)
    package = read_xml(by_name[book], name=f"{name}: {book}")
    kinds = {book: "book", **_parts(package, book, by_name)}
    check_length(files, kinds, max_text, name)

    texts: dict[str, tuple[XMLDocument, list[Text]]] = {book: (package, list(texts_of(package, _OF_BOOK)))}
    for part, kind in kinds.items():
        if kind in _PAGES:
            texts[part] = _page(by_name[part], options, name=f"{name}: {part}")
        elif part != book:
            document = read_xml(by_name[part], name=f"{name}: {part}")
            texts[part] = document, list(texts_of(document, _OF_NAVIGATION))

    def finish(part: str, text: str) -> str:
        return text if kinds[part] in _PAGES else _with_language(text, options)

    return write_files(_in_order(files), (yield from parts_job(texts, options, finish)))


class _Page(Text):
    """A page, which names the target language whether or not its words change."""

    def put(self, items: list[Item], edits: Edits) -> None:
        edits.add(Edit(self.start, self.end, self.write(items)))


def _page(content: bytes, options: DocumentOptions, *, name: str) -> tuple[XMLDocument, list[Text]]:
    """A page, and all of it as one text."""
    text, mark, codec = decode(content, name=name, is_html=True)
    # XML that declares no charset is UTF-8, unlike a page of a server.
    codec = "utf-8" if codec in ("ascii", "cp1252", "latin-1") and is_utf8(content) else codec
    items, left = read_html(text), list[Item]()
    if not options.attributes:
        items, left = divide_words(items, of_attributes=True)

    def write(items: list[Item]) -> str:
        return write_html(with_target_language(of_characters([*items, *left]), options), codec)

    return XMLDocument(text, [], mark, codec), [_Page(start=0, end=len(text), items=items, write=write)]


def _check(by_name: dict[str, bytes], name: str) -> None:
    mimetype = by_name.get("mimetype", _MIMETYPE).strip()
    if mimetype != _MIMETYPE:
        raise HeedError(f"{name}: no EPUB: its mimetype is {mimetype[:60].decode(errors='replace')}.")
    for filename, kind in _PROTECTED.items():
        if f"META-INF/{filename}" in by_name:
            raise HeedError(f"{name}: is protected by {kind}; only a copy without it can be translated.")
    encrypted = set(_ALGORITHM.findall(by_name.get("META-INF/encryption.xml", b"")))
    if encrypted - set(_SCRAMBLED):
        raise HeedError(f"{name}: its files are encrypted (DRM); only a copy without that can be translated.")


def _path_of_book(by_name: dict[str, bytes], name: str) -> str:
    """The path of the package document, which lists all files of the book."""
    container = by_name.get("META-INF/container.xml")
    if container is None:
        raise HeedError(f"{name}: no EPUB: META-INF/container.xml is not there.")
    for token in read_xml(container, name=f"{name}: META-INF/container.xml").tokens:
        if token.local == "rootfile" and (path := unquote(token.attributes.get("full-path", ""))) in by_name:
            return path
    raise HeedError(f"{name}: damaged: the book that its container names is not in it.")


def _parts(package: XMLDocument, book: str, by_name: dict[str, bytes]) -> dict[str, str]:
    """The media type of each page, and of the navigation, that the book lists."""
    kinds: dict[str, str] = {}
    for token in package.tokens:
        kind = token.attributes.get("media-type", "").lower()
        if token.kind == "open" and token.local == "item" and kind in (*_PAGES, _NAVIGATION):
            path = posixpath.normpath(
                posixpath.join(posixpath.dirname(book), unquote(token.attributes.get("href", "")))
            )
            if path in by_name:
                kinds[path] = kind
    return kinds


def _with_language(text: str, options: DocumentOptions) -> str:
    """The text, where what names the source language names the target."""
    code = re.escape(re.split("[-_]", options.language)[0])
    if not code or not options.target:
        return text
    of_book = re.compile(
        rf"(<(?:\w{{1,20}}:)?language(?:\s[^<>]*+)?>\s*){code}(?:[-_]\w{{1,20}}){{0,3}}(?=\s*<)", re.IGNORECASE
    )
    text = of_book.sub(lambda match: match[1] + options.target, text)
    return with_target_named(text, options, "xml:lang", OPENING_TAG)


def _in_order(files: Files) -> Files:
    """The files with the mimetype first and not compressed, as readers look for it."""
    first = [(entry, data) for entry, data in files if entry.filename == "mimetype"]
    for entry, _ in first:
        entry.compress_type = 0
        entry.extra = b""
    return [*first, *(file for file in files if file[0].filename != "mimetype")]
