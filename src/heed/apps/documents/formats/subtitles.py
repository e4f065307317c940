"""Subtitles ↔ items: SubRip (.srt) as all players read it, WebVTT (.vtt), and .sub of MicroDVD and of SubViewer.

Numbers, times, settings and notes are cuts, a line end within a subtitle is a break.
"""

import re
from dataclasses import dataclass

from heed.apps.documents.formats.plain_text import write_text
from heed.apps.documents.text.items import Item, Tag
from heed.apps.documents.text.sentences import needs_translation
from heed.errors import HeedError
from heed.text.character_references import resolved

# White space within a line, and the marks of direction that right-to-left subtitles have around times.
_SPACE = "[ \t\x0b\x0c\xa0\u1680\u2000-\u200f\u202a-\u202f\u205f-\u2069\u3000\ufeff]"
_S = f"{_SPACE}*+"
# Hours and fractions may be missing, of any number of digits, behind any separator: 1:2,5 and 00: 00: 04, 000.
_TIME = rf"[-−]?\d++(?:{_S}[:.,;،：]{_S}\d++)"
_ARROW = rf"(?:(?:[-‐‑–—−=]{_S})++>++|[→⇒])"
_FULL_TIME = r"\d++:\d++(?::\d++)?[.,]\d++"
_SETTINGS = rf"(?:{_S}[A-Za-z]{{1,10}}\d?:[^\s]*+)*+{_S}"  # X1:100, align:start
TIMES = re.compile(
    rf"{_S}(?:\d++{_SPACE}++)?"  # the subtitle's number, if it has no line of its own
    # As it should be; with anything like it for an arrow, where the second time may be missing; as SubViewer has it.
    rf"(?:{_TIME}++{_S}(?P<right_arrow>-->){_S}{_TIME}++.*|{_TIME}*+{_S}(?P<arrow>{_ARROW}){_S}(?:{_TIME}*+{_SETTINGS})?|"
    rf"{_FULL_TIME}{_S}[,;]?{_S}{_FULL_TIME}{_S})"
)
# Times that the words stand behind: frames in MicroDVD, tenths of a second in MPL2, as tools for transcription do.
TIMES_BEFORE = re.compile(
    rf"{_S}(?:\{{\d+\}}\{{\d*\}}|\[\d+\]\[\d*\](?:{_S}/)?|\[{_S}{_TIME}++{_S}{_ARROW}{_S}{_TIME}++{_S}\]){_S}"
)
_NUMBER = re.compile(r"[^\w\r\n]*\d+[^\w\r\n]*")  # of a subtitle, with punctuation around it
_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|\Z)")
_HEADER = re.compile(r"\ufeff?WEBVTT(?![^ \t\r\n])")
_NOTE = re.compile(r"(?:NOTE|STYLE|REGION)(?![^ \t])")
# Tags; ruby's reading, with what it says; times within a subtitle; codes of SubStation Alpha and of MicroDVD.
_TAGS = (
    r"</?(?:[bius]|c|v|font|lang|ruby)(?:[.\s][^<>]{0,200})?>|<rt>[^<>]{0,200}</rt>|<\d{1,9}:[\d:.,]{1,30}>|<br\s?/?>|\[br\]"
    r"|\{\\[^{}]{0,200}\}|\{[A-Za-z]:[^{}]{0,100}\}|(?-i:\\N|\\[nh](?![A-Za-z]))"
)
_TAG = re.compile(f"({_TAGS})", re.IGNORECASE)
# Any tag is one in WebVTT; in SubRip if its element has both.
_ANY_TAG = re.compile(f"({_TAGS}|<[^<>]{{0,200}}>)", re.IGNORECASE)
_ELEMENTS = frozenset("b i u s c v font lang ruby".split())
_NAME = re.compile(r"</?([a-z][\w-]*)", re.IGNORECASE)
# Codes of SubStation Alpha that begin and end a style; the others are about a whole line.
_STYLE = re.compile(
    r"(?P<name>[ibus]|[1-4]?c|alpha|bord|shad|be|blur|fs|fsp|fsc[xy]|fr[xyz]?)(?P<value>(?:[-+&.\d].*)?)|(?P<font>fn)(.*)"
)
_LIKE_TAG = re.compile(r"<(?=[^<>]{0,200}>)")
_LIKE_TIMES_BEFORE = re.compile(r"^(\{\d+\}|\[\d+\])(?=[\[{])")
LINE_CODES = re.compile(rf"(?:{_S}(?:\{{\\[^{{}}]{{0,200}}\}}|\{{[A-Za-z]:[^{{}}]{{0,100}}\}}))*{_S}")
_DASH = re.compile(rf"{_S}(?:[-‐‑–—−]|>{{2,3}}|(?:&gt;){{2,3}}){_S}")  # before a line of another speaker
# A line that stands alone: for the deaf, of a song, or with its speaker's name.
_ALONE = re.compile(rf"{_S}(?:\[[^\[\]]*+\]{_S}\Z|\([^()]*+\){_S}\Z|[♪♫#]|[A-Z][A-Z\d .'’-]{{0,29}}:{_S}\S)")
_REFERENCE = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8});")
_REFERENCED = set("<>&\"'\xa0\u200e\u200f")  # characters that are often written as references
_Line = tuple[str, str]  # and its end


