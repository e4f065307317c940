"""The blocks of Markdown: markdown-it-py reads them, with rules for what people write beyond CommonMark and tables.

Nothing is rendered. What is wanted is where words are: the `Leaf`s, in the order of the source.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple

from heed.errors import HeedError

try:
    import markdown_it
    from markdown_it import MarkdownIt
    from markdown_it.common.html_blocks import block_names
    from markdown_it.rules_block import StateBlock
    from markdown_it.token import Token

    _version = markdown_it.__version__
except ImportError:
    _version = ""
if tuple(map(int, _version.split(".")[:2] if _version else "0")) < (4, 3):
    raise HeedError(
        f"Markdown is read with markdown-it-py 4.3 or newer, and {_version or 'none'} is installed: "
        "pip install heed-mt."
    )

WHITE_SPACE = " \t\n\v\f\r"  # around a block's words
MAX_NESTING = 40  # lists and quotations within each other; what is deeper is left as it is
MAX_LINES = 10_000  # of a formula or the like
_GRID_RULE = re.compile(r"\+(?:[-=:]+\+)+[ \t]*")  # of a table drawn with characters
_DASHES = re.compile(r"(?:-{3,} +)+-{3,} *")
BLOCK_OF_HTML = re.compile(  # what begins one: https://spec.commonmark.org/0.31.2/#html-blocks, kinds 1 to 6
    rf"<(?:[!?]|/?(?:{'|'.join([*block_names, 'pre', 'script', 'style', 'textarea'])})(?=[\s/>]|$))", re.IGNORECASE
)

# What begins a block that CommonMark does not know.
_BEGINNINGS = frozenset("+-:;*/!?=([\\{$<ie")  # its first characters, but for a table's head
_DIRECTIVE = re.compile(r":::.*|/{3,}(?:[ \t].*)?|::[A-Za-z][\w-]*(?:[\[{].*)?")
_SNIPPET = re.compile(r";?-{1,8}8<-{1,8}([ \t].*)?")  # of another file, as pymdownx has it, or a list of them
_ABBREVIATION = re.compile(r"\*\[[^\]\n]{1,99}\]:.*")
_OPTION = re.compile(r":[\w-]+:.*")  # of a directive
_ADMONITION = re.compile(r"(?:!!!|\?\?\?\+?)[ \t]++[\w|\"' -].*|===[!+]?[ \t]+\"[^\"]*\"[ \t]*")
# Where these have a title: ::: tip Title, :::{note} Title, ::tip[Title], /// note | Title, !!! note "Title".
_TITLED = (
    "note|tip|warning|important|caution|danger|attention|error|hint|info|seealso|abstract|summary|success|question"
    "|failure|bug|example|quote|admonition|topic|sidebar|dropdown|details|card|tab|tab-item|tab-set"
)
_TITLE = re.compile(
    rf"::++[ \t]*+(?:[\w-]++\[([^\[\]]++)\]|\{{?(?:{_TITLED})\}}?[ \t]++([^{{\[:\s].*))"
    rf"|///++[ \t]*+(?:{_TITLED})[ \t]*+\|[ \t]*+(\S.*)|(?:!!!|\?\?\?\+?|===[!+]?)[^\"]*+\"([^\"]++)\"",
    re.IGNORECASE,
)
_FRONT_MATTER_WORDS = re.compile(
    r"(?:title|subtitle|description|summary|tagline|sidebar_label)[ \t]*([:=])[ \t]+(\S.*)"
)
PLAIN_YAML = re.compile(r"[^\s\[\]{}&*!|>%@`\"'#,?:-](?:[^:#]|:(?!\s|$)|(?<!\s)#)*")
_TARGET = re.compile(r"\([\w.:/-]+\)=[ \t]*")  # MyST's, of a reference
_FOOTNOTE = re.compile(r"\[\^[^\[\]\s]{1,99}\]:[ \t]*")
_OF_MARKDOWN = re.compile(
    r"<\w[^<>]{0,500}\smarkdown(?:[\s>]|=[\"']?[^\"'0])"
)  # an element whose words are Markdown, not HTML
_DEFINITION = re.compile(r":[ \t]+")
_ENVIRONMENT = re.compile(r"\\begin\{([A-Za-z]+\*?)\}")
_COMMAND = re.compile(r"\\[A-Za-z]+\*?(?:\[[^\]\n]{0,200}\]|\{[^{}\n]{0,200}\}){0,8}[ \t]*")  # as in \newpage
_BEHIND_FORMULA = re.compile(r"[ \t.,;]*+(?:\([^()]*+\)|\{[^{}]*+\})?[ \t]*")  # its number or label
_TEMPLATE = re.compile(r"\{%-?[ \t]*(highlight|raw|comment|math)\b|\{\{[<%][ \t]*(highlight|comment|math)\b")
_ESM = re.compile(
    r"import[ \t](?:[^'\"`]*[ \t]from[ \t]*)?+['\"][^'\"]*['\"];?[ \t]*|import[ \t]+\{[^}'\"]*"
    r"|export[ \t]+(?:const|let|var|function|async|class|default|\*|\{).*"
)
ELEMENT = (  # of MDX, whose values may be expressions
    r"<(?:/?(?:[A-Za-z][\w.:-]{0,60}+)?"
    r"(?:[^<>{}\"']|\"[^\"]*+\"|'[^']*+'|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\})*+)>"
)
_ELEMENT_ALONE = re.compile(ELEMENT + r"[ \t]*")
_COMPONENT = re.compile(r"</?(?:>|[A-Z][A-Z0-9]{0,60}[a-z]|\w{1,60}\.)")
MAX_TAG = 2_000  # characters
_FRONT_MATTER_KEY = re.compile(r"[\"']?[\w.-]+[\"']?[ \t]*[:=]|\[\[?[\w.-]+\]|[#-] ")


class Line(NamedTuple):
    """A line of a leaf: its span in the source; whether a marker at its beginning would begin a block."""

    start: int
    end: int
    may_begin: bool


class Phrase(NamedTuple):
    """Words in markup: their span in the source, and how they are written: html, yaml, a quote, or what ends them."""

    start: int
    end: int
    style: str


class Leaf(NamedTuple):
    """A block of words: a paragraph, a heading or a table's cell."""

    kind: Literal["paragraph", "heading", "cell"]
    lines: list[Line]


