"""No regular expression takes more time than in proportion to its text, whatever a stranger writes.

Python's engine goes back: where two neighbouring repeats can share a character, it tries each place between them; where
a search begins with a repeat, it tries the same stretch again from each of its characters. Both take quadratic time or
worse. Possessive repeats (`*+`) and atomic groups, which never give back, do not.
"""

import ast
import importlib
import re
import re._constants as sre
import re._parser as sre_parser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parents[1] / "src"
MANY = 256  # repetitions at most that cost nothing worth mentioning
ALPHABET = frozenset(map(ord, "".join(map(chr, range(128))) + "\x85\xa0ÀéßΩЖя中の\u2028\u3000ﬁ😀"))
MATCHING, SEARCHING = {"match", "fullmatch"}, {"search", "findall", "finditer", "sub", "subn", "split"}
# Patterns that may stay, and why.
EXCEPTIONS: dict[str, str] = {"(?s)<x>(.*?)</x>": "reads the page that comes with Heed"}


@dataclass(frozen=True)
class Pattern:
    """A regular expression in the code; searched: whether it is looked for at each place of a text."""

    text: str
    flags: int
    searched: bool
    where: str


# Where they are in the code


def patterns() -> Iterator[Pattern]:
    for path in sorted(SOURCES.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if re.search(r"\bre\.\w", source) is None:
            continue
        tree = ast.parse(source)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        if not any(is_of_re(call) for call in calls):
            continue
        module = importlib.import_module(".".join(path.relative_to(SOURCES).with_suffix("").parts))
        used = {
            (ast.unparse(call.func.value), call.func.attr) for call in calls if isinstance(call.func, ast.Attribute)
        }
        compiled = {
            id(node.value): ast.unparse(node.targets[0]) for node in ast.walk(tree) if isinstance(node, ast.Assign)
        }
        for call in filter(is_of_re, calls):
            assert isinstance(call.func, ast.Attribute)
            text = evaluated(call.args[0], vars(module))
            flags = 0
            for argument in (*call.args[1:], *(keyword.value for keyword in call.keywords if keyword.arg == "flags")):
                if re.search(r"\bre\.[A-Z]", ast.unparse(argument)):
                    flags |= int(eval(ast.unparse(argument), vars(module)))
            how = {call.func.attr}
            if how == {"compile"}:
                name = compiled.get(id(call))
                how = {method for subject, method in used if subject == name} if name else SEARCHING
            yield Pattern(text, flags, bool(how & SEARCHING), f"{path.name}:{call.lineno}")


def is_of_re(call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) == "re"
        and call.func.attr in MATCHING | SEARCHING | {"compile"}
    )


def evaluated(expression: ast.expr, names: dict[str, Any]) -> str:
    """The pattern; what is known only when a function runs stands for the letter x."""
    try:
        value = eval(ast.unparse(expression), dict(names))
        return value.decode("latin-1") if isinstance(value, bytes) else str(value)
    except NameError:
        if isinstance(expression, ast.JoinedStr):
            parts = (
                part.value if isinstance(part, ast.Constant) else evaluated(part.value, names)  # type: ignore[attr-defined]
                for part in expression.values
            )
            return "".join(map(str, parts))
        if isinstance(expression, ast.BinOp):
            return evaluated(expression.left, names) + evaluated(expression.right, names)
        return "x"


# What is slow about one


@dataclass(frozen=True)
class Piece:
    """A part of a sequence: what it may begin and end with, and how many characters it has at least.

    many: whether it repeats something; gives_back: and may then match less of it. anchor: it matches a place alone.
    """

    first: frozenset[int]
    last: frozenset[int]
    least: int = 1
    many: bool = False
    gives_back: bool = False
    anchor: bool = False


NOTHING: frozenset[int] = frozenset()


