"""HTML ↔ items: tags, comments and scripts byte for byte, malformed pages included.

Heed's own reader, in time proportional to the page: a parser that repairs a page would write another one.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from heed.apps.documents.formats.html_elements import (
    ALONE,
    BLOCKS,
    CODE,
    DRAWN,
    INLINE,
    RAW,
    SKIPPED,
    THINGS,
    WORDLESS,
    values_with_words,
)
from heed.apps.documents.formats.html_tokens import CDATA, END_OF_CDATA, end_of_tag, ends_of_elements, tokens_of
from heed.apps.documents.formats.words_in_markup import WordsInMarkup, divide_words, with_words
from heed.apps.documents.text.halves import Half, divided, rejoined
from heed.apps.documents.text.items import Item, Tag, as_cut, with_read
from heed.apps.documents.text.translation import DocumentOptions
from heed.text.character_references import resolved

MAX_NOTE = 8  # tokens of a note's number

_NOTE = re.compile(r"[(\[]?(?:\w{1,4}|[*†‡§¶]{1,4})[)\]]?")
_ENDS = (".", "!", "?", "。", "！", "？", "…", ":", ";", ",")
_XML = re.compile(r"[\ufeff\s]*(?:<\?xml\b|(?:<!DOCTYPE[^>]*>\s*)?<html\s[^>]*\bxmlns=)", re.IGNORECASE)
_AS_BLOCK = re.compile(r"""\sdisplay\s*=\s*["']?block\b""", re.IGNORECASE)
_CHARSET = re.compile(
    r"""<(?:meta\s[^>]{0,500}?charset|\?xml\s[^>]{0,500}?encoding)\s*+=\s*+["']?\s*+([\w-]+)""", re.IGNORECASE
)
MAX_HEAD = 2**14  # bytes of a page in which it may declare its charset
_TEMPLATE = re.compile(r"\{{2,3}[^{}]{1,500}\}{2,3}|\{%[^{}]{1,500}%\}")
# Characters that the writer may write otherwise than the page does.
_SPELLED = re.compile(r"&(?:#[xX]?[0-9a-fA-F]{1,20}|[A-Za-z][A-Za-z0-9]{1,31})?;?|[<>\xa0]")
_AFTER_REFERENCE = 40  # characters that decide where a reference without a semicolon ends
_CONTENT_LANGUAGE = re.compile(r"""\shttp-equiv\s*=\s*["']?content-language\b""", re.IGNORECASE)
_ALL = re.compile(r"[\s\S]++")
_ID = re.compile(r"""\sid\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'>]+)""", re.IGNORECASE)
_UNTRANSLATED = re.compile(
    # Formulas too, as pandoc, pymdownx, KaTeX, MathJax and MediaWiki write them.
    r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*(?:["'](?:[^"']*\s)?)?"""
    r"(?:notranslate|math|arithmatex|katex(?:-display)?|MathJax(?:_\w+)?|mwe-math-element)(?=[\s\"'/>])",
    re.IGNORECASE,
)


def read_html(page: str) -> list[Item]:
    """Words with character references resolved; tags, comments, scripts and code as they stand."""
    inner = WordsInMarkup(page)
    return [*read_elements(page, inner), *inner.items]


def read_elements(page: str, inner: WordsInMarkup) -> list[Item]:
    """A page, or a part of one, without the words in its markup, which go to `inner`."""
    # All ends of elements are found at once: a search from each tag would take time that grows with the square.
    is_xml = _XML.match(page) is not None
    tokens = tokens_of(page, is_xml)
    ends = ends_of_elements(tokens)
    items: list[Item] = []
    place = 0
    while place < len(tokens):
        text, name, is_end = tokens[place]
        if not name:
            items += _words(text)
            place += 1
            continue
        stop = place + 1

        # Words in a CDATA section are translated, but hold no references.
        if name == CDATA:
            items += [
                Tag("open", CDATA, CDATA),
                text[len(CDATA) : -len(END_OF_CDATA)],
                Tag("close", END_OF_CDATA, CDATA),
            ]
            place = stop
            continue

        # Code, drawings and elements marked as untranslatable go as a whole, with all tags in them.
        stays = name in CODE or name in SKIPPED or _UNTRANSLATED.search(text) is not None
        is_note = name == "sup" and not is_end and _is_note(tokens[place : place + MAX_NOTE], items)
        if not is_end and (stays or is_note or name in THINGS):
            stop = ends.get(place, stop)
        if stop > place + 1:
            parts = tokens[place:stop]
            has_words = not is_note and (name in CODE or name not in WORDLESS)
            words = "".join(resolved(token[0]) for token in parts if not token[1]) if has_words else ""
            if not stays:
                parts = [(with_marks(*token, inner, words=name == "select"), "", False) for token in parts]
            whole = "".join(token[0] for token in parts)
            within = name not in BLOCKS and not (name in DRAWN and _AS_BLOCK.search(text))
            items.append(Tag("atom" if within else "cut", whole, name, words))
            place = stop
            continue

        # A tag of its own.
        markup = text if stays else with_marks(text, name, is_end, inner)
        if name[0].isalpha() and name not in ALONE and not (is_xml and text.endswith("/>")):
            if name == "a" and not is_end and _end_with_link(items):
                items.append(Tag("cut", ""))  # as in a menu: two links are never one word
            items.append(Tag("close" if is_end else "open", markup, name))
        else:
            items.append(Tag("cut" if name in BLOCKS or name == "!" else "atom", markup, name))
        place = stop
    return divided(_without_lone_elements(items), _is_line_end, _half)


def with_marks(text: str, name: str, is_end: bool, inner: WordsInMarkup, *, words: bool = False) -> str:
    """A token with marks for the words of its attributes; with one for all of it if it is words, and they are asked."""
    if not name:
        return inner.mark(_words(text), text) if words and text.strip() else text
    if is_end or not name[0].isalpha() or (name in RAW and name != "textarea"):
        return text
    parts: list[str] = []
    last = 0
    for value in values_with_words(text, name, start=1 + len(name)):
        if value.text.strip():
            quote = text[value.start] if value.end - value.start > len(value.text) else ""
            parts += [
                text[last : value.start],
                inner.mark(_words(value.text), text[value.start : value.end], quote or '"'),
            ]
            last = value.end
    return "".join([*parts, text[last:]])


def _is_note(tokens: list[tuple[str, str, bool]], items: list[Item]) -> bool:
    """Whether raised signs are a note's number: a link, or behind the end of a sentence, not an exponent."""
    before = items[-1] if items else ""
    words = ""
    has_link = False
    for text, name, is_end in tokens:
        if name == "sup" and is_end:
            is_number = _NOTE.fullmatch(words.strip()) is not None
            return is_number and (has_link or (isinstance(before, str) and before.rstrip("\"'”’»)")[-1:] in _ENDS))
        has_link = has_link or name == "a"
        words += "" if name else text
    return False


def _without_lone_elements(items: list[Item]) -> list[Item]:
    """The items, where elements of unknown names, and buttons, are cuts unless words stand beside them."""
    if not any(isinstance(item, Tag) and item.kind == "open" and item.name not in INLINE for item in items):
        return items
    kept = list(items)
    beside = [_are_words_beside(items, "open"), _are_words_beside(items[::-1], "close")[::-1]]
    opened: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        if not isinstance(item, Tag) or item.name in INLINE or item.kind not in ("open", "close"):
            continue
        if item.kind == "open":
            opened.setdefault(item.name, []).append(place)
        start = opened[item.name].pop() if item.kind == "close" and opened.get(item.name) else -1
        if start < 0 or not (beside[0][start] or beside[1][place]):
            kept[place] = as_cut(item)
        else:
            kept[start] = items[start]
    return kept


def _are_words_beside(items: list[Item], opening: str) -> list[bool]:
    """For each item, whether words come before it, with no cut and no other such element between."""
    beside: list[bool] = []
    are_words = False
    for item in items:
        beside.append(are_words)
        if isinstance(item, str):
            are_words = are_words or bool(item.strip())
        elif item.kind == "cut" or (item.kind in ("open", "close") and item.kind != opening and _is_apart(item.name)):
            are_words = False
        elif item.kind == "atom" and item.text:
            are_words = not item.name or item.name in CODE or item.name in INLINE
    return beside


def _is_apart(name: str) -> bool:
    return name in ("a", "label") or name not in INLINE


def write_html(items: list[Item], codec: str | None = None) -> str:
    """The page; what the codec cannot write becomes character references.

    Without a codec the page is a text: its words are written in ASCII if it declares another charset than UTF-8.
    """
    if codec is None:
        charset = next((name for item in items if isinstance(item, Tag) and (name := _charset(item.markup))), "utf-8")
        codec = "utf-8" if charset in ("utf-8", "utf8") else "ascii"

    def write(words: list[Item], quote: str, source: str) -> str:
        return write_value(words, quote, source, codec=codec)

    own, words = divide_words(items)
    return with_words(write_elements(own, codec), words, write)


def write_elements(items: list[Item], codec: str = "utf-8") -> str:
    """A page, or a part of one, without the words in its markup."""
    return _write(rejoined(items, _is_line_end), codec)


def write_value(words: list[Item], quote: str, source: str, *, codec: str = "utf-8") -> str:
    """An attribute's value, with its quotes; as in the source if the words are the same."""
    written = _write(words, codec, quote)
    return source if written == source.strip(quote) else f"{quote}{written}{quote}"


def _write(items: list[Item], codec: str, quote: str = "") -> str:
    """quote: that of the attribute whose value the items are."""
    parts: list[str] = []
    in_cdata = False
    for item, after in zip(items, [*items[1:], ""], strict=False):
        if isinstance(item, str):
            parts.append(_cdata(item, codec) if in_cdata else _escape(item, codec, quote))
        elif item.kind == "spelling" and not (quote and item.markup == "<") and not _is_read_as_meant(item, after):
            parts.append(_escape(item.text, codec, quote))
        else:
            parts.append(item.markup)
            in_cdata = (in_cdata or item.markup == CDATA) and item.markup != END_OF_CDATA
    return "".join(parts)


def _is_read_as_meant(spelling: Tag, after: Item) -> bool:
    """Whether the translation behind a character's spelling leaves it what it is: no tag, no other reference."""
    text = (after if isinstance(after, str) else after.markup)[:_AFTER_REFERENCE]
    if spelling.markup == "<":
        return not text or text[0] in " \t\r\n=<"
    return resolved(spelling.markup + text) == spelling.text + resolved(text)


def find_charset(content: bytes) -> str | None:
    """The charset that a page declares, in small letters, in its XML declaration or a meta element near its start."""
    head = content[:MAX_HEAD].decode("latin-1")
    for text, name, is_end in tokens_of(head, _XML.match(head) is not None):
        if name in ("meta", "!") and not is_end and (charset := _charset(text)):
            return charset
    return None


def _charset(markup: str) -> str | None:
    match = _CHARSET.match(markup)
    return match[1].lower() if match else None


def _words(text: str) -> list[Item]:
    """Words with character references resolved; what a template writes there stays byte for byte."""
    items = with_read([text], _TEMPLATE, lambda match: Tag("atom", match[0], text=match[0]))
    parts = [spelled_words(item) if isinstance(item, str) else [item] for item in items]
    return [item for part in parts for item in part if item != ""]


def spelled_words(text: str) -> list[Item]:
    """The words, and how the page spells characters that the writer would write otherwise, such as &nbsp;."""
    whole = resolved(text)
    if _escape(whole, "utf-8") == text:
        return [whole]
    items: list[Item] = []
    last = 0
    for place, tag in _spellings(text, whole):
        items += [whole[last:place], tag]
        last = place + len(tag.text)
    return [*items, whole[last:]]


def _spellings(text: str, whole: str) -> Iterator[tuple[int, Tag]]:
    """Where in the resolved text characters stand that the page spells otherwise than the writer, and how."""
    last = length = 0
    for match in _SPELLED.finditer(text):
        markup, words = match[0], resolved(match[0])
        if words == markup:  # no reference
            markup = words = markup[0]
        length += match.start() - last
        last = match.start() + len(markup)
        if whole[length : length + len(words)] != words:
            return
        if _escape(words, "utf-8") != markup and len(words) <= 2:
            yield length, Tag("spelling", markup, text=words)
        length += len(words)


def with_target_language(items: list[Item], options: DocumentOptions) -> list[Item]:
    """The items, where what names the source language in `lang`, `xml:lang` or Content-Language names the target."""
    changed: list[Item] = []
    for item in items:
        if isinstance(item, Tag) and item.markup.startswith("<") and item.name not in ("!", "!--", *CODE, *SKIPPED):
            # An element that stays as it is, as with translate="no", stays in its language.
            end = end_of_tag(item.markup, 1)
            if end == len(item.markup) or item.name in RAW:
                is_content = item.name == "meta" and _CONTENT_LANGUAGE.search(item.markup)
                tag = with_target_named(item.markup[:end], options, "content" if is_content else "(?:xml:)?lang")
                item = replace(item, markup=tag + item.markup[end:]) if tag != item.markup[:end] else item
        changed.append(item)
    return changed


def with_target_named(text: str, options: DocumentOptions, attribute: str, tag: re.Pattern[str] = _ALL) -> str:
    """The text, where these tags name the target if they name the source language in attributes of these names."""
    code = re.split("[-_]", options.language)[0]
    if not code or not options.target:
        return text
    # As \w holds "_" too, repeats that give back would try every division.
    named = re.compile(
        rf"""(\s(?:{attribute})\s*=\s*["']?){re.escape(code)}(?:[-_]\w++)*+(?=["'\s/>])""", re.IGNORECASE
    )
    return tag.sub(lambda match: named.sub(lambda own: own[1] + options.target, match[0]), text)


def _is_line_end(tag: Tag) -> bool:
    return tag.name == "br"


def _half(tag: Tag) -> Half:
    return Half(f"</{tag.name}>", _ID.sub("", tag.markup))


def _end_with_link(items: list[Item]) -> bool:
    """Whether the items end with a link, and perhaps images or the like behind it."""
    last = next((item for item in reversed(items) if isinstance(item, str) or item.kind != "atom" or item.text), None)
    return isinstance(last, Tag) and (last.kind, last.name) == ("close", "a")


def _cdata(text: str, codec: str) -> str:
    """The text of a CDATA section, which knows no references: what needs one stands outside."""
    written = text.replace(END_OF_CDATA, f"]]{END_OF_CDATA}{CDATA}>")
    if codec == "utf-8":
        return written
    signs = (sign if sign.encode(codec, "ignore") else f"{END_OF_CDATA}&#{ord(sign)};{CDATA}" for sign in written)
    return "".join(signs)


def _escape(text: str, codec: str, quote: str = "") -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = escaped.replace("\xa0", "&#160;")  # XML has no &nbsp;
    escaped = escaped.replace(quote, f"&#{ord(quote)};") if quote else escaped
    return escaped if codec == "utf-8" else escaped.encode(codec, "xmlcharrefreplace").decode(codec)
