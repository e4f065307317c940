"""Beam search over ids (section 6.1; greedy is a beam of 1), and sampling, over a stream of sources."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from heed.config import Settings
from heed.data.batching import SpecialIds, padded_sources
from heed.kernels import incremental
from heed.kernels.incremental import Int8Logits
from heed.model.inference import search_state
from heed.model.transformer import Transformer

# The targets that are searched at a time cannot come to more tokens: it bounds the memory of keys and values.
MAX_LIVE_TOKENS = 8192

LengthPenalty = Literal["paper", "average", "none"]


class DecodingSettings(Settings):
    """How to search; defaults are the paper's."""

    beam_size: int = Field(4, ge=1, description="hypotheses kept a sentence; 1 is greedy")
    length_penalty: float = Field(0.6, ge=0, description="α; 0 compares plain log-probabilities")
    length_penalty_form: LengthPenalty = Field(
        "paper", description="a score is log P / ((5 + length) / 6)^α (paper), / length^α (average), or log P (none)"
    )
    max_extra_tokens: int = Field(50, ge=0, description="an output is at most so much longer than its input")
    max_tokens: int | None = Field(None, ge=1, description="an output has at most so many tokens, eos included")
    min_tokens: int = Field(0, ge=0, description="an output does not end before")


class SamplingSettings(Settings):
    """How to draw instead of searching; what is drawn depends on the seed and the source's number alone."""

    temperature: float = Field(1.0, gt=0, description="divides the logits")
    top_k: int | None = Field(None, ge=1, description="draw among so many most probable ids")
    top_p: float = Field(1.0, gt=0, le=1, description="draw among the fewest ids that hold so much probability")
    seed: int = Field(1, ge=0, description="of the draws")


@dataclass(frozen=True)
class Source:
    """What to translate: its number in the stream, its ids without eos, ids that every target begins with."""

    number: int
    ids: Sequence[int]
    prefix: Sequence[int] = ()


@dataclass(frozen=True)
class Hypothesis:
    """A target: its ids without bos and eos, log P(target | source), the score that ranks it, whether eos ended it."""

    ids: tuple[int, ...]
    log_prob: float
    score: float
    ended: bool


def length_penalty(length: int, alpha: float, form: LengthPenalty = "paper") -> float:
    """The score of a target is its log-probability over this; `length` counts its ids, eos included.

    paper: ((5 + length) / 6) ** alpha, Wu et al. 2016, equation 14; section 6.1 uses alpha 0.6. average: length **
    alpha, with alpha 1 the mean log-probability. none: 1.
    """
    return float(_penalties(torch.tensor([length]), alpha, form))


def _penalties(lengths: Int[Tensor, "*n"], alpha: float, form: LengthPenalty) -> Float[Tensor, "*n"]:
    if form == "none":
        return torch.ones(lengths.shape, dtype=torch.float64)
    base = (5 + lengths.double()) / 6 if form == "paper" else lengths.double()
    return base**alpha


