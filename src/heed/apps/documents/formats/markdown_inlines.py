"""Inline markup of Markdown: markdown-it-py's rules, with the place of each token in the words.

Beside CommonMark's there are rules for what people write in its dialects, such as formulas, placeholders, shortcodes,
footnotes, wiki links and emoji codes: all of it stays as it is.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.helpers import parseLinkDestination, parseLinkTitle
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_inline import (
    StateInline,
    autolink,
    backtick,
    emphasis,
    entity,
    escape,
    html_inline,
    image,
    link,
    link_pairs,
    newline,
    strikethrough,
)
from markdown_it.token import Token

from heed.apps.documents.formats.html_elements import ALONE, BLOCKS, CODE, THINGS
from heed.apps.documents.formats.markdown_blocks import ELEMENT, Parser, SourceMap
from heed.apps.documents.text.items import Item, Tag, as_cut
from heed.text.character_references import resolved

Rule = Callable[[StateInline, bool], bool]
MAX_NESTING = 8  # brackets within each other: each level costs a stranger's `![![![` as much again
MAX_KEPT = 2_000  # characters of a formula, a shortcode or the like

# No formulas are placeholders such as %1$s and ${name}, and what begins like a price.
_FORMULA = re.compile(
    r"\$\$(?:[^$\\]|\\[^\n]){1,1000}+\$\$"
    r"|(?<![\w%])\$(?![\s$]|\{[\w.]{1,60}\}\s|\d[\d.,]{0,20}[ \t]+[^\W\d_]{2})"
    r"(?:[^$\\]|\\[^\n]){1,1000}+(?<!\s)(?<!%\d)\$(?!\d)"
    r"|(?<!\w)\\{1,2}(?:\((?:[^\\]|\\(?!\\?[()])[^\n]){1,1000}+\\{1,2}\)|\[(?:[^\\]|\\(?!\\?[\[\]])[^\n]){1,1000}+\\{1,2}\])"
)
_OF_TEX, _WORD = re.compile(r"\\[A-Za-z]|[\^=_+]"), re.compile(r"[^\W\d_]{2}")
_EMOJI = re.compile(r":(?:[+-]1|(?=[0-9_+-]{0,60}[a-z])[a-z0-9_+-]{1,60}+):(?![\w:])")
_ADDRESS = re.compile(r"://[^\s<>\"\[\]`*|]{1,2000}(?<![.,;:!?)'_~])")
_SCHEMES = ("http", "https", "ftp")
_WIKI_LINK = re.compile(r"!?\[\[([^\[\]\n|]{1,300})(?:\|([^\[\]\n]{1,300}))?\]\](?![(\[])")
_NOTE = re.compile(r"\[(?:\^[^\[\]\s]{1,99}|-?@[^\[\]]{1,300})\](?![(\[])")  # a footnote's mark, a citation
_ATTRIBUTES = re.compile(r"\{:?[ \t]*(?:[.#][\w-]|[\w-]++=)[^{}]*+\}|\{:[^{}]*+\}|\{(?:=[\w-]+|-)\}")
_PLACEHOLDER = re.compile(
    r"\{[^\s{}]+\}|\{[\w.]+,[ \t]*(?:plural|select|selectordinal|number|date|time)\b.*", re.DOTALL
)
_ELEMENT = re.compile(ELEMENT)
_KEY = r"(?:[A-Za-z0-9-]{1,30}|\"[^\"\n]{1,30}\")"
_KEYS = re.compile(rf"\+\+{_KEY}(?:\+{_KEY}){{0,8}}\+\+(?!\+)")  # to press, as pymdownx has them
_ROLE = re.compile(r"\{[\w:.+-]+\}|:[\w.+-]+:")
_NAME = re.compile(r"</?([A-Za-z][A-Za-z0-9-]*)")


class Label(NamedTuple):
    """How a link ends that has its label in its words: once they are others, the label is written behind them."""

    label: str
    end: str  # "]" or "][]", and attributes

    def write(self, changed: bool) -> str:
        return f"][{self.label}]{self.end.removeprefix('][]').removeprefix(']')}" if changed else self.end


class Image(str):
    """An image's markup. label: the description that it begins with, between its brackets."""

    label: str


