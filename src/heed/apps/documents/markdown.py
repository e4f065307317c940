"""Markdown ↔ items: the markers of lines, code, front matter and the addresses of links are tags.

CommonMark's blocks and inlines, tables and footnotes, in one pass over the lines: enough to leave all but words alone.
The brackets of a link that goes over a line end are read as words, but for its address; so are the backticks of a code
span that goes over more than one.
"""

import re
from collections.abc import Collection
from typing import NamedTuple

from heed.apps.documents.html import CODE, INLINE
from heed.apps.documents.items import Item, Tag
from heed.text.character_references import resolved

_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|\Z)")
_PREFIX = re.compile(r"[ \t]*+(?:>[ \t]?)*+[ \t]*+")  # quotation and indentation
_LIST_MARKERS = re.compile(r"(?:(?:[-+*]|\d{1,9}[.)])[ \t]+)*")
# Quotations, list items (with a task's box) and footnotes, which may begin within one another.
_BLOCK = r"(?:>[ \t]*|(?:[-+*]|\d{1,9}[.)]|\[\^[^\]]{1,99}\]:)(?:[ \t]+(?:\[[ xX]\][ \t]+)?|$))"
_HEADING = r"#{1,6}(?:[ \t]+|$)"
_MARKER = re.compile(f"{_BLOCK}|{_HEADING}")
_MARKERS = re.compile(f"{_BLOCK}*+(?:{_HEADING})?")
_START = "^"  # names the tags directly behind which a marker would begin a block
_FENCE = re.compile(r"(`{3,}(?!`)(?!.*`)|~{3,})")
_RULE = re.compile(r"(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|=+[ \t]*|-+[ \t]*")
_TABLE_RULE = re.compile(r"(?=.*\|)\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*){0,499}(?:\|[ \t]*)?")
_DEFINITION = re.compile(r"\[((?!\^)[^\]]{1,500})\]:[ \t]*\S.*")
_DEFINED_BELOW = re.compile(r"\[((?!\^)[^\]]{1,500})\]:[ \t]*")  # its address is the next line
_LINE_END = re.compile(r"(?<![ \t])[ \t]*[\r\n]+[ \t>]*")  # in a code span
_TAG = r"</?(?P<name>[A-Za-z][A-Za-z0-9-]{0,30})(?:\s(?:[^<>\"']++|\"[^\"]*\"|'[^']*')*+)?/?>"
_BLOCK_ELEMENTS = "|".join(
    "address article aside base basefont blockquote body caption center col colgroup dd details dialog dir div dl dt "
    "fieldset figcaption figure footer form frame frameset h[1-6] head header hr html iframe legend li link main menu "
    "menuitem nav noframes ol optgroup option p param search section summary table tbody td tfoot th thead title tr "
    "track ul".split()
)
_BLANK = r"\A\Z"
# What begins and what ends a block of HTML, in CommonMark's order.
_HTML_BLOCKS = [
    (re.compile(begin, re.IGNORECASE), re.compile(end, re.IGNORECASE))
    for begin, end in (
        (r"<(?:script|pre|style|textarea)(?=[\s>]|\Z)", "</(?:script|pre|style|textarea)>"),
        ("<!--", "-->"),
        (r"<\?", r"\?>"),
        ("<![a-z]", ">"),
        (r"<!\[CDATA\[", "]]>"),
        (rf"</?(?:{_BLOCK_ELEMENTS})(?=[\s>]|/>|\Z)", _BLANK),
        # CommonMark knows no such block: the attributes of a tag that goes over a line end would be read as words.
        (r"</?[a-z][a-z0-9-]*(?:\s[^<>]*)?\Z", f">|{_BLANK}"),
        (_TAG + r"[ \t]*\Z", _BLANK),  # the last: it cannot interrupt a paragraph
    )
]
MAX_CODE, MAX_LABEL = 2000, 500  # characters between <code> and its end, and of a link's label
_ALERT = re.compile(r"\[![A-Za-z]{1,20}\][ \t]*")  # GitHub's, as in > [!NOTE]
_ROW = re.compile(r"((?<!\\)\|[ \t]*)")