@dataclass
class Blocks:
    """The blocks of a text. phrases: in the markup between them. env: markdown-it's, with the defined references."""

    leaves: list[Leaf] = field(default_factory=list)
    phrases: list[Phrase] = field(default_factory=list)
    env: dict[str, Any] = field(default_factory=dict)


class _State(StateBlock):
    """Notes where the words of each block are."""

    def __init__(self, text: str, parser: MarkdownIt, blocks: Blocks) -> None:
        super().__init__(text, parser, blocks.env, [])
        self.leaves, self.phrases = blocks.leaves, blocks.phrases
        self.row: Token | None = None
        self.cells: list[tuple[int, int]] = []
        self.searched: dict[tuple[str, ...], int] = {}  # for texts: the line up to which a search found none

    def push(self, ttype: str, tag: str, nesting: Literal[-1, 0, 1]) -> Token:
        if ttype == "inline":
            self._add_leaf(self.tokens[-1])
        token = super().push(ttype, tag, nesting)
        if ttype == "tr_open":
            self.row, self.cells = token, []
        elif ttype in ("th_open", "td_open"):
            assert self.row is not None and self.row.map is not None
            if self.row.meta.get("cell") is None:
                self.row.meta["cell"] = -1
                self.cells = self._cells(self.row.map[0])
            self.row.meta["cell"] += 1
        return token

    def _add_leaf(self, opening: Token) -> None:
        if opening.type in ("th_open", "td_open"):
            assert self.row is not None and self.row.map is not None
            if (number := self.row.meta["cell"]) < len(self.cells):
                start, end = self.cells[number]
                is_first = number == 0 and not self.line_text(self.row.map[0]).startswith("|")
                self.add("cell", [Line(start, end, may_begin=is_first)])
            return
        assert opening.map is not None
        first, stop = opening.map
        if opening.markup.startswith("#"):
            start, end = self.span(first)
            start += len(opening.markup)
            words = self.src[start:end].rstrip(" \t")
            closing = words.rstrip("#")
            if len(closing) < len(words) and (not closing or closing[-1] in " \t"):
                words = closing
            self.add("heading", [Line(start, start + len(words), may_begin=False)])
            return
        stop -= bool(opening.markup)  # the line below a heading
        self.add(
            "heading" if opening.markup else "paragraph",
            [Line(*self.span(i), may_begin=self.sCount[i] - self.blkIndent <= 3) for i in range(first, stop)],
        )

    def add(self, kind: Literal["paragraph", "heading", "cell"], lines: list[Line]) -> None:
        """Adds a leaf, without white space around it."""
        start, end = lines[0].start, lines[0].end
        words = self.src[start:end]
        lines[0] = lines[0]._replace(start=end - len(words.lstrip(WHITE_SPACE)))
        words = self.src[lines[-1].start : lines[-1].end]
        lines[-1] = lines[-1]._replace(end=lines[-1].start + len(words.rstrip(WHITE_SPACE)))
        if lines[-1].start < lines[-1].end or len(lines) > 1:
            self.leaves.append(Leaf(kind, lines))

    def span(self, line: int) -> tuple[int, int]:
        return self.bMarks[line] + self.tShift[line], self.eMarks[line]

    def line_text(self, line: int) -> str:
        start, end = self.span(line)
        return self.src[start:end]

    def add_title(self, line: int) -> None:
        """Adds the words of a directive's or an admonition's title."""
        start, _ = self.span(line)
        if match := _TITLE.match(self.line_text(line)):
            words = match[match.lastindex or 0].rstrip()
            first = match.start(match.lastindex or 0)
            style = {1: "label", 4: "quoted"}.get(match.lastindex or 0, "line")
            self.phrases.append(Phrase(start + first, start + first + len(words), style))

    def add_html(self) -> None:
        """Adds the blocks of HTML, whose words are read as those of a page."""
        for token in self.tokens:
            if token.type == "html_block" and token.map is not None:
                start, end = self.bMarks[token.map[0]], self.eMarks[token.map[1] - 1]
                start = self.src.find("<", start, end)
                before = self.src[self.bMarks[token.map[0]] : start]
                if ">" not in before and not _OF_MARKDOWN.search(self.src, start, end):
                    self.phrases.append(Phrase(start, end, "html"))
        self.phrases.sort()

    def _cells(self, line: int) -> list[tuple[int, int]]:
        """The spans of a row's cells, as markdown-it finds them."""
        start, end = self.span(line)
        row = self.src[start:end].rstrip(WHITE_SPACE)
        start, row = start + len(row) - len(row.lstrip(WHITE_SPACE)), row.lstrip(WHITE_SPACE)
        spans, last = [], 0
        for bar in re.finditer(r"(?<!\\)\|", row):
            spans.append((start + last, start + bar.start()))
            last = bar.end()
        spans.append((start + last, start + len(row)))
        if spans[0][0] == spans[0][1]:
            spans.pop(0)
        if spans and spans[-1][0] == spans[-1][1]:
            spans.pop()
        return spans