class _State(StateInline):
    """Notes where tokens stand: token.meta["span"]."""

    def __init__(self, text: str, parser: MarkdownIt, env: dict[str, Any]) -> None:
        super().__init__(text, parser, env, [])
        self.has_spans = "]{" in text
        self.has_notes = "^[" in text
        self.has_elements = "={" in text or bool(env.get("is_mdx"))

    def push(self, ttype: str, tag: str, nesting: Literal[-1, 0, 1]) -> Token:
        token = super().push(ttype, tag, nesting)
        token.meta["at"] = self.pos
        return token


def _formula(state: StateInline, silent: bool) -> bool:
    match = _FORMULA.match(state.src, state.pos, min(state.posMax, state.pos + MAX_KEPT))
    if match is None or (match[0][0] == "\\" and not _OF_TEX.search(match[0]) and _WORD.search(match[0])):
        return False  # words in brackets that are escaped
    return _keep(state, silent, match.end(), match[0].strip("$"))


def _braces(state: StateInline, silent: bool) -> bool:
    """Shortcodes, expressions of templates and of MDX, placeholders and attributes."""
    src, start = state.src, state.pos
    most = min(state.posMax, start + MAX_KEPT)
    for opening, closing in (("{{{", "}}}"), ("{{", "}}"), ("{%", "%}"), ("{# ", "#}"), ("{/*", "*/}")):
        if src.startswith(opening, start) and (end := src.find(closing, start + len(opening), most)) >= 0:
            return _keep(state, silent, end + len(closing))
    end = start
    for _ in range(20):  # braces within braces
        end = src.find("}", end, most) + 1
        if end == 0:
            return False
        if src.count("{", start, end) == src.count("}", start, end):
            break
    text = src[start:end]
    if _ATTRIBUTES.fullmatch(text):
        return _keep(state, silent, end, kind="attributes")
    if _PLACEHOLDER.fullmatch(text) or state.env.get("is_mdx"):
        return _keep(state, silent, end, text if "\n" not in text else "")
    return False


def _emoji(state: StateInline, silent: bool) -> bool:
    """An emoji's code; of an address what follows its scheme, which may hold delimiters, is text."""
    src, start = state.src, state.pos
    if match := _ADDRESS.match(src, start, min(state.posMax, start + MAX_KEPT)):
        if not src.endswith(_SCHEMES, max(0, start - 5), start):
            return False
        if not silent:
            state.append_pending(match[0])
        state.pos = match.end()
        return True
    match = _EMOJI.match(src, start, min(state.posMax, start + 64))
    if match is None or src[start - 1 : start].isalnum():
        return False
    return _keep(state, silent, match.end())


def _keys(state: StateInline, silent: bool) -> bool:
    src, start = state.src, state.pos
    match = _KEYS.match(src, start, state.posMax)
    if match is None or src[start - 1 : start].isalnum():
        return False
    return _keep(state, silent, match.end(), match[0].strip("+"))


def _brackets(state: StateInline, silent: bool) -> bool:
    """Wiki links, footnotes' marks and citations."""
    match = _in_brackets(state, state.pos)
    if match is None:
        return False
    shown = "" if match.re is _NOTE or match[0].startswith("!") else match[2] or match[1]
    return _keep(state, silent, match.end(), shown.strip())


def _in_brackets(state: StateInline, place: int) -> re.Match[str] | None:
    most = min(state.posMax, place + MAX_KEPT)
    return _WIKI_LINK.match(state.src, place, most) or _NOTE.match(state.src, place, most)