_ADDRESS = (
    r"\((?:<[^<>]{0,2000}>|[^\s()<>]{0,2000}(?:\([^\s()]{0,500}\)[^\s()]{0,500}){0,3})"
    r"(?:[ \t]+(?:\"[^\"]{0,500}\"|'[^']{0,500}'))?[ \t]*\)|\[[^\[\]]{0,500}\]"
)
_INLINE = re.compile(
    r"(?P<escape>\\[!-/:-@\[-`{-~])"
    # Addresses, whose punctuation is no markup: as `documents.sentences.ADDRESS`, but for what ends links and emphasis.
    r"|(?P<bare>(?:https?://|ftp://|mailto:|www\.)[^\s<>\"\[\]`*|]{1,2000}(?<![.,;:!?)'_~])"
    r"|(?<![\w.+-])(?!_)[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}(?<!_))"
    r"|(?P<code>`+)"
    rf"|(?P<image>!\[[^\[\]]{{0,500}}\](?:{_ADDRESS}))"
    r"|(?P<footnote>\[\^[^\[\]\s]{1,99}\])"
    r"|(?P<link>\[)"
    rf"|(?P<address>\](?:{_ADDRESS})?)"
    r"|(?P<autolink><(?:[A-Za-z][A-Za-z0-9+.-]{1,31}:[^\s<>]{0,2000}|[\w.+-]{1,64}@[\w.-]{1,255})>)"
    rf"|(?P<tag>{_TAG}|<!--(?:(?!-->|<!--).){{0,2000}}-->)"
    r"|(?P<reference>&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});)"
    r"|(?P<emphasis>\*{1,3}|_{1,3}|~~)"
)


class _Label(NamedTuple):
    """How a link ends that has its label in its words: once they are others, the label is written behind them."""

    label: str
    end: str  # "]" or "][]"


def read_markdown(text: str) -> list[Item]:
    lines = [(match[1], match[2]) for match in _LINE.finditer(text) if match[0]]
    first = _front_matter(lines)
    items: list[Item] = [Tag("cut", line + end, _START) for line, end in lines[:first]]
    bodies = [line.lstrip("> \t") for line, _ in lines]
    labels = {_folded(match[1]) for body in bodies if (match := _DEFINITION.fullmatch(body))}
    defining = set[int]()  # lines of definitions on two lines
    for i, (before, body, after) in enumerate(zip(["", *bodies], bodies, bodies[1:], strict=False)):
        is_first = not before or i - 1 in defining or _DEFINITION.fullmatch(before)
        if is_first and (match := _DEFINED_BELOW.fullmatch(body)) and len(after.split()) == 1:
            labels.add(_folded(match[1]))
            defining |= {i, i + 1}
    fence, in_table, words_before = "", False, False
    html_end: re.Pattern[str] | None = None  # of the HTML block that we are in
    code_may_begin = True  # not directly behind words
    n_quotes, columns = 0, list[int]()  # quotations around the line; where the lists' words begin, innermost last
    i = first - 1
    while (i := i + 1) < len(lines):
        line, end = lines[i]
        after = lines[i + 1][0] if i + 1 < len(lines) else ""
        prefix = _PREFIX.match(line)[0]  # type: ignore[index]
        body = line[len(prefix) :]
        in_table = bool(body) and (in_table or _TABLE_RULE.fullmatch(after.strip("> \t")) is not None)
        quoted = prefix.count(">")
        if quoted < n_quotes:  # the quotation ends, and a block in it
            fence, html_end = "", None
        if quoted != n_quotes and not (fence or html_end):  # in code and HTML, > is a character like others
            n_quotes, columns = quoted, []
        if body and not words_before and not fence:
            indent = _indentation(prefix)
            while columns and indent < columns[-1]:
                columns.pop()
        # Within a list, what is indented further may be another list.
        is_code = code_may_begin and not (fence or html_end or columns) and _indentation(prefix) >= 4
        is_block = not (words_before or fence or html_end or is_code)
        list_markers = _LIST_MARKERS.match(body)[0] if is_block else ""  # type: ignore[index]
        if list_markers and _is_words(body):
            columns.append(_indentation(prefix + list_markers))
        if fence:
            if body.startswith(fence) and not body.strip(fence[0] + " \t"):
                fence = ""
        elif is_code or (i in defining and is_block):
            pass
        elif opening := _FENCE.match(body[len(list_markers) :]):
            fence = opening[1]
        elif html_end := html_end or (None if words_before else _html_end(body)):
            if html_end.search(body):
                html_end = None
        elif _is_words(body) and (words_before or not _is_indented(prefix, body, columns[-1] if columns else 0)):
            marker = "" if words_before else _MARKERS.match(body)[0]  # type: ignore[index]
            is_heading = marker.rstrip().endswith("#")
            if "[^" in marker:
                columns.append(4)  # where the words of a footnote go on
            parts = [rest := body[len(marker) :]]
            while (
                not (in_table or is_heading)
                and (code_end := _end_of_code(rest, end, after, labels))
                and _goes_on(prefix, after)
            ):
                parts += [end, after]
                rest, i = after[code_end:], i + 1
                line, end = lines[i]
                after = lines[i + 1][0] if i + 1 < len(lines) else ""
            words = "".join(parts)
            if not words_before and prefix + marker:
                items.append(Tag("cut", prefix + marker, "" if is_heading else _START))
            backslash = "\\" * ((len(words) - len(words.rstrip("\\"))) % 2)  # of a hard line break
            words = words.removesuffix(backslash)
            if in_table:
                for part in _ROW.split(words):
                    items += [Tag("cut", part)] if _ROW.fullmatch(part) else _inline(part, labels)
            else:
                items += _inline(words, labels)
            words_before = bool(end) and not in_table and not is_heading and _goes_on(prefix, after)
            next_prefix = _PREFIX.match(after)[0] if words_before else ""  # type: ignore[index]
            if backslash + end:
                hard = not words_before or backslash or line.endswith("  ")
                items.append(Tag("cut" if hard else "break", backslash + end + next_prefix, _START))
            code_may_begin = False
            continue
        items.append(Tag("cut", line + end, _START))
        words_before = False
        code_may_begin = is_code or not body
    return items


