"""Markdown ↔ items: all but the words of blocks stays byte for byte.

markdown-it-py reads the blocks (`markdown_blocks`) and what is within them (`markdown_inlines`). What stands between
two blocks of words is one tag, and so is each piece of markup among the words.
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from heed.apps.documents.formats.html import read_elements, with_marks, write_elements, write_value
from heed.apps.documents.formats.markdown_blocks import (
    BLOCK_OF_HTML,
    PLAIN_YAML,
    Blocks,
    Leaf,
    Line,
    SourceMap,
    read_blocks,
)
from heed.apps.documents.formats.markdown_inlines import Image, Label, read_inlines
from heed.apps.documents.formats.words_in_markup import WordsInMarkup, divide_words, with_words
from heed.apps.documents.text.atoms import ADDRESS
from heed.apps.documents.text.items import Item, Tag, as_cut
from heed.apps.documents.text.sentences import needs_translation

_START = "^"  # names the tags directly behind which a marker would begin a block; what the source has there follows
_LINE_END = re.compile(r"\r\n|\n|\r")
# What would begin a block: an item, a quotation, a heading, code, HTML, a definition, a directive, a rule.
_MARKER = re.compile(
    r"(?:[-+*]|\d{1,9}[.)])(?=[ \t]|$)|>|#{1,6}(?=[ \t]|$)|```|~~~|</?[A-Za-z!?]|:(?=[ \t])|:::|\[(?=[^\]]{1,99}\]:)"
    r"|\|?[ \t]{0,3}:?-+:?[ \t]{0,3}\|"  # the second line of a table
    r"|\$\$|!!!|\?\?\?|\{%|\+(?=[-=:])|(?:=+|-{2,}|\*{3,}|_{3,})(?=[ \t]*$)"
)
_TASK = re.compile(r"\[[ xX]\][ \t]+")
_ALERT = re.compile(r"\[![A-Za-z-]{1,30}\][+-]?[ \t]*")  # GitHub's and Obsidian's, as in > [!NOTE]
_CONTENTS = re.compile(r"\[\[?_?TOC_?\]?\]|\$\{toc\}", re.IGNORECASE)  # where a table of contents goes
_SPECIAL = re.compile(r"[\\`*_\[\]<~${}^]|&(?=[#A-Za-z])|:(?=[\w+-]{1,60}:)")  # which may be markup
_FIRST_WORD = re.compile(r"\s*+(\S++)")
_PREFIX = re.compile(r"\n[ \t>]*+")
MAX_CHECKED = 20_000  # characters of a block that is read again once it is translated
_ELEMENT = re.compile(r"<([A-Za-z][\w-]*)")
_NO_TEXT = re.compile(r"[\d.,:+_-]*|~|true|false|null|yes|no|on|off", re.IGNORECASE)  # for YAML
_EMPHASIS = frozenset(("*", "**", "_", "__", "~", "~~"))


class _Document(NamedTuple):
    """The line ends, and markdown-it's environment with the references that are defined."""

    line_ends: list[str]
    env: dict[str, Any]


class _Block(NamedTuple):
    """The text before a block of words; source: its words and markup. kind: a leaf's, or none at the end."""

    before: str
    source: str = ""
    kind: str = ""


def read_markdown(text: str) -> list[Item]:
    line_ends = _LINE_END.findall(text)
    text = _LINE_END.sub("\n", text)
    blocks = read_blocks(text)
    document = Tag("cut", _Document(line_ends, blocks.env))
    words = WordsInMarkup(text)
    return [document, *_read_blocks(text, blocks, words, blocks.env), *words.items]


def _read_blocks(text: str, blocks: Blocks, words: WordsInMarkup, env: dict[str, Any]) -> Iterator[Item]:
    last = 0
    phrases = deque(blocks.phrases)

    def markup(start: int, end: int) -> str:
        """The source of a span, with marks for the words in it."""
        parts: list[str] = []
        while phrases and phrases[0].end <= end:
            phrase = phrases.popleft()
            if phrase.start >= start:
                source = text[phrase.start : phrase.end]
                parts += [text[start : phrase.start], _mark(source, phrase.style, words, env)]
                start = phrase.end
        return "".join([*parts, text[start:end]])

    for leaf in blocks.leaves:
        start, end = leaf.lines[0].start, leaf.lines[-1].end
        if start < last:
            continue
        yield from _read_leaf(text, leaf, before=markup(last, start), words=words, env=env)
        last = end
    yield Tag("cut", _Block(markup(last, len(text))))


