"""Plain text ↔ items. A line stands for itself, unless its paragraph's lines were wrapped at a width."""

import re
from itertools import pairwise

from heed.apps.documents.items import Item, Tag

_LINE = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_COLUMNS = re.compile(r"(\t+ *| {3,})")
_ITEM = re.compile(r"(?:[-*+•–]|\d{1,9}[.)])\s|[\w-]+: ")  # of a list, or a field as in "From: Jane"
MIN_WIDTH = 40  # narrower lines, such as verses and lists, are ends of their own


def read_text(text: str) -> list[Item]:
    """Line ends, tabs and columns are cuts; within a wrapped paragraph a line end is a break."""
    lines, ends, last = [], [], 0
    for end in _LINE.finditer(text):
        lines.append(text[last : end.start()])
        ends.append(end[0])
        last = end.end()
    lines.append(text[last:])
    ends.append("")
    items: list[Item] = []
    for first, stop in _paragraphs(lines):
        wrapped = are_wrapped(lines[first:stop])
        for i in range(first, stop):
            line = lines[i]
            kind = "break" if wrapped and i + 1 < stop else "cut"
            if wrapped:
                items.append(line)
            else:
                items += [_column(part) for part in _COLUMNS.split(line) if part]
            if ends[i]:
                items.append(Tag("break" if kind == "break" else "cut", ends[i]))
    return items


def _column(part: str) -> Item:
    return Tag("cut", part) if _COLUMNS.fullmatch(part) else part


def _paragraphs(lines: list[str]) -> list[tuple[int, int]]:
    """Stretches of lines that may be wrapped: a blank line, a list item and a field each begin a new one."""
    starts = [
        i for i, line in enumerate(lines) if i == 0 or not line.strip() or not lines[i - 1].strip() or _ITEM.match(line)
    ]
    return list(pairwise([*starts, len(lines)]))


def are_wrapped(lines: list[str]) -> bool:
    """Whether the lines of a paragraph end where the next word would not have fitted; none is indented."""
    if len(lines) < 2 or any(line != line.strip() or "\t" in line or "   " in line for line in lines):
        return False
    # Of two lines the first is often the longer: they are one text if the second continues a sentence.
    if len(lines) == 2 and (lines[1][0].isupper() or not lines[1][0].isalpha()):
        return False
    width = max(map(len, lines))
    full = (len(line) + 1 + len(after.split(" ", 1)[0]) > width for line, after in pairwise(lines))
    return width >= MIN_WIDTH and all(full)


def write_text(items: list[Item]) -> str:
    return "".join(item if isinstance(item, str) else item.markup for item in items)
