"""How a search extends its hypotheses: by the most probable ids, by those that a constraint allows, or by drawn ones.

Axes: row = sentence × beam; of a sentence, choice = continuations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from heed.backends.beam_account import BeamAccount, Bools, ContinuationRules, Continuations, Floats, Ints
from heed.backends.live_prefixes import AllowedIds, NextIds
from heed.backends.protocol import Logits, SearchOps
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.errors import HeedError
from heed.text.tokenizer import SpecialIds


@dataclass(frozen=True)
class LiveSentences:
    """The sentences that are being searched, as a choice sees them.

    numbers: (sentence), their sources'. allowed: of every row, the ids that its prefix lets follow; None: any.
    """

    numbers: Ints
    account: BeamAccount
    allowed: AllowedIds | None


@runtime_checkable
class Choice(Protocol):
    """How hypotheses are continued."""

    # True in beam search: a sentence has 2 · beam_size continuations, the best of any of its rows, so that beam_size
    # unfinished ones remain even if half of them end. False in sampling: each row has one continuation of its own.
    rows_compete: bool

    @property
    def fused_rules(self) -> ContinuationRules | None:
        """The rules by which a kernel can choose the most probable continuations; None where others are chosen."""

    def admit(self, numbers: Sequence[int]) -> None:
        """The sources of these numbers are searched from now on, behind the others."""

    def choose(self, logits: Logits, active: Ints | None, live: LiveSentences) -> Continuations:
        """The continuations of every sentence. active: the rows that have logits, None for all."""

    def advance(self, rows: Ints, ids: Ints | None, going_on: Bools) -> None:
        """Row i of each sentence, (sentence, beam), is now what was rows[i], with ids[i] behind, or nothing if None.

        Sentences that are not going_on are gone.
        """


@runtime_checkable
class Constraint(Protocol):
    """Decides which ids may follow, row by row: beam_size rows a sentence, in the order of their admission."""

    # Ids of which at most one may follow anywhere. Each gets the probability of all of them together, since the
    # constraint, not the model, decides between them.
    given: NDArray[np.int64]

    def admit(self, numbers: Sequence[int]) -> None:
        """The sources of these numbers are searched from now on."""

    def choices(self, rows: NDArray[np.int64], steps_left: NDArray[np.int64]) -> NDArray[np.int64]:
        """(row, choice): the ids that may follow these rows, padded with -1.

        steps_left: how many ids each row may still get, eos included.
        """

    def advance(self, rows: NDArray[np.int64], ids: NDArray[np.int64] | None) -> None:
        """Row i is now what was rows[i], with ids[i] behind, or nothing if None; rows that are not named are gone."""


def make_choice(
    settings: DecodingSettings,
    special: SpecialIds,
    backend: SearchOps,
    *,
    vocab_size: int,
    sampling: SamplingSettings | None,
    constraint: Constraint | None,
) -> Choice:
    """The strategy of a search with these settings. HeedError if they cannot be combined."""
    if constraint is not None and (sampling is not None or settings.min_tokens):
        raise HeedError("neither sampling nor min_tokens can be combined with a constraint; leave them out.")
    if (sampling is not None or constraint is not None) and repeats_less(settings):
        raise HeedError(
            "no_repeat_ngram_size and repetition_penalty are for a search; leave them out with sampling and parsers."
        )
    if sampling is not None:
        return SampledChoice(settings, special, backend, sampling, vocab_size=vocab_size)
    if constraint is not None:
        return ConstrainedChoice(settings, backend, constraint)
    return BestChoice(settings, special, backend, vocab_size=vocab_size)


class BestChoice:
    """The most probable continuations of each sentence."""

    rows_compete = True

    def __init__(self, settings: DecodingSettings, special: SpecialIds, backend: SearchOps, *, vocab_size: int):
        self._backend, self._vocab_size, self._special = backend, vocab_size, special
        k = min(2 * settings.beam_size, settings.beam_size * vocab_size)
        never = _never_chosen(special, vocab_size)
        self._rules = ContinuationRules(never, settings.min_tokens, k)
        self._settings = settings

    @property
    def fused_rules(self) -> ContinuationRules | None:
        return None if repeats_less(self._settings) else self._rules

    def admit(self, numbers: Sequence[int]) -> None:
        pass

    def choose(self, logits: Logits, active: Ints | None, live: LiveSentences) -> Continuations:
        log_probs, may_end = (
            np.ascontiguousarray(live.account.log_probs),
            live.account.lengths >= self._rules.min_tokens,
        )
        if repeats_less(self._settings):
            logits, log_probs = self._less_repeated(logits, active, log_probs, live)
        next_ids = NextIds(self._rules.never, may_end, self._special.eos, live.allowed)
        values, places = self._backend.best_continuations(logits, active, log_probs, next_ids, k=self._rules.k)
        parents = places // self._vocab_size
        return Continuations(values, parents, places - parents * self._vocab_size)

    def advance(self, rows: Ints, ids: Ints | None, going_on: Bools) -> None:
        pass

    def _less_repeated(
        self, logits: Logits, active: Ints | None, log_probs: Floats, live: LiveSentences
    ) -> tuple[Logits, Floats]:
        """The logits with what rows have written already punished, and log-probabilities that make up for their sums.

        As in transformers: a greedy search punishes logits, a beam log-probabilities; what is left is not normalised.
        A row within its prefix stays as it is.
        """
        rows = np.arange(log_probs.size) if active is None else active
        size, penalty = self._settings.no_repeat_ngram_size, self._settings.repetition_penalty
        is_free = [live.allowed is None or live.allowed[row] is None for row in rows.tolist()]
        written = [self._written(live.account, row) if free else [] for row, free in zip(rows, is_free, strict=True)]
        repeated = [np.unique(ids).astype(np.int64) for ids in written] if penalty != 1 else None
        barred = [np.array(_completions(ids, size), np.int64) for ids in written] if size else None
        is_greedy = log_probs.shape[1] == 1
        logits, shifts = self._backend.punish(logits, repeated, barred, penalty=penalty, of_logits=is_greedy)
        shifted = log_probs.copy()
        shifted.reshape(-1)[rows] += shifts
        return logits, shifted

    def _written(self, account: BeamAccount, row: int) -> list[int]:
        """The ids that a row has so far, bos in front."""
        sentence, place = divmod(row, self._settings.beam_size)
        ids: list[int] = account.history[sentence, place, : account.lengths[sentence]].tolist()
        return [self._special.bos, *ids]


def repeats_less(settings: DecodingSettings) -> bool:
    """Whether a search watches what its hypotheses have written."""
    return settings.no_repeat_ngram_size > 0 or settings.repetition_penalty != 1


def _completions(ids: Sequence[int], size: int) -> list[int]:
    """The ids that would end a sequence of `size` ids for the second time."""
    if len(ids) < size:
        return []
    last = tuple(ids[len(ids) - size + 1 :])
    starts = range(len(ids) - size + 1)
    return sorted({ids[i + size - 1] for i in starts if tuple(ids[i : i + size - 1]) == last})


class ConstrainedChoice:
    """The most probable continuations among those that a constraint allows."""

    rows_compete, fused_rules = True, None

    def __init__(self, settings: DecodingSettings, backend: SearchOps, constraint: Constraint):
        self._beam_size, self._backend, self._constraint = settings.beam_size, backend, constraint

    def admit(self, numbers: Sequence[int]) -> None:
        self._constraint.admit(numbers)

    @np.errstate(invalid="ignore")  # numbers that are not finite are found in what they lead to
    def choose(self, logits: Logits, active: Ints | None, live: LiveSentences) -> Continuations:
        account = live.account
        n_sentences, n_rows = len(account), account.log_probs.size
        rows = np.arange(n_rows) if active is None else active
        allowed = self._constraint.choices(rows, (account.limits - account.lengths)[rows // self._beam_size])
        n_allowed = allowed.shape[1]
        of_allowed = self._backend.log_probs_of(logits, np.ascontiguousarray(allowed))
        if len(given := self._constraint.given):
            of_given = self._backend.log_probs_of(logits, np.tile(given, (len(rows), 1)))
            together = np.logaddexp.reduce(of_given, axis=1, keepdims=True)
            of_allowed = np.where(np.isin(allowed, given), together, of_allowed)
        total, ids = np.full((n_rows, n_allowed), -np.inf), np.zeros((n_rows, n_allowed), np.int64)
        total[rows] = account.log_probs.reshape(-1, 1)[rows] + of_allowed
        ids[rows] = allowed
        k = min(2 * self._beam_size, self._beam_size * n_allowed)
        total = total.reshape(n_sentences, -1)
        index = np.argsort(-total, axis=1, kind="stable")[:, :k]
        at = np.arange(n_sentences)[:, None], index
        return Continuations(total[at], index // n_allowed, ids.reshape(n_sentences, -1)[at].clip(0))

    def advance(self, rows: Ints, ids: Ints | None, going_on: Bools) -> None:
        new_ids = None if ids is None else ids[going_on].astype(np.int64).ravel()
        self._constraint.advance(rows[going_on].astype(np.int64).ravel(), new_ids)


class SampledChoice:
    """One continuation of every row, drawn by inverting its distribution at a random number of the row's own.

    The number depends on the seed, the source's number, the row and the position alone, so a draw does not depend on
    what is searched at the same time.
    """

    rows_compete, fused_rules = False, None

    def __init__(
        self,
        settings: DecodingSettings,
        special: SpecialIds,
        backend: SearchOps,
        sampling: SamplingSettings,
        *,
        vocab_size: int,
    ):
        self._beam_size, self._min_tokens, self._sampling = settings.beam_size, settings.min_tokens, sampling
        self._eos, self._backend, self._never = special.eos, backend, _never_chosen(special, vocab_size)

    def admit(self, numbers: Sequence[int]) -> None:
        pass

    def choose(self, logits: Logits, active: Ints | None, live: LiveSentences) -> Continuations:
        next_ids = NextIds(self._never, live.account.lengths >= self._min_tokens, self._eos, live.allowed)
        sampling = self._sampling
        ids, log_probs = self._backend.draw(
            *(logits, self._random_numbers(live), next_ids),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
        )
        so_far, shape = live.account.log_probs, live.account.log_probs.shape
        parents = np.broadcast_to(np.arange(self._beam_size), shape)
        return Continuations(so_far + log_probs.reshape(shape), parents, ids.reshape(shape))

    def advance(self, rows: Ints, ids: Ints | None, going_on: Bools) -> None:
        pass

    def _random_numbers(self, live: LiveSentences) -> Floats:
        """(row): one in [0, 1) for each."""
        numbers = [
            np.random.default_rng((self._sampling.seed, int(number), int(length))).random(self._beam_size)
            for number, length in zip(live.numbers, live.account.lengths, strict=True)
        ]
        return np.concatenate(numbers)


def _never_chosen(special: SpecialIds, vocab_size: int) -> Bools:
    """(vocab): True for the ids that no target may have."""
    never = np.zeros(vocab_size, np.bool_)
    never[[i for i in (special.pad, special.bos, special.unk) if i not in (None, special.eos)]] = True
    return never
