"""Readable names of tokens, no two of a vocabulary alike: a line of names, separated by spaces, is a segmentation."""

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

from heed.config import shown
from heed.errors import HeedError

SPACE = "▁"


class TokenNames:
    """Ids ↔ the names of their tokens. Ids that decoding leaves out, such as eos, have no name.

    names: by id, None for one that stands for nothing readable. Of several that are alike, the first keeps its name;
    the others, and those without one, are called <id:7> by their id.
    """

    def __init__(self, names: Sequence[str | None], *, left_out: Collection[int]):
        taken = set[str]()
        self._names: list[str | None] = [None] * len(names)
        for i, name in enumerate(names):
            if i not in left_out and name and name not in taken:
                taken.add(name)
                self._names[i] = name
        for i, own_name in enumerate(self._names):
            if i not in left_out and own_name is None:
                name = f"<id:{i}>"
                while name in taken:
                    name = f"<{name}"
                taken.add(name)
                self._names[i] = name

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The name of each id that has one."""
        return [name for i in ids if (name := self._names[i]) is not None]

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