def faults(pattern: Pattern) -> list[str]:
    """The parts of a pattern that may take more than linear time."""
    found: list[str] = []
    tree = sre_parser.parse(pattern.text, pattern.flags)
    flags = tree.state.flags

    def sequence(items: Any) -> list[Piece]:
        pieces = [piece for operation, argument in items for piece in of(operation, argument)]
        found.extend(neighbours(pieces))
        return pieces

    def of(operation: Any, argument: Any) -> list[Piece]:
        if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            least, most, body = argument
            inner = sequence(body)
            if most > MANY and operation is not sre.POSSESSIVE_REPEAT:  # an end and the beginning after it
                found.extend(neighbours([*inner, *inner]))
            whole = joined(inner)
            many = most > MANY or whole.many
            gives_back = operation is not sre.POSSESSIVE_REPEAT and (most > MANY or whole.gives_back)
            return [Piece(whole.first, whole.last, least * whole.least, many, gives_back)]
        if operation is sre.SUBPATTERN:
            return sequence(argument[-1])
        if operation is sre.ATOMIC_GROUP:
            whole = joined(sequence(argument))
            return [Piece(whole.first, whole.last, whole.least, whole.many, False)]
        if operation is sre.BRANCH:
            branches = [joined(sequence(branch)) for branch in argument[1]]
            first, last = (NOTHING.union(*(getattr(one, end) for one in branches)) for end in ("first", "last"))
            least, many = min(one.least for one in branches), any(one.many for one in branches)
            return [Piece(first, last, least, many, any(one.gives_back for one in branches))]
        if operation in (sre.ASSERT, sre.ASSERT_NOT):
            inner = sequence(argument[1])
            if operation is sre.ASSERT_NOT and argument[0] < 0:
                return [Piece(NOTHING, joined(inner).last, 0, anchor=True)]  # not behind these characters
            return []
        if operation is sre.AT:
            is_start = argument in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
            return [Piece(NOTHING, ALPHABET, 0, anchor=True)] if is_start else []
        if operation is sre.GROUPREF:
            return [Piece(ALPHABET, ALPHABET, 0)]
        characters = characters_of(operation, argument, flags)
        return [Piece(characters, characters)]

    def searches(items: Any) -> None:
        """Of each branch, whether a search for it begins at many places of one stretch."""
        if len(items) == 1 and items[0][0] is sre.BRANCH:
            for branch in items[0][1][1]:
                searches(branch)
        elif len(items) == 1 and items[0][0] is sre.SUBPATTERN:
            searches(items[0][1][-1])
        else:
            found.extend(slow_search(sequence(items)))

    sequence(tree)
    if pattern.searched:
        searches(tree)
    return list(dict.fromkeys(found))


def joined(pieces: list[Piece]) -> Piece:
    """A sequence as one piece."""
    pieces = [piece for piece in pieces if not piece.anchor]
    ends = []
    for end, ordered in (("first", pieces), ("last", pieces[::-1])):
        characters = NOTHING
        for piece in ordered:
            characters |= getattr(piece, end)
            if piece.least:
                break
        ends.append(characters)
    many, gives_back = any(piece.many for piece in pieces), any(piece.gives_back for piece in pieces)
    return Piece(*ends, sum(piece.least for piece in pieces), many, gives_back)


def neighbours(pieces: list[Piece]) -> Iterator[str]:
    """The pairs of repeats between which a stretch of characters can be divided in many ways.

    What stands between them, such as a separator, divides nothing if both may hold it as well.
    """
    for i, first in enumerate(pieces):
        if not (first.many and first.gives_back):
            continue
        between: list[Piece] = []
        for second in pieces[i + 1 :]:
            shared = first.last & second.first
            held = (first.first | first.last) & (second.first | second.last)
            if second.many and shared and all(piece.first & held for piece in between):
                yield f"two repeats share {shown(shared)} and may hold what is between them"
            if second.least and second.many:
                break
            if second.least:
                between.append(second)