def _read_leaf(text: str, leaf: Leaf, *, before: str, words: WordsInMarkup, env: dict[str, Any]) -> Iterator[Item]:
    start, end = leaf.lines[0].start, leaf.lines[-1].end
    first = text[start : leaf.lines[0].end]
    has_title = False  # its first line is separate from the words below it
    if leaf.kind == "paragraph":
        if len(leaf.lines) == 1 and _CONTENTS.fullmatch(first):
            before += first
            start = end
        elif match := _TASK.match(first) or _ALERT.match(first):
            has_title = first[1] == "!"
            before += match[0]
            start += len(match[0])
            leaf = leaf._replace(lines=[leaf.lines[0]._replace(start=start), *leaf.lines[1:]])
    if start == end:
        yield Tag("cut", _Block(before))
        return
    items = [_with_marks(item, words, env) for item in read_inlines(SourceMap(text, leaf), env)]
    yield Tag("cut", _Block(before, "".join(_texts(items)), leaf.kind), _start(text, leaf.lines[0]))
    line = 0
    for item in items:
        if isinstance(item, Tag) and isinstance(item.markup, str) and (n_ends := item.markup.count("\n")):
            line += n_ends
            if item.markup.rstrip(" \t>").endswith("\n"):
                item = Tag(item.kind, item.markup, _start(text, leaf.lines[line]), item.text)
            if has_title:
                item, has_title = as_cut(item), False
        yield item


def _with_marks(item: Item, words: WordsInMarkup, env: dict[str, Any]) -> Item:
    """The item, where marks stand for the description of an image and for what readers see of a tag of HTML."""
    markup = "" if isinstance(item, str) else item.markup
    if isinstance(markup, Image):
        behind = markup[2 + len(markup.label) :]
        if behind.startswith(("](", "][")) and not behind.startswith("][]"):  # elsewhere it is the image's label, too
            markup = f"![{_mark(markup.label, 'label', words, env)}{behind}"
    elif isinstance(markup, str) and "\n" not in markup and (match := _ELEMENT.match(markup)):
        markup = with_marks(markup, match[1].lower(), False, words)
    return replace(item, markup=markup) if isinstance(item, Tag) and markup != item.markup else item


def _mark(source: str, style: str, words: WordsInMarkup, env: dict[str, Any]) -> str:
    """The mark for words in markup; the source if it has none."""
    if not needs_translation(source):
        return source
    if style == "html":
        return words.mark(read_elements(source, words), source, style)
    if style == "yaml":
        return words.mark([source[1:-1] if source[0] in "\"'" else source], source, style)
    return words.mark(_read_line(_PREFIX.sub(" ", source), env), source, style)


def _read_line(text: str, env: dict[str, Any]) -> list[Item]:
    return read_inlines(SourceMap(text, Leaf("paragraph", [Line(0, len(text), may_begin=False)])), env)


def _write_words(items: list[Item], style: str, source: str, env: dict[str, Any]) -> str:
    """Words in markup, so that they end where they should."""
    if style == "html":
        return write_elements(items)
    if style == "yaml":
        text = "".join(_texts(items))
        quote = source[0] if source[0] in "\"'" else ""
        if text == source.strip(quote) or (not quote and PLAIN_YAML.fullmatch(text) and not _NO_TEXT.fullmatch(text)):
            return source if quote else text
        return f"'{text}'" if quote == "'" and "'" not in text else json.dumps(text, ensure_ascii=False)
    if style in ("label", "line", "quoted"):
        line = _PREFIX.sub(" ", source)
        text = _write_block(items, Tag("cut", _Block("", line, "paragraph")), env)
        if text == line:
            return source
        if style == "label" and len(_read_line(f"![{text}](x)", env)) > 1:
            text = re.sub(r"(?<!\\)[\[\]]", r"\\\g<0>", text)
        return text.replace('"', "'") if style == "quoted" else text
    return write_value(items, style, source)


def _start(text: str, line: Line) -> str:
    """The name of a tag before a line's words."""
    match = _MARKER.match(text, line.start, line.end)
    return _START + (match[0] if match else "") if line.may_begin else ""