def _span(state: StateInline, silent: bool) -> bool:
    """Words in brackets with attributes behind them, and footnotes in their place, as in ^[this]."""
    # `has_notes` and `has_spans` spare other texts the search for a closing bracket at each opening one.
    src, start = state.src, state.pos
    assert isinstance(state, _State)
    is_note = src[start] == "^"
    bracket = start + is_note
    if not (state.has_notes if is_note else state.has_spans) or not src.startswith("[", bracket):
        return False
    label_end = state.md.helpers.parseLinkLabel(state, bracket, False)
    if label_end < 0:
        return False

    # Attributes make a span of words in brackets; a note is followed by neither an address nor a label.
    end = label_end + 1
    if is_note:
        if src[end : end + 1] in ("(", "["):
            return False
    else:
        match = _ATTRIBUTES.match(src, end, min(state.posMax, end + MAX_KEPT))
        if match is None:
            return False
        end = match.end()

    # Markup within is read by the same rules. `posMax` is where they stop, as in markdown-it's own rule for links.
    if not silent:
        most = state.posMax
        state.pos, state.posMax = bracket + 1, label_end
        state.push("link_open", "note" if is_note else "span", 1)
        state.md.inline.tokenize(state)
        state.push("link_close", "note" if is_note else "span", -1)
        state.posMax = most
    state.pos = end
    return True


def _element(state: StateInline, silent: bool) -> bool:
    """An element of MDX that HTML does not know, with expressions for values."""
    assert isinstance(state, _State)
    if not state.has_elements:
        return False
    match = _ELEMENT.match(state.src, state.pos, min(state.posMax, state.pos + MAX_KEPT))
    if match is None or not (match[0] in ("<>", "</>") or _NAME.match(match[0])):
        return False
    return _keep(state, silent, match.end(), kind="element")


def _keep(state: StateInline, silent: bool, end: int, text: str = "", *, kind: str = "kept") -> bool:
    """Notes that the source from here to `end` stays as it is; text: the words of it that a reader sees."""
    if not silent:
        state.push(kind, "", 0).content = text
    state.pos = end
    return True


_RULES: dict[str, tuple[Rule, ...]] = {  # by the character that begins what they read
    "\n": (newline,),
    "\\": (_formula, escape),
    "`": (backtick,),
    "~": (strikethrough.tokenize,),
    "*": (emphasis.tokenize,),
    "_": (emphasis.tokenize,),
    "[": (_brackets, link, _span),
    "!": (_brackets, image),
    "<": (autolink, html_inline, _element),
    "&": (entity,),
    "$": (_formula,),
    "{": (_braces,),
    ":": (_emoji,),
    "^": (_span,),
    "+": (_keys,),
    "]": (),
}
_SIGN = re.compile(f"[{re.escape(''.join(_RULES))}]")


class _Inlines(ParserInline):
    """markdown-it's loop over the rules, with those of `_RULES`; it notes of each token where it stands."""

    def tokenize(self, state: StateInline) -> None:
        end = state.posMax
        while state.pos < end:
            start, n_before = state.pos, len(state.tokens)
            if state.level < MAX_NESTING and self._apply(state, silent=False):
                _place_tokens(state.tokens[n_before:], start, state.pos)
            else:
                state.append_pending(state.src[start])
                state.pos = start + 1
        if state.pending:
            state.pushPending()

    def skipToken(self, state: StateInline) -> None:
        start = state.pos
        if start in state.cache:
            state.pos = state.cache[start]
            return
        if state.level >= MAX_NESTING:
            state.pos = state.posMax
        else:
            state.level += 1
            if not self._apply(state, silent=True):
                state.pos = start + 1
            state.level -= 1
        state.cache[start] = state.pos

    def _apply(self, state: StateInline, *, silent: bool) -> bool:
        rules = _RULES.get(state.src[state.pos])
        if rules is not None:
            return any(rule(state, silent) for rule in rules)
        sign = _SIGN.search(state.src, state.pos, state.posMax)
        end = sign.start() if sign else state.posMax
        if not silent:
            state.append_pending(state.src[state.pos : end])
        state.pos = end
        return True

    def parse(self, src: str, md: MarkdownIt, env: Any, tokens: list[Token]) -> list[Token]:
        return tokens  # an image's description stays as it is


