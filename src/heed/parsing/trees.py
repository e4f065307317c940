"""Constituency trees: read, written, and as the sequences that a Transformer learns (Vinyals & Kaiser et al. 2015)."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from heed.config import Settings, cut, shown
from heed.data.lines import read_lines
from heed.errors import HeedError
from heed.text.tokenizer import TEXT

Leaves = Literal["tags", "single", "words"]
Order = Literal["top-down", "in-order"]
ROOT_LABELS = ("", "TOP", "ROOT", "S1")
ROOT = "TOP"
EMPTY = "-NONE-"  # the tag of a trace
SINGLE = "XX"  # stands for every word but punctuation, if not its tag does
MAX_DEPTH = 200
# Only these separate: a word may hold any other character, a no-break space among them.
TOKEN = re.compile(r"[()]|[^() \t\r\n\f\v]+")
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
        """As the treebank spells them."""
        return [leaf.word for leaf in self.leaves() if leaf.word is not None]

    @staticmethod
    def flat(words: Sequence[str], tags: Sequence[str] | None = None) -> "Tree":
        """A tree without structure: all words directly below the root, tagged XX unless tags are given."""
        return Tree(ROOT, tuple(map(Tree, tags or [SINGLE] * len(words), [()] * len(words), words)))

    def __str__(self) -> str:
        """In one line of brackets. What a word may not hold there is written -LRB-, -RRB-."""
        if self.word is not None:
            return f"({self.label} {escaped(self.word)})"
        return f"({self.label} {' '.join(map(str, self.children))})"


def depth(tree: Tree) -> int:
    """The number of brackets within one another, the root's and a leaf's included."""
    deepest, waiting = 0, [(tree, 1)]
    while waiting:
        node, level = waiting.pop()
        deepest = max(deepest, level)
        waiting.extend((child, level + 1) for child in node.children)
    return deepest


def escaped(word: str) -> str:
    """A word as treebanks write it: brackets by name."""
    return word.replace("(", ESCAPES["("]).replace(")", ESCAPES[")"])


def plain(word: str) -> str:
    """A treebank's word as text has it: brackets as such, slashes and asterisks without a backslash."""
    return UNESCAPES.get(word, word).replace("\\/", "/").replace("\\*", "*")


def split_words(line: str) -> list[str]:
    """The words of a tokenised line: what lies between spaces, as trees have it."""
    return [word for word in re.split(r"[ \t\r\n\f\v]+", line) if word]


def sentence(words: Iterable[str], form: Callable[[str], str] = plain) -> str:
    """What the model reads: the words' forms with a space between."""
    return " ".join(map(form, words))


class BadTree(Exception):
    """A text in which no tree can be read; line and column count from 1."""

    def __init__(self, message: str, line: int, column: int):
        super().__init__(message)
        self.line, self.column = line, column


def read_trees(path: Path, *, functions: bool = True) -> Iterator[Tree]:
    """The trees of a plain or gzipped file, a line each or over many lines, cleaned by `cleaned`.

    Trees of traces only are left out. HeedError names file, line and column of what is no tree.
    """
    try:
        for tree, _ in parsed_with_lines(read_lines(path)):
            if kept := cleaned(tree, functions=functions):
                yield kept
    except BadTree as error:
        raise HeedError(f"{path}, line {error.line}, column {error.column}: {error}.") from None


