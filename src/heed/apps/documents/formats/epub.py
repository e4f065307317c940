"""EPUB 2 and 3: every page, by the reader of HTML, the navigation, and the title and language of the book.

All other files keep their bytes. A book with DRM is refused: its pages cannot be read.
"""

import posixpath
import re
from dataclasses import replace
from urllib.parse import unquote

from heed.apps.documents.formats.charsets import decode, is_utf8
from heed.apps.documents.formats.html import read_html, with_target_language, write_html
from heed.apps.documents.formats.packages import Files, check_length, read_files, write_files
from heed.apps.documents.formats.texts import texts_job
from heed.apps.documents.formats.words_in_markup import divide_words
from heed.apps.documents.formats.xml_texts import XMLRules, read_texts, write_texts
from heed.apps.documents.formats.xml_tokens import XMLDocument, of_characters, read_xml
from heed.apps.documents.text.items import Item, Tag
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

    # All parts are asked for at once, which a search translates faster than one after the other.
    texts: list[list[Item]] = []
    left: dict[str, list[Item]] = {}
    marks: dict[str, tuple[bytes, str]] = {}
    documents: dict[str, XMLDocument] = {book: package}
    for part, kind in kinds.items():
        if kind in _PAGES:
            text, mark, codec = decode(by_name[part], name=f"{name}: {part}", is_html=True)
            items = read_html(text)
            # XML that declares no charset is UTF-8, unlike a page of a server.
            is_plain = codec in ("ascii", "cp1252", "latin-1") and is_utf8(by_name[part])
            marks[part] = mark, "utf-8" if is_plain else codec
            if not options.attributes:
                items, left[part] = divide_words(items, of_attributes=True)
        else:
            documents.setdefault(part, read_xml(by_name[part], name=f"{name}: {part}"))
            items = read_texts(documents[part], _OF_BOOK if kind == "book" else _OF_NAVIGATION)
        texts.append(items)
    found = yield from texts_job(texts, options)
    changed: dict[str, bytes] = {}
    for part, items in zip(kinds, found, strict=True):
        if part in documents:
            named = _with_language(items, options) if options.target else items
            changed[part] = documents[part].encode(write_texts(named))
        else:
            items = of_characters([*items, *left.get(part, ())])
            mark, codec = marks[part]
            page = with_target_language(items, options.language, options.target) if options.target else items
            changed[part] = mark + write_html(page, codec).encode(codec, errors="replace")
    return write_files(_in_order(files), changed)


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
    found: dict[str, str] = {}
    for token in package.tokens:
        kind = token.attributes.get("media-type", "").lower()
        if token.kind == "open" and token.local == "item" and kind in (*_PAGES, _NAVIGATION):
            path = posixpath.normpath(
                posixpath.join(posixpath.dirname(book), unquote(token.attributes.get("href", "")))
            )
            if path in by_name:
                found[path] = kind
    return found


def _with_language(items: list[Item], options: DocumentOptions) -> list[Item]:
    """The items of a book, where what names the source language names the target."""
    code = re.escape(re.split("[-_]", options.language)[0])
    of_tag = re.compile(rf"""(\sxml:lang\s*=\s*["']){code}(?:[-_]\w++)*+(?=["'])""", re.IGNORECASE)
    of_book = re.compile(rf"(\s*){code}(?:[-_]\w{{1,20}}){{0,3}}(\s*)", re.IGNORECASE)
    found: list[Item] = []
    is_language = False
    for item in items:
        if isinstance(item, Tag) and item.kind == "cut" and code:
            markup = item.markup
            if is_language and (named := of_book.fullmatch(markup)):
                markup = f"{named[1]}{options.target}{named[2]}"
            is_language = re.match(r"<(?:\w{1,20}:)?language[\s>]", markup) is not None
            item = replace(item, markup=of_tag.sub(lambda match: match[1] + options.target, markup))
        found.append(item)
    return found


def _in_order(files: Files) -> Files:
    """The files with the mimetype first and not compressed, as readers look for it."""
    first = [(entry, data) for entry, data in files if entry.filename == "mimetype"]
    for entry, _ in first:
        entry.compress_type = 0
        entry.extra = b""
    return [*first, *(file for file in files if file[0].filename != "mimetype")]
