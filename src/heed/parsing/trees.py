"""Constituency trees: read, written, and as the sequences that a Transformer learns (Vinyals & Kaiser et al. 2015)."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from heed.config import Settings, cut, shown
from heed.data.reading.lines import read_lines
from heed.errors import HeedError
from heed.text.segmentation import TEXT

Leaves = Literal["tags", "single", "words"]
Order = Literal["top-down", "in-order"]
ROOT_LABELS = ("", "TOP", "ROOT", "S1", "VROOT")
ROOT = "TOP"
EMPTY = "-NONE-"  # the tag of a trace
FEATURES = "##"  # begins the features of a label of the SPMRL shared tasks
SINGLE = "XX"  # stands for every word but punctuation, if not its tag does
MAX_DEPTH = 200
# Only these separate: a word may hold any other character, a no-break space among them.
TOKEN = re.compile(r"[()]|[^() \t\r\n\f\v]+")
# Skipped between trees: a byte order mark, which files that were put together may have anywhere, and SGML (<S ID=5>).
BETWEEN = re.compile(r"[ \t\r\n\f\v\ufeff]+|<[/!?]?[A-Za-z][^<>]*>")
COMMENT = re.compile(r"\*x\*|[#%;]")  # how a line between trees begins that is one; *x*: the LDC's header
ESCAPES = {"(": "-LRB-", ")": "-RRB-"}
UNESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


class LinearisationSettings(Settings):
    """How a tree becomes a sequence of symbols."""

    leaves: Leaves = Field(
        default="tags",
        description="what stands for a word. tags: its part of speech; single: XX, except that punctuation keeps its "
        "tag; words: the word itself, then its tag",
    )
    order: Order = Field(
        default="top-down",
        description="where a constituent's label is written. top-down: before its first child; in-order: after it "
        "(Liu and Zhang 2017)",
    )
    functions: bool = Field(default=False, description="keep function tags and indices: NP-SBJ-1, not NP")


@dataclass(frozen=True, slots=True)
class Tree:
    """A constituent with its children, or a leaf: a part of speech (its label) and its word.

    str(tree) writes it in brackets.
    """

    label: str
    children: tuple["Tree", ...] = ()
    word: str | None = None

    def leaves(self) -> Iterator["Tree"]:
        """The parts of speech with their words, left to right."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if node.word is not None:
                yield node
            waiting.extend(reversed(node.children))

    def words(self) -> list[str]:
        """Returns the words as the treebank spells them."""
        return [leaf.word for leaf in self.leaves() if leaf.word is not None]

    @staticmethod
    def flat(words: Sequence[str], tags: Sequence[str] | None = None) -> "Tree":
        """A tree without structure: all words directly below the root, tagged XX unless tags are given."""
        return Tree(ROOT, tuple(map(Tree, tags or [SINGLE] * len(words), [()] * len(words), words)))

    def __str__(self) -> str:
        """In one line of brackets. What a word may not hold there is written -LRB-, -RRB-."""
        if self.word is not None:
            return f"({self.label} {escape(self.word)})"
        return f"({self.label} {' '.join(map(str, self.children))})"


def depth(tree: Tree) -> int:
    """The number of brackets within one another, the root's and a leaf's included."""
    deepest, waiting = 0, [(tree, 1)]
    while waiting:
        node, level = waiting.pop()
        deepest = max(deepest, level)
        waiting.extend((child, level + 1) for child in node.children)
    return deepest


def escape(word: str) -> str:
    """A word as treebanks write it: brackets by name."""
    return word.replace("(", ESCAPES["("]).replace(")", ESCAPES[")"])


def plain(word: str) -> str:
    """A treebank's word as text has it: brackets as such, slashes and asterisks without a backslash."""
    return UNESCAPES.get(word, word).replace("\\/", "/").replace("\\*", "*")


def split_words(line: str) -> list[str]:
    """The words of a tokenised line: what lies between spaces, as trees have it."""
    return [word for word in re.split(r"[ \t\r\n\f\v]+", line) if word]