def write_markdown(items: list[Item]) -> str:
    """The text. Characters among the words that would be read as markup, and are none in the items, are escaped."""
    items, words = divide_words(items)
    document = items[0].markup if items and isinstance(items[0], Tag) else None
    assert isinstance(document, _Document)
    output: list[str] = []
    opening: Tag | None = None
    block: list[Item] = []

    # A block is written when the next tag between blocks comes: only then all of its items are there.
    def finish() -> None:
        if opening is not None:
            output.extend([opening.markup.before, _write_block(block, opening, document.env)])
        block.clear()

    for item in items[1:]:
        if isinstance(item, Tag) and isinstance(item.markup, _Block):
            finish()
            opening = item
        else:
            block.append(item)
    finish()

    def write(words: list[Item], style: str, source: str) -> str:
        return _write_words(words, style, source, document.env)

    return _with_line_ends(with_words("".join(output), words, write), document.line_ends)


def _with_line_ends(text: str, line_ends: list[str]) -> str:
    kinds = set(line_ends)
    if kinds <= {"\n"}:
        return text
    lines = text.split("\n")
    if len(lines) != len(line_ends) + 1:  # no translation is known to change their number
        line_ends = [max(sorted(kinds), key=line_ends.count)] * (len(lines) - 1)
    return "".join(line + end for line, end in zip(lines, [*line_ends, ""], strict=True))


def _write_block(block: Sequence[Item], opening: Tag, env: dict[str, Any]) -> str:
    """A block's words and markup, which is read as it is meant."""
    texts = _texts(block)
    kind: str = opening.markup.kind
    if (text := "".join(texts)) == opening.markup.source:
        return text
    items = _with_html_within_lines(_without_empty_emphasis(block), opening)
    if kind == "cell":
        items = [re.sub(r"\\?\|", r"\\|", item) if isinstance(item, str) else item for item in items]
    for remedy in (_separate_markup, _with_escaped_characters, _with_delimiters_at_words):
        if len(text) > MAX_CHECKED or _is_read_as_meant(items, kind, env):
            break
        items = remedy(items)
    # Indentation at a block's beginning would make it code.
    return "".join(_with_escaped_markers(_texts(items), [opening, *items])).strip(" \t")


def _texts(items: Sequence[Item]) -> list[str]:
    """The text of each item."""
    texts: list[str] = []
    opened: list[int] = []  # where links begin, innermost last
    for item in items:
        markup = item if isinstance(item, str) else item.markup
        if isinstance(markup, Label):
            words = "".join(texts[opened.pop() + 1 :]) if opened else ""
            markup = markup.write(" ".join(_PREFIX.sub("\n", words).split()) != markup.label)
        elif isinstance(item, Tag) and item.name == "[":
            if item.kind == "open" or (item.kind == "cut" and markup in ("[", "^[")):
                opened.append(len(texts))
            elif opened:
                opened.pop()
        texts.append(markup)
    return texts


def _without_empty_emphasis(items: Sequence[Item]) -> list[Item]:
    """The items without the delimiters of emphasis that have no words between them any more."""
    kept: list[Item] = []
    for item in items:
        before = kept[-1] if kept else ""
        if isinstance(item, Tag) and item.kind == "close" and item.name in _EMPHASIS:
            space = before if isinstance(before, str) and not before.strip() and len(kept) > 1 else ""
            opening = kept[-2] if space else before
            if isinstance(opening, Tag) and opening.kind == "open" and opening.name == item.name:
                del kept[-2 if space else -1 :]
                if kept and isinstance(kept[-1], str):
                    kept[-1] = kept[-1].rstrip(" ")
                    if not kept[-1]:
                        kept.pop()
                continue
        kept.append(item)
    return kept


def _with_html_within_lines(items: Sequence[Item], opening: Tag) -> list[Item]:
    """The items; HTML that would begin a block, where the source has a word, goes behind the first word of its line."""
    # start: what the source has at the beginning of this line, "" once the line has words; waiting: HTML that looks for
    # a word to go behind. Without one it stays where it was.
    placed: list[Item] = []
    waiting: list[Item] = []
    start = opening.name
    for item in items:
        may_begin = start.startswith(_START) and not start.startswith(f"{_START}<")
        if isinstance(item, Tag):
            if may_begin and item.kind == "atom" and BLOCK_OF_HTML.match(item.markup) and "\n" not in item.markup:
                waiting.append(item)
                continue
            if waiting and item.kind in ("atom", "spelling"):
                placed += [item, " ", *waiting]
                waiting.clear()
                start = ""
                continue
            if not (waiting and item.kind == "open"):
                placed += waiting
                waiting.clear()
                start = item.name
        elif waiting and (word := _FIRST_WORD.match(item)):
            placed += [word[1], " ", *waiting, item[word.end() :]]
            waiting.clear()
            start = ""
            continue
        elif item.strip():
            start = ""
        placed.append(item)
    return [*placed, *waiting]


