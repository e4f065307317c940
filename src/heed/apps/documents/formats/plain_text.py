"""Plain text ↔ items. A line stands for itself, unless its paragraph's lines were wrapped at a width.

Quotation marks of mail, indentation and the markers of lists stand before the words of a line and stay there.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from heed.apps.documents.text.items import EVERY_LINE, Item, Tag, with_read
from heed.apps.documents.text.sentences import Span, Splitter, strip_span
from heed.apps.documents.text.terms import Terms
from heed.apps.documents.text.translation import Answers, Draft, Question, expanded

_LINE = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
COLUMNS = re.compile(r"(\t+ *| {3,})")
# Quotation, indentation. A language code such as >>deu<<, which models of several languages read, begins no quotation.
_PREFIX = re.compile(r"((?:[ \t]{0,3}(?!>>[\w.@-]{1,60}<<)>)*)([ \t]*)")
_MARKER = re.compile(r"(?:[-*+•–]|(\d{1,9})([.)]))[ \t]+(?=\S)")
_FIELD = re.compile(r"[\w-]+: ")  # as in "From: Jane"
_HYPHENATED = re.compile(r"[^\W\d_]{2}([-\u2010\u00ad])$")
_FIRST_WORD = re.compile(r"[^\W\d_]+")
_ENDS_SENTENCE = re.compile(r"[.!?…:;][)\]\"'”’»]*$")
_ENDS_LINE_OF_VERSE = re.compile(r"[.!?…:;,—-][)\]\"'”’»]*$")
# Behind "Haupt-" at the end of a line: the hyphen stands for a part of a word.
_SUSPENDED = frozenset("and or und oder bis sowie et ou y o e".split())
MIN_WIDTH = 40  # narrower lines, such as verses and lists, are ends of their own


@dataclass(frozen=True)
class _TextLine:
    """before: quotation and indentation; marker: of a list; behind: white space behind the words.

    quote: the markers of quotation. indent: columns before the marker. number: of a marker such as "2.", else −1.
    """

    quote: str
    before: str
    marker: str
    words: str
    behind: str
    end: str
    indent: int
    number: int
    is_field: bool

    @property
    def width(self) -> int:
        return len(self.before) + len(self.marker) + len(self.words)


def read_text(text: str) -> list[Item]:
    """Line ends, tabs, columns and what stands before the words of a line are cuts.

    Within a wrapped paragraph a line end, with what the next line begins with, is a break.
    """
    lines, last = [], 0
    for end in _LINE.finditer(text):
        lines.append(_text_line(text[last : end.start()], end[0]))
        last = end.end()
    lines.append(_text_line(text[last:], ""))
    known = _Vocabulary(text)
    items: list[Item] = []
    for first, stop in _paragraphs(lines):
        paragraph = lines[first:stop]
        if before := paragraph[0].before + paragraph[0].marker:
            items.append(Tag("cut", before))
        paragraph[1:] = [replace(line, marker="", words=line.marker + line.words) for line in paragraph[1:]]
        for line, after in pairwise(paragraph):
            items += _words_and_break(line, after, known)
        line = paragraph[-1]
        items += [line.words] if len(paragraph) > 1 else [_column(part) for part in COLUMNS.split(line.words) if part]
        if line.behind or line.end:
            items.append(Tag("cut", line.behind + line.end))
    return [item for item in items if item != ""]


class TextDraft:
    """A plain text as questions to the model, for who wants each sentence as soon as it is translated.

    by_line: each line is a sentence. terms: those that have a given translation; the sources hold it then.
    """

    def __init__(
        self,
        text: str,
        split: Splitter,
        *,
        by_line: bool = False,
        keep: tuple[str, ...] = (),
        terms: Terms | None = None,
    ):
        items = with_read([text], _LINE, lambda end: Tag("cut", end[0])) if by_line else read_text(text)
        items = items if terms is None else terms.mark(items)
        self._draft = Draft(items, split=_whole if by_line else split, keep=keep)
        self.questions, self.nested = self._draft.questions, self._draft.nested

    @cached_property
    def sources(self) -> list[tuple[int, str]]:
        """The sentences as they stand in the text, and where each begins there."""
        sources: list[tuple[int, str]] = []
        length = 0
        for part in self._draft.parts:
            source = write_text(expanded([part], {}))
            if isinstance(part, Question):
                sources.append((length, source))
            length += len(source)
        return sources

    def text(self, answers: Answers) -> str:
        """The text with the answers in the places of the questions."""
        return write_text(self._draft.items(answers))


def _whole(text: str) -> list[Span]:
    span = strip_span(text, 0, len(text))
    return [span] if span[0] < span[1] else []


def write_text(items: Iterable[Item]) -> str:
    return "".join(item if isinstance(item, str) else (item.hyphen or "") + item.markup for item in items)


def _text_line(line: str, end: str) -> _TextLine:
    content = line.rstrip()
    prefix = _PREFIX.match(content)
    assert prefix
    rest = content[prefix.end() :]
    marker = _MARKER.match(rest)
    number = int(marker[1]) if marker and marker[1] and marker[2] == "." else -1
    start = prefix.end()
    end_of_marker = start + (marker.end() if marker else 0)
    return _TextLine(
        quote=re.sub(r"\s", "", prefix[1]),
        before=content[:start],
        marker=content[start:end_of_marker],
        words=content[end_of_marker:],
        behind=line[len(content) :],
        end=end,
        indent=len(prefix[2].expandtabs()),
        number=number,
        is_field=_FIELD.match(rest) is not None,
    )


def _column(part: str) -> Item:
    return Tag("cut", part) if COLUMNS.fullmatch(part) else part


class _Vocabulary:
    """The words of a text, which tell whether a word has a hyphen where a line ends within it."""

    def __init__(self, text: str):
        self._text, self._words = text, frozenset[str]()

    def keeps_hyphen(self, before: str, after: str) -> bool:
        if not self._words:
            self._words = frozenset(re.findall(r"[^\W\d_]+(?:-[^\W\d_]+)*", self._text.lower()))
        before, after = before.lower(), after.lower()
        return f"{before}-{after}" in self._words and before + after not in self._words


def _words_and_break(line: _TextLine, after: _TextLine, known: _Vocabulary) -> list[Item]:
    markup = line.behind + line.end + after.before
    hyphenated, following = _HYPHENATED.search(line.words), _FIRST_WORD.match(after.words)
    if not hyphenated or not following or line.behind or following[0].lower() in _SUSPENDED:
        return [line.words, Tag("break", markup, EVERY_LINE)]
    before = re.split(r"[\W\d_]", line.words[:-1])[-1]
    if following[0][0].isupper() or known.keeps_hyphen(before, following[0]):
        return [line.words, Tag("break", markup, EVERY_LINE, hyphen="")]
    return [line.words[:-1], Tag("break", markup, EVERY_LINE, hyphen=hyphenated[1])]


def _paragraphs(lines: list[_TextLine]) -> list[tuple[int, int]]:
    """Stretches of lines that are one text, most of them of one line."""
    paragraphs: list[tuple[int, int]] = []
    first = 0
    for stop in range(1, len(lines) + 1):
        before, after = lines[stop - 1], lines[stop] if stop < len(lines) else None
        if after is None or not before.words or not after.words or before.quote != after.quote:
            paragraphs += _paragraphs_of_block(lines, first, stop)
            first = stop
    return paragraphs


def _paragraphs_of_block(lines: list[_TextLine], first: int, stop: int) -> list[tuple[int, int]]:
    """The paragraphs of a block without blank lines."""
    width = max(line.width for line in lines[first:stop])
    paragraphs: list[tuple[int, int]] = []
    start = first
    number = lines[first].number  # of the last item
    for i in range(first + 1, stop + 1):
        if i < stop and _goes_on(lines, start, i, width=width, number=number):
            continue
        paragraphs += [(start, i)] if _is_one_text(lines[start:i]) else [(j, j + 1) for j in range(start, i)]
        start = i
        if i < stop and lines[i].number >= 0:
            number = lines[i].number
    return paragraphs


def _goes_on(lines: list[_TextLine], start: int, i: int, *, width: int, number: int) -> bool:
    """Whether line i continues the text that begins with line `start`: it is set like it, and the line before is full.

    width: of the longest line around. number: of the list's last item.
    """
    before, line = lines[i - 1], lines[i]
    if any("\t" in part.words or "   " in part.words for part in (before, line)):
        return False
    if not any(c.isalnum() for c in line.words) or not any(c.isalnum() for c in before.words):
        return False  # a rule, or the underline of a heading
    is_second = i == start + 1
    if line.is_field or (line.marker and not _is_ordinal(before, line, number)):
        return False
    if line.indent != before.indent and not (
        is_second and (line.indent < before.indent <= line.indent + 8 or before.indent < line.indent)
    ):
        return False
    first_word = (line.marker + line.words).split(None, 1)[0]
    continues = first_word[0].islower()
    if _HYPHENATED.search(before.words) and continues:
        return True
    if before.behind == " ":  # format=flowed, RFC 3676
        return before.width >= MIN_WIDTH or continues
    if width < MIN_WIDTH:
        return False
    is_full = before.width + 1 + len(first_word) > width
    return is_full or (
        continues and before.width >= max(MIN_WIDTH, 0.75 * width) and not _ENDS_SENTENCE.search(before.words)
    )


def _is_ordinal(before: _TextLine, line: _TextLine, number: int) -> bool:
    """Whether a line that begins like "3. October" continues a sentence, and is not an item of a list."""
    return line.number > 1 and line.number != number + 1 and not _ENDS_SENTENCE.search(before.words)


def _is_one_text(lines: Sequence[_TextLine]) -> bool:
    """Whether full lines are a wrapped paragraph, not verses or the lines of an address."""
    if len(lines) < 2 or any(line.behind == " " for line in lines[:-1]):
        return True
    if any(_HYPHENATED.search(line.words) for line in lines[:-1]) or any(
        line.marker or line.words[0].islower() for line in lines[1:]
    ):
        return True
    if not _ENDS_SENTENCE.search(lines[-1].words):
        return len(lines) > 2 and not all(line.words[0].isupper() for line in lines)
    if len(lines) == 2:
        return not _ENDS_SENTENCE.search(lines[0].words)
    ends = sum(bool(_ENDS_LINE_OF_VERSE.search(line.words)) for line in lines[:-1])
    return 2 * ends <= len(lines) - 1
