"""HTML ↔ items: tags, comments and scripts byte for byte, malformed pages included.

Heed's own reader, in time proportional to the page: a parser that repairs a page would write another one.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from heed.apps.documents.items import Item, Tag, with_matched_tags
from heed.text.character_references import resolved

# Elements within a sentence; every other tag ends it.
INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark nobr q rp rt ruby s small span strike "
    "strong sub sup time u".split()
)
# Elements within a sentence whose content stays as it is: the sentence is read with it, and it comes back unchanged.
CODE = frozenset(("code", "kbd", "samp", "tt", "var"))
SKIPPED = frozenset(("pre", "svg", "math", "template", "object", "canvas", "audio", "video", "iframe", "noembed"))
RAW = frozenset(("script", "style", "textarea", "xmp", "noframes"))  # whose content holds no tags
VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
ATOMS = frozenset(("img", "wbr"))
# Elements that need no end tag: each ends before these tags, and with the element that it is in.
_PARTS_OF_TABLES = frozenset(("tbody", "thead", "tfoot"))
UNENDED = {
    "p": frozenset(
        "address article aside blockquote center dd details dialog dir div dl dt fieldset figcaption figure footer "
        "form h1 h2 h3 h4 h5 h6 header hgroup li main menu nav ol p pre search section summary table ul".split()
    ),
    "li": frozenset(("li",)),
    **dict.fromkeys(("dt", "dd"), frozenset(("dt", "dd"))),
    "option": frozenset(("option", "optgroup")),
    **dict.fromkeys(("td", "th"), frozenset(("td", "th", "tr")) | _PARTS_OF_TABLES),
    "tr": frozenset(("tr",)) | _PARTS_OF_TABLES,
    **dict.fromkeys(_PARTS_OF_TABLES, _PARTS_OF_TABLES),
}
MAX_ENDED = 32  # elements that one tag ends; a bound on the time for a stranger's page
DRAWN = frozenset(("svg", "math"))  # icons and formulas: atoms too, whatever they contain

_NAME = re.compile(r"[A-Za-z][^\s/>\x00]*")
_UNQUOTED = re.compile(r"[^>=]*")
_VALUE = re.compile(r"=\s*([\"']?)")
_XML = re.compile(r"[\ufeff\s]*(?:<\?xml\b|(?:<!DOCTYPE[^>]*>\s*)?<html\s[^>]*\bxmlns=)", re.IGNORECASE)
_AS_BLOCK = re.compile(r"""\sdisplay\s*=\s*["']?block\b""", re.IGNORECASE)
_CHARSET = re.compile(
    r"""<(?:meta\s[^>]{0,500}?charset|\?xml\s[^>]{0,500}?encoding)\s*+=\s*+["']?\s*+([\w-]+)""", re.IGNORECASE
)
CDATA, END_OF_CDATA = "<![CDATA[", "]]>"
MAX_TEMPLATE = 2_000  # characters of a tag of a template
MAX_HEAD = 2**14  # bytes of a page in which it may declare its charset
_TEMPLATE = re.compile(r"\{{2,3}[^{}]{1,500}\}{2,3}|\{%[^{}]{1,500}%\}")
# Characters that the writer may write otherwise than the page does.
_SPELLED = re.compile(r"&(?:#[xX]?[0-9a-fA-F]{1,20}|[A-Za-z][A-Za-z0-9]{1,31})?;?|[<>\xa0]")
_AFTER_REFERENCE = 40  # characters that decide where a reference without a semicolon ends
_CONTENT_LANGUAGE = re.compile(r"""\shttp-equiv\s*=\s*["']?content-language\b""", re.IGNORECASE)
# The rest of a value that begins with a language. As \w holds "_" too, repeats that give back would try every division.
_REGION = r"""(?:[-_]\w++)*+(?=["'\s/>])"""
_ID = re.compile(r"""\sid\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'>]+)""", re.IGNORECASE)
_UNTRANSLATED = re.compile(r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*(["'])[^"']*\bnotranslate\b""", re.IGNORECASE)


def read_html(page: str) -> list[Item]:
    """Words with character references resolved; tags, comments, scripts and code as they stand."""
    # All ends of elements are found at once: a search from each tag would take time that grows with the square.
    is_xml = _XML.match(page) is not None
    tokens = _tokens(page, is_xml)
    ends = _ends_of_elements(tokens)
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
        if not is_end and (name in CODE or name in SKIPPED or _UNTRANSLATED.search(text)):
            stop = ends.get(place, stop)
        if stop > place + 1:
            whole = "".join(token[0] for token in tokens[place:stop])
            has_words = name in CODE or name in INLINE
            words = "".join(resolved(token[0]) for token in tokens[place:stop] if not token[1]) if has_words else ""
            within = has_words or (name in DRAWN and not _AS_BLOCK.search(text))
            items.append(Tag("atom" if within else "cut", whole, name, words))
        elif name in INLINE and not (is_xml and text.endswith("/>")):
            if name == "a" and not is_end and _end_with_link(items):
                items.append(Tag("cut", ""))  # as in a menu: two links are never one word
            items.append(Tag("close" if is_end else "open", text, name))
        else:
            items.append(Tag("atom" if name in ATOMS | INLINE or name == "!--" else "cut", text, name))
        place = stop
    return _with_reopened(items)


def write_html(items: list[Item], codec: str | None = None) -> str:
    """The page; what the codec cannot write becomes character references.

    Without a codec the page is a text: its words are written in ASCII if it declares another charset than UTF-8.
    """
    if codec is None:
        charset = next((found for item in items if isinstance(item, Tag) and (found := _charset(item.markup))), "utf-8")
        codec = "utf-8" if charset in ("utf-8", "utf8") else "ascii"
    parts: list[str] = []
    in_cdata = False
    written = _without_empty_halves(_without_needless_reopening(items))
    for item, after in zip(written, [*written[1:], ""], strict=False):
        if isinstance(item, str):
            parts.append(_cdata(item, codec) if in_cdata else _escape(item, codec))
        elif item.kind == "spelling" and not _is_read_as_meant(item, after):
            parts.append(_escape(item.text, codec))
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
    for text, name, is_end in _tokens(head, _XML.match(head) is not None):
        if name in ("meta", "!") and not is_end and (found := _charset(text)):
            return found
    return None


def _charset(markup: str) -> str | None:
    found = _CHARSET.match(markup)
    return found[1].lower() if found else None


def _words(text: str) -> list[Item]:
    """Words with character references resolved; what a template writes there stays byte for byte."""
    items: list[Item] = []
    last = 0
    for match in _TEMPLATE.finditer(text):
        items += _spelled(text[last : match.start()])
        # Between the parts of a condition or a loop no sentence goes on.
        items.append(Tag("cut" if match[0].startswith("{%") else "atom", match[0], text=match[0]))
        last = match.end()
    return [item for item in (*items, *_spelled(text[last:])) if item != ""]


def _spelled(text: str) -> list[Item]:
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


def with_target_language(items: list[Item], source: str, target: str) -> list[Item]:
    """The items, where what names the source language in `lang`, `xml:lang` or Content-Language names the target."""
    code = re.escape(re.split("[-_]", source)[0])
    if not code:
        return items
    named = re.compile(rf"""(\s(?:xml:)?lang\s*=\s*["']?){code}{_REGION}""", re.IGNORECASE)
    content = re.compile(rf"""(\scontent\s*=\s*["']?){code}{_REGION}""", re.IGNORECASE)
    found: list[Item] = []
    for item in items:
        if isinstance(item, Tag) and item.markup.startswith("<") and item.name not in ("!", "!--", *CODE, *SKIPPED):
            # An element that stays as it is, as with translate="no", stays in its language.
            end = _end_of_tag(item.markup, 1)
            if end == len(item.markup) or item.name in RAW:
                is_content = item.name == "meta" and _CONTENT_LANGUAGE.search(item.markup)
                pattern = content if is_content else named
                tag = pattern.sub(lambda match: match[1] + target, item.markup[:end])
                item = replace(item, markup=tag + item.markup[end:]) if tag != item.markup[:end] else item
        found.append(item)
    return found


@dataclass(frozen=True)
class _Reopening:
    """An inline element around a <br>, whose sentences end there: its tags to close and to open it again."""

    close: str
    open: str


class _Reopened(str):
    """A tag that the page does not have, but needs if words come between it and the <br>; reopening: its two halves."""

    reopening: _Reopening


def _reopening_tag(markup: str, reopening: _Reopening) -> _Reopened:
    tag = _Reopened(markup)
    tag.reopening = reopening
    return tag


def _with_reopened(items: list[Item]) -> list[Item]:
    """The items, with the elements around each <br> closed before it and opened again behind it."""
    if not any(isinstance(item, Tag) and item.name == "br" for item in items):
        return items
    as_atoms: list[Item] = [
        replace(item, kind="atom") if isinstance(item, Tag) and item.name == "br" else item for item in items
    ]
    found: list[Item] = []
    opened: list[Tag] = []
    for item, matched in zip(items, with_matched_tags(as_atoms), strict=True):
        if isinstance(item, Tag) and item.name == "br":
            reopenings = [_Reopening(f"</{tag.name}>", _ID.sub("", tag.markup)) for tag in opened]
            pairs = list(zip(opened, reopenings, strict=True))
            found += [Tag("close", _reopening_tag(each.close, each), tag.name) for tag, each in reversed(pairs)]
            found.append(item)
            found += [Tag("open", _reopening_tag(each.open, each), tag.name) for tag, each in pairs]
            continue
        if isinstance(matched, Tag) and matched.kind == "open":
            opened.append(matched)
        elif isinstance(matched, Tag) and matched.kind == "close":
            opened.pop()
        elif isinstance(matched, Tag) and matched.kind == "cut":
            opened.clear()
        found.append(item)
    return found


def _without_needless_reopening(items: list[Item]) -> list[Item]:
    """The items without the tags that close and open an element with nothing but white space and <br> between them."""
    found: list[Item] = []
    run: list[Item] = []

    def end_run() -> None:
        halves = Counter(id(reopening) for item in run if (reopening := _reopening_of(item)))
        found.extend(item for item in run if halves[id(_reopening_of(item))] < 2)
        run.clear()

    for item in items:
        if _reopening_of(item) or (not item.strip() if isinstance(item, str) else item.name == "br"):
            run.append(item)
        else:
            end_run()
            found.append(item)
    end_run()
    return found


def _without_empty_halves(items: list[Item]) -> list[Item]:
    """The items without the half of an element, before or behind a <br>, whose words all moved to the other side."""
    found: list[Item] = []
    first_tags: dict[int, Tag] = {}  # by reopening, the tag that opened the half before it, which is dropped
    for item in items:
        reopening = _reopening_of(item)
        if isinstance(item, Tag) and item.kind == "open":
            item = first_tags.pop(id(reopening), item)
        elif isinstance(item, Tag) and item.kind == "close":
            is_spaced = bool(found) and isinstance(found[-1], str) and not found[-1].strip()
            at = len(found) - 1 - is_spaced
            before = found[at] if at >= 0 else ""
            if isinstance(before, Tag) and before.kind == "open" and (reopening or _reopening_of(before)):
                del found[at]
                if reopening:
                    first_tags[id(reopening)] = before
                continue
        found.append(item)
    return found


def _reopening_of(item: Item) -> _Reopening | None:
    return item.markup.reopening if isinstance(item, Tag) and isinstance(item.markup, _Reopened) else None


def _end_with_link(items: list[Item]) -> bool:
    """Whether the items end with a link, and perhaps images or the like behind it."""
    last = next((item for item in reversed(items) if isinstance(item, str) or item.kind != "atom" or item.text), None)
    return isinstance(last, Tag) and (last.kind, last.name) == ("close", "a")


def _ends_of_elements(tokens: list[tuple[str, str, bool]]) -> dict[int, int]:
    """Of each tag that begins an element: behind its end tag, or where the element ends without, if anywhere."""
    # By name the last open element is found at once; `nesting` is needed for those that have no end tag.
    ends: dict[int, int] = {}
    open_elements: dict[str, list[int]] = {}
    nesting: list[int] = []  # the tags of all open elements, innermost last

    def end_without_tag(stop: int, place: int) -> None:
        """Ends those above this one in the nesting that need no end tag."""
        while nesting and nesting[-1] > stop:
            inner = nesting.pop()
            same = open_elements.get(tokens[inner][1])
            if tokens[inner][1] in UNENDED and same and same[-1] == inner:
                ends[same.pop()] = place

    # A tag may end several elements without end tags, such as a <td> and its <tr>. The search for them crosses
    # inline elements alone: a <li> within an inner <ul> does not end the outer <li>.
    for place, (text, name, is_end) in enumerate(tokens):
        if not name or name in VOID or text.endswith("/>"):
            continue
        if not is_end:
            ended = None
            for other in reversed(nesting[-MAX_ENDED:]):
                ended_by = UNENDED.get(tokens[other][1])
                if ended_by is None and tokens[other][1] not in INLINE:
                    break
                if ended_by is not None and name in ended_by:
                    ended = other
            if ended is not None:
                end_without_tag(ended - 1, place)
            open_elements.setdefault(name, []).append(place)
            nesting.append(place)
        elif open_elements.get(name):
            begin = open_elements[name].pop()
            ends[begin] = place + 1
            depth = bisect_left(nesting, begin)
            if depth < len(nesting) and nesting[depth] == begin:  # not so if elements overlap
                end_without_tag(begin, place)
                nesting.pop()
    end_without_tag(-1, len(tokens))
    return ends


def _tokens(page: str, is_xml: bool) -> list[tuple[str, str, bool]]:
    """(text, "", False) for words, (text, name, whether it is an end tag) for tags; "!--" names comments and others.

    Every character of the page is in one token.
    """
    # A "<" begins a tag, a CDATA section, code of a template, a comment or a declaration; or nothing, and is text.
    tokens: list[tuple[str, str, bool]] = []
    place = last = 0
    last_cdata = page.rfind(END_OF_CDATA) if is_xml else -1  # a search that finds none costs the whole page
    while (start := page.find("<", place)) >= 0:
        is_end = page.startswith("/", start + 1)
        name_match = _NAME.match(page, start + 1 + is_end)
        if name_match:
            name, end = name_match[0].lower(), _end_of_tag(page, name_match.end())
        elif (
            is_xml
            and page.startswith(CDATA, start)
            and start < last_cdata
            and (end := page.find(END_OF_CDATA, start)) >= 0
        ):
            name, is_end, end = CDATA, False, end + len(END_OF_CDATA)
        elif (
            page.startswith(("%", "?") if is_xml else ("%", "?=", "?php"), start + 1)
            and (end := page.find(page[start + 1] + ">", start, start + MAX_TEMPLATE)) >= 0
        ):
            # What a template writes is within its sentence, what it does is not.
            name, is_end, end = "!--" if page[start + 2 : start + 3] in "=-" else "!", False, end + 2
        elif page.startswith(("!", "?", "/"), start + 1):
            comment = page.startswith("<!--", start)
            name, is_end = "!--" if comment else "!", False
            end = page.find("-->" if comment else ">", start + 2)
            end += 0 if end < 0 else 3 if comment else 1
        else:
            place = start + 1  # a "<" that begins nothing
            continue

        # The content of a raw element, such as a script, is part of its start tag's token: a "<" in it is not a tag.
        if last < start:
            tokens.append((page[last:start], "", False))
        if end < 0:  # it never ends, and no later one can
            tokens.append((page[start:], "!", False))
            return tokens
        if name in RAW and not is_end and not (is_xml and page.startswith("/>", end - 2)):
            close = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(page, end)
            end = close.start() if close else len(page)
        tokens.append((page[start:end], name, is_end))
        place = last = end
    if last < len(page):
        tokens.append((page[last:], "", False))
    return tokens


def _end_of_tag(page: str, place: int) -> int:
    """Behind the tag's ">", or −1 if there is none. Quotes matter only for values."""
    while True:
        match = _UNQUOTED.match(page, place)
        assert match
        place = match.end()
        if place == len(page):
            return -1
        if page[place] == ">":
            return place + 1
        value = _VALUE.match(page, place)
        assert value
        place = value.end()
        if value[1]:
            place = page.find(value[1], place) + 1
            if place == 0:
                return -1


def _cdata(text: str, codec: str) -> str:
    """The text of a CDATA section, which knows no references: what needs one stands outside."""
    written = text.replace(END_OF_CDATA, f"]]{END_OF_CDATA}{CDATA}>")
    if codec == "utf-8":
        return written
    signs = (sign if sign.encode(codec, "ignore") else f"{END_OF_CDATA}&#{ord(sign)};{CDATA}" for sign in written)
    return "".join(signs)


def _escape(text: str, codec: str) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = escaped.replace("\xa0", "&#160;")  # XML has no &nbsp;
    return escaped if codec == "utf-8" else escaped.encode(codec, "xmlcharrefreplace").decode(codec)
