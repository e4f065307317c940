"""Signs that a pair of a corpus is faulty: traces of wrong encodings or of web pages, sides that do not fit.

Suspicious is not wrong. Nothing is left out of training for it.
"""

import re
from collections.abc import Iterator

from heed.text.line_rules import is_blank

MIN_CHARACTERS = 20  # of the longer side, for a remark on unequal lengths
# Characters that follow in UTF-8 that was read as Windows-1252 or Latin-1.
_AFTER = (
    "[\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc"
    "\u2013-\u2022\u2026\u2030\u2039\u203a\u20ac\u2122]"
)
FAULTS = {
    "control character": r"[\x00-\x08\x0b-\x1f\x7f-\x9f]",
    "replacement character U+FFFD": "\ufffd",
    "text in a wrong encoding": f"[ÂÃ]{_AFTER}|â€{_AFTER}|(?:[ÐÑÎÏ]{_AFTER}){{2}}",
    "private-use character": "[\ue000-\uf8ff]",
    "HTML tag": r"</?[A-Za-z][A-Za-z0-9]{0,15}(?:\s[^<>]{0,200})?/?>",
    "HTML entity": r"&(?:[A-Za-z]{2,8}|#[0-9]{1,6}|#[xX][0-9a-fA-F]{1,5});",
    "word of more than 100 characters": "[!-~]{101}",
    "same character 20 times": r"(\S)\1{19}",
}
_FAULTS = {name: re.compile(pattern) for name, pattern in FAULTS.items()}
_ANY = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffdÂÃâÐÑÎÏ\ue000-\uf8ff<&]|[!-~]{101}|(\\S)\\1{19}")
UNEQUAL, WITHOUT_LETTERS = "sides of very unequal length", "one side without letters"


def faults(src: str, tgt: str, *, max_ratio: float) -> Iterator[tuple[str, int, int]]:
    """(fault, side, character) of a pair, each fault once; the side is 0 or 1. Blank sides have none.

    max_ratio: of the numbers of characters.
    """
    if is_blank(src) or is_blank(tgt):
        return
    sides = src, tgt
    for name in _FAULTS if any(map(_ANY.search, sides)) else ():  # few lines have anything of the kind
        for side, line in enumerate(sides):
            if match := _FAULTS[name].search(line):
                yield name, side, match.start()
                break
    shorter, longer = sorted(map(len, sides))
    if longer >= MIN_CHARACTERS and longer > max_ratio * shorter:
        yield UNEQUAL, int(len(tgt) > len(src)), 0
    with_letters = [any(map(str.isalpha, line)) for line in sides]
    if with_letters[0] != with_letters[1]:
        yield WITHOUT_LETTERS, with_letters.index(False), 0
