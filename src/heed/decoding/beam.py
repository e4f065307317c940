"""Beam search over ids (section 6.1; greedy is a beam of 1), and sampling, over a stream of sources.

`search` is the loop: sources enter, the models give logits, a `Choice` picks continuations, a `BeamBatch` keeps account
of them. Axes of arrays: sentence, beam, rank (of the n_best), tgt (positions behind bos); row = sentence × beam.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np

from heed.backends.beam_account import BeamAccount, Bools, EndingRules, Ints, StepLimits
from heed.backends.choice import search_backend, searchable
from heed.backends.live_prefixes import LivePrefixes
from heed.backends.protocol import Logits, NotFiniteError, SearchModel, SearchOps, SearchState
from heed.data.batches.batch import end_to_end
from heed.decoding.scoring import length_penalties
from heed.decoding.settings import DecodingSettings, SamplingSettings, check_n_best
from heed.decoding.source_queue import SearchMemory, Source, SourceQueue, maximum_length
from heed.decoding.token_choice import Choice, Constraint, LiveSentences, make_choice
from heed.errors import HeedError
from heed.text.tokenizer import SpecialIds

FIRST_WIDTH = 64  # ids of a target that there is room for at first
# Steps that are taken at a time: few where a source waits, or may arrive unseen.
MANY_STEPS, FEW_STEPS = 16, 4


@dataclass(frozen=True)
class Hypothesis:
    """A target: its ids without bos and eos, log P(target | source), the score that ranks it, whether eos ended it."""

    ids: tuple[int, ...]
    log_prob: float
    score: float
    ended: bool


@dataclass(frozen=True)
class SearchPlan:
    """A search of a stream of sources: by which models, for what, and how it keeps in touch with who feeds the stream.

    models: of one vocabulary, in evaluation mode; they decide together, by the mean of their probabilities.
    n_best: hypotheses of each source. It may exceed beam_size: more end during a search than it keeps unfinished ones.
    n_sentences: the most that are searched at a time; None: as many as the device is good at.
    sampling: draws each of the beam_size hypotheses independently, instead of searching.
    constraint: no hypothesis has an id that it forbids; log-probabilities stay the model's own but for those of given
        ids; prefixes, min_tokens and sampling cannot be combined with it.
    wait: blocks until a source arrives.
    cancelled: is asked every few steps, at most MANY_STEPS, about each number that is being searched. Where it says
        yes, the sentence leaves the search and is never yielded; the results of the others stay the same.
    n_waiting: one number, which whoever feeds the stream changes: how many sources wait to enter. While it is 0, the
        search looks less often for the next source.
    n_searches: how many threads search at once, each a stream of its own, and share the memory.
    """

    models: Sequence[SearchModel]
    special: SpecialIds
    settings: DecodingSettings
    _: KW_ONLY
    n_best: int = 1
    n_sentences: int | None = None
    sampling: SamplingSettings | None = None
    constraint: Constraint | None = None
    wait: Callable[[], object] = lambda: None
    cancelled: Callable[[int], bool] | None = None
    n_waiting: Ints | None = None
    n_searches: int = 1


def beam_search(
    model: SearchModel,
    sources: Sequence[Sequence[int]],
    special: SpecialIds,
    settings: DecodingSettings,
    *,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """The n_best hypotheses of each source (ids without eos), all searched at once: `search` without a stream.

    HeedError if the model is in training mode, or if n_best is less than 1.
    """
    numbered = [Source(number, ids) for number, ids in enumerate(sources)]
    plan = SearchPlan([model], special, settings, n_best=n_best, n_sentences=max(1, len(sources)))
    results = dict(result for result in search(plan, numbered) if result is not None)
    return [results[number] for number in range(len(sources))]


def search(plan: SearchPlan, sources: Iterable[Source | None]) -> Iterator[tuple[int, list[Hypothesis]] | None]:
    """Yields for each source, when it is done, its number and its `n_best` best hypotheses, best first, or fewer.

    A sentence that is done makes room for the next of the stream. None in the stream means that the next source has not
    arrived yet: the search continues with those that it has. When it has none left, it yields None and calls `wait`.

    A hypothesis ends when eos is among the beam_size best continuations of its sentence; the search continues with
    beam_size unfinished ones. It stops for a sentence as soon as no unfinished hypothesis can still enter the n_best,
    which never changes the result; with `early_stopping` also when beam_size hypotheses have ended, as a beam of 1
    always does. A hypothesis that reaches the maximum length without eos counts only where none has ended.

    All state belongs to the call: several threads may search with the same models at once. HeedError if the logits are
    not finite, if a source needs more memory than is free, if n_best is less than 1, or if a model is in training mode.
    """
    settings, special, cancelled, n_waiting = plan.settings, plan.special, plan.cancelled, plan.n_waiting
    check_n_best(plan.n_best)
    if any(model.training for model in plan.models):
        raise HeedError("a model in training mode would search with dropout; call model.eval() first.")
    models = [searchable(model) for model in plan.models]
    # Memory decides how many sentences fit at a time; each model keeps keys and values for as many.
    memory = SearchMemory(models, settings, plan.sampling, n_searches=plan.n_searches)
    n_sentences = memory.max_sentences(plan.n_sentences)
    backends = [search_backend(model) for model in models]
    states = [
        backend.search_state(model, n_sentences=n_sentences, beam_size=settings.beam_size)
        for backend, model in zip(backends, models, strict=True)
    ]
    # All models have one vocabulary, so the first one's backend chooses for all.
    vocab_size, backend = models[0].vocab_size, backends[0]
    choice = make_choice(
        settings, special, backend, vocab_size=vocab_size, sampling=plan.sampling, constraint=plan.constraint
    )
    beams = BeamBatch(special, settings, choice, backend, n_best=plan.n_best)
    queue = SourceQueue(sources, settings, memory, cancelled=cancelled)
    while True:
        # Sentences that are no longer wanted make room first.
        if cancelled is not None and (gone := np.array([cancelled(n) for n in beams.numbers.tolist()], np.bool_)).any():
            _select(states, *beams.drop(gone))
        # Sources enter some at a time: a larger encoder batch costs less a sentence than many small ones.
        n_free = min(state.n_free for state in states)
        if len(beams) == 0 or n_free >= max(1, n_sentences // 4):
            arriving = queue.take(n_free, memory.max_tokens() - int(beams.account.limits.sum()), idle=len(beams) == 0)
            if arriving:
                _check_ids(arriving, special, models[0])
                src, lengths = end_to_end([source.ids for source in arriving], last=special.eos)
                for state in states:
                    state.admit(src, lengths)
                beams.admit(arriving)
        if len(beams) == 0:
            if queue.exhausted:
                return
            yield None
            plan.wait()
            continue
        # Several steps in one call where a kernel can, until a source may enter; else one step of all models.
        if queue.starved:
            most = FEW_STEPS if n_waiting is None else MANY_STEPS
            step_limits = StepLimits(most, least=FEW_STEPS, n_waiting=n_waiting)
        else:  # no source enters until this many sentences are done
            step_limits = StepLimits(MANY_STEPS, most_done=max(1, len(beams) // 4))
        moved = beams.take_steps(states, step_limits)
        if moved is None:
            active = beams.active() if all(state.takes_active_rows for state in states) else None
            logits = [state.logits(beams.tokens(), active) for state in states]
            moved = beams.step(logits[0] if len(states) == 1 else backend.mean_logits(logits), active)
        # Finished sentences leave; the caches follow the hypotheses that continue.
        yield from beams.pop_finished()
        _select(states, *moved)


def _select(states: Sequence[SearchState], rows: Ints, kept: Ints) -> None:
    for state in states:
        state.select(rows, kept)


def _check_ids(sources: Sequence[Source], special: SpecialIds, model: SearchModel) -> None:
    """IndexError for an id that the model does not have, and for one that no target may have, in a prefix."""
    never = [i for i in (special.pad, special.bos, special.eos, special.unk) if i is not None]
    for source in sources:
        of_prefix = source.prefix.ids
        extremes = [int(of_prefix.min()), int(of_prefix.max())] if len(of_prefix) else []
        for ids, vocab_size in ((source.ids, model.src_vocab_size), (extremes, model.vocab_size)):
            for i in ids:
                if not 0 <= i < vocab_size:
                    raise IndexError(f"source {source.number}: id {i}, but the vocabulary has {vocab_size:,} ids.")
        if len(of_prefix) and np.isin(of_prefix, never).any():
            raise IndexError(f"source {source.number}: pad, bos, eos or unk in its prefix.")


class BeamBatch:
    """The hypotheses of all sentences that are being searched: each step extends all of them by one id."""

    def __init__(
        self, special: SpecialIds, settings: DecodingSettings, choice: Choice, backend: SearchOps, *, n_best: int
    ):
        self._special, self._settings, self._choice, self._backend = special, settings, choice, backend
        self._beam_size, self._n_best = settings.beam_size, n_best
        self.numbers: Ints = np.empty(0, np.int64)
        self._prefixes = LivePrefixes([], beam=self._beam_size)
        self.account = self._new_account(np.empty(0, np.int64), FIRST_WIDTH)
        self._longest = 0  # ids written so far
        self._rules = EndingRules(
            special.eos,
            early_stopping=settings.early_stopping or self._beam_size == 1,
            rows_compete=choice.rows_compete,
            penalties=np.ones(1),
            fused=choice.fused_rules,
        )
        self._finished: list[tuple[int, list[Hypothesis]]] = []

    def __len__(self) -> int:
        return len(self.numbers)

    def _new_account(self, limits: Ints, width: int) -> BeamAccount:
        # Competing rows that begin alike would stay alike: only the first one counts at first.
        n_first = 1 if self._choice.rows_compete else self._beam_size
        return BeamAccount.of(
            limits, beam=self._beam_size, n_best=self._n_best, n_first=n_first, bos=self._special.bos, width=width
        )

    def admit(self, sources: list[Source]) -> None:
        """Adds sentences behind the others."""
        limits = np.array([maximum_length(source, self._settings) for source in sources])
        if len(self):
            self.account = self.account.concat(self._new_account(limits, self.account.width))
        else:
            self._longest, self.account = 0, self._new_account(limits, FIRST_WIDTH)
        self._prefixes = self._prefixes.concat([source.prefix for source in sources])
        numbers = [source.number for source in sources]
        self.numbers = np.concatenate([self.numbers, numbers])
        if (most := int(limits.max())) >= len(self._rules.penalties):
            lengths = np.arange(1, most + 1)
            penalties = length_penalties(lengths, self._settings.length_penalty, self._settings.length_penalty_form)
            self._rules = replace(self._rules, penalties=np.concatenate([[1.0], penalties]))
        self._choice.admit(numbers)

    def tokens(self) -> Ints:
        """(row): every row's last id."""
        return self.account.last.ravel()

    def active(self) -> Ints | None:
        """(active): the rows that can still enter the n_best, or None for all."""
        if not self._choice.rows_compete:
            return None
        min_penalty = self._rules.penalties[self.account.limits]
        can_win = self.account.log_probs / min_penalty[:, None] > self.account.threshold[:, None]
        return np.flatnonzero(can_win)

    def take_steps(self, states: Sequence[SearchState], step_limits: StepLimits) -> tuple[Ints, Ints] | None:
        """Takes several steps in one call (`SearchState.take_steps`); None if that is impossible here."""
        if len(states) > 1 or self._rules.fused is None:
            return None
        self._make_room()
        most = min(step_limits.most, self.account.width - self._longest, int(self.account.limits.max()) - self._longest)
        done = states[0].take_steps(self.account, self._rules, self._prefixes, replace(step_limits, most=most))
        if done is None:
            return None
        self._longest = int(self.account.lengths.max())
        return self._finish(self._own_rows(), done)

    def step(self, logits: Logits, active: Ints | None) -> tuple[Ints, Ints]:
        """One more id for every row: (the old row of every new one, the old place of every sentence that continues)."""
        account, prefixes = self.account, self._prefixes
        live = LiveSentences(self.numbers, account, prefixes.allowed_ids(account.limits - account.lengths))
        continuations = self._choice.choose(logits, active, live)
        if prefixes:
            continuations = prefixes.with_given(continuations, account.log_probs)
        best = continuations.log_probs[:, 0] if self._choice.rows_compete else continuations.log_probs.max(axis=1)
        if not (best > -np.inf).all():  # also false for NaN
            raise NotFiniteError
        self._make_room()
        self._longest += 1
        parents, done = self._backend.extend_beams(self.account, continuations, self._rules)
        self._prefixes.advance(parents, self.account.last)
        rows = np.arange(0, parents.size, self._beam_size)[:, None] + parents
        self._choice.advance(rows, self.account.last, ~done)
        return self._finish(rows, done)

    def drop(self, gone: Bools) -> tuple[Ints, Ints]:
        """Ends the search of some sentences without a result; returns what `step` returns."""
        self._choice.advance(self._own_rows(), None, ~gone)
        return self._keep(self._own_rows(), np.flatnonzero(~gone))

    def _own_rows(self) -> Ints:
        return np.arange(self.account.last.size).reshape(self.account.last.shape)

    def _make_room(self) -> None:
        """For one more id."""
        if self._longest == self.account.width:
            self.account.resize(2 * self.account.width)

    def _finish(self, rows: Ints, done: Bools) -> tuple[Ints, Ints]:
        """Puts the sentences that are done among the finished ones."""
        self._finished += [(int(self.numbers[i]), self._hypotheses(i)) for i in np.flatnonzero(done).tolist()]
        return self._keep(rows, np.flatnonzero(~done))

    def _keep(self, rows: Ints, kept: Ints) -> tuple[Ints, Ints]:
        self._prefixes = self._prefixes.select(kept)
        if len(kept) == len(self):
            return rows.ravel(), kept
        self.numbers, self.account = self.numbers[kept], self.account.select(kept)
        if len(kept):  # a long sentence that is done leaves no memory behind that the shorter ones do not need
            self._longest = int(self.account.lengths.max())
            self.account.resize(min(self.account.width, max(FIRST_WIDTH, 2 * self._longest)))
        return rows[kept].ravel(), kept

    def _hypotheses(self, place: int) -> list[Hypothesis]:
        """The best ones of the sentence at this place, best first."""
        account = self.account
        columns = (best[place].tolist() for best in (account.best_scores, account.best_log_probs, account.best_lengths))
        return [
            Hypothesis(tuple(account.best_ids[place, rank, : abs(length)].tolist()), log_prob, score, length >= 0)
            for rank, (score, log_prob, length) in enumerate(zip(*columns, strict=True))
            if score > -np.inf
        ]

    def pop_finished(self) -> list[tuple[int, list[Hypothesis]]]:
        """The number and the hypotheses of each source that was finished since the last call."""
        finished, self._finished = self._finished, []
        return finished
