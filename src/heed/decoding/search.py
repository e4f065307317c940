"""Beam search over ids (section 6.1; greedy is a beam of 1), and sampling, over a stream of sources."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from heed.backends.cpu import decoding_ops
from heed.backends.cpu.decoding_ops import Int8Logits
from heed.config import Settings
from heed.data.batching import padded_sources
from heed.errors import HeedError
from heed.model.inference import FIRST_CAPACITY, bytes_a_position, not_finite, search_state
from heed.model.transformer import Transformer
from heed.runtime.memory import free_memory
from heed.text.tokenizer import SpecialIds

# The most tokens of all targets that are searched at a time, and the most bytes that they need; base reaches these
# first with beams above 21. A single sentence may exceed both if that much memory is free.
MAX_LIVE_TOKENS, MAX_BYTES = 8192, 5 * 2**30

LengthPenalty = Literal["paper", "average", "none"]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.integer[Any]]
Bools: TypeAlias = NDArray[np.bool_]


class DecodingSettings(Settings):
    """How to search; defaults are the paper's."""

    beam_size: int = Field(4, ge=1, le=1000, description="hypotheses kept a sentence; 1 is greedy")
    length_penalty: float = Field(0.6, ge=0, le=10, description="α; 0 compares plain log-probabilities")
    length_penalty_form: LengthPenalty = Field(
        "paper", description="a score is log P / ((5 + length) / 6)^α (paper), / length^α (average), or log P (none)"
    )
    max_extra_tokens: int = Field(50, ge=0, le=10_000, description="an output is at most so much longer than its input")
    max_tokens: int | None = Field(
        None, ge=1, le=10_000, description="an output has at most so many tokens, eos included"
    )
    min_tokens: int = Field(0, ge=0, le=10_000, description="an output does not end before")


class SamplingSettings(Settings):
    """How to draw instead of searching; what is drawn depends on the seed and the source's number alone."""

    temperature: float = Field(1.0, ge=0.01, le=100, description="divides the logits")
    top_k: int | None = Field(None, ge=1, le=2**24, description="draw from the k most probable ids")
    top_p: float = Field(1.0, gt=0, le=1, description="draw from the fewest ids whose probabilities add up to p")
    seed: int = Field(1, ge=0, le=2**63 - 1, description="of the draws")


@dataclass(frozen=True)
class Source:
    """What to translate: its number in the stream, its ids without eos, ids that every target begins with.

    at_least: ids, eos included, that a target may have in any case, whatever the settings say. length: what
    max_extra_tokens come on top of, if not the number of its ids.
    """

    number: int
    ids: Sequence[int]
    prefix: Sequence[int] = ()
    at_least: int = 1
    length: int | None = None


@dataclass(frozen=True)
class Hypothesis:
    """A target: its ids without bos and eos, log P(target | source), the score that ranks it, whether eos ended it."""

    ids: tuple[int, ...]
    log_prob: float
    score: float
    ended: bool


