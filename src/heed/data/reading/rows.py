"""Rows of files that have columns: what a reader of a format takes and gives."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from heed.config import shown
from heed.errors import HeedError

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


def refuse_missing(name: str, missing: Sequence[str], there: list[str]) -> None:
    """HeedError names the first of the missing columns, and those that are there, such as translation.en in another."""
    if missing:
        raise HeedError(
            f"{name}: has no column {shown(missing[0])}; it has {', '.join(map(shown, there[:20])) or 'none'}: choose "
            "one with --column, or in a recipe with data.columns."
        )
