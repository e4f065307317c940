"""SubRip (.srt) ↔ items: numbers and times are cuts, a line end within a subtitle is a break."""

import re
from itertools import groupby

from heed.apps.documents.items import Item, Tag
from heed.apps.documents.plain_text import write_text

_TIME = r"\d{1,3}:\d{1,2}:\d{1,2}[,.]\d{1,3}"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}[^\n]*")
_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|\Z)")
_TAG = re.compile(r"(</?(?:[biu]|font)\b[^<>]{0,200}>|\{\\[^{}]{0,200}\})", re.IGNORECASE)
_SPEAKER = re.compile(r"\s*[-–—]")  # a line of another speaker


def read_srt(text: str) -> list[Item]:
    lines = [(match[1], match[2]) for match in _LINE.finditer(text) if match[0]]
    items: list[Item] = []
    in_text = False
    for i, (line, end) in enumerate(lines):
        after = lines[i + 1][0] if i + 1 < len(lines) else ""
        if _TIMES.fullmatch(line):
            in_text = True
            items.append(Tag("cut", line + end))
        elif not in_text or not line.strip() or _begins_subtitle(lines, i):
            items.append(Tag("cut", line + end))
        else:
            items += _words(line)
            goes_on = after.strip() and not _SPEAKER.match(after) and not _begins_subtitle(lines, i + 1)
            if end:
                items.append(Tag("break" if goes_on else "cut", end))
    return items


def _begins_subtitle(lines: list[tuple[str, str]], i: int) -> bool:
    if _TIMES.fullmatch(lines[i][0]):
        return True
    return lines[i][0].strip().isdecimal() and i + 1 < len(lines) and bool(_TIMES.fullmatch(lines[i + 1][0]))


def _words(line: str) -> list[Item]:
    """A line's words and its tags: <i>, <b>, <u>, <font>, and positions such as {\\an8}. A speaker's dash is a cut."""
    items: list[Item] = []
    dash = re.match(r"\s*[-–—]\s*", line)
    if dash:
        items.append(Tag("cut", dash[0]))
        line = line[dash.end() :]
    for part in _TAG.split(line):
        if _TAG.fullmatch(part):
            name = part.strip("</>").split()[0].lower()
            kind = "close" if part.startswith("</") else "open" if part.startswith("<") else "cut"
            items.append(Tag(kind, part, name))  # type: ignore[arg-type]
        elif part:
            items.append(part)
    return items


def write_srt(items: list[Item]) -> str:
    """The subtitles. Where a translation would read as the times of another subtitle, its arrow is shortened."""
    parts: list[str] = []
    for is_text, group in groupby(items, key=lambda item: isinstance(item, str)):
        if part := write_text(list(group)):
            begins_line = not parts or parts[-1].endswith(("\n", "\r"))
            parts.append(part.replace("-->", "->", 1) if is_text and begins_line and _TIMES.match(part) else part)
    return "".join(parts)
