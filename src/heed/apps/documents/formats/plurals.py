"""How many plural forms a language has, and which of them is the singular."""

import re
from functools import cache
from typing import NamedTuple

from heed.apps.documents.words import table

_SINGULAR = re.compile(r"(?<!\w)n(?:%100?)?==1(?:&&n%100!=11)?\?(\d)")
_ONE = re.compile(r"(?<![\w%])n(?:==1\?|!=1(?!\d))")


class PluralRule(NamedTuple):
    """gettext's expression for the number of a form; CLDR's names of the forms in that order, and of all of them."""

    expression: str
    forms: tuple[str, ...]
    categories: tuple[str, ...]

    @property
    def header(self) -> str:
        """The rule as gettext's header has it."""
        return f"nplurals={len(self.forms)}; plural={self.expression};"


def singular_of(expression: str) -> int:
    """The number of the form for one thing, by gettext's expression for the form of n."""
    match = _SINGULAR.search(re.sub(r"\s", "", expression))
    return int(match[1]) if match else 0


def has_form_for_one(expression: str) -> bool:
    """Whether no other number shares the form of 1, by gettext's expression for it."""
    return _ONE.search(re.sub(r"\s", "", expression)) is not None


@cache
def plural_rule(language: str) -> PluralRule:
    """The rule of a language's code; that of English if the table has none."""
    plurals, code = table("plurals"), re.split("[-_@]", language)[0].lower()
    rules = plurals["rules"]
    rule = next((rule for rule in rules if code in rule["languages"].split()), None) or rules[1]
    forms = tuple(rule["forms"].split())
    more = ("many",) if code in plurals["millions"].split() else ()
    return PluralRule(rule["expression"], forms, tuple(dict.fromkeys((*forms, *more, "other"))))
