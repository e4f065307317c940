"""Rows of files that have columns: what a reader of a format takes and gives."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Literal, get_args

from heed.config import shown
from heed.errors import HeedError
from heed.text.languages import find_language, is_known, table

Format = Literal["parquet", "jsonl", "text"]
FORMATS: tuple[Format, ...] = get_args(Format)
NESTED = "translation"  # the column of Hugging Face's translation sets, which holds a text a language
BATCH_ROWS = 1024
BATCH_BYTES = 2**22  # of lines
# Of a file: its rows, the hash of its bytes unless a store has one, and the byte at which each part of a plan begins.
Contents = tuple[int, str | None, dict[int, int]]


@dataclass(frozen=True)
class Columns:
    """The columns that are read: the texts', and to score, that of their translations.

    schema: Arrow's, in base 64, if the output is Parquet and the input JSON Lines. prefix: begins the names of columns
    that are added.
    """

    read: tuple[str, ...]
    schema: str | None = None
    prefix: str = ""


@dataclass
class Rows:
    """Consecutive rows of one file. `texts`: of each row its columns that are read. `faults`: what is wrong, by place.

    skipped: the places of what is no row, such as blank lines and the head of a table. content: a
    pyarrow.Table where Parquet is written, else a dictionary of each row.
    """

    file: str
    first: int
    texts: list[tuple[str, ...]]
    content: Any
    faults: dict[int, str] = field(default_factory=dict)
    skipped: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def good(self) -> list[int]:
        """The places of the rows that can be used."""
        return [place for place in range(len(self)) if place not in self.faults and place not in self.skipped]


# A language's code in the head of a column: en, deu, de-DE, eng_Latn.
CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Z][a-z]{3})?(?:[-_](?:[A-Z]{2}|[0-9]{3}))?")


@lru_cache(maxsize=1024)
def find_column(column: str, names: tuple[str, ...]) -> str | None:
    """The name that a column has among these, None if it is not there.

    Case makes no difference, and a language is found by any of its codes or by its name, in English or in itself.
    """
    for same in (column.__eq__, lambda name: name.casefold() == column.casefold()):
        if (name := next(filter(same, names), None)) is not None:
            return name
    if not is_code(column):
        return None
    if (name := find_language(column, [name for name in names if is_code(name)])) is not None:
        return name
    codes = {name: code for name in names if (code := language_named(name))}
    code = find_language(column, list(codes.values()))
    called = [name for name in codes if codes[name] == code]
    return called[0] if len(called) == 1 else None  # English (UK) and English (US) are no answer


def is_code(name: str) -> bool:
    """Whether a column is called by the code of a language."""
    return CODE.fullmatch(name) is not None and is_known(name)


@cache
def _by_name() -> dict[str, str]:
    """The languages' first codes by their names, in English and in the language itself."""
    named = {name.casefold(): one.code for one in table().values() for name in one.own_names.split(", ") if name}
    return named | {one.name.casefold(): one.code for one in table().values()}


def language_named(name: str) -> str | None:
    """The code of the language that has this name, in English or in itself: German, Deutsch; None if there is none.

    What follows in brackets makes no difference, as in Chinese (Simplified).
    """
    return _by_name().get(name.partition("(")[0].strip().casefold())


def find_path(column: str, inside: Callable[[list[str]], Collection[str]]) -> list[str] | None:
    """The names that lead to a column, None if it is not there: it may lie within others, as translation.en does.

    So may en alone, as in Hugging Face's translation sets. inside: the names within a column, of a row for no names.
    """
    for path in ([column], column.split("."), [NESTED, column]):
        if all(name in inside(path[:depth]) for depth, name in enumerate(path)):
            return path
    for outer in ([], [NESTED]):
        if (name := find_column(column, tuple(inside(outer)))) is not None:
            return [*outer, name]
    return None


def refuse_missing(name: str, missing: Sequence[str], there: list[str]) -> None:
    """HeedError names the first of the missing columns, and those that are there, such as translation.en in another."""
    if missing:
        raise HeedError(
            f"{name}: has no column {shown(missing[0])}; it has {', '.join(map(shown, there[:20])) or 'none'}: choose "
            "one with --column, or in a recipe with data.columns."
        )
