"""Beam search over ids (section 6.1; greedy is a beam of 1), and sampling, over a stream of sources.

`search` is the loop: sources enter, the models give logits, a `Choice` picks continuations, a `BeamBatch` keeps account
of them. Axes of arrays: sentence, beam, rank (of the n_best), tgt (positions behind bos); row = sentence × beam.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from heed.backends.base import Logits, SearchState, backend_for, not_finite
from heed.data.batching import padded_sources
from heed.decoding.choice import Bools, Choice, Constraint, Continuations, make_choice
from heed.decoding.scoring import length_penalties
from heed.decoding.settings import DecodingSettings, Floats, Ints, SamplingSettings
from heed.decoding.stream import MAX_SENTENCES, SearchMemory, Source, SourceQueue, maximum_length
from heed.model.transformer import Transformer
from heed.text.tokenizer import SpecialIds

FIRST_WIDTH = 64  # ids of a target that there is room for at first


@dataclass(frozen=True)
class Hypothesis:
    """A target: its ids without bos and eos, log P(target | source), the score that ranks it, whether eos ended it."""

    ids: tuple[int, ...]
    log_prob: float
    score: float
    ended: bool


@torch.inference_mode()
def beam_search(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    special: SpecialIds,
    settings: DecodingSettings,
    *,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """The n_best hypotheses of each source (ids without eos), all searched at once: `search` without a stream."""
    numbered = [Source(number, ids) for number, ids in enumerate(sources)]
    stream = search([model], numbered, special, settings, n_best=n_best, n_sentences=max(1, len(sources)))
    results = dict(result for result in stream if result is not None)
    return [results[number] for number in range(len(sources))]


@torch.inference_mode()
def search(
    models: Sequence[Transformer],
    sources: Iterable[Source | None],
    special: SpecialIds,
    settings: DecodingSettings,
    *,
    n_best: int = 1,
    n_sentences: int = MAX_SENTENCES,
    sampling: SamplingSettings | None = None,
    constraint: Constraint | None = None,
    wait: Callable[[], object] = lambda: None,
) -> Iterator[tuple[int, list[Hypothesis]] | None]:
    """Yields for each source, when it is done, its number and its `n_best` best hypotheses, best first, or fewer.

    At most `n_sentences` are searched at a time; one that is done makes room for the next of the stream. None in the
    stream means that the next source has not arrived yet: the search continues with those that it has. When it has none
    left, it yields None and calls `wait`, which blocks until a source arrives.

    A hypothesis ends when eos is among the beam_size best continuations of its sentence; the search continues with
    beam_size unfinished ones. It stops for a sentence as soon as no unfinished hypothesis can still enter the n_best,
    which never changes the result; with `early_stopping` also when beam_size hypotheses have ended, as a beam of 1
    always does. A hypothesis that reaches the maximum length
    without eos counts only where none has ended.

    Several models decide together, by the mean of their probabilities. With `sampling`, each of the beam_size
    hypotheses is drawn independently. With a `constraint`, no hypothesis has an id that it forbids; log-probabilities
    stay the model's own but for those of given ids; prefixes, min_tokens and sampling cannot be combined with it.

    All state belongs to the call: several threads may search with the same models at once, each with a stream of its
    own. HeedError if the logits are not finite, or if a source needs more memory than is free.
    """
    memory = SearchMemory(models, settings, sampling)
    n_sentences = memory.max_sentences(n_sentences)
    states = [
        backend_for(model).search_state(model, n_sentences=n_sentences, beam_size=settings.beam_size)
        for model in models
    ]
    vocab_size, device = models[0].vocab_size, models[0].src_embedding.weight.device
    choice = make_choice(
        settings,
        special,
        backend_for(models[0]),
        vocab_size=vocab_size,
        device=device,
        sampling=sampling,
        constraint=constraint,
    )
    beams = BeamBatch(special, settings, choice, n_best=n_best)
    queue = SourceQueue(sources, settings, memory)
    while True:
        n_free = min(state.n_free for state in states)
        # Some at a time: a larger encoder batch costs less a sentence than many small ones.
        if len(beams) == 0 or n_free >= max(1, n_sentences // 4):
            arriving = queue.take(n_free, memory.max_tokens() - int(beams.limits.sum()), idle=len(beams) == 0)
            if arriving:
                _check_ids(arriving, special, models[0])
                src, src_mask = padded_sources([source.ids for source in arriving], special)
                for state in states:
                    state.admit(src, src_mask)
                beams.admit(arriving)
        if len(beams) == 0:
            if queue.exhausted:
                return
            yield None
            wait()
            continue
        active = beams.active() if all(state.takes_active_rows for state in states) else None
        logits = _next_logits(states, beams.tokens(), active, deferred=choice.takes_deferred_logits)
        rows, kept = beams.step(logits, active)
        yield from beams.pop_finished()
        for state in states:
            state.select(rows, kept)


def _check_ids(sources: Sequence[Source], special: SpecialIds, model: Transformer) -> None:
    """IndexError for an id that the model does not have, and for one that no target may have, in a prefix."""
    src_vocab_size = model.src_embedding.weight.shape[0]
    for source in sources:
        for ids, vocab_size in ((source.ids, src_vocab_size), (source.prefix, model.vocab_size)):
            for i in ids:
                if not 0 <= i < vocab_size:
                    raise IndexError(f"source {source.number}: id {i}, but the vocabulary has {vocab_size:,} ids.")
        if not {special.pad, special.bos, special.eos, special.unk}.isdisjoint(source.prefix):
            raise IndexError(f"source {source.number}: pad, bos, eos or unk in its prefix.")


def _next_logits(
    states: Sequence[SearchState], tokens: Int[Tensor, " row"], active: Int[Tensor, " active"] | None, *, deferred: bool
) -> Logits:
    """The logits of one model, or what is equal to logits of the mean of several models' probabilities."""
    if len(states) == 1:
        return states[0].logits(tokens, active, deferred=deferred)
    parts = [torch.log_softmax(cast(Tensor, state.logits(tokens, active)).float(), dim=-1) for state in states]
    return torch.logsumexp(torch.stack(parts), dim=0)  # the mean but for a constant