def _end_of_label(state: StateInline, start: int, disableNested: bool = False) -> int:
    """Where the brackets close that open at `start`, or −1. As markdown-it's, but a span or a note is not a link."""
    old, state.pos = state.pos, start + 1
    depth, end = 1, -1
    while state.pos < state.posMax:
        place, sign = state.pos, state.src[state.pos]
        depth -= sign == "]"
        if depth == 0:
            end = place
            break
        state.md.inline.skipToken(state)
        if sign == "[":
            if state.pos == place + 1:
                depth += 1
            elif disableNested and state.src[state.pos - 1] != "}" and _in_brackets(state, place) is None:
                break
    state.pos = old
    return end


class _Helpers:
    parseLinkDestination = staticmethod(parseLinkDestination)
    parseLinkTitle = staticmethod(parseLinkTitle)
    parseLinkLabel = staticmethod(_end_of_label)


def _place_tokens(tokens: list[Token], start: int, stop: int) -> None:
    """Notes where the new ones of these stand, which a rule has read from `start` to `stop`."""
    place = start
    for token in tokens:
        if "span" in token.meta or "at" not in token.meta:
            continue
        end = stop
        if token.type == "link_open" and not token.markup:
            end = token.meta["at"]
        elif token.type == "link_close" and not token.markup:
            place = token.meta["at"]
        elif token.type == "text" and not token.content.strip("*_~"):  # of a run of delimiters
            end = place + len(token.content)
        token.meta["span"] = (place, end)
        place = end


def _parser() -> Parser:
    parser = Parser(MAX_NESTING)
    parser.inline = _Inlines()
    parser.helpers = _Helpers  # type: ignore[assignment]
    return parser


_PARSER = _parser()
_PAIRS = (link_pairs, strikethrough.postProcess, emphasis.postProcess)


def read_inlines(words: SourceMap, env: dict[str, Any]) -> list[Item]:
    """The words and tags of a block. Characters that begin no markup are words."""
    # markdown-it scans for delimiters first and pairs them afterwards; only then are tokens final.
    text = words.text
    state = _State(text, _PARSER, env)
    _PARSER.inline.tokenize(state)
    for match_pairs in _PAIRS:
        match_pairs(state)

    # Words are taken from the text between the places of two tokens, so that they stay byte for byte.
    items: list[Item] = []
    links: list[int] = []  # where the words of open ones begin
    last = 0
    for token in state.tokens:
        # Of a run of delimiters each token takes its part; a line break takes the spaces before it, too.
        start, end = token.meta.get("span", (0, 0))
        if token.type in ("strong_open", "em_open"):
            start = end - len(token.markup)
        elif token.type in ("strong_close", "em_close"):
            end = start + len(token.markup)
        elif token.type in ("softbreak", "hardbreak"):
            start = last + len(text[last:start].rstrip(" \t"))
        if token.type == "text" or start < last or start == end:
            continue
        items += _texts(words, last, start)
        last = end
        markup = words.slice(start, end)
        kept = " ".join(token.content.split())

        # `kept` is what the model reads in place of an atom. Whatever ends a sentence is a cut.
        match token.type:
            case "softbreak":
                items.append(Tag("break", markup))
            case "hardbreak":
                items.append(Tag("cut", markup))
            case "text_special" if token.info == "entity":
                items.append(Tag("spelling", markup, text=resolved(markup)))
            case "text_special":
                items.append(markup if token.content == markup else Tag("spelling", markup, text=token.content))
            case "code_inline" if items and _is_role(items[-1]):
                role = items.pop()
                assert isinstance(role, Tag)
                items.append(Tag("atom", role.markup + markup, text=kept))
            case "image":
                image = Image(markup)
                image.label = words.slice(start + 2, start + 2 + len(token.content))
                items.append(Tag("atom", image))
            case "html_inline":
                last = _add_html(items, words, (start, end))
            case "link_open" if token.markup == "autolink":
                items.append(Tag("atom", markup, text=markup[1:-1]))
            case "link_open" | "link_close" if token.tag == "note":  # a sentence of its own
                items.append(Tag("cut", markup))
            case "link_open":
                links.append(end)
                items.append(Tag("open", markup, "["))
            case "link_close":
                label = text[links.pop() : start]
                is_label = token.tag == "a" and markup in ("]", "][]")
                items.append(Tag("close", Label(" ".join(label.split()), markup) if is_label else markup, "["))
            case "strong_open" | "em_open" | "s_open":
                items.append(Tag("open", markup, token.markup))
            case "strong_close" | "em_close" | "s_close":
                items.append(Tag("close", markup, token.markup))
            case "attributes" if (owner := _owner(items)) is not None:
                items[-1] = _with_attributes(owner, markup)
            case "attributes" | "element" | "kept" if not kept and _is_alone(text, start, end):
                if items and isinstance(items[-1], Tag) and items[-1].kind == "break":
                    items[-1] = as_cut(items[-1])
                items.append(Tag("cut", markup))
            case "attributes" if end == len(text):
                items.append(Tag("cut", markup))
            case _:
                items.append(Tag("atom", markup, text=kept))

    # Behind the last token there are words, and perhaps the backslash of a line break that breaks no line.
    items += _texts(words, last, len(text))
    if items and isinstance(items[-1], str) and items[-1].endswith("\\"):
        items[-1:] = [items[-1][:-1], Tag("cut", "\\")]
    return items