def slow_search(pieces: list[Piece]) -> Iterator[str]:
    """Whether what is searched may begin at many places of one stretch, and fail behind it each time."""
    fixed: list[Piece] = []  # its beginning
    behind: frozenset[int] = NOTHING  # the characters behind which it does not begin
    for i, piece in enumerate(pieces):
        can_fail = any(later.least for later in pieces[i + 1 :])
        if piece.anchor:
            behind |= piece.last if not fixed else NOTHING
        elif piece.many and can_fail:
            if not fixed and not piece.last <= behind:
                yield "a search that begins with a repeat"
            elif fixed and not fixed[0].first <= behind and all(one.first & piece.last for one in fixed):
                yield "a repeat may hold its own beginning"
        if piece.many and piece.least:
            return
        if piece.least:
            fixed.append(piece)


def characters_of(operation: Any, argument: Any, flags: int) -> frozenset[int]:
    if operation is sre.ANY:
        return ALPHABET
    items = [(operation, argument)] if operation is not sre.IN else argument
    negated = items[0][0] is sre.NEGATE
    found: set[int] = set()
    for kind, value in items:
        if kind is sre.LITERAL:
            found |= {value} | (
                {ord(c) for c in (chr(value).lower(), chr(value).upper()) if len(c) == 1} if flags & re.I else set()
            )
        elif kind is sre.NOT_LITERAL:
            found |= ALPHABET - {value}
        elif kind is sre.RANGE:
            found |= {c for c in ALPHABET if value[0] <= c <= value[1]}
        elif kind is sre.CATEGORY:
            letter = {"SPACE": r"\s", "WORD": r"\w", "DIGIT": r"\d"}[str(value).rpartition("_")[2]]
            letter = letter.upper() if "_NOT_" in str(value) else letter
            found |= {c for c in ALPHABET if re.match(letter, chr(c))}
    return frozenset(ALPHABET - found if negated else found)


def shown(characters: frozenset[int]) -> str:
    return repr("".join(map(chr, sorted(characters)))[:10])


FOUND = list(patterns())


def test_all_patterns_are_found():
    assert len(FOUND) > 60
    for made_of_others in (r"[\w.:-]{0,60}+)?(?:[^<>{}", r"']?)x(?:[-_]\w++)*+"):
        assert any(made_of_others in pattern.text for pattern in FOUND)


@pytest.mark.parametrize("pattern", FOUND, ids=lambda pattern: pattern.where)
def test_no_pattern_goes_back_further_than_a_fixed_distance(pattern):
    if pattern.text in EXCEPTIONS:
        return
    assert not faults(pattern), pattern.text


@pytest.mark.parametrize(
    ("text", "searched", "is_slow"),
    [
        (r"\s*=\s*[\"']?\s*x", False, True),
        (r"=\s*+[\"']?\s*x", False, False),
        (r"[ \t]*[\r\n]+[ \t>]*", True, True),
        (r"[ \t]*[\r\n]+[ \t>]*", False, False),
        (r"(?:a+)*b", False, True),
        (r"(?:[-_]\w+)*(?=>)", False, True),
        (r"(?:[-_]\w++)*+(?=>)", False, False),
        (r"(?:-\w+)*>", False, False),
        (r"(?:\w+_b)*>", False, True),
        (r"(?:\w+-b)*>", False, False),
        (r"\w+_?_\w+>", False, True),
        (r"(?:-[ \t]*){3,}", False, False),
        (r"<seg[^>]*>x", True, True),
        (r"<seg[^<>]*>x", True, False),
        (r"a{0,200}a{0,200}", False, False),
        (r"(?:a*|b)a+", False, True),
        (r"[^ ]+", True, False),
        (r"a|b+c", True, True),
        (r"^ *#", True, False),
        (r"(?<![ \t])[ \t]*[\r\n]+", True, False),
        (r"(?<![ ])[ \t]*[\r\n]+", True, True),
        (r"\sdisplay\s*=\s*block", True, False),
        (r"(?:\|[ \t]*-+[ \t]*)*\|?", False, False),
    ],
)
def test_the_faults_are_recognised(text, searched, is_slow):
    assert bool(faults(Pattern(text, 0, searched, "here"))) == is_slow
