"""How much of its prefix each hypothesis of a search has written, and which ids may follow."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.backends.beam_account import Bools, Continuations, Floats, Ints
from heed.text.prefix import NO_PREFIX, Prefix

# By row, the ids that may follow, ascending; None where any may.
AllowedIds = Sequence[NDArray[np.int32] | None]


class NextIds(NamedTuple):
    """The ids that may follow in a step.

    never: (vocab), those that no row may take. may_end: (sentence), whether `eos` may follow. allowed: what prefixes
    leave; None: everything.
    """

    never: Bools
    may_end: Bools
    eos: int
    allowed: AllowedIds | None = None


class LivePrefixes:
    """The prefix of each sentence that is being searched, and the state in which each of its rows is.

    states: (sentence, beam); 0 where a sentence has no prefix, or has written it in every row.
    """

    def __init__(self, prefixes: Sequence[Prefix], *, beam: int):
        self.prefixes, self.states = list(prefixes), np.zeros((len(prefixes), beam), np.int64)
        self._any = any(prefix.end for prefix in prefixes)

    def __bool__(self) -> bool:
        """Whether any sentence has a prefix that is not yet written in every row."""
        return self._any

    def concat(self, prefixes: Sequence[Prefix]) -> "LivePrefixes":
        """With these sentences after the others."""
        new = LivePrefixes([*self.prefixes, *prefixes], beam=self.states.shape[1])
        new.states[: len(self.states)] = self.states
        return new

    def select(self, places: Ints) -> "LivePrefixes":
        """The sentences at these places; a prefix that is written in every row is forgotten."""
        if not self._any and len(places) == len(self.prefixes):
            return self
        prefixes = [self.prefixes[place] for place in places.tolist()]
        states = self.states[places]
        for place, least in enumerate(states.min(axis=1).tolist()):
            if least == prefixes[place].end:
                prefixes[place], states[place] = NO_PREFIX, 0
        kept = LivePrefixes(prefixes, beam=self.states.shape[1])
        kept.states = states
        return kept

    def allowed_ids(self, n_left: Ints) -> AllowedIds | None:
        """The ids that may follow each row; None where any may follow any. n_left: of each sentence, the ids that its
        targets may still get."""
        if not self._any:
            return None
        return [
            prefix.allowed_ids(state, left) if state < prefix.end else None
            for prefix, states, left in zip(self.prefixes, self.states.tolist(), n_left.tolist(), strict=True)
            for state in states
        ]

    def with_given(self, continuations: Continuations, log_probs: Floats) -> Continuations:
        """The continuations where an id that is given has probability 1. log_probs: (sentence, beam), so far."""
        given = np.array([prefix.n_given for prefix in self.prefixes])[:, None]
        if not (self.states < given).any():
            return continuations
        states, so_far = (np.take_along_axis(x, continuations.parents, axis=1) for x in (self.states, log_probs))
        is_given = (states < given) & (continuations.log_probs > -np.inf)
        return continuations._replace(log_probs=np.where(is_given, so_far, continuations.log_probs))

    def advance(self, parents: Ints, ids: Ints) -> None:
        """Row b of each sentence is now what its row parents[b] was, with ids[b] behind; both (sentence, beam)."""
        if not self._any:
            return
        self.states = np.take_along_axis(self.states, parents, axis=1)
        for prefix, states, of_sentence in zip(self.prefixes, self.states, ids.tolist(), strict=True):
            if prefix.end:
                states[:] = [prefix.after(state, i) for state, i in zip(states.tolist(), of_sentence, strict=True)]