class Parser(MarkdownIt):
    """CommonMark with tables and strikethrough. Addresses are not looked at: every one stays as it is."""

    def __init__(self, max_nesting: int) -> None:
        super().__init__("commonmark", {"maxNesting": max_nesting, "strikethrough_single_tilde": True})
        self.enable(["table", "strikethrough"])

    def normalizeLink(self, url: str) -> str:
        return url

    def normalizeLinkText(self, link: str) -> str:
        return link

    def validateLink(self, url: str) -> bool:
        return True


@cache
def _block_parser() -> Parser:
    parser = Parser(MAX_NESTING)
    interrupting = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    parser.block.ruler.before("table", "dialects", _dialects, interrupting)  # type: ignore[arg-type]
    return parser


def read_blocks(text: str) -> Blocks:
    """The blocks of a text whose lines end with \\n."""
    blocks = Blocks()
    parser = _block_parser()
    state = _State(text, parser, blocks)
    parser.block.tokenize(state, _front_matter(state), state.lineMax)
    if not blocks.env.get("is_mdx"):
        state.add_html()
    return blocks


def _front_matter(state: _State) -> int:
    """The number of lines of the front matter between --- or +++."""
    fence = state.src[: state.eMarks[0]].rstrip() if state.lineMax else ""
    if fence not in ("---", "+++"):
        return 0
    has_keys = False
    phrases: list[Phrase] = []
    for line in range(1, state.lineMax):
        text = state.src[state.bMarks[line] : state.eMarks[line]]
        if text.rstrip() in (fence, "..."):
            is_whole = has_keys or line == 1
            state.phrases += phrases * is_whole
            return line + 1 if is_whole else 0
        if (match := _FRONT_MATTER_WORDS.match(text)) and (match[1] == "=") == (fence == "+++"):
            value, start = match[2].rstrip(), state.bMarks[line] + match.start(2)
            quote = value[0] if value[0] in "\"'" else ""
            inner = value[1:-1] if quote else value
            is_value = (
                (value[-1:] == quote and not {quote, "\\"} & set(inner)) if quote else PLAIN_YAML.fullmatch(value)
            )
            if is_value and len(inner) > 1 and (quote or match[1] == ":"):
                phrases.append(Phrase(start, start + len(value), "yaml"))
        has_keys = has_keys or _FRONT_MATTER_KEY.match(text) is not None
    return 0