def sentence(words: Iterable[str], form: Callable[[str], str] = plain) -> str:
    """The model's source: the words' forms with a space between."""
    return " ".join(map(form, words))


class BadTree(Exception):
    """Why a text is not a tree, and where; line and column count from 1."""

    def __init__(self, message: str, line: int, column: int):
        super().__init__(message)
        self.line, self.column = line, column

    @property
    def where(self) -> str:
        return f"line {self.line}, column {self.column}"


class StrayText(BadTree):
    """Text between trees that is not a known comment."""


def read_trees(path: Path, *, functions: bool = True, left_out: Callable[[str], None] | None = None) -> Iterator[Tree]:
    """The trees of a plain or gzipped file, a line each or over many lines, cleaned by `clean`.

    Comments between trees and trees of traces only are skipped. left_out: told what is wrong with each tree that cannot
    be used, and where; without it, that is a HeedError. So are brackets that do not pair.
    """
    try:
        for tree in parse_trees(read_lines(path)):
            if isinstance(tree, BadTree):
                if left_out is None:
                    raise tree
                left_out(f"{path}, {tree.where}: {tree}")
            elif kept := clean(tree, functions=functions):
                yield kept
    except BadTree as error:
        raise HeedError(f"{path}, {error.where}: {error}.") from None


def parse_trees(lines: Iterable[str]) -> Iterator[Tree | BadTree]:
    """Trees as written, traces and all; in place of one that cannot be used, a BadTree that says why.

    Raises BadTree where brackets do not pair: nothing says then which tree lost one.
    """
    tree = _OpenTree()
    in_text = False  # consecutive words outside of brackets are one fault
    for number, line in enumerate(lines, start=1):
        place = 0 if tree.n_open else _after_comment(line)
        while match := TOKEN.search(line, place):
            token, column, place = match[0], match.start() + 1, match.end()
            if tree.n_open or token == "(":
                in_text = False
                if complete := tree.take(token, number, column):
                    yield complete
                    tree = _OpenTree()
            elif token == ")":
                raise BadTree("a bracket is closed that was not opened; in a word, ) is written -RRB-", number, column)
            elif not in_text:
                in_text = True
                yield StrayText(f"{shown(token)} outside of brackets", number, column)
            if not tree.n_open:
                place = _after_markup(line, place)
    if tree.n_open:
        raise tree.never_closed()


def is_comment(line: str) -> bool:
    """Whether a line between trees holds none, but comments or SGML."""
    return line.strip() != "" and _after_comment(line) == len(line)


def _after_comment(line: str) -> int:
    """Where a line between trees goes on behind its comment, or the SGML before its first tree."""
    place = _after_markup(line, 0)
    text_of_element = "<" in line[:place] and not line.startswith("(", place)  # <DATE> 1994-01-01 </DATE>
    return len(line) if text_of_element or COMMENT.match(line, place) else place


def _after_markup(line: str, place: int) -> int:
    while match := BETWEEN.match(line, place):
        place = match.end()
    return place


