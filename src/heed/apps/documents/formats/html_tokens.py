"""A page of HTML as its tags and the texts between them, and where its elements end."""

import re
from bisect import bisect_left

from heed.apps.documents.formats.html_elements import INLINE, RAW, UNENDED, VOID

MAX_ENDED = 32  # elements that one tag ends; a bound on the time for a stranger's page
CDATA, END_OF_CDATA = "<![CDATA[", "]]>"
MAX_TEMPLATE = 2_000  # characters of a tag of a template
_NAME = re.compile(r"[A-Za-z][^\s/>\x00]*")
_UNQUOTED = re.compile(r"[^>=]*")
_VALUE = re.compile(r"=\s*([\"']?)")


def tokens_of(page: str, is_xml: bool) -> list[tuple[str, str, bool]]:
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
            name, end = name_match[0].lower(), end_of_tag(page, name_match.end())
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


def end_of_tag(page: str, place: int) -> int:
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


def ends_of_elements(tokens: list[tuple[str, str, bool]]) -> dict[int, int]:
    """For each tag that begins an element, the place behind its end tag, or where the element ends without one."""
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