def _dialects(state: _State, start: int, end: int, silent: bool) -> bool:
    """All rules of this file. Most lines of words are told by their first character to begin nothing of it."""
    place, _ = state.span(start)
    if silent and state.src[place : place + 1] not in _BEGINNINGS:
        return False
    rules = (_table, _lines_that_stay, _component, _formula, _admonition, _footnote, _definition)
    return any(rule(state, start, end, silent) for rule in rules)


def _lines_that_stay(state: _State, start: int, end: int, silent: bool) -> bool:
    """Directives, targets, commands of TeX, code of templates, and what MDX imports and exports."""
    if state.is_code_block(start):
        return False
    text = state.line_text(start)
    stop = start + 1
    if snippet := _SNIPPET.fullmatch(text):
        if snippet[1] is None:
            stop = _stop(state, start + 1, end, (text.strip(),))
    elif _DIRECTIVE.fullmatch(text):
        if not silent:
            state.add_title(start)
        while "{" in text and stop < end and _OPTION.fullmatch(state.line_text(stop)):
            stop += 1
    elif template := _TEMPLATE.match(text):
        name = template[1] or template[2]
        stop = _stop(state, start, end, ("end" + name, "/" + name))
    elif environment := _ENVIRONMENT.match(text):
        stop = _stop(state, start, end, (f"\\end{{{environment[1]}}}",))
    elif state.sCount[start] == 0 and _ESM.fullmatch(text):
        state.env["is_mdx"] = True
        while stop < end and not state.isEmpty(stop):
            stop += 1
    elif not (_TARGET.fullmatch(text) or _COMMAND.fullmatch(text) or _ABBREVIATION.fullmatch(text)):
        return False
    if stop == 0:
        return False
    state.line = stop
    return True


def _stop(state: _State, start: int, end: int, closings: tuple[str, ...]) -> int:
    """Behind the line that has one of these texts and so ends a block; 0 if none does."""
    line = max(start, state.searched.get(closings, 0))
    while line < min(end, start + MAX_LINES) and (state.sCount[line] >= state.blkIndent or state.isEmpty(line)):
        text = state.line_text(line)
        if any(closing in text for closing in closings):
            return line + 1
        line += 1
    state.searched[closings] = line
    return 0


def _component(state: _State, start: int, end: int, silent: bool) -> bool:
    """A tag on lines of its own, of a component of MDX or with the attribute markdown: what follows it is Markdown.

    CommonMark would read the end of a tag that stands on the last of several lines as a quotation.
    """
    place, _ = state.span(start)
    if state.src[place] != "<" or state.is_code_block(start):
        return False
    match = _ELEMENT_ALONE.match(state.src, place, place + MAX_TAG)
    if match is None or state.src[match.end() : match.end() + 1].strip():
        return False
    ends_alone = not silent and match[0].rpartition("\n")[2].strip() in (">", "/>")
    is_component = bool(state.env.get("is_mdx")) and _COMPONENT.match(match[0]) is not None
    if not (ends_alone or is_component or _OF_MARKDOWN.match(match[0])):
        return False
    stop = start + 1 + match[0].count("\n")
    if stop > end:
        return False
    state.line = stop
    return True


def _formula(state: _State, start: int, end: int, silent: bool) -> bool:
    """A formula between lines that begin and end with $$, or between \\[ and \\] on lines of their own."""
    text = state.line_text(start)
    closing = r"\]" if text.rstrip() == r"\[" else "$$"
    if not (text.startswith("$$") or closing == r"\]") or state.is_code_block(start):
        return False
    stop = start + 1
    if closing not in text[2:]:
        if text[2:].strip() and silent:
            return False
        stop = _stop(state, start + 1, end, (closing,))
        if stop == 0:
            return False
        text = state.line_text(stop - 1)
    if _BEHIND_FORMULA.fullmatch(text.rpartition(closing)[2]) is None:
        return False
    state.line = stop
    return True