@dataclass(frozen=True)
class _Kind:
    """The form of a file. references: for characters that it writes so, such as &lt; for <."""

    is_vtt: bool
    references: dict[str, str]


@dataclass(frozen=True)
class _Stamp:
    """A time within a subtitle, as in karaoke; the number-th of the file. They stay in their order."""

    markup: str
    number: int


def read_srt(text: str) -> list[Item]:
    """HeedError if there are words and none of them is in a subtitle."""
    lines = [(match[1], match[2]) for match in _LINE.finditer(text) if match[0]]
    return _Reader(lines, is_vtt=_HEADER.match(text) is not None).items()


class _Reader:
    def __init__(self, lines: list[_Line], *, is_vtt: bool):
        self._lines, self._is_vtt = lines, is_vtt
        self._elements: frozenset[str] = _ELEMENTS  # of the subtitle that is read
        self._items: list[Item] = []
        self._references: dict[str, str] = {}
        self._unreferenced: set[str] = set()  # characters that stand for themselves
        self._n_stamps = 0

    def items(self) -> list[Item]:
        """All items; the first one says what the writer must know."""
        # Each line is kept as a cut or begins a subtitle; `in_text` says that times came before it.
        lost = None  # the first line with words that is in no subtitle
        in_text = False
        place = self._length_of_block(0) if self._is_vtt else 0
        self._keep(0, place)
        while place < len(self._lines):
            line, end = self._lines[place]
            if TIMES.fullmatch(line):
                in_text = True
            elif before := TIMES_BEFORE.match(line):
                self._items.append(Tag("cut", before[0]))
                # In MPL2 a slash makes a line italic.
                rows = re.split(r"(\|/?)" if before[0].lstrip().startswith("[") else r"(\|)", line[before.end() :])
                self._add_subtitle(list(zip(rows[::2], [*rows[1::2], end], strict=True)))
                in_text, place = False, place + 1
                continue
            elif self._is_vtt and _NOTE.match(line) and self._is_first(place):
                stop = place + self._length_of_block(place)
                self._keep(place, stop)
                place = stop
                continue
            elif not line.strip():
                in_text = in_text and (not self._is_vtt or line != "")  # automatic captions have lines of a blank
            elif not in_text and not self._begins_subtitle(place):
                lost = place if lost is None and needs_translation(line) else lost
            elif in_text and not self._begins_subtitle(place):
                stop = place + 1
                while stop < len(self._lines) and not self._ends_text(stop):
                    stop += 1
                self._add_subtitle(self._lines[place:stop])
                place = stop
                continue
            self._keep(place, place + 1)
            place += 1

        # A file whose subtitles are not found would come back untranslated without a word.
        if lost is not None and not any(isinstance(item, str) and needs_translation(item) for item in self._items):
            raise HeedError(
                f"line {lost + 1} has words, but no line before it has times, such as 00:00:01,000 --> 00:00:02,500: "
                "nothing in it was read as subtitles."
            )

        # A character stays a reference if the file never writes it plainly; < and & always do, as they begin markup.
        references = {
            sign: reference
            for sign, reference in self._references.items()
            if sign in "<&" or sign not in self._unreferenced
        }
        return [Tag("cut", _Kind(self._is_vtt, references)), *self._items]

    def _keep(self, first: int, stop: int) -> None:
        self._items += [Tag("cut", line + end) for line, end in self._lines[first:stop]]

    def _length_of_block(self, first: int) -> int:
        """How many lines a header, a note or a style sheet has: WebVTT's end before a blank line or an arrow."""
        stop = first + 1
        while stop < len(self._lines) and self._lines[stop][0].strip() and "-->" not in self._lines[stop][0]:
            stop += 1
        return stop - first

    def _is_first(self, place: int) -> bool:
        """Whether no other line is directly before it."""
        return place == 0 or not self._lines[place - 1][0].strip()

    def _begins_subtitle(self, place: int) -> bool:
        """Whether it is a subtitle's number, or in WebVTT its name."""
        line, is_first = self._lines[place][0].strip(), self._is_first(place)
        if place + 1 == len(self._lines) or not TIMES.fullmatch(self._lines[place + 1][0]):
            return is_first and not self._is_vtt and line.isdecimal()  # its times are missing
        return line.isdecimal() or (is_first and (self._is_vtt or _NUMBER.fullmatch(line) is not None))

    def _ends_text(self, place: int) -> bool:
        line = self._lines[place][0]
        return (
            not line.strip()
            or TIMES.fullmatch(line) is not None
            or TIMES_BEFORE.match(line) is not None
            or self._begins_subtitle(place)
        )

    def _add_subtitle(self, lines: list[_Line]) -> None:
        """Its words: a line end is a break, unless another speaker's line follows."""
        if not self._is_vtt:
            self._find_elements("".join(line for line, _ in lines))
        break_before: Tag | None = None
        for i, (line, end) in enumerate(lines):
            parts = self._parts(self._after_codes(line, break_before))
            dash = _dash_in(parts)
            for k, part in enumerate(parts):
                if k == dash and (match := _DASH.match(part)):
                    self._items.append(Tag("cut", match[0]))
                    part = part[match.end() :]
                if part:
                    self._items.append(self._tag(part) if k % 2 else self._resolve(part))
            after = lines[i + 1][0] if i + 1 < len(lines) else ""
            words, words_after = ("".join(self._parts(one)[::2]) for one in (line, after))
            is_apart = _ALONE.match(words_after) or (words.rstrip()[-1:] in "])♪♫#" and _ALONE.match(words))
            goes_on = bool(after.strip()) and not is_apart and _dash_in(self._parts(after)) is None
            break_before = Tag("break" if goes_on else "cut", end)
            if end:
                self._items.append(break_before)

    def _find_elements(self, text: str) -> None:
        """Takes for an element of unknown name only what begins and ends, as players do."""
        begun: set[str] = set()
        ended: set[str] = set()
        for tag in _ANY_TAG.finditer(text):
            if name := _NAME.match(tag[0]):
                (ended if tag[0].startswith("</") else begun).add(name[1].lower())
        self._elements = _ELEMENTS | (begun & ended)

    def _parts(self, line: str) -> list[str]:
        """Words and tags; every second part is a tag."""
        parts = _ANY_TAG.split(line)
        if self._is_vtt:
            return parts
        merged, words = [], [parts[0]]
        for tag, after in zip(parts[1::2], parts[2::2], strict=True):
            name = _NAME.match(tag)
            if _TAG.fullmatch(tag) or (name and name[1].lower() in self._elements):
                merged += ["".join(words), tag]
                words = [after]
            else:
                words += [tag, after]
        return [*merged, "".join(words)]

    def _after_codes(self, line: str, end: Tag | None) -> str:
        """The line behind the codes at its begin that are about all of it; these go with the end of the line before."""
        codes = LINE_CODES.match(line)
        assert codes is not None
        length = codes.end()
        for code in _TAG.finditer(line, 0, length):
            if self._tag(code[0]).kind in ("open", "close"):
                length = code.start()
                break
        if length and line[:length].strip():
            if end is not None and end.kind == "break":
                self._items[-1] = Tag("break", end.markup + line[:length])
            else:
                self._items.append(Tag("cut", line[:length]))
            return line[length:]
        return line

    def _tag(self, markup: str) -> Tag:
        if markup == "\\h":  # a hard space
            return Tag("spelling", markup, text="\xa0")
        if markup.startswith("\\") or markup[:3].lower() in ("<br", "[br"):
            return Tag("break", markup)
        if markup[1:2].isdecimal():
            self._n_stamps += 1
            return Tag("atom", _Stamp(markup, self._n_stamps))
        if markup.startswith("<"):
            name = _NAME.match(markup)
            if name is None or name[1].lower() not in self._elements:
                return Tag("atom", markup)
            return Tag("close" if markup.startswith("</") else "open", markup, name[1].lower())
        return code_tag(markup)

    def _resolve(self, text: str) -> str:
        """The text with its character references resolved."""

        def sign(match: re.Match[str]) -> str:
            character = resolved(match[0])
            if len(character) > 1 or character in "\r\n":
                return match[0]
            self._references.setdefault(character, match[0])
            return character

        self._unreferenced |= _REFERENCED & set(_REFERENCE.sub("", text))
        return _REFERENCE.sub(sign, text)