def _texts(words: SourceMap, start: int, end: int) -> list[Item]:
    if not words.has_bars:
        return [words.text[start:end]] if start < end else []
    parts = re.split(r"(\\\|)", words.slice(start, end))
    return [Tag("spelling", part, text="|") if part == "\\|" else part for part in parts if part]


def _add_html(items: list[Item], words: SourceMap, span: tuple[int, int]) -> int:
    """Adds a tag or a comment, or a whole element that stays as it is. Returns where that ends."""
    start, end = span
    tag = words.text[start:end]
    match = _NAME.match(tag)
    name = match[1] if match else ""
    is_end = tag.startswith("</")
    if name.lower() in CODE | THINGS and not is_end:
        close = words.text.find(f"</{name}>", end, end + MAX_KEPT)
        if close >= 0:
            stop = close + len(f"</{name}>")
            text = resolved(words.text[end:close]) if name.lower() in CODE else ""
            items.append(Tag("atom", words.slice(start, stop), text=" ".join(text.split())))
            return stop
    markup = words.slice(start, end)
    is_component = "-" in name or (name[:1].isupper() and not name.isupper())
    if name and (name.lower() not in ALONE or is_component) and not tag.endswith("/>"):
        items.append(Tag("close" if is_end else "open", markup, f"<{name.lower()}"))
    else:
        is_thing = is_component or name.lower() not in BLOCKS
        items.append(Tag("atom" if is_thing else "cut", markup))
    return end


def _is_role(item: Item) -> bool:
    """Whether it says what the code behind it is, as in {doc}`guide` and :doc:`guide`."""
    return (
        isinstance(item, Tag) and item.kind == "atom" and bool(item.markup) and _ROLE.fullmatch(item.markup) is not None
    )


def _owner(items: list[Item]) -> Tag | None:
    """The last item, if attributes directly behind it belong to it."""
    last = items[-1] if items else ""
    is_owner = isinstance(last, Tag) and last.kind in ("close", "atom")
    return last if is_owner and isinstance(last, Tag) else None


def _with_attributes(owner: Tag, markup: str) -> Tag:
    if isinstance(owner.markup, Image):
        image = Image(owner.markup + markup)
        image.label = owner.markup.label
        return replace(owner, markup=image)
    if isinstance(owner.markup, Label):
        return replace(owner, markup=owner.markup._replace(end=owner.markup.end + markup))
    return replace(owner, markup=owner.markup + markup)


def _is_alone(text: str, start: int, end: int) -> bool:
    """Whether nothing else is on the lines of a span."""
    first, stop = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    return not text[first:start].strip() and not text[end : stop if stop >= 0 else None].strip()
