"""A beam search's account of its hypotheses, and the step that extends all of them by one id.

Kept on the CPU in numpy, whose small operations take a fraction of a tensor's time. `extend` is what every backend's
`extend_beams` must agree with. Axes: sentence, beam, rank (of the n_best), tgt (positions behind bos), choice.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Ids = NDArray[np.int32]
Bools = NDArray[np.bool_]


class Continuations(NamedTuple):
    """Hypotheses one id longer, each (sentence, choice): log P, the row within the sentence that goes on, its new id.

    -∞: there is none at this place.
    """

    log_probs: Floats
    parents: Ints
    ids: Ints

    def first(self, n: int) -> "Continuations":
        """The first n of every sentence."""
        return Continuations(self.log_probs[:, :n], self.parents[:, :n], self.ids[:, :n])


@dataclass(frozen=True)
class ContinuationRules:
    """Which continuations a search of the most probable ones takes: as `SearchOps.best_continuations`.

    min_tokens: ids that a target has before eos may follow.
    """

    never: Bools
    min_tokens: int
    k: int


@dataclass(frozen=True)
class EndingRules:
    """When hypotheses and sentences end; penalties: what divides a log-probability, by the target's length.

    fused: the continuations that `SearchState.take_steps` takes; None where another choice is made, step by step.
    """

    eos: int
    early_stopping: bool
    rows_compete: bool
    penalties: Floats
    fused: ContinuationRules | None = None


@dataclass(frozen=True)
class StepLimits:
    """How many steps a search takes in one call: at most `most`, and no more once all sentences are done.

    After `least` steps, which cost about as much as a call does, it ends as soon as `most_done` sentences are done or
    some wait to enter. n_waiting: how many sources do, one number; other threads change it during the call.
    """

    most: int
    least: int = 1
    most_done: int = 1
    n_waiting: Ints | None = None


@dataclass
class BeamAccount:
    """The unfinished hypotheses of all sentences that are being searched, and the best that have ended.

    best_lengths: without eos; below zero where no eos ended it. best_scores: -∞ where there is no hypothesis yet.
    """

    lengths: Ints  # (sentence): ids written so far
    limits: Ints  # (sentence): the most ids that a target may have
    n_ended: Ints  # (sentence): hypotheses
    log_probs: Floats  # (sentence, beam)
    last: Ints  # (sentence, beam): each row's last id
    history: Ids  # (sentence, beam, tgt)
    best_scores: Floats  # (sentence, rank)
    best_log_probs: Floats  # (sentence, rank)
    best_lengths: Ints  # (sentence, rank)
    best_ids: Ids  # (sentence, rank, tgt)

    @classmethod
    def of(cls, limits: Ints, *, beam: int, n_best: int, n_first: int, bos: int, width: int) -> "BeamAccount":
        """Sentences that begin: of each, `n_first` rows count. There is room for `width` ids."""
        n = len(limits)
        log_probs = np.full((n, beam), -np.inf)
        log_probs[:, :n_first] = 0
        return cls(
            np.zeros(n, np.int64),
            limits,
            np.zeros(n, np.int64),
            log_probs,
            np.full((n, beam), bos),
            np.full((n, beam, width), bos, np.int32),
            np.full((n, n_best), -np.inf),
            np.zeros((n, n_best)),
            np.zeros((n, n_best), np.int64),
            np.zeros((n, n_best, width), np.int32),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def width(self) -> int:
        """The ids of a target that there is room for."""
        return self.history.shape[2]

    @property
    def threshold(self) -> Floats:
        """(sentence): the score that a hypothesis must exceed to enter the n_best."""
        return self.best_scores[:, -1]

    def concat(self, other: "BeamAccount") -> "BeamAccount":
        """Both accounts' sentences, the other's last."""
        return BeamAccount(
            *(np.concatenate(pair) for pair in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    def select(self, places: Ints) -> "BeamAccount":
        """The sentences at these places."""
        return BeamAccount(*(array[places] for array in vars(self).values()))

    def resize(self, width: int) -> None:
        """Makes room for `width` ids of every target."""
        self.history, self.best_ids = widen(self.history, width, 0), widen(self.best_ids, width, 0)


def widen(x: Any, width: int, fill: int) -> Any:
    """`x` with a last axis of that width."""
    if width <= x.shape[-1]:
        return np.ascontiguousarray(x[..., :width])
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])], constant_values=fill)


def extend(account: BeamAccount, continuations: Continuations, rules: EndingRules) -> tuple[Ints, Bools]:
    """Extends every row by one id: ((sentence, beam) the row that each was, (sentence) whether its search is over).

    A hypothesis ends when eos is among the `beam` best continuations of its sentence. Those that end enter the best
    ones, and so do unfinished ones at the limit where none has ended; of equal scores the earlier stays first.
    """
    # Hypotheses that end now enter the best ones.
    beam = account.last.shape[1]
    account.lengths += 1
    is_eos = continuations.ids == rules.eos
    ending = is_eos[:, :beam] & (continuations.log_probs[:, :beam] > -np.inf)
    if ending.any():
        log_probs, rows, _ = continuations.first(beam)
        _collect(account, ending, log_probs, rows, signed_lengths=account.lengths - 1, penalties=rules.penalties)
        account.n_ended += ending.sum(axis=1)
    # The best unfinished continuations replace the rows.
    account.log_probs, parents, account.last = _best_unfinished(continuations, is_eos, beam, rules)
    sentences = np.arange(len(account))
    account.history = account.history[sentences[:, None], parents]
    account.history[sentences, :, account.lengths - 1] = account.last

    # The search of a sentence is over if no row can still enter its best ones.
    at_limit = account.limits <= account.lengths
    if rules.rows_compete:
        # Log-probabilities only fall, so this is the best score that any unfinished hypothesis can reach.
        bound = account.log_probs[:, 0] / rules.penalties[account.limits]
        done = at_limit | (bound <= account.threshold)
        if rules.early_stopping:
            done |= account.n_ended >= beam
    else:
        done = at_limit | (account.log_probs == -np.inf).all(axis=1)
    # At the limit an unfinished hypothesis counts, but only where none has ended.
    cut = at_limit[:, None] & (account.log_probs > -np.inf)
    if rules.rows_compete:
        cut &= (account.best_scores[:, 0] == -np.inf)[:, None]
    if cut.any():
        rows = np.broadcast_to(np.arange(beam), cut.shape)
        _collect(account, cut, account.log_probs, rows, signed_lengths=-account.lengths, penalties=rules.penalties)
    return parents, done


def _best_unfinished(continuations: Continuations, is_eos: Bools, beam: int, rules: EndingRules) -> Continuations:
    """The continuations without eos, `beam` of them for each sentence."""
    if not is_eos.any():
        return continuations.first(beam)
    log_probs = np.where(is_eos, -np.inf, continuations.log_probs)
    if not rules.rows_compete:
        return continuations._replace(log_probs=log_probs)
    unfinished_first = is_eos.argsort(axis=1, kind="stable")[:, :beam]
    at = np.arange(len(is_eos))[:, None], unfinished_first
    return Continuations(log_probs[at], continuations.parents[at], continuations.ids[at])


def _collect(
    account: BeamAccount, which: Bools, log_probs: Floats, rows: Ints, *, signed_lengths: Ints, penalties: Floats
) -> None:
    """Puts hypotheses, (sentence, beam), among the best of their sentences; their ids are the history of `rows`."""
    places = np.flatnonzero(which.any(axis=1))
    scores = np.where(which[places], log_probs[places] / penalties[account.lengths[places]][:, None], -np.inf)
    lengths = np.repeat(signed_lengths[places][:, None], which.shape[1], axis=1)
    n_best = account.best_scores.shape[1]
    all_scores = np.concatenate([account.best_scores[places], scores], axis=1)
    order = (-all_scores).argsort(axis=1, kind="stable")[:, :n_best]
    for mine, new in (
        (account.best_scores, scores),
        (account.best_log_probs, log_probs[places]),
        (account.best_lengths, lengths),
        (account.best_ids, account.history[places[:, None], rows[places]]),
    ):
        joined: Any = np.concatenate([mine[places], new], axis=1)
        mine[places] = joined[np.arange(len(places))[:, None], order]