@runtime_checkable
class Constraint(Protocol):
    """Decides which ids may follow, row by row: beam_size rows a sentence, in the order of their admission."""

    # Ids of which at most one may follow anywhere: each takes the probability of all, as which of them is no question.
    given: NDArray[np.int64]

    def admit(self, numbers: Sequence[int]) -> None:
        """The sources of these numbers are searched from now on."""

    def choices(self, rows: NDArray[np.int64], steps_left: NDArray[np.int64]) -> NDArray[np.int64]:
        """(row, choice): the ids that may follow these rows, -1 behind the last. So many more may, eos included."""

    def advance(self, rows: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """From now on row i is what was rows[i], with ids[i] behind; the rows that are not named are gone."""


def length_penalty(length: int, alpha: float, form: LengthPenalty = "paper") -> float:
    """The score of a target is its log-probability over this; `length` counts its ids, eos included.

    paper: ((5 + length) / 6) ** alpha, Wu et al. 2016, equation 14; section 6.1 uses alpha 0.6. average: length **
    alpha, with alpha 1 the mean log-probability. none: 1.
    """
    return float(_penalties(np.array([length]), alpha, form)[0])


def _penalties(lengths: Ints, alpha: float, form: LengthPenalty) -> Floats:
    if form == "none":
        return np.ones(lengths.shape)
    base = (5 + lengths) / 6 if form == "paper" else lengths.astype(np.float64)
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
    constraint: Constraint | None = None,
    wait: Callable[[], object] = lambda: None,
) -> Iterator[tuple[int, list[Hypothesis]] | None]:
    """For each source, when it is done: its number and its `n_best` best hypotheses, best first, or fewer.

    At most `n_sentences` are searched at a time; one that is done makes room for the next of the stream. A None in the
    stream says that no other source is at hand yet: the search goes on with those that it has; while it has none it
    gives back a None of its own and calls `wait`, which blocks until the stream has another. A hypothesis ends when
    eos is among the beam_size best continuations of its sentence; the search goes on with as many unfinished ones. It
    stops for a sentence as soon as no unfinished hypothesis can still enter the n_best, which never changes the result,
    and a beam of 1 stops at its first eos. A hypothesis that reaches the maximum length without eos counts only where
    none has ended. Several models decide together, by the mean of their probabilities. With `sampling` each of the
    beam_size hypotheses is drawn by itself. With a `constraint` no hypothesis has an id that it forbids;
    log-probabilities stay the model's own but for those of given ids. Prefixes, min_tokens and sampling do not go with
    it.
    """
    beam = settings.beam_size
    memory = _Memory(models, settings, sampling)
    n_sentences = memory.n_sentences(n_sentences)
    states = [search_state(model, n_sentences=n_sentences, beam=beam) for model in models]
    device = models[0].src_embedding.weight.device
    live = _Live(special, settings, models[0].vocab_size, n_best, sampling, constraint, device)
    lazy = sampling is None and constraint is None
    waiting = _Waiting(sources, settings, memory)
    while True:
        n_free = min(state.n_free for state in states)
        # Some at a time: a larger encoder batch costs less a sentence than many small ones.
        if len(live) == 0 or n_free >= max(1, n_sentences // 4):
            arriving = waiting.take(n_free, memory.n_tokens() - int(live.limits.sum()), idle=len(live) == 0)
            if arriving:
                _check_ids(arriving, special, live.vocab_size)
                src, src_mask = padded_sources([source.ids for source in arriving], special)
                for state in states:
                    state.admit(src, src_mask)
                live.admit(arriving)
        if len(live) == 0:
            if waiting.exhausted:
                return
            yield None
            wait()
            continue
        tokens = live.tokens()
        active = live.active() if all(state.leaves_out for state in states) else None
        if len(states) == 1:
            logits = states[0].logits(tokens, active, lazy=lazy)
        else:
            parts = [torch.log_softmax(cast(Tensor, state.logits(tokens, active)).float(), dim=-1) for state in states]
            logits = torch.logsumexp(torch.stack(parts), dim=0)  # the mean but for a constant
        rows, kept = live.step(logits, active)
        yield from live.take_done()
        for state in states:
            state.select(rows, kept)


def _check_ids(sources: Sequence[Source], special: SpecialIds, vocab_size: int) -> None:
    """IndexError for an id that the model does not have, and for one that no target may have, in a prefix."""
    for source in sources:
        for i in (*source.ids, *source.prefix):
            if not 0 <= i < vocab_size:
                raise IndexError(f"source {source.number}: id {i}, but the vocabulary has {vocab_size:,} ids.")
        if not {special.pad, special.bos, special.eos}.isdisjoint(source.prefix):
            raise IndexError(f"source {source.number}: pad, bos or eos in its prefix.")


class _Memory:
    """What a search takes and may take, in bytes."""

    def __init__(self, models: Sequence[Transformer], settings: DecodingSettings, sampling: SamplingSettings | None):
        self._beam = settings.beam_size
        self._a_position = sum(map(bytes_a_position, models))  # of a row
        # A step without the kernels holds a row's logits in up to 5 forms of 4 or 8 bytes, and in 13 to draw.
        self._a_step = models[0].vocab_size * (80 if sampling else 24)
        self._free = _free_bytes(models[0].src_embedding.weight.device)
        self._usual = min(MAX_BYTES, self._free / 2)

    def n_sentences(self, most: int) -> int:
        """How many may be searched at a time."""
        a_sentence = self._beam * (FIRST_CAPACITY * self._a_position + self._a_step)
        return max(1, min(most, int(self._usual / a_sentence)))

    def n_tokens(self) -> int:
        """How many tokens the targets that are searched at a time may have."""
        return min(MAX_LIVE_TOKENS, int(self._usual / (self._beam * self._a_position)))

    def check(self, limit: int, *, required: int) -> None:
        """HeedError if memory may not hold a sentence whose target has `limit` tokens, `required` in any case."""
        a_row = limit * self._a_position + self._a_step
        if self._beam * a_row <= self._free:
            return
        needed, free = self._beam * a_row / 1e9, self._free / 1e9
        beam = int(self._free / a_row)
        max_tokens = int((self._free / self._beam - self._a_step) / self._a_position)
        fits = [f"a beam of {beam:,}"] * (beam >= 1) + [f"max_tokens={max_tokens}"] * (max_tokens >= required)
        raise HeedError(
            f"a beam of {self._beam:,} with outputs of up to {limit:,} tokens may need {needed:,.1f} GB, "
            f"{free:,.1f} GB are free; {' or '.join(fits) or 'a smaller model'} fits."
        )


def _free_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + cached)
    return free_memory()


