"""The elements of HTML by how browsers show them, and the attributes whose values a reader sees or hears."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from heed.apps.documents.words import table

_TABLE = table("html")


def _names(key: str) -> frozenset[str]:
    return frozenset(_TABLE[key].split())


INLINE, BLOCKS, CODE, SKIPPED, RAW = map(_names, ("inline", "blocks", "code", "skipped", "raw"))
VOID, ATOMS, THINGS = map(_names, ("void", "atoms", "things"))
UNENDED = {name: frozenset(ended_by.split()) for name, ended_by in _TABLE["unended"].items()}
WORDLESS = BLOCKS | SKIPPED | THINGS  # what the model reads nothing of if it stays
ALONE = BLOCKS | ATOMS | VOID
DRAWN = frozenset(("svg", "math"))  # icons and formulas: atoms too, whatever they contain

_EVERYWHERE, _BUTTONS, _METADATA = map(_names, ("attributes", "buttons", "metadata"))
_OF_ELEMENTS = {key: frozenset(names.split()) for key, names in _TABLE["attributes_of_elements"].items()}
_MAY_HAVE_WORDS = re.compile(r"\b(?:title|aria-|alt|placeholder|label|abbr|value|content)", re.IGNORECASE)
_SIGNS = frozenset("\"'`=<{")  # in a value without quotes: it is not as anybody meant it, or an expression
_ATTRIBUTE = re.compile(r"""[\s/]*+([^\s=>/]++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>]++)))?""")


class Value(NamedTuple):
    """A value's span in its tag, with its quotes; text: without them."""

    start: int
    end: int
    text: str


def values_with_words(tag: str, name: str, *, start: int) -> Iterator[Value]:
    """The values that a reader sees. name: the element's, in small letters; start: behind it."""
    if not _MAY_HAVE_WORDS.search(tag, start):
        return
    values: dict[str, Value] = {}
    while match := _ATTRIBUTE.match(tag, start):
        start = match.end()
        if group := match.lastindex if match.lastindex and match.lastindex > 1 else 0:
            first, last = match.span(group)
            quoted = group < 4
            if not quoted and not _SIGNS.isdisjoint(match[group]):
                continue
            values.setdefault(match[1].lower(), Value(first - quoted, last + quoted, match[group]))
    of_meta = {values[key].text.strip().lower() for key in ("name", "property") if key in values}
    kind = values["type"].text.lower() if "type" in values else ""
    for key, value in values.items():
        is_seen = key in _EVERYWHERE or name in _OF_ELEMENTS.get(key, ())
        is_seen = (
            is_seen and (key != "value" or kind in _BUTTONS) and (key != "content" or not _METADATA.isdisjoint(of_meta))
        )
        if is_seen:
            yield value