class BeamBatch:
    """The hypotheses of all sentences that are being searched: each step extends all of them by one id.

    Kept on the CPU in numpy, whose small operations take a fraction of a tensor's time.
    """

    _BY_SENTENCE = (
        "numbers",
        "lengths",
        "limits",
        "_limit_penalties",
        "_n_ended",
        "_last",
        "_history",
        "_prefixes",
        "log_probs",
    )

    def __init__(self, special: SpecialIds, settings: DecodingSettings, choice: Choice, *, n_best: int):
        self._special, self._settings, self._choice = special, settings, choice
        self._beam_size = settings.beam_size
        self.numbers = np.empty(0, np.int64)
        self.lengths = np.empty(0, np.int64)  # ids written so far
        self._longest = 0  # of them
        self.limits = np.empty(0, np.int64)  # the most ids that a target may have
        self._limit_penalties = np.empty(0)  # of a target of that length: the mildest
        self._n_ended = np.empty(0, np.int64)  # hypotheses
        self._last: Ints = np.empty((0, self._beam_size), np.int64)  # each row's last id
        self._history = np.empty((0, self._beam_size, 0), np.int32)
        self._prefixes = np.empty((0, 0), np.int64)  # -1 where nothing is required
        self.log_probs = np.empty((0, self._beam_size))
        self._places = np.arange(0)[:, None]
        self._ended = NBest(min(n_best, self._beam_size))
        self._finished: list[tuple[int, list[Hypothesis]]] = []

    def __len__(self) -> int:
        return len(self.numbers)

    def admit(self, sources: list[Source]) -> None:
        """Adds sentences behind the others."""
        n = len(sources)
        limits = np.array([maximum_length(source, self._settings) for source in sources])
        if len(self) == 0:
            self._longest = 0
        width = FIRST_WIDTH if len(self) == 0 else self._history.shape[2]
        prefix_width = max(self._prefixes.shape[1], max(len(source.prefix) for source in sources))
        prefixes = np.full((n, prefix_width), -1)
        for row, source in zip(prefixes, sources, strict=True):
            row[: len(source.prefix)] = source.prefix
        # Competing rows that begin alike would stay alike: only the first one counts at first.
        n_first = 1 if self._choice.rows_compete else self._beam_size
        log_probs = np.full((n, self._beam_size), -np.inf)
        log_probs[:, :n_first] = 0
        new: dict[str, Any] = {
            "numbers": np.array([source.number for source in sources]),
            "lengths": np.zeros(n, np.int64),
            "limits": limits,
            "_limit_penalties": self._penalties(limits),
            "_n_ended": np.zeros(n, np.int64),
            "_last": np.full((n, self._beam_size), self._special.bos),
            "_history": np.full((n, self._beam_size, width), self._special.bos, np.int32),
            "_prefixes": prefixes,
            "log_probs": log_probs,
        }
        self._resize(width)
        self._prefixes = _widened(self._prefixes, prefix_width, -1)
        for name in self._BY_SENTENCE:
            setattr(self, name, np.concatenate([getattr(self, name), new[name]]))
        self._places = np.arange(len(self))[:, None]
        self._ended.admit(n, width)
        self._choice.admit([source.number for source in sources])

    def tokens(self) -> Int[Tensor, " row"]:
        """Every row's last id."""
        return torch.from_numpy(self._last.ravel())

    def active(self) -> Int[Tensor, " active"] | None:
        """The rows that can still enter the n_best, or None for all."""
        if not self._choice.rows_compete:
            return None
        can_win = self.log_probs / self._limit_penalties[:, None] > self._ended.threshold[:, None]
        return torch.from_numpy(np.flatnonzero(can_win))

    def required_ids(self) -> Int[Tensor, "sentence beam"]:
        """The id that a prefix asks of each row, or -1."""
        width = self._prefixes.shape[1]
        if width == 0:
            return torch.full((len(self), self._beam_size), -1)
        at = self.lengths.clip(max=width - 1)
        ids = np.where(self.lengths < width, self._prefixes[self._places[:, 0], at], -1)
        return torch.from_numpy(np.repeat(ids[:, None], self._beam_size, axis=1))

    def step(
        self, logits: Logits, active: Int[Tensor, " active"] | None
    ) -> tuple[Int[Tensor, " new_row"], Int[Tensor, " kept"]]:
        """One more id for every row: (the old row of every new one, the old place of every sentence that continues)."""
        continuations = self._choice.choose(logits, active, self)
        best = continuations.log_probs[:, 0] if self._choice.rows_compete else continuations.log_probs.max(axis=1)
        if not (best > -np.inf).all():  # nor is NaN
            raise not_finite()
        self.lengths = self.lengths + 1
        self._longest += 1
        if self._longest > self._history.shape[2]:
            self._resize(2 * self._history.shape[2])
        is_eos = continuations.ids == self._special.eos
        ending = is_eos[:, : self._beam_size] & (continuations.log_probs[:, : self._beam_size] > -np.inf)
        if ending.any():
            best_log_probs, parents, _ = continuations.first(self._beam_size)
            self._collect(ending, best_log_probs, parents, ended=True)
            self._n_ended = self._n_ended + ending.sum(axis=1)
        self.log_probs, parents, self._last = self._unfinished(continuations, is_eos)
        self._history = self._history[self._places, parents]
        self._history[self._places[:, 0], :, self.lengths - 1] = self._last

        at_limit = self.limits <= self.lengths
        if self._choice.rows_compete:
            # Log-probabilities only fall, so this is the best score that any unfinished hypothesis can reach.
            done = at_limit | (self.log_probs[:, 0] / self._limit_penalties <= self._ended.threshold)
            if self._settings.early_stopping or self._beam_size == 1:
                done |= self._n_ended >= self._beam_size
        else:
            done = at_limit | (self.log_probs == -np.inf).all(axis=1)
        if at_limit.any():
            self._collect_cut(at_limit)
        return self._keep(parents, done)

    def _unfinished(self, continuations: Continuations, is_eos: Bools) -> Continuations:
        """The continuations without eos, beam_size of them for each sentence."""
        if not is_eos.any():
            return continuations.first(self._beam_size)
        log_probs = np.where(is_eos, -np.inf, continuations.log_probs)
        if not self._choice.rows_compete:
            return continuations._replace(log_probs=log_probs)
        at = self._places, is_eos.argsort(axis=1, kind="stable")[:, : self._beam_size]  # unfinished first, in order
        return Continuations(log_probs[at], continuations.parents[at], continuations.ids[at])

    def _collect_cut(self, at_limit: Bools) -> None:
        """Collects the unfinished hypotheses of sentences at their limit; of competing ones, only if none has ended."""
        cut = at_limit[:, None] & (self.log_probs > -np.inf)
        if self._choice.rows_compete:
            cut &= ~self._ended.any()[:, None]
        if cut.any():
            rows = np.broadcast_to(np.arange(self._beam_size), cut.shape)
            self._collect(cut, self.log_probs, rows, ended=False)

    def _collect(self, which: Bools, log_probs: Floats, rows: Ints, *, ended: bool) -> None:
        """Puts hypotheses, (sentence, beam), among the best of their sentences; their ids are the history of `rows`."""
        places = np.flatnonzero(which.any(axis=1))
        lengths = self.lengths[places]
        scores = np.where(which[places], log_probs[places] / self._penalties(lengths)[:, None], -np.inf)
        signed = np.repeat((lengths - 1 if ended else -lengths)[:, None], which.shape[1], axis=1)
        self._ended.add(places, scores, log_probs[places], signed, self._history[places[:, None], rows[places]])

    def _keep(self, parents: Ints, done: Bools) -> tuple[Tensor, Tensor]:
        """Finishes the sentences that are done; (the old row of every row that stays, the old places of sentences)."""
        rows = self._places * self._beam_size + parents
        self._choice.advance(rows, self._last, ~done)
        if not done.any():
            return torch.from_numpy(rows.ravel()), torch.from_numpy(self._places[:, 0])
        for place in np.flatnonzero(done).tolist():
            self._finished.append((int(self.numbers[place]), self._ended.hypotheses(place)))
        kept = np.flatnonzero(~done)
        for name in self._BY_SENTENCE:
            setattr(self, name, getattr(self, name)[kept])
        self._ended.keep(kept)
        if len(kept):  # a long sentence that is done leaves no memory behind that the shorter ones do not need
            self._longest = int(self.lengths.max())
            self._resize(min(self._history.shape[2], max(FIRST_WIDTH, 2 * self._longest)))
        self._places = np.arange(len(kept))[:, None]
        return torch.from_numpy(rows[kept].ravel()), torch.from_numpy(kept)

    def _resize(self, width: int) -> None:
        """Makes room for `width` ids of every target."""
        self._history = _widened(self._history, width, 0)
        self._ended.resize(width)

    def _penalties(self, lengths: Ints) -> Floats:
        return length_penalties(lengths, self._settings.length_penalty, self._settings.length_penalty_form)

    def pop_finished(self) -> list[tuple[int, list[Hypothesis]]]:
        """The number and the hypotheses of each source that was finished since the last call."""
        finished, self._finished = self._finished, []
        return finished