def write_markdown(items: list[Item]) -> str:
    """The text. Words that would begin a list, a quotation or a heading are escaped."""
    texts: list[str] = []
    opened: list[int] = []  # where links begin, innermost last
    for item in items:
        markup = item if isinstance(item, str) else item.markup
        if isinstance(markup, _Label):
            words = "".join(texts[opened.pop() + 1 :]) if opened else ""
            markup = markup.end if words == markup.label else f"][{markup.label}]"
        elif isinstance(item, Tag) and item.name == "[":
            if markup == "[":
                opened.append(len(texts))
            elif opened:
                opened.pop()
        texts.append(markup)
    at_start = True
    for i, item in enumerate(items):
        if isinstance(item, Tag):
            at_start = item.name == _START
        elif item:
            after = texts[i + 1][:1] if i + 1 < len(items) else ""
            if at_start and (marker := _MARKER.match(item + after)):
                sign = len(marker[0].split()[0]) - 1  # of "1." the full stop
                texts[i] = f"{item[:sign]}\\{item[sign:]}"
            at_start = False
    return "".join(texts)


def _front_matter(lines: list[tuple[str, str]]) -> int:
    """The number of lines of the front matter between --- or +++."""
    if lines and lines[0][0] in ("---", "+++"):
        for i in range(1, len(lines)):
            if lines[i][0] in (lines[0][0], "..."):
                return i + 1
    return 0


def _is_words(body: str) -> bool:
    return bool(body) and not any(p.fullmatch(body) for p in (_RULE, _TABLE_RULE, _DEFINITION, _ALERT))


def _is_indented(prefix: str, body: str, column: int) -> bool:
    """Whether it is a line of indented code; a list within a list is not. column: where the words of its list begin."""
    return _indentation(prefix) - column >= 4 and not _LIST_MARKERS.match(body)[0]  # type: ignore[index]


def _indentation(prefix: str) -> int:
    """The columns behind the markers of quotation."""
    return len(prefix.rpartition(">")[2].removeprefix(" " if ">" in prefix else "").expandtabs(4))


def _folded(label: str) -> str:
    """A link's label as labels are compared."""
    return " ".join(label.split()).casefold()


def _html_end(body: str, *, in_paragraph: bool = False) -> re.Pattern[str] | None:
    """What ends the block of HTML that a line begins; None if it begins none."""
    blocks = _HTML_BLOCKS[:-1] if in_paragraph else _HTML_BLOCKS
    return next((end for begin, end in blocks if begin.match(body)), None)


def _goes_on(prefix: str, after: str) -> bool:
    """Whether the next line goes on with the paragraph."""
    next_prefix = _PREFIX.match(after)[0]  # type: ignore[index]
    body = after[len(next_prefix) :]
    starts = _MARKER.match(body) or _FENCE.match(body) or body.startswith("|") or _html_end(body, in_paragraph=True)
    return _is_words(body) and not starts and prefix.count(">") == next_prefix.count(">")


def _end_of_code(line: str, end: str, after: str, labels: Collection[str]) -> int:
    """Where in the next line a code span ends that this line begins; 0 if it begins none, or it ends elsewhere."""
    if "`" not in line or "`" not in after:
        return 0
    place = 0
    for item in _inline(line + end + after, labels):
        markup = item if isinstance(item, str) else item.markup
        begin, place = place, place + len(markup.end if isinstance(markup, _Label) else markup)
        if place > len(line + end):
            is_code = isinstance(item, Tag) and item.kind == "atom" and markup.startswith("`")
            return place - len(line + end) if is_code and begin < len(line) else 0
    return 0


