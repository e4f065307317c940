"""Readable names of tokens, no two of a vocabulary alike: a line of names, separated by spaces, is a segmentation."""

from collections.abc import Callable, Collection, Iterable
from functools import cached_property

from heed.config import shown
from heed.errors import HeedError
from heed.text.segmentation import CONTINUATION

SPACE = "▁"


class TokenNames:
    """Ids ↔ the names of their tokens. Ids that decoding leaves out, such as eos, have no name.

    Of several whose names are alike, the first keeps its name; the others, and those without one, are called <id:7> by
    their id.
    """

    def __init__(self, name: Callable[[int], str | None], n_ids: int, *, left_out: Collection[int]):
        """name: of an id, None if it stands for nothing readable; as `readable` writes it, perhaps with CONTINUATION or
        a word in <> before it, so that two ids share one only if it has such a mark."""
        self._name, self._n_ids, self._left_out = name, n_ids, left_out
        self._known: dict[int, str | None] = {}  # names that were asked for

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The name of each id that has one."""
        named = [i for i in ids if i not in self._left_out]
        for i in named:
            if i not in self._known:
                self._known[i] = self._name(i)
        names = [name for i in named if (name := self._known[i]) and "<" not in name and name[0] != CONTINUATION]
        # Mostly none is like another's, which spares a table of all.
        return names if len(names) == len(named) else [self._names[i] or "" for i in named]

    @cached_property
    def _names(self) -> list[str | None]:
        taken = set[str]()
        names: list[str | None] = [None] * self._n_ids
        for i in range(self._n_ids):
            if i not in self._left_out and (name := self._name(i)) and name not in taken:
                taken.add(name)
                names[i] = name
        for i, own_name in enumerate(names):
            if i not in self._left_out and own_name is None:
                name = f"<id:{i}>"
                while name in taken:
                    name = f"<{name}"
                taken.add(name)
                names[i] = name
        return names

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self._names) if name is not None}

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """The id of each token. HeedError for an unknown one."""
        ids = []
        for token in tokens:
            if token not in self._ids:
                raise HeedError(f"{shown(token)} is not a token of the model's vocabulary.")
            ids.append(self._ids[token])
        return ids


def readable(piece: bytes, *, space: str | None = None) -> str:
    """The piece as text without white space: <0xC3> for each byte that spells no character, or one that is not visible.

    space: what a space becomes; that character itself is then written as bytes.
    """

    def name(c: str) -> str:
        if c == " " and space is not None:
            return space
        if c.isprintable() and c not in (" ", space):
            return c
        return "".join(f"<0x{byte:02X}>" for byte in c.encode("utf-8", errors="surrogateescape"))

    return "".join(map(name, piece.decode("utf-8", errors="surrogateescape")))