def _table(state: _State, start: int, end: int, silent: bool) -> bool:
    """A table drawn with characters, as pandoc and reStructuredText have it, up to an empty line; it stays as it is."""
    # A grid begins with its rule; columns have one as their first or second line.
    if state.is_code_block(start):
        return False
    text, below = state.line_text(start), state.line_text(start + 1) if start + 1 < end else ""
    is_grid = _GRID_RULE.fullmatch(text) is not None
    if not (is_grid and below[:1] in ("|", "+")) and (silent or not any(map(_DASHES.fullmatch, (text, below)))):
        return False
    while not silent and start < end and state.sCount[start] >= state.blkIndent and not state.isEmpty(start):
        if is_grid and state.line_text(start)[0] not in "+|":
            break
        start += 1
        state.line = start
    return True


def _admonition(state: _State, start: int, end: int, silent: bool) -> bool:
    """A line such as `!!! note "Title"`; what is indented below it is read as blocks."""
    if state.is_code_block(start) or not _ADMONITION.fullmatch(state.line_text(start)):
        return False
    if not silent:
        state.add_title(start)
        state.line = start + 1
        _read_indented(state, start + 1, end, 4)
    return True


def _footnote(state: _State, start: int, end: int, silent: bool) -> bool:
    return _marker_block(state, start, end, silent, marker=_FOOTNOTE)


def _definition(state: _State, start: int, end: int, silent: bool) -> bool:
    return start > 0 and _marker_block(state, start, end, silent, marker=_DEFINITION)


def _marker_block(state: _State, start: int, end: int, silent: bool, *, marker: re.Pattern[str]) -> bool:
    """A block that begins with a marker and continues while lines are indented, such as a footnote."""
    if state.is_code_block(start) or not (match := marker.match(state.line_text(start))):
        return False
    if silent:
        return True
    old = state.bMarks[start], state.tShift[start], state.sCount[start]
    place = state.bMarks[start] + state.tShift[start] + len(match[0])
    indent = 4 if marker is _FOOTNOTE else min(4, len(match[0].expandtabs(4)))
    state.bMarks[start], state.tShift[start], state.sCount[start] = place, 0, state.blkIndent + indent
    state.line = start + 1
    _read_indented(state, start, end, indent)
    state.bMarks[start], state.tShift[start], state.sCount[start] = old
    return True


def _read_indented(state: _State, start: int, end: int, indent: int) -> None:
    old_type, old_list = state.parentType, state.listIndent
    state.parentType = "footnote"
    state.blkIndent += indent
    state.level += 1
    line = state.skipEmptyLines(start)
    if line < end and state.sCount[line] >= state.blkIndent:
        state.md.block.tokenize(state, start, end)
    state.level -= 1
    state.blkIndent -= indent
    state.parentType, state.listIndent = old_type, old_list


class SourceMap:
    """From places in a leaf's words, whose lines end with \\n and have no indentation, to the source."""

    def __init__(self, source: str, leaf: Leaf) -> None:
        self._source = source
        self._starts: list[int] = []
        self._places: list[int] = []
        self._end = leaf.lines[-1].end
        self.has_bars = False  # \\| which are read as |
        texts, length = [], 0

        def add(text: str, place: int) -> None:
            nonlocal length
            self._starts.append(length)
            self._places.append(place)
            texts.append(text)
            length += len(text)

        for number, line in enumerate(leaf.lines):
            last = line.start
            if leaf.kind == "cell":
                for bar in re.finditer(r"\\\|", source[line.start : line.end]):
                    add(source[last : line.start + bar.start()], last)
                    add("|", line.start + bar.start())
                    last = line.start + bar.end()
                    self.has_bars = True
            is_last = number + 1 == len(leaf.lines)
            add(source[last : line.end] + "\n" * (not is_last), last)
        self.text = "".join(texts)

    def place(self, place: int) -> int:
        if place == len(self.text):
            return self._end
        i = bisect_right(self._starts, place) - 1
        return self._places[i] + place - self._starts[i]

    def slice(self, start: int, end: int) -> str:
        """The source of a span of the words."""
        return self._source[self.place(start) : self.place(end)]
