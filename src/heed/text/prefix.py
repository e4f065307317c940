"""Prefixes: the text that a target must begin with, whichever ids spell it.

A prefix is text, not one segmentation of it: a model that would write "hat" as one id is not helped by the ids that
"ha" alone would have. So any id may follow whose bytes agree with what is still to come, also one that goes beyond it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from heed.config import shown
from heed.errors import HeedError

UNREACHABLE = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Prefix:
    """An automaton that reads a target's ids: state 0 is the beginning, from `end` on any id may follow.

    In state s < end the ids that may follow are ids[begins[s] : begins[s + 1]], ascending; nexts holds the states that
    they lead to. needed: for each state the fewest ids that lead to the end. n_given: the first ids, each the only one,
    are given: their probability is 1.
    """

    begins: NDArray[np.int64]
    ids: NDArray[np.int32]
    nexts: NDArray[np.int32]
    needed: NDArray[np.int32]
    n_given: int = 0

    @classmethod
    def of_ids(cls, ids: Sequence[int]) -> "Prefix":
        """A prefix of these ids and no others."""
        places = np.arange(len(ids) + 1)
        return cls(places, np.array(ids, np.int32), places[1:].astype(np.int32), places[::-1].astype(np.int32))

    def behind(self, given: Sequence[int]) -> "Prefix":
        """This prefix behind ids that are given."""
        n = len(given)
        first = Prefix.of_ids(given)
        return Prefix(
            np.concatenate([first.begins[:-1], self.begins + n]),
            np.concatenate([first.ids, self.ids]),
            np.concatenate([first.nexts, self.nexts + np.int32(n)]),
            np.concatenate([first.needed[:-1] + self.needed[0], self.needed]),
            n_given=n,
        )

    @property
    def end(self) -> int:
        """The last state; 0 of a prefix that asks for nothing."""
        return len(self.begins) - 1

    @property
    def n_tokens(self) -> int:
        """The fewest ids that spell it."""
        return int(self.needed[0])

    def allowed_ids(self, state: int, n_left: int) -> NDArray[np.int32]:
        """The ids that may follow in this state so that the prefix is complete after at most n_left ids."""
        here = slice(*self.begins[state : state + 2])
        ids: NDArray[np.int32] = self.ids[here][self.needed[self.nexts[here]] < n_left]
        return ids

    def after(self, state: int, i: int) -> int:
        """The state to which this id leads."""
        if state == self.end:
            return state
        first, end = self.begins[state : state + 2]
        at = first + np.searchsorted(self.ids[first:end], i)
        return int(self.nexts[at]) if at < end and self.ids[at] == i else state


NO_PREFIX = Prefix.of_ids(())


class Spellings:
    """The bytes that each id of a vocabulary adds to a target's text.

    n_dropped_spaces: how many spaces at the beginning of a target decoding takes away: 0, 1 or, if None, all.
    """

    def __init__(self, spelled: Iterable[tuple[int, bytes]], *, n_dropped_spaces: int | None):
        self._n_dropped = n_dropped_spaces
        ordered = sorted((text, i) for i, text in spelled if text)
        self._texts = [text for text, _ in ordered]
        self._ids = np.array([i for _, i in ordered], np.int32)

    def prefix(self, text: str) -> Prefix:
        """Whatever decodes to a text that begins with this one. HeedError if no ids spell it."""
        if self._n_dropped is None:
            text = text.lstrip(" ")
        if not text:
            return NO_PREFIX
        # A target may begin with the space that decoding drops.
        whole = text.encode() if self._n_dropped == 0 else b" " + text.encode()
        next_ids = [self._next_ids(whole, at) for at in range(len(whole))]
        if self._n_dropped != 0 and not text.startswith(" "):
            next_ids[0] += next_ids[1]
        if self._n_dropped is None:
            next_ids[1] = next_ids[1] + self._next_ids(whole, 0)
        prefix = _automaton(next_ids)
        if prefix is None:
            self._refuse(text, whole, next_ids)
        return prefix

    def _next_ids(self, whole: bytes, at: int) -> list[tuple[NDArray[np.int32], int]]:
        """The ids that agree with the text from a place on, each with the place where it ends, at most the text's."""
        next_ids = []
        first, last = 0, len(self._texts)
        for end in range(at + 1, len(whole) + 1):
            begin = whole[at:end]
            first = bisect_left(self._texts, begin, first, last)
            # No UTF-8 has the byte 255, so every text that begins so comes before this one.
            last = bisect_left(self._texts, begin + b"\xff", first, last)
            if first == last:
                break
            equal = first
            while end < len(whole) and equal < last and self._texts[equal] == begin:
                equal += 1
            if end == len(whole):  # and beyond it
                equal = last
            if first < equal:
                next_ids.append((self._ids[first:equal], end))
        return next_ids

    def _refuse(self, text: str, whole: bytes, next_ids: list[list[tuple[NDArray[np.int32], int]]]) -> NoReturn:
        problem = f"the prefix {shown(text)} holds text that the model's vocabulary lacks"
        if missing := [character for character in dict.fromkeys(text) if character not in self._characters]:
            raise HeedError(f"{problem}: {', '.join(map(shown, missing))}; take another.")
        reached = {0}
        for place, following in enumerate(next_ids):
            if place in reached:
                reached |= {end for _, end in following}
        written = whole[: max(reached)].decode("utf-8", errors="ignore").removeprefix(" ")
        raise HeedError(f"{problem}: no token continues {shown(written)} as it does; take another.")

    @cached_property
    def _characters(self) -> frozenset[str]:
        return frozenset(b" ".join(self._texts).decode("utf-8", errors="ignore"))


def _automaton(next_ids: list[list[tuple[NDArray[np.int32], int]]]) -> Prefix | None:
    """By state the ids that may follow and the states that they lead to; None if no path leads to the end."""
    end = len(next_ids)
    needed = np.full(end + 1, UNREACHABLE, np.int64)
    needed[end] = 0
    lists, nexts = [], []
    for state in range(end - 1, -1, -1):
        # What leads nowhere is left out; but the state itself, of a space that is dropped, leads where it does.
        needed[state] = min((1 + needed[after] for _, after in next_ids[state] if after != state), default=UNREACHABLE)
        alive = [(ids, after) for ids, after in next_ids[state] if needed[after] < UNREACHABLE]
        ids = np.concatenate([np.empty(0, np.int32), *(ids for ids, _ in alive)])
        order = ids.argsort()
        lists.append(ids[order])
        nexts.append(np.repeat([after for _, after in alive], [len(ids) for ids, _ in alive]).astype(np.int32)[order])
        needed[state] = min(needed[state], UNREACHABLE)
    if needed[0] == UNREACHABLE:
        return None
    begins = np.concatenate([[0], np.cumsum([len(ids) for ids in reversed(lists)])])
    return Prefix(begins, np.concatenate(lists[::-1]), np.concatenate(nexts[::-1]), needed.astype(np.int32))
