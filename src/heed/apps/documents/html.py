"""HTML ↔ items: tags, comments and scripts byte for byte, malformed pages included.

Heed's own reader, in time proportional to the page: a parser that repairs a page would write another one.
"""

import re
from bisect import bisect_left

from heed.apps.documents.items import Item, Tag
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
_UNTRANSLATED = re.compile(r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*(["'])[^"']*\bnotranslate\b""", re.IGNORECASE)


def read_html(page: str) -> list[Item]:
    """Words with character references resolved; tags, comments, scripts and code as they stand."""
    is_xml = _XML.match(page) is not None
    tokens = _tokens(page, is_xml)
    ends = _ends_of_elements(tokens)
    items: list[Item] = []
    place = 0
    while place < len(tokens):
        text, name, is_end = tokens[place]
        if not name:
            items.append(resolved(text))
            place += 1
            continue
        stop = place + 1
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
    return items


def write_html(items: list[Item]) -> str:
    """The page. If it declares another charset than UTF-8, its words are written in ASCII, with references."""
    charsets = [match for item in items if isinstance(item, Tag) and (match := _CHARSET.match(item.markup))]
    in_ascii = any(match[1].lower() not in ("utf-8", "utf8") for match in charsets)
    return "".join(_escaped(item, in_ascii) if isinstance(item, str) else item.markup for item in items)


def _end_with_link(items: list[Item]) -> bool:
    """Whether the items end with a link, and perhaps images or the like behind it."""
    last = next((item for item in reversed(items) if isinstance(item, str) or item.kind != "atom" or item.text), None)
    return isinstance(last, Tag) and (last.kind, last.name) == ("close", "a")


def _ends_of_elements(tokens: list[tuple[str, str, bool]]) -> dict[int, int]:
    """Of each tag that begins an element: behind its end tag, or where the element ends without, if anywhere."""
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
    tokens: list[tuple[str, str, bool]] = []
    place = last = 0
    while (start := page.find("<", place)) >= 0:
        is_end = page.startswith("/", start + 1)
        name_match = _NAME.match(page, start + 1 + is_end)
        if name_match:
            name, end = name_match[0].lower(), _end_of_tag(page, name_match.end())
        elif page.startswith(("!", "?", "/"), start + 1):
            comment = page.startswith("<!--", start)
            name, is_end = "!--" if comment else "!", False
            end = page.find("-->" if comment else ">", start + 2)
            end += 0 if end < 0 else 3 if comment else 1
        else:
            place = start + 1  # a "<" that begins nothing
            continue
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


def _escaped(text: str, in_ascii: bool) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = escaped.replace("\xa0", "&#160;")  # XML has no &nbsp;
    return escaped.encode("ascii", "xmlcharrefreplace").decode() if in_ascii else escaped