def _inline(line: str, labels: Collection[str]) -> list[Item]:
    """The words and tags of a line, or of several that code spans join. Characters that begin no markup are words.

    labels: of links that are defined.
    """
    items: list[Item] = []
    opened: list[int] = []  # the items of opening delimiters, innermost last
    links: list[tuple[int, int]] = []  # those of them that may begin a link, and where its words begin in the line
    code_ends = _runs_of_backticks(line)
    place = 0

    def close(name: str, markup: str | _Label) -> None:
        opening = items[opened.pop()]
        assert isinstance(opening, Tag) and opening.name == name
        items.append(Tag("close", markup, name))

    while match := _INLINE.search(line, place):
        if place < match.start():
            items.append(line[place : match.start()])
        kind, text, place = match.lastgroup, match[0], match.end()
        before, after = line[match.start() - 1 : match.start()], line[place : place + 1]
        if match["tag"]:
            kind = "tag"
        if kind == "code":
            ends = code_ends.get(len(text), [])  # behind an escape a run is shorter
            while ends and ends[-1] < place:
                ends.pop()
            if ends:
                end = ends.pop()
                code = _LINE_END.sub(" ", line[place:end])
                items.append(Tag("atom", text + line[place : end + len(text)], text=code))
                place = end + len(text)
            else:
                items.append(text)
        elif kind == "escape":
            items.append(Tag("atom", text, text=text[1:]))
        elif kind == "reference":
            items.append(Tag("atom", text, text=resolved(text).strip()))
        elif kind == "autolink":
            items.append(Tag("atom", text, text=text[1:-1]))
        elif kind in ("image", "footnote"):
            items.append(Tag("atom", text))
        elif kind == "bare":
            items.append(text)
        elif kind == "tag":
            name = (match["name"] or "").lower()
            is_code = name in CODE and not text.startswith("</")
            end = line.find(f"</{name}>", place, place + MAX_CODE) if is_code else -1
            if end >= 0:
                place = end + len(f"</{name}>")
                items.append(Tag("atom", line[match.start() : place], text=resolved(line[match.end() : end])))
                continue
            inline = "close" if text.startswith("</") else "open"
            other = "cut" if name in ("br", "hr") else "atom"
            items.append(Tag(inline if name in INLINE else other, text, f"<{name}"))  # type: ignore[arg-type]
        elif kind == "link":
            opened.append(len(items))
            links.append((len(items), place))
            items.append(Tag("open", text, "["))
        elif kind == "address":
            label = line[links[-1][1] : min(match.start(), links[-1][1] + MAX_LABEL + 1)] if links else ""
            named = text in ("]", "][]")
            if named and (len(label) > MAX_LABEL or _folded(label) not in labels):
                items.append(text)  # words in brackets
                if links:
                    _as_words(items, links.pop()[0])
                continue
            while opened and getattr(items[opened[-1]], "name", "") != "[":
                _as_words(items, opened.pop())
            if opened:
                links.pop()
                close("[", _Label(label, text) if named else text)
            else:  # its link may begin in the line before
                items.append(text if named else Tag("atom", text))
        else:
            _emphasis(text, items, opened, before, after)
    for i in opened:
        _as_words(items, i)
    if place < len(line):
        items.append(line[place:])
    return items


def _emphasis(text: str, items: list[Item], opened: list[int], before: str, after: str) -> None:
    """A run of *, _ or ~: closes what the same delimiters opened before, or opens; else it is words."""
    sign = text[0]
    may_close = bool(before.strip()) and not (sign == "_" and after.isalnum())
    may_open = bool(after.strip()) and not (sign == "_" and before.isalnum())
    while may_close and text and opened:
        opening = items[opened[-1]]
        if isinstance(opening, str):  # a bracket that begins no link
            opened.pop()
            continue
        if not opening.name.startswith(sign) or not text.startswith(opening.name):
            break
        opened.pop()
        items.append(Tag("close", opening.name, opening.name))
        text = text[len(opening.name) :]
    if not text:
        return
    if may_open:
        opened.append(len(items))
        items.append(Tag("open", text, text))
    else:
        items.append(text)


def _as_words(items: list[Item], i: int) -> None:
    tag = items[i]
    items[i] = tag if isinstance(tag, str) else tag.markup


def _runs_of_backticks(line: str) -> dict[int, list[int]]:
    """Where the runs of each length begin, last first."""
    runs: dict[int, list[int]] = {}
    for match in re.finditer("`+", line):
        runs.setdefault(len(match[0]), []).append(match.start())
    return {length: places[::-1] for length, places in runs.items()}
