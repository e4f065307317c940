"""Which characters of a translation stand for which of its source."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Link(NamedTuple):
    """A token of the target and the source token that it translates, as spans of characters."""

    tgt_start: int
    tgt_end: int
    src_start: int
    src_end: int


@dataclass(frozen=True)
class Translated:
    """A translation; alignment: one link a target token, in order, or None if it is not known."""

    text: str
    alignment: Sequence[Link] | None = None
