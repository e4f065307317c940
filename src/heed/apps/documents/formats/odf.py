"""OpenDocument: the texts of .odt, .odp and .ods, with headers, footers, notes and comments; all else stays."""

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import filterfalse

from heed.apps.documents.formats.packages import check_length, read_files, write_files
from heed.apps.documents.formats.texts import Text
from heed.apps.documents.formats.xlsx import compared_in
from heed.apps.documents.formats.xml_texts import XMLRules, texts_of
from heed.apps.documents.formats.xml_tokens import OPENING_TAG, XMLDocument, XMLToken, parts_job, read_parts
from heed.apps.documents.text.translation import DocumentJob, DocumentOptions
from heed.errors import HeedError

_PARTS = ("content.xml", "styles.xml")
_KEPT = frozenset("ruby-text tracked-changes note-citation binary-data script math creator date".split())
_INLINE = frozenset("span a ruby ruby-base meta bookmark-ref reference-ref sequence-ref".split())
_DESCRIPTIONS = frozenset(("title", "desc"))
# Styles for code: LibreOffice's, pandoc's and those that people name so; a blank in a name is written _20_.
_CODE = re.compile(
    r"(?:preformatted|source|verbatim)(?:_20_|_)?(?:text|code|char)|(?:inline(?:_20_|_)?)?code(?:(?:_20_|_)?block)?"
    r"|teletype",
    re.IGNORECASE,
)
_NAMES = ("value", "name", "source-field-name")
_COUNTRY = re.compile(r'(\sfo:country=")[A-Za-z0-9]{2,3}(")')


def _is_kept(token: XMLToken) -> bool:
    """Whether the words of an element are computed, or none: a formula's result, a number, a deletion, a reading."""
    if token.local != "table-cell":
        return token.local in _KEPT
    named = _attributes(token)
    return "formula" in named or named.get("value-type", "string") != "string"


def _attributes(token: XMLToken) -> dict[str, str]:
    """By their local names."""
    return {name.rpartition(" ")[2]: value for name, value in token.attributes.items()}


_RULES = XMLRules(
    texts=frozenset(("p", "h")) | _DESCRIPTIONS,
    ends=frozenset(("tab", "line-break")),
    spaces=frozenset(("s",)),
    is_inline=lambda token: token.local in _INLINE,
    is_kept=_is_kept,
)


def odf_job(content: bytes, options: DocumentOptions, *, name: str, max_text: int | None = None) -> DocumentJob:
    """The document in the other language. HeedError, which calls it `name`, if it is damaged, too large or hostile."""
    files = read_files(content, name=name, kind=".odt")
    by_name = {entry.filename: data for entry, data in files}
    mimetype = by_name.get("mimetype", b"").strip()
    if "content.xml" not in by_name:
        raise HeedError(f"{name}: no OpenDocument: content.xml is not there.")
    if not mimetype.startswith(b"application/vnd.oasis.opendocument."):
        raise HeedError(
            f"{name}: no OpenDocument: its mimetype is {mimetype[:60].decode(errors='replace') or 'missing'}."
        )
    if b"encryption-data" in by_name.get("META-INF/manifest.xml", b""):
        raise HeedError(f"{name}: has a password; save it without one.")
    check_length(files, _PARTS, max_text, name)
    parts = read_parts(files, _PARTS, name)
    rules = _without_code(_RULES, _code_styles(parts.values()))
    if not options.attributes:
        rules = replace(rules, texts=rules.texts - _DESCRIPTIONS)
    compared: set[str] = set()
    if b"spreadsheet" in mimetype:
        compared.update(*(_compared(token) for document in parts.values() for token in document.tokens))

    def is_compared(text: Text) -> bool:
        return "".join(item for item in text.items if isinstance(item, str)).strip().lower() in compared

    texts = {
        part: (document, list(filterfalse(is_compared, texts_of(document, rules)))) for part, document in parts.items()
    }
    return write_files(files, (yield from parts_job(texts, options, lambda _, text: _with_language(text, options))))


def _compared(token: XMLToken) -> set[str]:
    """The texts, in small letters, that a formula, a condition, a filter or a pivot table looks for."""
    texts: set[str] = set()
    for name, value in _attributes(token).items():
        if '"' in value:
            texts |= compared_in(value)
        elif name in _NAMES and token.local.startswith(("filter-", "data-pilot-")):
            texts.add(value.lower())
    return texts


def _code_styles(documents: Iterable[XMLDocument]) -> frozenset[str]:
    """The names of styles for code, and of those that are made from them, as each paragraph's own style is."""
    names = [_attributes(token) for document in documents for token in document.tokens if token.local == "style"]
    parents = {named.get("name", ""): named.get("parent-style-name", "") for named in names}

    found: dict[str, bool] = {"": False}
    for style in parents:
        chain = []
        while style not in found:
            found[style] = _CODE.fullmatch(style) is not None  # until its parent is known, for a circle of styles
            chain.append(style)
            style = style if found[style] else parents.get(style, "")
        found |= dict.fromkeys(chain, found[style])
    return frozenset(style for style, is_code in found.items() if is_code)


def _without_code(rules: XMLRules, styles: frozenset[str]) -> XMLRules:
    """The rules by which paragraphs of code stay, and code in a sentence, which the model reads with it."""

    def is_code(token: XMLToken) -> bool:
        style = _attributes(token).get("style-name", "")
        return style in styles or _CODE.fullmatch(style) is not None

    return replace(
        rules,
        is_inline=lambda token: rules.is_inline(token) and not (token.local == "span" and is_code(token)),
        is_kept=lambda token: rules.is_kept(token) or (token.local in ("p", "h") and is_code(token)),
    )


def _with_language(text: str, options: DocumentOptions) -> str:
    """The text, where styles that name the source language name the target, for the spelling checker."""
    code = re.escape(re.split("[-_]", options.language)[0])
    if not options.target or not code:
        return text
    target, _, region = options.target.replace("_", "-").partition("-")
    language = re.compile(rf'(\sfo:language="){code}(")')

    def named(tag: re.Match[str]) -> str:
        markup = language.sub(rf"\g<1>{target}\2", tag[0])
        return tag[0] if markup == tag[0] else _COUNTRY.sub(rf"\g<1>{region or 'none'}\2", markup)

    return OPENING_TAG.sub(named, text)