def code_tag(markup: str) -> Tag:
    """The codes of SubStation Alpha between two braces: the begin or the end of a style, or a thing of its own."""
    styles = [_STYLE.fullmatch(code) for code in markup.strip("{}").split("\\")[1:]]
    if not styles or not all(styles):
        return Tag("atom", markup)
    names = [style["name"] or style["font"] for style in styles if style]
    values = [style["value"] or "" if style["name"] else style[4] for style in styles if style]
    ends = all(not value or (value == "0" and name in "ibus") for name, value in zip(names, values, strict=True))
    return Tag("close" if ends else "open", markup, "\\" + "\\".join(names))


def _dash_in(parts: list[str]) -> int | None:
    """Which part of a line begins with a speaker's dash: the first one behind tags."""
    first = next((i for i in range(0, len(parts), 2) if parts[i].strip()), None)
    return first if first is not None and _DASH.match(parts[first]) else None


def write_srt(items: list[Item]) -> str:
    """The subtitles. Where a translation would read as the times of another one, its arrow becomes a dash."""
    kind = items[0].markup if items and isinstance(items[0], Tag) else None
    if not isinstance(kind, _Kind):
        return write_text(items)
    references = str.maketrans(kind.references)
    stamps = iter(sorted((stamp for item in items if (stamp := stamp_of(item))), key=lambda stamp: stamp.number))
    lines: list[str] = []
    parts: list[str] = []  # of the line that is written
    has_words = False  # that line
    for item in items[1:]:
        if isinstance(item, str):
            text = item.translate(references)
            if kind.is_vtt:
                text = _LIKE_TAG.sub("&lt;", text)
            parts.append(text if parts else _LIKE_TIMES_BEFORE.sub(r"\1 ", text))
            has_words = True
            continue
        markup = next(stamps).markup if stamp_of(item) else item.markup
        end = max(markup.rfind("\n"), markup.rfind("\r")) + 1
        parts.append(markup[:end])
        if end:
            lines.append(_no_times("".join(parts)) if has_words else "".join(parts))
            parts, has_words = [], False
        if end < len(markup):
            parts.append(markup[end:])
    return "".join([*lines, _no_times("".join(parts)) if has_words else "".join(parts)])


def stamp_of(item: Item) -> _Stamp | None:
    """The time within a subtitle that the item is, if it is one."""
    return item.markup if isinstance(item, Tag) and isinstance(item.markup, _Stamp) else None


def _no_times(line: str) -> str:
    times = TIMES.fullmatch(line.rstrip("\r\n"))
    arrow = times and ("right_arrow" if times["right_arrow"] else "arrow" if times["arrow"] else None)
    return f"{line[: times.start(arrow)]}–{line[times.end(arrow) :]}" if times and arrow else line