class _OpenTree:
    """A tree while it is read. After a fault its brackets are counted only, to find its end."""

    def __init__(self) -> None:
        self.n_open = 0
        self._begin = 0, 0
        self._fault: BadTree | None = None
        self._stack: list[list[Any]] = []  # for each open bracket [label or None, children, word or None, line, column]

    def take(self, token: str, line: int, column: int) -> Tree | BadTree | None:
        """None until the last bracket is closed."""
        if token == "(":
            if not self.n_open:
                self._begin = line, column
            self.n_open += 1
        elif token == ")":
            self.n_open -= 1
        tree = None
        if self._fault is None:
            try:
                tree = self._take_token(token, line, column)
            except BadTree as error:
                self._fault = error
        if self.n_open or self._fault is None:
            return tree
        if line == self._begin[0]:
            return self._fault
        message = f"{self._fault}; its tree spans lines {self._begin[0]} to {line}"
        return BadTree(message, self._fault.line, self._fault.column)

    def _take_token(self, token: str, line: int, column: int) -> Tree | None:
        """The tree when its last bracket is closed. BadTree at its first fault."""
        stack = self._stack
        # A bracket opens; only the outermost one may lack a label.
        if token == "(":
            if stack and stack[-1][2] is not None:
                raise BadTree(f"a bracket after the word {shown(stack[-1][2])}; expected )", line, column)
            # `clean` puts a root above a tree without one.
            if len(stack) >= MAX_DEPTH - 1 and len(stack) + (not is_root_label(stack[0][0])) >= MAX_DEPTH:
                raise BadTree(f"brackets nested deeper than {MAX_DEPTH}", line, column)
            if stack and stack[-1][0] is None:
                if len(stack) > 1:
                    raise BadTree("a bracket without a label", stack[-1][3], stack[-1][4])
                stack[-1][0] = ""
            stack.append([None, [], None, line, column])
            return None
        # A word or label: the first in a bracket is its label, the second its word.
        if token != ")":
            top = stack[-1]
            if top[0] is None:
                top[0] = token
            elif top[2] is None and not top[1]:
                top[2] = token
            else:
                raise BadTree(f"the word {shown(token)} beside other contents; expected (TAG word)", line, column)
            return None
        # A bracket closes: its tree joins the children of the one around it.
        label, children, word, *opened = stack.pop()
        if not children and word is None:
            if label is None:
                raise BadTree("an empty bracket; as a word, ( is written -LRB-", *opened)
            raise BadTree(f"({cut(label)}) is empty; expected (TAG word)", *opened)
        tree = Tree(label, tuple(children), word)
        if not stack:
            return tree
        stack[-1][1].append(tree)
        return None

    def never_closed(self) -> BadTree:
        """The fault of a tree that the end of the file leaves open."""
        first = f"; the first fault within: {self._fault.where}, {self._fault}" if self._fault else ""
        return BadTree(f"this bracket is never closed{first}", *self._begin)


def clean(tree: Tree, *, functions: bool = True) -> Tree | None:
    """Without traces and what they leave empty, its root called TOP (put above a tree that has none).

    With functions=False constituents lose function tags and indices. None if nothing but traces is left.
    """
    if tree.word is not None or not is_root_label(tree.label):
        tree = Tree(ROOT, (tree,))
    kept = remove_empty(tree, functions=functions)
    return None if kept is None else Tree(ROOT, kept.children)


def remove_empty(tree: Tree, *, functions: bool = True) -> Tree | None:
    """Without traces and what they leave empty, its root as it is; None if nothing is left. functions: as `clean`."""
    if tree.word is not None:
        if tree.label == EMPTY:
            return None
        return tree if functions or FEATURES not in tree.label else Tree(strip_features(tree.label), word=tree.word)
    children = tuple(kept for child in tree.children if (kept := remove_empty(child, functions=functions)))
    return Tree(tree.label if functions else category(tree.label), children) if children else None


def is_root_label(label: str) -> bool:
    """Whether it names a root: ROOT, for example, or ROOT-0."""
    return category(label) in ROOT_LABELS


def category(label: str) -> str:
    """A constituent's label without function tags, indices and features: NP-SBJ-1 is NP, NP=2 is NP, -LRB- stays."""
    label = strip_features(label)
    return re.split("[-=]", label, maxsplit=1)[0] or label


def strip_features(label: str) -> str:
    """NP##fct=suj## is NP."""
    return label.split(FEATURES, maxsplit=1)[0] or label


