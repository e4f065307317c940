"""SubStation Alpha (.ass, .ssa) ↔ items: the texts of its dialogue lines, by the fields that its Format: line names.

Styles, comments, drawings and all other fields stay. Codes in braces are tags, as in SubRip.
"""

import re
from collections.abc import Iterator

from heed.apps.documents.formats.plain_text import write_text
from heed.apps.documents.formats.subtitles import code_tag
from heed.apps.documents.text.items import Item, Tag
from heed.errors import HeedError

_FIELDS = "Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text".lower().split(", ")
_LINE = re.compile(r"([^\r\n]*+)(\r\n|\n|\r|\Z)")
_SECTION = re.compile(r"\s*+\[([^\]\r\n]{1,100})\]")
_PIECE = re.compile(r"\{[^{}]{0,2000}\}|\\[Nnh{}]|[{}]")
_DRAWING = re.compile(r"\\p(\d{1,4})")
_LIKE_CODE = re.compile(r"\\(?=[Nnh{}])")
_BRACES = str.maketrans({"{": "\\{", "}": "\\}"})


def read_ass(text: str) -> list[Item]:
    """HeedError if there is no line of dialogue."""
    items: list[Item] = []
    section, fields, is_found = "", _FIELDS, False
    for match in _LINE.finditer(text):
        line, end = match.groups()
        kind, _, rest = line.partition(":")
        kind = kind.strip().lower()
        if header := _SECTION.match(line):
            section = header[1].strip().lower()
        elif section == "events" and kind == "format":
            fields = [field.strip().lower() for field in rest.split(",")]
        elif section == "events" and kind == "dialogue" and "text" in fields:
            is_found = True
            # The last field holds all commas that follow.
            values = rest.split(",", len(fields) - 1)
            place = fields.index("text")
            if place < len(values):
                before = ",".join([*values[:place], ""])
                behind = "".join(f",{value}" for value in values[place + 1 :])
                items += [Tag("cut", f"{line[: len(line) - len(rest)]}{before}"), *_words(values[place])]
                items.append(Tag("cut", behind + end))
                continue
        items.append(Tag("cut", line + end))
    if not is_found:
        raise HeedError("it has no line of dialogue under [Events]: nothing in it was read as subtitles.")
    return [item for item in items if item != "" and item != Tag("cut", "")]


def _words(text: str) -> Iterator[Item]:
    """Words and codes; what is drawn is a thing between words."""
    last, drawn = 0, -1
    for piece in _PIECE.finditer(text):
        if drawing := _last_drawing(piece[0]):
            if drawn < 0 and drawing != "0":
                yield text[last : piece.start()]
                drawn = piece.start()
            elif drawn >= 0 and drawing == "0":
                yield Tag("atom", text[drawn : piece.end()])
                last, drawn = piece.end(), -1
                continue
        if drawn >= 0:
            continue
        yield text[last : piece.start()]
        yield _tag(piece[0])
        last = piece.end()
    yield Tag("atom", text[drawn:]) if drawn >= 0 else text[last:]


def _last_drawing(code: str) -> str:
    """The scale of a drawing that codes begin, "0" if they end one, "" if they do neither."""
    drawings = _DRAWING.findall(code) if code.startswith("{") else []
    return str(int(drawings[-1])) if drawings else ""


def _tag(piece: str) -> Tag:
    if piece == "\\h":
        return Tag("spelling", piece, text="\xa0")
    if piece in ("\\N", "\\n"):
        return Tag("break", piece)
    if len(piece) > 1 and piece.startswith("{"):
        return code_tag(piece)
    return Tag("spelling", piece, text=piece[-1])  # a brace that stands for itself


def write_ass(items: list[Item]) -> str:
    """The file; no word becomes a code or a line end."""
    return write_text(
        _LIKE_CODE.sub("\\\\\u2060", item).translate(_BRACES) if isinstance(item, str) else item for item in items
    )