class NBest:
    """The best hypotheses that have ended so far, of every sentence that is being searched."""

    _BY_SENTENCE = ("_scores", "_log_probs", "_lengths", "_ids")

    def __init__(self, n_best: int):
        self._n_best = n_best
        self._scores = np.empty((0, n_best))  # -∞: none yet
        self._log_probs = np.empty((0, n_best))
        self._lengths = np.empty((0, n_best), np.int64)  # eos not counted; below zero: no eos ended it
        self._ids = np.empty((0, n_best, 0), np.int32)

    def admit(self, n: int, width: int) -> None:
        """Adds n sentences behind the others, with room for `width` ids."""
        self._scores = np.concatenate([self._scores, np.full((n, self._n_best), -np.inf)])
        self._log_probs = np.concatenate([self._log_probs, np.zeros((n, self._n_best))])
        self._lengths = np.concatenate([self._lengths, np.zeros((n, self._n_best), np.int64)])
        self._ids = np.concatenate([self._ids, np.zeros((n, self._n_best, width), np.int32)])

    @property
    def threshold(self) -> Floats:
        """(sentence): the score that a hypothesis must exceed to enter."""
        return self._scores[:, -1]

    def any(self) -> Bools:
        """(sentence): whether there is a hypothesis."""
        return self._scores[:, 0] > -np.inf

    def add(self, places: Ints, scores: Floats, log_probs: Floats, lengths: Ints, ids: Ints) -> None:
        """Adds hypotheses, (place, candidate), of the sentences at `places`; of equal scores the earlier stays first.

        scores: -∞ where there is no candidate. lengths: without eos, below zero where no eos ended it. ids: (place,
        candidate, tgt).
        """
        beside = np.arange(len(places))[:, None]
        scores = np.concatenate([self._scores[places], scores], axis=1)
        order = (-scores).argsort(axis=1, kind="stable")[:, : self._n_best]

        def best(old: Any, new: Any) -> Any:
            return np.concatenate([old[places], new], axis=1)[beside, order]

        self._scores[places] = scores[beside, order]
        self._log_probs[places] = best(self._log_probs, log_probs)
        self._lengths[places] = best(self._lengths, lengths)
        self._ids[places] = best(self._ids, ids)

    def hypotheses(self, place: int) -> list[Hypothesis]:
        """Those of the sentence at this place, best first."""
        columns = (array[place].tolist() for array in (self._scores, self._log_probs, self._lengths))
        return [
            Hypothesis(tuple(self._ids[place, rank, : abs(length)].tolist()), log_prob, score, length >= 0)
            for rank, (score, log_prob, length) in enumerate(zip(*columns, strict=True))
            if score > -np.inf
        ]

    def keep(self, places: Ints) -> None:
        """Forgets the sentences at all other places."""
        for name in self._BY_SENTENCE:
            setattr(self, name, getattr(self, name)[places])

    def resize(self, width: int) -> None:
        """Makes room for `width` ids of every target."""
        self._ids = _widened(self._ids, width, 0)


def _widened(x: Any, width: int, fill: int) -> Any:
    """`x` with a last axis of that width."""
    if width <= x.shape[-1]:
        return x[..., :width]
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])], constant_values=fill)
