"""Tables drawn with characters, as pandoc and reStructuredText have them: grids and columns under dashes.

    +-------+-------+        Fruit     Price
    | Fruit | Price |        -------   -----
    +=======+=======+        apples    cheap
    | apples| cheap |
    +-------+-------+

Words of another length need wider columns: the table is drawn again.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

_GRID_RULE = re.compile(r"\+(?:[-=:]+\+)+[ \t]*")
_DASHES = re.compile(r"(?:-{2,} +)+-{2,} *")
_FILLER = "\0"  # behind a character that is two columns wide


@dataclass(frozen=True)
class _Row:
    """Lines of words between two rules; cells: the first of its cells' numbers."""

    first: int
    stop: int
    cells: int


@dataclass(frozen=True)
class CharacterTable:
    """A table's lines and where its columns are. prefixes: what stands before each line, as in a quotation.

    Without columns it is a table whose cells go over several rows or columns: it stays as it is.
    """

    source: str
    lines: list[str]
    prefixes: list[str]
    columns: list[tuple[int, int]] = field(default_factory=list)
    alignments: list[str] = field(default_factory=list)  # of columns under dashes: l, r or c
    rows: list[_Row] = field(default_factory=list)
    is_grid: bool = True

    @property
    def cells(self) -> list[str]:
        """Their words, row by row."""
        return ["\n".join(_dedent(self._cell_lines(row, i))) for row, i in self._places()]

    def _places(self) -> Iterator[tuple[_Row, int]]:
        return ((row, i) for row in self.rows for i in range(len(self.columns)))

    def _cell_lines(self, row: _Row, column: int) -> list[str]:
        start, end = self.columns[column]
        return [line[start:end].replace(_FILLER, "") for line in self.lines[row.first : row.stop]]

    def draw(self, cells: list[str]) -> str:
        """The table with these words in its cells; the same bytes for the same words."""
        # The same words give the same bytes: the source may be drawn in another style than ours.
        if cells == self.cells:
            return self.source

        # Columns grow with their words and never shrink.
        texts = [cell.split("\n") for cell in cells]
        # Words in the middle of a column stand back on both sides.
        spaces = [2 if self.is_grid or self.alignments[i] == "c" else 0 for i in range(len(self.columns))]
        widths = [end - start for start, end in self.columns]
        for number, (_, i) in enumerate(self._places()):
            widths[i] = max([widths[i], *(_width(line) + spaces[i] for line in texts[number])])

        # Rows grow, too; a line that is added has the prefix of the last line of its row.
        row_of = {row.first: row for row in self.rows}
        lines: list[str] = []
        prefixes: list[str] = []
        i = 0
        while i < len(self.lines):
            row = row_of.get(i)
            if row is None:
                lines.append(self._rule(self.lines[i], widths))
                prefixes.append(self.prefixes[i])
                i += 1
                continue
            within = texts[row.cells : row.cells + len(self.columns)]
            height = max(row.stop - row.first if self.is_grid else 1, *map(len, within))
            for n in range(height):
                lines.append(self._line([cell[n] if n < len(cell) else "" for cell in within], widths))
                prefixes.append(self.prefixes[min(row.first + n, row.stop - 1)])
            i = row.stop
        return _join(lines, prefixes).replace(_FILLER, "")

    def _line(self, words: list[str], widths: list[int]) -> str:
        if self.is_grid:
            cells = [f" {text}{' ' * (width - _width(text) - 1)}" for text, width in zip(words, widths, strict=True)]
            return f"|{'|'.join(cells)}|"
        parts = [" " * self.columns[0][0]]
        for i, (text, width) in enumerate(zip(words, widths, strict=True)):
            free = width - _width(text)
            left = {"l": 0, "r": free, "c": free // 2}[self.alignments[i]]
            parts.append(" " * left + text + " " * (free - left + self._gap(i)))
        return "".join(parts).rstrip()

    def _rule(self, line: str, widths: list[int]) -> str:
        parts = [line[: self.columns[0][0]]]
        for i, ((start, end), width) in enumerate(zip(self.columns, widths, strict=True)):
            part = line[start:end]
            fill = part[len(part) // 2] if part else "-"
            middle = max(1, len(part) - 1)  # a colon at the end stays there
            parts.append(part[:middle] + fill * (width - len(part)) + part[middle:])
            parts.append(line[end] if self.is_grid else " " * self._gap(i))
        return "".join(parts).rstrip()

    def _gap(self, column: int) -> int:
        behind = self.columns[column + 1 : column + 2]
        return behind[0][0] - self.columns[column][1] if behind else 0


def begins_grid(line: str) -> bool:
    return _GRID_RULE.fullmatch(line) is not None


def is_dashes(line: str) -> bool:
    """Whether the line marks columns."""
    return "---" in line and _DASHES.fullmatch(line.lstrip(" ")) is not None


def read_grid(lines: list[str], prefixes: list[str]) -> CharacterTable:
    """A grid, of lines that each begin with + or |."""
    source = _join(lines, prefixes)
    lines = [_fill(line.rstrip()) for line in lines]
    kept = CharacterTable(source, lines, prefixes)
    bounds = [match.start() for match in re.finditer(r"\+", lines[0])]
    rows: list[_Row] = []
    first = 0
    for i, line in enumerate(lines):
        is_rule = begins_grid(line)
        if len(line) != bounds[-1] + 1 or any(line[bound] != ("+" if is_rule else "|") for bound in bounds):
            return kept
        if is_rule:
            if any("+" in line[a + 1 : b] for a, b in pairwise(bounds)):
                return kept
            if first < i:
                rows.append(_Row(first, i, len(rows) * (len(bounds) - 1)))
            first = i + 1
    if first < len(lines):
        return kept
    return CharacterTable(source, lines, prefixes, [(a + 1, b) for a, b in pairwise(bounds)], [], rows)


def read_columns(lines: list[str], prefixes: list[str]) -> CharacterTable | None:
    """Columns under dashes: the first line or the second marks them. None if words are not in them."""
    # With a filler behind each wide character, a place in a line is a column on the screen.
    source = _join(lines, prefixes)
    lines = [_fill(line) for line in lines]
    rule = 0 if is_dashes(lines[0]) else 1
    columns = [match.span() for match in re.finditer("-+", lines[rule])]
    if rule == 0 and not is_dashes(lines[-1]):
        return None

    # Words that run across a column's beginning mean that these are no columns, but text above a rule.
    rows: list[_Row] = []
    for i, line in enumerate(lines):
        if i == rule or is_dashes(line):
            continue
        if any(line[start - 1 : start].strip() for start, _ in columns[1:]) or line[: columns[0][0]].strip():
            return None
        rows.append(_Row(i, i + 1, len(rows) * len(columns)))
    if not rows or (rule == 1 and len(lines) < 3):
        return None

    # As in pandoc: a column is aligned to the side on which the first row reaches the end of the dashes.
    starts = [*(start for start, _ in columns), None]
    heads = [lines[rows[0].first][a:b] for a, b in pairwise(starts)]
    alignments = []
    for (start, end), head in zip(columns, heads, strict=True):
        flush_left, flush_right = head[:1].strip() != "", len(head.rstrip()) >= end - start
        alignments.append("r" if flush_right and not flush_left else "c" if not flush_left and head.strip() else "l")

    # Words may go on behind the dashes, up to the next column.
    widest = [
        max([end - start, *(len(lines[row.first][start:stop].rstrip()) for row in rows)])
        for (start, end), stop in zip(columns, starts[1:], strict=True)
    ]
    columns = [(start, start + width) for (start, _), width in zip(columns, widest, strict=True)]
    return CharacterTable(source, lines, prefixes, columns, alignments, rows, is_grid=False)


def _join(lines: list[str], prefixes: list[str]) -> str:
    return "".join(prefix + line for prefix, line in zip(prefixes, lines, strict=True))


def _dedent(lines: list[str]) -> list[str]:
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    lines = [line[indent:].rstrip() for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _fill(line: str) -> str:
    """The line, one character a column."""
    if line.isascii():
        return line
    return "".join(c + _FILLER if unicodedata.east_asian_width(c) in "WF" else c for c in line)


def _width(text: str) -> int:
    return len(_fill(text))