def parsed_with_lines(lines: Iterable[str]) -> Iterator[tuple[Tree, int]]:
    """(tree, line where it begins) as written: traces and all. BadTree at the first fault."""
    # One open bracket: [label or None, children, word or None, line, column]
    stack: list[list[Any]] = []
    number = 0
    for number, line in enumerate(lines, start=1):
        for match in TOKEN.finditer(line):
            token, column = match[0], match.start() + 1
            if token == "(":
                if stack and stack[-1][2] is not None:
                    raise BadTree(f"a bracket after the word {shown(stack[-1][2])}; expected )", number, column)
                if len(stack) == MAX_DEPTH:
                    raise BadTree(f"brackets nested deeper than {MAX_DEPTH}", number, column)
                if stack and stack[-1][0] is None:
                    if len(stack) > 1:
                        began = f"line {stack[0][3]}, column {stack[0][4]}; perhaps that was never closed"
                        said = f"a bracket without a label in the tree that begins at {began}"
                        raise BadTree(said, stack[-1][3], stack[-1][4])
                    stack[-1][0] = ""
                stack.append([None, [], None, number, column])
            elif token != ")":
                if not stack:
                    raise BadTree(f"{shown(token)} outside of brackets", number, column)
                top = stack[-1]
                if top[0] is None:
                    top[0] = token
                elif top[2] is None and not top[1]:
                    top[2] = token
                else:
                    raise BadTree(f"the word {shown(token)} beside other contents; expected (TAG word)", number, column)
            else:
                if not stack:
                    raise BadTree("a bracket is closed that was not opened", number, column)
                label, children, word, *opened = stack.pop()
                if not children and word is None:
                    raise BadTree("an empty bracket" if label is None else f"{cut(label)} is empty", *opened)
                tree = Tree(label, tuple(children), word)
                if stack:
                    stack[-1][1].append(tree)
                else:
                    yield tree, opened[0]
    if stack:
        raise BadTree("this bracket is never closed", stack[0][3], stack[0][4])


def cleaned(tree: Tree, *, functions: bool = True) -> Tree | None:
    """Without traces and what they leave empty, its root called TOP (put above a tree that has none).

    With functions=False constituents lose function tags and indices. None if nothing but traces is left.
    """
    if tree.word is not None or tree.label not in ROOT_LABELS:
        tree = Tree(ROOT, (tree,))
    kept = without_empty(tree, functions=functions)
    return None if kept is None else Tree(ROOT, kept.children)


def without_empty(tree: Tree, *, functions: bool = True) -> Tree | None:
    """Without traces and what they leave empty, its root as it is; None if nothing is left. functions: as `cleaned`."""
    if tree.word is not None:
        return None if tree.label == EMPTY else tree
    children = tuple(kept for child in tree.children if (kept := without_empty(child, functions=functions)))
    return Tree(tree.label if functions else category(tree.label), children) if children else None


def category(label: str) -> str:
    """A constituent's label without function tags and indices: NP-SBJ-1 is NP, NP=2 is NP, -LRB- stays."""
    return re.split("[-=]", label, maxsplit=1)[0] or label


def linearised(
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
    """What stands for a leaf with this tag: the tag, or XX.

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


def restored(
    words: Sequence[str],
    symbols: Sequence[str],
    tags: Sequence[str] | None = None,
    form: Callable[[str], str] = plain,
    order: Order = "top-down",
) -> Tree:
    """The tree of which `linearised` made the symbols. ValueError if they are none over exactly these words.

    `tags` takes the place of the leaves' symbols. form, order: as for `linearised`.
    """
    stack: list[tuple[str, list[Tree]]] = [(ROOT, [])]
    n_words, copied, before = 0, "", ""
    for symbol in symbols:
        if not symbol:
            raise ValueError("nothing where a symbol was expected")
        if copied and (
            symbol[0] in "()"
            or symbol.startswith(TEXT)
            or n_words == len(words)
            or copied != TEXT + form(words[n_words])
        ):
            raise ValueError(f"the word {copied} has no leaf")
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
        before = symbol
    if len(stack) > 1:
        raise ValueError(f"{stack[-1][0]} is not closed")
    if n_words < len(words) or copied:
        raise ValueError("fewer leaves than words")
    tree = Tree(ROOT, tuple(stack[0][1]))
    if depth(tree) > MAX_DEPTH:  # more brackets than may be read
        raise ValueError(f"brackets nested deeper than {MAX_DEPTH}")
    return tree
