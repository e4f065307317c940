"""What programs fill into texts, such as %s and {0}: by its place among others, unless it has a number or a name."""

import re
from collections import Counter

from heed.apps.documents.text.atoms import ATOM_KINDS

# Of C and those like it (%(name)s in Python, %<name>s in Ruby, %0:s in Pascal), of Lisp, and of braces.
PRINTF = re.compile(
    r"%(?:%|(?:\d{1,2}[$:]|\([^()]{1,100}\)|<(?!PRI)\w{1,60}>)?[-+ 0#']{0,5}(?:\*|\d{1,4})?(?:\.(?:\*|\d{1,4})?)?"
    r"(?:(?:hh?|ll?|[Lqjzt])?[diouxXeEfFgGaAcCsSpn@mr]|<PRI[^<>]{1,10}>))"
)
TILDES = re.compile(r"~[\d,'#:@+-]{0,10}[^\s\d,'#:@+-]")
BRACES = re.compile(r"\{\{|\}\}|\{[^{}]{0,200}(?:\{[^{}]{0,100}\}[^{}]{0,100}){0,3}\}")
# Those that are told from words without a flag.
FORMAT = re.compile(next(kind.pattern for kind in ATOM_KINDS if kind.name == "format"), re.VERBOSE)
_UNNUMBERED = re.compile(r"%(?![%(]|<(?!PRI)|\d{1,2}[$:])|\{(?=[}:!])|~(?![%&|~])")


def has_the_same(pattern: re.Pattern[str], before: str, after: str) -> bool:
    """Whether two texts hold the same matches of a pattern equally often, in any order."""
    first, second = (Counter(match[0] for match in pattern.finditer(text)) for text in (before, after))
    return first == second


def in_order(source: str, words: str, pattern: re.Pattern[str], *, can_number: bool = True) -> str | None:
    """The words, whose unnumbered directives stand in the source's order or get its numbers; None if that cannot be.

    can_number: whether the program knows numbers.
    """
    if not has_the_same(pattern, source, words):
        return None
    before, after = (pattern.findall(text) for text in (source, words))
    filled = [[sign for sign in signs if _UNNUMBERED.match(sign) and sign != "%%"] for signs in (before, after)]
    if filled[0] == filled[1]:
        return words
    # A program cannot mix numbers and none, and a "*" takes a number of its own.
    is_mixed = len(filled[0]) < sum(sign not in ("%%", "{{", "}}") for sign in before)
    if not can_number or is_mixed or any("*" in sign or sign == "%m" or "{" in sign[1:] for sign in filled[0]):
        return None
    numbers: dict[str, list[int]] = {}
    for number, sign in enumerate(filled[0]):
        numbers.setdefault(sign, []).append(number)

    def numbered(match: re.Match[str]) -> str:
        if match[0] not in numbers:
            return match[0]
        number = numbers[match[0]].pop(0)
        return f"%{number + 1}${match[0][1:]}" if match[0][0] == "%" else f"{{{number}{match[0][1:]}"

    return pattern.sub(numbered, words)