@torch.inference_mode()
def beam_search(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    special: SpecialIds,
    settings: DecodingSettings,
    *,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """`search` over some sources (ids without eos) at once: the results in their order."""
    numbered = [Source(number, ids) for number, ids in enumerate(sources)]
    stream = search([model], numbered, special, settings, n_best=n_best, n_sentences=max(1, len(sources)))
    found = dict(result for result in stream if result is not None)
    return [found[number] for number in range(len(sources))]


@torch.inference_mode()
def search(
    models: Sequence[Transformer],
    sources: Iterable[Source | None],
    special: SpecialIds,
    settings: DecodingSettings,
    *,
    n_best: int = 1,
    n_sentences: int = 64,
    sampling: SamplingSettings | None = None,
) -> Iterator[tuple[int, list[Hypothesis]] | None]:
    """For each source, when it is done: its number and its `n_best` best hypotheses, best first, or fewer.

    At most `n_sentences` are searched at a time; one that is done makes room for the next of the stream. A None in the
    stream says that no other source is at hand yet: the search goes on with those that it has, and gives back a None
    of its own, a millisecond apart, while it has none. A hypothesis
    ends when eos is among the beam_size best continuations of its sentence; the search goes on with as many unfinished
    ones. It stops for a sentence as soon as no unfinished hypothesis can still enter the n_best, which never changes
    the result, and a beam of 1 stops at its first eos. A hypothesis that reaches the maximum length without eos counts
    only where none has ended. Several models decide together, by the mean of their probabilities. With `sampling` each
    of the beam_size hypotheses is drawn by itself.
    """
    beam = settings.beam_size
    states = [search_state(model, n_sentences=n_sentences, beam=beam) for model in models]
    device = models[0].src_embedding.weight.device
    live = _Live(special, settings, models[0].vocab_size, n_best, sampling, device)
    waiting = _Waiting(sources, settings)
    while True:
        n_free = min(state.n_free for state in states)
        # Some at a time: a larger encoder batch costs less a sentence than many small ones. Not all at once: the stream
        # may be shared.
        if len(live) == 0 or n_free >= max(1, n_sentences // 8):
            arriving = waiting.take(
                min(n_free, max(1, n_sentences // 4)), MAX_LIVE_TOKENS - int(live.limits.sum()), idle=len(live) == 0
            )
            if arriving:
                src, src_mask = padded_sources([source.ids for source in arriving], special)
                for state in states:
                    state.admit(src, src_mask)
                live.admit(arriving)
        if len(live) == 0:
            if waiting.exhausted:
                return
            yield None
            time.sleep(0.001)
            continue
        tokens = live.tokens()
        active = live.active() if all(state.leaves_out for state in states) else None
        if len(states) == 1:
            logits = states[0].logits(tokens, active, lazy=sampling is None)
        else:
            parts = [torch.log_softmax(cast(Tensor, state.logits(tokens, active)).float(), dim=-1) for state in states]
            logits = torch.logsumexp(torch.stack(parts), dim=0)  # the mean but for a constant
        rows, kept = live.step(logits, active)
        yield from live.take_done()
        for state in states:
            state.select(rows, kept)


class _Waiting:
    """The stream of sources, one of them looked at ahead."""

    def __init__(self, sources: Iterable[Source | None], settings: DecodingSettings):
        self._stream, self._settings = iter(sources), settings
        self._next: Source | None = None
        self.exhausted = False

    def take(self, n: int, n_tokens: int, *, idle: bool) -> list[Source]:
        """At most n of those at hand, whose targets cannot exceed n_tokens together; if `idle`, the first may."""
        taken: list[Source] = []
        while len(taken) < n:
            if self._next is None:
                try:
                    self._next = next(self._stream)
                except StopIteration:
                    self.exhausted = True
                if self._next is None:
                    break
            limit = _limit(self._next, self._settings)
            if limit > n_tokens and (taken or not idle):
                break
            taken.append(self._next)
            self._next = None
            n_tokens -= limit
        return taken


def _limit(source: Source, settings: DecodingSettings) -> int:
    """The most ids that a target may have, eos included."""
    longest = max(1, len(source.ids) + settings.max_extra_tokens)
    if settings.max_tokens is not None:
        longest = min(longest, settings.max_tokens)
    return max(longest, len(source.prefix) + 1)


class _Live:
    """The sentences that are being searched: one step for all of them, none by itself.

    Axes: sentence, beam, rank (of the n_best), tgt (positions behind bos).
    """

    BY_SENTENCE = (
        *("numbers", "lengths", "limits", "limit_penalties", "history", "prefixes", "log_probs"),
        *("best_scores", "best_log_probs", "best_lengths", "best_ids"),
    )

    def __init__(
        self,
        special: SpecialIds,
        settings: DecodingSettings,
        vocab_size: int,
        n_best: int,
        sampling: SamplingSettings | None,
        device: torch.device,
    ):
        self.special, self.settings, self.vocab_size, self.sampling = special, settings, vocab_size, sampling
        self.beam, self.n_best, self.device = settings.beam_size, min(n_best, settings.beam_size), device
        self.never = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.never[[special.pad, special.bos]] = True
        whole: dict[str, Any] = {"dtype": torch.int64, "device": device}
        self.numbers = torch.empty(0, **whole)
        self.lengths = torch.empty(0, **whole)  # ids written so far
        self.limits = torch.empty(0, **whole)  # the most that may be
        self.limit_penalties = torch.empty(0, dtype=torch.float64, device=device)  # of a target so long: the mildest
        self.history = torch.empty(0, self.beam, 0, **whole)
        self.prefixes = torch.empty(0, 0, **whole)  # -1 where nothing is required
        self.log_probs = torch.empty(0, self.beam, dtype=torch.float64, device=device)
        self.best_scores = torch.empty(0, self.n_best, dtype=torch.float64, device=device)  # -∞: none yet
        self.best_log_probs = torch.empty(0, self.n_best, dtype=torch.float64, device=device)
        self.best_lengths = torch.empty(0, self.n_best, **whole)  # eos not counted
        self.best_ids = torch.empty(0, self.n_best, 0, **whole)
        self.done: list[tuple[int, list[Hypothesis]]] = []

    def __len__(self) -> int:
        return len(self.numbers)

    def admit(self, sources: list[Source]) -> None:
        """New sentences, behind the others; only the first row of each counts at first."""
        n, special = len(sources), self.special
        limits = [_limit(source, self.settings) for source in sources]
        width = max(limits) if len(self) == 0 else max(self.history.shape[2], *limits)
        self.history, self.best_ids = _widened(self.history, width), _widened(self.best_ids, width)
        prefix_width = max(self.prefixes.shape[1], max(len(source.prefix) for source in sources))
        prefixes = [[*source.prefix] + [-1] * (prefix_width - len(source.prefix)) for source in sources]
        log_probs = torch.full((n, self.beam), -torch.inf)
        log_probs[:, 0 if self.sampling is None else slice(None)] = 0

        def behind(old: Tensor, new: Tensor) -> Tensor:
            return torch.cat([old, new.to(old)])

        self.numbers = behind(self.numbers, torch.tensor([source.number for source in sources]))
        self.lengths = behind(self.lengths, torch.zeros(n))
        self.limits = behind(self.limits, torch.tensor(limits))
        self.limit_penalties = behind(self.limit_penalties, self._penalties(torch.tensor(limits)))
        self.history = behind(self.history, torch.full((n, self.beam, width), special.bos))
        self.prefixes = behind(
            torch.nn.functional.pad(self.prefixes, (0, prefix_width - self.prefixes.shape[1]), value=-1),
            torch.tensor(prefixes, dtype=torch.int64).view(n, prefix_width),
        )
        self.log_probs = behind(self.log_probs, log_probs)
        self.best_scores = behind(self.best_scores, torch.full((n, self.n_best), -torch.inf))
        self.best_log_probs = behind(self.best_log_probs, torch.zeros(n, self.n_best))
        self.best_lengths = behind(self.best_lengths, torch.zeros(n, self.n_best))
        self.best_ids = behind(self.best_ids, torch.zeros(n, self.n_best, width))

    def tokens(self) -> Int[Tensor, " row"]:
        """Every row's last id."""
        last = (self.lengths - 1).clamp(min=0)[:, None, None].expand(-1, self.beam, 1)
        return self.history.gather(2, last).flatten()

    def _penalties(self, lengths: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return _penalties(lengths, self.settings.length_penalty, self.settings.length_penalty_form)

    def bounds(self, log_probs: Float[Tensor, "sentence *beam"]) -> Float[Tensor, "sentence *beam"]:
        """The best scores that unfinished hypotheses can reach: log-probabilities only fall."""
        return log_probs / self.limit_penalties.view(-1, *[1] * (log_probs.dim() - 1))

    def active(self) -> Int[Tensor, " active"]:
        """The rows that can still come to anything; what a row displaces by its continuations is behind it."""
        if self.sampling is not None:
            return torch.arange(self.log_probs.numel(), device=self.device)
        return (self.bounds(self.log_probs) > self.best_scores[:, -1:]).flatten().nonzero()[:, 0]

    def step(
        self, logits: Float[Tensor, "active vocab"] | Int8Logits, active: Int[Tensor, " active"] | None
    ) -> tuple[Int[Tensor, " new_row"], Int[Tensor, " kept"]]:
        """One more id for every row: (the old row of every new one, the old place of every sentence that goes on)."""
        beam, eos = self.beam, self.special.eos
        values, parents, ids = self._sampled(cast(Tensor, logits)) if self.sampling else self._best(logits, active)
        is_eos = ids == eos
        ending = is_eos[:, :beam] & values[:, :beam].isfinite()
        self.lengths = self.lengths + 1
        if bool(ending.any()):
            self._collect(ending, values[:, :beam], parents[:, :beam], ended=True)

        values = values.masked_fill(is_eos, -torch.inf)
        if not self.sampling:  # the unfinished ones, in their order
            values, order = values.sort(dim=1, descending=True, stable=True)
            order = order[:, :beam]
            values, parents, ids = values[:, :beam], parents.gather(1, order), ids.gather(1, order)
        self.log_probs = values
        self.history = self.history.gather(1, parents[:, :, None].expand_as(self.history))
        self.history.scatter_(2, (self.lengths - 1)[:, None, None].expand(-1, beam, 1), ids[:, :, None])

        at_limit = self.limits <= self.lengths
        worst = self.best_scores[:, -1]
        if self.sampling:
            done = at_limit | (values == -torch.inf).all(dim=1)
        else:
            done = at_limit | (self.bounds(values[:, 0]) <= worst)
            if beam == 1:
                done |= ending[:, 0]
        cut = at_limit[:, None] & values.isfinite()
        if not self.sampling:
            cut &= self.best_scores[:, :1] == -torch.inf
        if bool(cut.any()):
            rows = torch.arange(beam, device=self.device).expand_as(values)
            self._collect(cut, values, rows, ended=False)
        return self._keep(parents, done)

    def _best(self, logits: Tensor | Int8Logits, active: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """(log-probability, row in the sentence, id) of the best continuations of each sentence, best first.

        Twice the beam: even if half of them end, `beam` unfinished ones remain.
        """
        k = min(2 * self.beam, self.beam * self.vocab_size)
        may_end, required = self.lengths >= self.settings.min_tokens, self._required()
        if active is not None:
            values, index = incremental.best_continuations(
                logits, active, self.log_probs.contiguous(), required, self.never, may_end, eos=self.special.eos, k=k
            )
        else:
            assert isinstance(logits, Tensor)
            total = self.log_probs.reshape(-1, 1) + self._allowed(torch.log_softmax(logits.float(), dim=-1))
            values, index = total.view(len(self), -1).topk(k, dim=1)
        return values, index // self.vocab_size, index % self.vocab_size

    def _sampled(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `_best`, each row's own continuation, drawn by inverting its distribution at a number of its own."""
        assert self.sampling is not None
        log_probs = self._allowed(torch.log_softmax(logits.float(), dim=-1))
        sharpened = torch.log_softmax(log_probs / self.sampling.temperature, dim=-1)
        probs, ids = sharpened.double().exp().sort(dim=-1, descending=True, stable=True)
        before = probs.cumsum(dim=-1) - probs
        out = before >= self.sampling.top_p
        if self.sampling.top_k is not None:
            out[:, self.sampling.top_k :] = True
        cumulated = probs.masked_fill(out, 0).cumsum(dim=-1)
        drawn = torch.searchsorted(cumulated, self._draws() * cumulated[:, -1:], right=True)
        chosen = ids.gather(1, drawn.clamp(max=ids.shape[1] - 1))
        values = self.log_probs + log_probs.gather(1, chosen).view_as(self.log_probs)
        rows = torch.arange(self.beam, device=self.device).expand_as(values)
        return values, rows, chosen.view_as(values)

    def _draws(self) -> Float[Tensor, "row 1"]:
        """A number in [0, 1) for each row, from the seed, the source's number, the row and the position."""
        assert self.sampling is not None
        numbers, lengths = self.numbers.cpu().numpy(), self.lengths.cpu().numpy()
        drawn = [
            np.random.default_rng((self.sampling.seed, int(number), int(length))).random(self.beam)
            for number, length in zip(numbers, lengths, strict=True)
        ]
        return torch.from_numpy(np.concatenate(drawn)).to(self.device)[:, None]

    def _required(self) -> Int[Tensor, "sentence beam"]:
        """The id that each row must take, or -1."""
        if self.prefixes.shape[1] == 0:
            return torch.full((len(self), self.beam), -1, device=self.device)
        padded = torch.nn.functional.pad(self.prefixes, (0, 1), value=-1)
        at = self.lengths.clamp(max=self.prefixes.shape[1])[:, None]
        return padded.gather(1, at).expand(-1, self.beam).contiguous()

    def _allowed(self, log_probs: Float[Tensor, "row vocab"]) -> Float[Tensor, "row vocab"]:
        """-∞ for what may not be chosen."""
        log_probs = log_probs.masked_fill(self.never, -torch.inf)
        too_early = (self.lengths < self.settings.min_tokens).repeat_interleave(self.beam)
        log_probs[too_early, self.special.eos] = -torch.inf
        required = self._required().flatten()[:, None]
        others = torch.arange(self.vocab_size, device=self.device) != required
        return log_probs.masked_fill((required >= 0) & others, -torch.inf)

    def _collect(self, which: Bool[Tensor, "sentence beam"], values: Tensor, rows: Tensor, *, ended: bool) -> None:
        """Puts these rows' hypotheses among the best of their sentences; the earlier of two equals stays first."""
        places = which.any(dim=1).nonzero()[:, 0]
        which, values, rows, lengths = which[places], values[places], rows[places], self.lengths[places]
        scores = (values / self._penalties(lengths)[:, None]).masked_fill(~which, -torch.inf)
        history = self.history[places]
        ids = history.gather(1, rows[:, :, None].expand_as(history))
        n_ids = (lengths - int(ended))[:, None].expand_as(values)
        scores, order = torch.cat([self.best_scores[places], scores], 1).sort(dim=1, descending=True, stable=True)
        order = order[:, : self.n_best]
        self.best_scores[places] = scores[:, : self.n_best]
        self.best_log_probs[places] = torch.cat([self.best_log_probs[places], values], 1).gather(1, order)
        # A length below zero marks a target that no eos ended.
        signed = n_ids if ended else -n_ids
        self.best_lengths[places] = torch.cat([self.best_lengths[places], signed], 1).gather(1, order)
        whole = torch.cat([self.best_ids[places], ids], 1)
        self.best_ids[places] = whole.gather(1, order[:, :, None].expand(-1, -1, whole.shape[2]))

    def _keep(self, parents: Tensor, done: Bool[Tensor, " sentence"]) -> tuple[Tensor, Tensor]:
        rows = torch.arange(len(self), device=self.device)[:, None] * self.beam + parents
        if not bool(done.any()):
            return rows.flatten(), torch.arange(len(self), device=self.device)
        for place in done.nonzero()[:, 0].tolist():
            self.done.append((int(self.numbers[place]), self._hypotheses(place)))
        kept = (~done).nonzero()[:, 0]
        for name in self.BY_SENTENCE:
            setattr(self, name, getattr(self, name)[kept])
        if len(kept):  # a long sentence that has gone is no burden to the short ones that go on
            width = int(self.limits.max())
            self.history, self.best_ids = self.history[:, :, :width], self.best_ids[:, :, :width]
        return rows[kept].flatten(), kept

    def _hypotheses(self, place: int) -> list[Hypothesis]:
        """What was found for the sentence at this place, best first."""
        found = []
        columns = (self.best_scores, self.best_log_probs, self.best_lengths, self.best_ids)
        for score, log_prob, length, ids in zip(*(column[place].tolist() for column in columns), strict=True):
            if score > -torch.inf:
                found.append(Hypothesis(tuple(ids[: abs(length)]), log_prob, score, length >= 0))
        return found

    def take_done(self) -> list[tuple[int, list[Hypothesis]]]:
        """What has been found since the last call."""
        done, self.done = self.done, []
        return done


def _widened(x: Int[Tensor, "sentence rank tgt"], width: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, width - x.shape[2]))
