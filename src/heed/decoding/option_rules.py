"""Rules on settings that exclude each other or have no effect together; checked for Python and for the commands."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from heed.errors import HeedError

Given = Mapping[str, Any]  # the settings that the user gave; those that are None are not given


@dataclass(frozen=True)
class Rule:
    """An error if any of `options` is given, `beside` is given too, `without` is not, and `when` holds.

    says: the error. {these} stands for those of `options` that are given, {name} for a setting as the user writes it,
        {name=} for it with its value, {=name} for the value, and {is|are} for the form that agrees with {these}.
    """

    options: tuple[str, ...]
    says: str
    beside: str | None = None
    without: str | None = None
    when: Callable[[Given], bool] = lambda given: True

    def is_broken_by(self, given: Given) -> bool:
        """Whether these settings break it."""
        return (
            any(name in given for name in self.options)
            and (self.beside is None or self.beside in given)
            and self.without not in given
            and self.when(given)
        )


class Spelling:
    """How a user of Python writes a setting."""

    def name(self, name: str, value: object) -> str:
        """The name of the setting that has this value; None if it is not given."""
        return name

    def with_value(self, name: str, value: object) -> str:
        """The setting with its value."""
        return f"{name}={value!r}"


IN_PYTHON = Spelling()
SEARCH_RULES = (
    Rule(
        ("early_stopping",),
        "{early_stopping=} has no effect with {beam_size=}, which ends at its first end of sentence; leave it out.",
        when=lambda given: given.get("beam_size") == 1 and not given["early_stopping"],
    ),
    Rule(
        ("length_penalty",),
        "{length_penalty} has no effect with {length_penalty_form=}; leave one of them out.",
        when=lambda given: given.get("length_penalty_form") == "none",
    ),
)
PARSER_RULES = (
    *SEARCH_RULES,
    Rule(
        ("min_tokens",),
        "{min_tokens} has no effect on a parser: the words decide how long a tree is; leave it out.",
        when=lambda given: given["min_tokens"] != 0,
    ),
)


def check_rules(rules: Iterable[Rule], settings: Given, spelling: Spelling = IN_PYTHON) -> None:
    """HeedError for the first rule that these settings break, in the user's spelling."""
    given = {name: value for name, value in settings.items() if value is not None}
    for rule in rules:
        if rule.is_broken_by(given):
            raise HeedError(rule.says.format_map(_Words(rule, given, spelling)))


class _Words(dict[str, str]):
    """The values for the placeholders of a rule's message."""

    def __init__(self, rule: Rule, given: Given, spelling: Spelling):
        super().__init__()
        self._given, self._spelling = given, spelling
        self._these = [name for name in rule.options if name in given]

    def __missing__(self, key: str) -> str:
        if key == "these":
            *others, last = [self[name] for name in self._these]
            return f"{', '.join(others)} and {last}" if others else last
        if "|" in key:
            one, several = key.split("|")
            return one if len(self._these) == 1 else several
        name = key.strip("=")
        value = self._given.get(name)
        if key.startswith("="):
            return str(value)
        return (self._spelling.with_value if key.endswith("=") else self._spelling.name)(name, value)