def linearise(
    tree: Tree, leaves: Leaves = "tags", form: Callable[[str], str] = plain, order: Order = "top-down"
) -> list[str]:
    """Symbols of a cleaned tree below its root, brackets labelled at both ends: (NP DT NN )NP; in-order DT (NP NN )NP.

    With "single" words are XX; punctuation keeps its tag, as EVALB deletes punctuation by tag. With "words" a tag has
    its word, or what `form` makes of it, before it: (NP ▁the DT ▁dog NN )NP. That is not Vinyals & Kaiser's: a decoder
    that copies the words need not count them to know where it is.
    """
    symbols: list[str] = []

    def add(node: Tree) -> None:
        if node.word is not None:
            if leaves == "words":
                symbols.append(TEXT + form(node.word))
            symbols.append(leaf_symbol(node.label, leaves))
            return
        n_before = 0 if order == "top-down" else 1
        for child in node.children[:n_before]:
            add(child)
        symbols.append(f"({node.label}")
        for child in node.children[n_before:]:
            add(child)
        symbols.append(f"){node.label}")

    for child in tree.children:
        add(child)
    return symbols


def leaf_symbol(tag: str, leaves: Leaves) -> str:
    """The symbol of a leaf with this tag: the tag, or XX.

    A tag that looks like text gets a _ before it, so that no two tags and words are one symbol.
    """
    if leaves == "single" and not is_punctuation(tag):
        return SINGLE
    return f"_{tag}" if tag.lstrip("_").startswith(TEXT) else tag


def _tag_of(symbol: str) -> str:
    return symbol[1:] if symbol.startswith("_") and symbol.lstrip("_").startswith(TEXT) else symbol


def is_punctuation(tag: str) -> bool:
    """Whether a tag is one of punctuation: no letters in it, or a bracket's name."""
    return tag in UNESCAPES or not any(character.isalpha() for character in tag)


def restore(
    words: Sequence[str],
    symbols: Sequence[str],
    tags: Sequence[str] | None = None,
    *,
    form: Callable[[str], str] = plain,
    order: Order = "top-down",
) -> Tree:
    """The tree of which `linearise` made the symbols. ValueError if they are none over exactly these words.

    `tags` takes the place of the leaves' symbols. form, order: as for `linearise`.
    """
    # Open brackets with their children so far; the bottom one is the root, which no symbol writes.
    stack: list[tuple[str, list[Tree]]] = [(ROOT, [])]
    n_words, copied, before = 0, "", ""
    for symbol in symbols:
        if not symbol:
            raise ValueError("nothing where a symbol was expected")
        # A copied word must be followed by the tag of a leaf, and be the next word.
        if copied and (
            symbol[0] in "()"
            or symbol.startswith(TEXT)
            or n_words == len(words)
            or copied != TEXT + form(words[n_words])
        ):
            raise ValueError(f"the word {copied} has no leaf")
        # Each kind of symbol: a copied word, an opening or closing bracket, a tag.
        if symbol.startswith(TEXT):
            copied = symbol
        elif symbol.startswith("("):
            children: list[Tree] = []
            if order == "in-order":
                if not before or before.startswith("("):
                    raise ValueError(f"{symbol} has nothing before it that it could hold")
                children.append(stack[-1][1].pop())
            stack.append((symbol[1:], children))
        elif symbol.startswith(")"):
            label, children = stack.pop()
            if not stack or label != symbol[1:]:
                raise ValueError(f"{symbol} closes what is not open")
            if not children:
                raise ValueError(f"{label} is empty")
            stack[-1][1].append(Tree(label, tuple(children)))
        else:
            if n_words == len(words):
                raise ValueError("more leaves than words")
            stack[-1][1].append(Tree(tags[n_words] if tags else _tag_of(symbol), word=words[n_words]))
            n_words, copied = n_words + 1, ""
        # In order, an opening bracket takes what was written before it as its first child.
        before = symbol
    # Everything is closed, and every word has its leaf.
    if len(stack) > 1:
        raise ValueError(f"{stack[-1][0]} is not closed")
    if n_words < len(words) or copied:
        raise ValueError("fewer leaves than words")
    tree = Tree(ROOT, tuple(stack[0][1]))
    if depth(tree) > MAX_DEPTH:  # more brackets than may be read
        raise ValueError(f"brackets nested deeper than {MAX_DEPTH}")
    return tree