class _Waiting:
    """The stream of sources, one of them looked at ahead."""

    def __init__(self, sources: Iterable[Source | None], settings: DecodingSettings, memory: _Memory):
        self._stream, self._settings, self._memory = iter(sources), settings, memory
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
            self._memory.check(limit, required=_required(self._next))
            if limit > n_tokens and (taken or not idle):
                break
            taken.append(self._next)
            self._next = None
            n_tokens -= limit
        return taken


def _limit(source: Source, settings: DecodingSettings) -> int:
    """The most ids that a target may have, eos included."""
    length = len(source.ids) if source.length is None else source.length
    longest = max(1, length + settings.max_extra_tokens)
    if settings.max_tokens is not None:
        longest = min(longest, settings.max_tokens)
    return max(longest, _required(source))


def _required(source: Source) -> int:
    """The ids that a target may have whatever the settings say, eos included."""
    return max(len(source.prefix) + 1, source.at_least)


class _Live:
    """The sentences that are being searched: one step for all of them, none by itself.

    Kept on the CPU in numpy, whose small operations take a fraction of a tensor's time. Axes: sentence, beam, rank (of
    the n_best), tgt (positions behind bos).
    """

    BY_SENTENCE = (
        *("numbers", "lengths", "limits", "limit_penalties", "last", "history", "prefixes", "log_probs"),
        *("best_scores", "best_log_probs", "best_lengths", "best_ids"),
    )

    def __init__(
        self,
        special: SpecialIds,
        settings: DecodingSettings,
        vocab_size: int,
        n_best: int,
        sampling: SamplingSettings | None,
        constraint: Constraint | None,
        device: torch.device,
    ):
        self.special, self.settings, self.vocab_size, self.sampling = special, settings, vocab_size, sampling
        self.constraint = constraint
        self.beam, self.n_best, self.device = settings.beam_size, min(n_best, settings.beam_size), device
        self.never = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.never[[special.pad, special.bos]] = True
        self.numbers = np.empty(0, np.int64)
        self.lengths = np.empty(0, np.int64)  # ids written so far
        self.longest = 0  # of them
        self.limits = np.empty(0, np.int64)  # the most that may be
        self.limit_penalties = np.empty(0)  # of a target so long: the mildest
        self.last: Ints = np.empty((0, self.beam), np.int64)  # each row's last id
        self.history = np.empty((0, self.beam, 0), np.int32)
        self.prefixes = np.empty((0, 0), np.int64)  # -1 where nothing is required
        self.log_probs = np.empty((0, self.beam))
        self.best_scores = np.empty((0, self.n_best))  # -∞: none yet
        self.best_log_probs = np.empty((0, self.n_best))
        self.best_lengths = np.empty((0, self.n_best), np.int64)  # eos not counted; below zero: no eos ended it
        self.best_ids = np.empty((0, self.n_best, 0), np.int32)
        self.places = np.arange(0)[:, None]
        self.done: list[tuple[int, list[Hypothesis]]] = []

    def __len__(self) -> int:
        return len(self.numbers)

    def admit(self, sources: list[Source]) -> None:
        """New sentences, behind the others; only the first row of each counts at first."""
        n, special = len(sources), self.special
        limits = np.array([_limit(source, self.settings) for source in sources])
        if len(self) == 0:
            self.longest = 0
        width = FIRST_CAPACITY if len(self) == 0 else self.history.shape[2]
        prefix_width = max(self.prefixes.shape[1], max(len(source.prefix) for source in sources))
        prefixes = np.full((n, prefix_width), -1)
        for row, source in zip(prefixes, sources, strict=True):
            row[: len(source.prefix)] = source.prefix
        log_probs = np.full((n, self.beam), -np.inf)
        log_probs[:, 0 if self.sampling is None else slice(None)] = 0
        new: dict[str, Any] = {
            "numbers": np.array([source.number for source in sources]),
            "lengths": np.zeros(n, np.int64),
            "limits": limits,
            "limit_penalties": self._penalties(limits),
            "last": np.full((n, self.beam), special.bos),
            "history": np.full((n, self.beam, width), special.bos, np.int32),
            "prefixes": prefixes,
            "log_probs": log_probs,
            "best_scores": np.full((n, self.n_best), -np.inf),
            "best_log_probs": np.zeros((n, self.n_best)),
            "best_lengths": np.zeros((n, self.n_best), np.int64),
            "best_ids": np.zeros((n, self.n_best, width), np.int32),
        }
        self._resize(width)
        self.prefixes = _widened(self.prefixes, prefix_width, -1)
        for name in self.BY_SENTENCE:
            setattr(self, name, np.concatenate([getattr(self, name), new[name]]))
        self.places = np.arange(len(self))[:, None]
        if self.constraint is not None:
            self.constraint.admit([source.number for source in sources])

    def tokens(self) -> Int[Tensor, " row"]:
        """Every row's last id."""
        return torch.from_numpy(self.last.ravel())

    def active(self) -> Int[Tensor, " active"]:
        """The rows that can still come to anything; what a row displaces by its continuations is behind it."""
        if self.sampling is not None:
            return torch.arange(self.log_probs.size)
        can_win = self.log_probs / self.limit_penalties[:, None] > self.best_scores[:, -1:]
        return torch.from_numpy(np.flatnonzero(can_win))

    def step(
        self, logits: Float[Tensor, "active vocab"] | Int8Logits, active: Int[Tensor, " active"] | None
    ) -> tuple[Int[Tensor, " new_row"], Int[Tensor, " kept"]]:
        """One more id for every row: (the old row of every new one, the old place of every sentence that goes on)."""
        beam, eos = self.beam, self.special.eos
        values, parents, ids = self._sampled(cast(Tensor, logits)) if self.sampling else self._best(logits, active)
        best = values.max(axis=1) if self.sampling else values[:, 0]
        if not (best > -np.inf).all():  # nor is NaN
            raise not_finite()
        self.lengths = self.lengths + 1
        self.longest += 1
        if self.longest > self.history.shape[2]:
            self._resize(2 * self.history.shape[2])
        is_eos = ids == eos
        ending = is_eos[:, :beam] & (values[:, :beam] > -np.inf)
        if ending.any():
            self._collect(ending, values[:, :beam], parents[:, :beam], ended=True)
        if is_eos.any():
            values = np.where(is_eos, -np.inf, values)
            if not self.sampling:  # the unfinished ones first, in their order
                order = is_eos.argsort(axis=1, kind="stable")[:, :beam]
                values, parents, ids = (array[self.places, order] for array in (values, parents, ids))
        values, parents, ids = values[:, :beam], parents[:, :beam], ids[:, :beam]
        self.log_probs, self.last = values, ids
        self.history = self.history[self.places, parents]
        self.history[self.places[:, 0], :, self.lengths - 1] = ids

        at_limit = self.limits <= self.lengths
        if self.sampling:
            done = at_limit | (values == -np.inf).all(axis=1)
        else:
            # Log-probabilities only fall, so this is the best score that any unfinished hypothesis can reach.
            done = at_limit | (values[:, 0] / self.limit_penalties <= self.best_scores[:, -1])
            if beam == 1:
                done |= ending[:, 0]
        if at_limit.any():
            cut = at_limit[:, None] & (values > -np.inf)
            if not self.sampling:
                cut &= self.best_scores[:, :1] == -np.inf
            if cut.any():
                self._collect(cut, values, np.broadcast_to(np.arange(beam), values.shape), ended=False)
        return self._keep(parents, done)

    def _best(self, logits: Tensor | Int8Logits, active: Tensor | None) -> tuple[Floats, Ints, Ints]:
        """(log-probability, row in the sentence, id) of the best continuations of each sentence, best first.

        Twice the beam: even if half of them end, `beam` unfinished ones remain.
        """
        if self.constraint is not None:
            return self._best_allowed(cast(Tensor, logits), active, self.constraint)
        k = min(2 * self.beam, self.beam * self.vocab_size)
        log_probs = torch.from_numpy(np.ascontiguousarray(self.log_probs)).to(self.device)
        if active is not None:
            may_end = torch.from_numpy(self.lengths >= self.settings.min_tokens)
            values, index = decoding_ops.best_continuations(
                logits, active, log_probs, self._required(), self.never, may_end, eos=self.special.eos, k=k
            )
        else:
            assert isinstance(logits, Tensor)
            total = log_probs.view(-1, 1) + self._allowed(torch.log_softmax(logits.float(), dim=-1))
            values, index = total.view(len(self), -1).topk(k, dim=1)
        found = index.cpu().numpy()
        parents = found // self.vocab_size
        return values.cpu().numpy(), parents, found - parents * self.vocab_size

    def _best_allowed(self, logits: Tensor, active: Tensor | None, constraint: Constraint) -> tuple[Floats, Ints, Ints]:
        """As `_best`, among what the constraint allows."""
        n_rows = self.log_probs.size
        rows = np.arange(n_rows) if active is None else active.numpy()
        choices = constraint.choices(rows, (self.limits - self.lengths)[rows // self.beam])
        n_choices = choices.shape[1]
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        if len(constraint.given):
            given = torch.from_numpy(constraint.given).to(self.device)
            log_probs[:, given] = torch.logsumexp(log_probs[:, given], dim=-1, keepdim=True)
        found = log_probs.gather(1, torch.from_numpy(choices.clip(0)).to(self.device)).double().cpu().numpy()
        total, ids = np.full((n_rows, n_choices), -np.inf), np.zeros((n_rows, n_choices), np.int64)
        total[rows] = self.log_probs.reshape(-1, 1)[rows] + np.where(choices < 0, -np.inf, found)
        ids[rows] = choices
        k = min(2 * self.beam, self.beam * n_choices)
        best = torch.from_numpy(total.reshape(len(self), -1)).topk(k, dim=1)
        index = best.indices.numpy()
        return best.values.numpy(), index // n_choices, ids.reshape(len(self), -1)[self.places, index].clip(0)

    def _sampled(self, logits: Tensor) -> tuple[Floats, Ints, Ints]:
        """As `_best`, each row's own continuation, drawn by inverting its distribution at a number of its own."""
        assert self.sampling is not None
        log_probs = self._allowed(torch.log_softmax(logits.detach().float(), dim=-1))
        sharpened = torch.log_softmax(log_probs / self.sampling.temperature, dim=-1)
        probs, ids = sharpened.double().exp().sort(dim=-1, descending=True, stable=True)
        before = probs.cumsum(dim=-1) - probs
        out = before >= self.sampling.top_p
        if self.sampling.top_k is not None:
            out[:, self.sampling.top_k :] = True
        cumulated = probs.masked_fill(out, 0).cumsum(dim=-1)
        drawn = torch.searchsorted(cumulated, self._draws() * cumulated[:, -1:], right=True)
        chosen = ids.gather(1, drawn.clamp(max=ids.shape[1] - 1))
        values = self.log_probs + log_probs.gather(1, chosen).double().cpu().numpy().reshape(self.log_probs.shape)
        rows = np.broadcast_to(np.arange(self.beam), values.shape)
        return values, rows, chosen.cpu().numpy().reshape(values.shape)

    def _draws(self) -> Float[Tensor, "row 1"]:
        """A number in [0, 1) for each row, from the seed, the source's number, the row and the position."""
        assert self.sampling is not None
        drawn = [
            np.random.default_rng((self.sampling.seed, int(number), int(length))).random(self.beam)
            for number, length in zip(self.numbers, self.lengths, strict=True)
        ]
        return torch.from_numpy(np.concatenate(drawn)).to(self.device)[:, None]

    def _required(self) -> Int[Tensor, "sentence beam"]:
        """The id that each row must take, or -1."""
        width = self.prefixes.shape[1]
        if width == 0:
            return torch.full((len(self), self.beam), -1)
        wanted = np.where(self.lengths < width, self.prefixes[self.places[:, 0], self.lengths.clip(max=width - 1)], -1)
        return torch.from_numpy(np.repeat(wanted[:, None], self.beam, axis=1))

    def _allowed(self, log_probs: Float[Tensor, "row vocab"]) -> Float[Tensor, "row vocab"]:
        """-∞ for what may not be chosen."""
        log_probs = log_probs.masked_fill(self.never, -torch.inf)
        too_early = np.repeat(self.lengths < self.settings.min_tokens, self.beam)
        if too_early.any():
            log_probs[torch.from_numpy(too_early).to(self.device), self.special.eos] = -torch.inf
        if self.prefixes.shape[1] == 0:
            return log_probs
        required = self._required().to(self.device).view(-1, 1)
        others = torch.arange(self.vocab_size, device=self.device) != required
        return log_probs.masked_fill((required >= 0) & others, -torch.inf)

    def _penalties(self, lengths: Ints) -> Floats:
        return _penalties(lengths, self.settings.length_penalty, self.settings.length_penalty_form)

    def _collect(self, which: Bools, values: Floats, rows: Ints, *, ended: bool) -> None:
        """Puts these rows' hypotheses among the best of their sentences; the earlier of two equals stays first."""
        places = np.flatnonzero(which.any(axis=1))
        lengths, beside = self.lengths[places], np.arange(len(places))[:, None]
        scores = np.where(which[places], values[places] / self._penalties(lengths)[:, None], -np.inf)
        scores = np.concatenate([self.best_scores[places], scores], axis=1)
        order = (-scores).argsort(axis=1, kind="stable")[:, : self.n_best]
        signed = lengths - 1 if ended else -lengths

        def best(old: Any, new: Any) -> Any:
            return np.concatenate([old[places], new], axis=1)[beside, order]

        self.best_scores[places] = scores[beside, order]
        self.best_log_probs[places] = best(self.best_log_probs, values[places])
        self.best_lengths[places] = best(self.best_lengths, np.repeat(signed[:, None], which.shape[1], axis=1))
        self.best_ids[places] = best(self.best_ids, self.history[places[:, None], rows[places]])

    def _keep(self, parents: Ints, done: Bools) -> tuple[Tensor, Tensor]:
        rows = self.places * self.beam + parents
        if self.constraint is not None:
            self.constraint.advance(rows[~done].ravel(), self.last[~done].astype(np.int64).ravel())
        if not done.any():
            return torch.from_numpy(rows.ravel()), torch.from_numpy(self.places[:, 0])
        for place in np.flatnonzero(done).tolist():
            self.done.append((int(self.numbers[place]), self._hypotheses(place)))
        kept = np.flatnonzero(~done)
        for name in self.BY_SENTENCE:
            setattr(self, name, getattr(self, name)[kept])
        if len(kept):  # a long sentence that has gone is no burden to the short ones that go on
            self.longest = int(self.lengths.max())
            self._resize(min(self.history.shape[2], max(FIRST_CAPACITY, 2 * self.longest)))
        self.places = np.arange(len(kept))[:, None]
        return torch.from_numpy(rows[kept].ravel()), torch.from_numpy(kept)

    def _resize(self, width: int) -> None:
        """Makes room for `width` ids of every target."""
        self.history, self.best_ids = _widened(self.history, width, 0), _widened(self.best_ids, width, 0)

    def _hypotheses(self, place: int) -> list[Hypothesis]:
        """What was found for the sentence at this place, best first."""
        found = []
        columns = (self.best_scores, self.best_log_probs, self.best_lengths)
        for rank, (score, log_prob, length) in enumerate(zip(*(c[place].tolist() for c in columns), strict=True)):
            if score > -np.inf:
                ids = self.best_ids[place, rank, : abs(length)].tolist()
                found.append(Hypothesis(tuple(ids), log_prob, score, length >= 0))
        return found

    def take_done(self) -> list[tuple[int, list[Hypothesis]]]:
        """What has been found since the last call."""
        done, self.done = self.done, []
        return done


def _widened(x: Any, width: int, filling: int) -> Any:
    """`x` with a last axis so long."""
    if width <= x.shape[-1]:
        return x[..., :width]
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])], constant_values=filling)