def _is_read_as_meant(items: Sequence[Item], kind: str, env: dict[str, Any]) -> bool:
    text = "".join(_PREFIX.sub("\n", part) for part in _texts(items)).strip()
    lines, start = [], 0
    for line in text.split("\n"):
        lines.append(Line(start, start + len(line), may_begin=False))
        start += len(line) + 1
    leaf = Leaf("cell" if kind == "cell" else "paragraph", lines)
    return _meaning(read_inlines(SourceMap(text, leaf), env)) == _meaning(items)


def _meaning(items: Sequence[Item]) -> list[tuple[bool, str]]:
    """The markup of the items, and the words between it."""
    meaning: list[tuple[bool, str]] = []
    words: list[str] = []
    for item, text in zip([*items, Tag("cut", "")], [*_texts(items), ""], strict=True):
        if isinstance(item, str):
            words.append(item.replace("\\|", "|"))
        elif item.kind == "spelling":
            words.append(item.text)
        else:
            if plain := "".join(words).strip():
                meaning.append((False, plain))
            words = []
            if markup := _PREFIX.sub("\n", text).strip(" "):
                meaning.append((True, markup))
    return meaning


def _separate_markup(items: Sequence[Item]) -> list[Item]:
    """The items with a space between two pieces of markup whose delimiters would be read as one."""
    spaced: list[Item] = []
    for item in items:
        before = spaced[-1] if spaced else ""
        if isinstance(before, Tag) and before.kind in ("close", "atom") and isinstance(item, Tag):
            spaced += [" "] * (item.kind in ("open", "atom"))
        spaced.append(item)
    return spaced


def _with_escaped_characters(items: Sequence[Item]) -> list[Item]:
    return [_escape(item) if isinstance(item, str) else item for item in items]


def _escape(text: str) -> str:
    parts, last = [], 0
    for address in ADDRESS.finditer(text):
        parts += [_SPECIAL.sub(r"\\\g<0>", text[last : address.start()]), address[0]]
        last = address.end()
    return "".join([*parts, _SPECIAL.sub(r"\\\g<0>", text[last:])])


def _with_delimiters_at_words(items: Sequence[Item]) -> list[Item]:
    """The items with the delimiters of emphasis directly at words: elsewhere they would be read as words themselves."""
    forwards = _with_openings_at_words(items, "open", _texts(items))
    backwards = [item[::-1] if isinstance(item, str) else item for item in reversed(forwards)]
    texts = [
        item if isinstance(item, str) else text[::-1]
        for item, text in zip(backwards, _texts(forwards)[::-1], strict=True)
    ]
    forwards = _with_openings_at_words(backwards, "close", texts)
    return _without_empty_emphasis([item[::-1] if isinstance(item, str) else item for item in reversed(forwards)])


def _with_openings_at_words(items: Sequence[Item], kind: str, texts: list[str]) -> list[Item]:
    """Moves delimiters that open emphasis behind white space, and behind punctuation that follows a letter."""
    placed: list[Item] = []
    before = " "
    opened: list[Tag] = []  # not yet written
    for item, text in zip(items, texts, strict=True):
        if isinstance(item, Tag) and item.kind == kind and item.name in _EMPHASIS:
            opened.append(item)
            continue
        if opened and isinstance(item, str):
            n = 0
            while n < len(item) and (item[n].isspace() or (before.isalnum() and not item[n].isalnum())):
                before = item[n]
                n += 1
            placed += [item[:n]] if n else []
            item = text = item[n:]
            if not item:
                continue
        placed += opened
        opened = []
        placed.append(item)
        before = text[-1:] or before
    return [*placed, *opened]


def _with_escaped_markers(texts: list[str], items: Sequence[Item]) -> list[str]:
    """The texts of all items but the first; words that would begin a list, a quotation or the like are escaped."""
    start = ""
    for i, item in enumerate(items):
        if isinstance(item, Tag):
            start = item.name if item.name.startswith(_START) else ""
        elif item:
            after = texts[i][:1] if i < len(texts) else ""
            behind = f"{after}." if after.strip() else after
            match = _MARKER.match(item + behind) if start else None
            if match and match[0].casefold() != start.removeprefix(_START).casefold():
                sign = len(match[0]) - 1 if match[0][0] in "#0123456789" else 0
                texts[i - 1] = f"{texts[i - 1][:sign]}\\{texts[i - 1][sign:]}"
            start = ""
    return texts
