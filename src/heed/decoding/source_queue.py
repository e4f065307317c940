"""The stream of sources into a search: how many at a time, within what memory; results in the order of the input."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from heed.backends.choice import search_backend
from heed.backends.protocol import FIRST_CAPACITY, SearchModel
from heed.data.reading.stream import windows
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.runtime.memory import free_gpu_memory, free_memory
from heed.runtime.progress import Task
from heed.text.prefix import NO_PREFIX, Prefix

# Limits on what is searched at a time: sentences, unless the caller asks for more; on a CPU, tokens of all targets and
# bytes. Base reaches the last two first with beams above 21. A GPU has its memory for itself, and only many rows
# occupy it: by a count of bytes and operations, 2,048 come to 95 % of base's fastest speed on an H100. A single
# sentence may exceed all of them if that much memory is free.
MAX_SENTENCES, MAX_LIVE_TOKENS, MAX_BYTES = 64, 8192, 5 * 2**30
GPU_ROWS, GPU_LIVE_TOKENS = 2048, 2**18
# That a row's step takes at most for each id of the vocabulary, without the kernels: its logits and what is computed
# from them in fp32 and fp64, of which sampling holds more at a time.
SEARCH_BYTES, SAMPLING_BYTES = 24, 80
# A longer source is translated in pieces: attention's memory grows with the square of the length.
PIECE_TOKENS = 512
# Items that are sorted by length together, so that sentences of similar lengths are searched together: few at first, so
# that output starts at once.
FIRST_WINDOW, LAST_WINDOW = 16, 2048

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Source:
    """One sentence to search: its number in the stream, its ids without eos, what every target begins with.

    min_limit: the maximum length of a target, eos included, is never lower, whatever the settings say. length: what
    max_extra_tokens is added to; by default the number of its ids.
    """

    number: int
    ids: Sequence[int]
    prefix: Prefix = NO_PREFIX
    min_limit: int = 1
    length: int | None = None


def maximum_length(source: Source, settings: DecodingSettings) -> int:
    """The most ids that a target of this source may have, eos included."""
    length = len(source.ids) if source.length is None else source.length
    longest = max(1, length + settings.max_extra_tokens)
    if settings.max_length_factor is not None:
        longest = min(longest, max(1, int(settings.max_length_factor * (length + 1))))
    if settings.min_tokens:
        longest = max(longest, settings.min_tokens + 1)
    if settings.max_tokens is not None:
        longest = min(longest, settings.max_tokens)
    return max(longest, _guaranteed_length(source))


def longest_source(arch: Architecture, settings: DecodingSettings) -> int:
    """The most ids of a source that is searched in one piece, so that it and its targets have a position each.

    HeedError if not even one id leaves room for a target.
    """
    if arch.positions != "learned":
        return PIECE_TOKENS
    for n in range(min(PIECE_TOKENS, arch.max_positions - 1), 0, -1):
        if maximum_length(Source(0, (), length=n), settings) <= arch.max_positions:
            return n
    raise HeedError(
        f"max_positions={arch.max_positions} leaves no room for a target: max_extra_tokens is "
        f"{settings.max_extra_tokens}, min_tokens {settings.min_tokens}; lower them, or set max_tokens."
    )


def _guaranteed_length(source: Source) -> int:
    """The ids that a target may have whatever the settings say, eos included."""
    return max(source.prefix.n_tokens + 1, source.min_limit)


def max_live_tokens(device_name: str) -> int:
    """The most tokens that the targets of a search may have together."""
    return GPU_LIVE_TOKENS if device_name.startswith("cuda") else MAX_LIVE_TOKENS


class SearchMemory:
    """The memory that a search may take, and what sentences and tokens need of it, in bytes."""

    def __init__(
        self,
        models: Sequence[SearchModel],
        settings: DecodingSettings,
        sampling: SamplingSettings | None,
        *,
        n_searches: int = 1,
    ):
        """n_searches: number of searches that share the memory."""
        self._beam_size = settings.beam_size
        self._per_position = sum(search_backend(model).bytes_per_position(model) for model in models)  # of a row
        self._per_step = models[0].vocab_size * (SAMPLING_BYTES if sampling else SEARCH_BYTES)
        device = models[0].device_name
        self._free = _free_bytes(device) / n_searches
        self._live_tokens, self._on_gpu = max_live_tokens(device), device.startswith("cuda")
        self._budget = self._free / 2 if self._on_gpu else min(MAX_BYTES / n_searches, self._free / 2)

    def max_sentences(self, wanted: int | None) -> int:
        """How many sentences may be searched at a time: `wanted`, or as many as the memory holds; at least 1.

        None wants as many as the device is good at.
        """
        if wanted is None:
            wanted = max(MAX_SENTENCES, GPU_ROWS // self._beam_size) if self._on_gpu else MAX_SENTENCES
        per_sentence = self._beam_size * (FIRST_CAPACITY * self._per_position + self._per_step)
        return max(1, min(wanted, int(self._budget / per_sentence)))

    def max_tokens(self) -> int:
        """How many tokens the targets that are searched at a time may have together."""
        return min(self._live_tokens, int(self._budget / (self._beam_size * self._per_position)))

    def holds(self, limit: int) -> bool:
        """Whether memory holds a sentence whose target has up to `limit` tokens."""
        return self._beam_size * self._row_bytes(limit) <= self._free

    def _row_bytes(self, limit: int) -> int:
        return limit * self._per_position + self._per_step

    def check(self, limit: int, *, required: int) -> None:
        """HeedError if memory may not hold a sentence whose target has up to `limit` tokens.

        required: the limit that no setting can lower.
        """
        if self.holds(limit):
            return
        row_bytes = self._row_bytes(limit)
        needed, free = self._beam_size * row_bytes / 1e9, self._free / 1e9
        beam = int(self._free / row_bytes)
        max_tokens = int((self._free / self._beam_size - self._per_step) / self._per_position)
        fits = [f"a beam of {beam:,}"] * (beam >= 1) + [f"max_tokens={max_tokens}"] * (max_tokens >= required)
        raise HeedError(
            f"a beam of {self._beam_size:,} with outputs of up to {limit:,} tokens may need {needed:,.1f} GB, "
            f"{free:,.1f} GB are free; {' or '.join(fits) or 'a smaller model'} fits."
        )


def _free_bytes(device_name: str) -> float:
    return float(free_gpu_memory(device_name)) if device_name.startswith("cuda") else free_memory()


class SourceQueue:
    """The sources that have not entered the search yet; it reads one source ahead of those that it hands out."""

    def __init__(
        self,
        sources: Iterable[Source | None],
        settings: DecodingSettings,
        memory: SearchMemory,
        *,
        cancelled: Callable[[int], bool] | None = None,
    ):
        self._stream, self._settings, self._memory, self._cancelled = iter(sources), settings, memory, cancelled
        self._next: Source | None = None
        self.exhausted = False
        self.starved = False  # whether the next source had not arrived when it was last wanted

    def take(self, n: int, n_tokens: int, *, idle: bool) -> list[Source]:
        """Up to n sources that are at hand, whose targets have at most n_tokens together.

        idle: nothing is being searched, so the first source may exceed n_tokens. HeedError if a source needs more
        memory than is free.
        """
        taken: list[Source] = []
        while len(taken) < n:
            if self._next is None:
                try:
                    self._next = next(self._stream)
                except StopIteration:
                    self.exhausted = True
                self.starved = self._next is None and not self.exhausted
                if self._next is None:
                    break
            if self._cancelled is not None and self._cancelled(self._next.number):
                self._next = None
                continue
            limit = maximum_length(self._next, self._settings)
            self._memory.check(limit, required=_guaranteed_length(self._next))
            if limit > n_tokens and (taken or not idle):
                break
            taken.append(self._next)
            self._next = None
            n_tokens -= limit
        return taken


@dataclass
class _Pending(Generic[T, R]):
    """An item that was read and not yet handed out, and the results of its sources, None where one is missing."""

    item: T
    results: list[R | None]

    @property
    def complete(self) -> bool:
        return all(result is not None for result in self.results)


def search_in_order(
    items: Iterable[T | None],
    sources_of: Callable[[list[T]], Iterable[list[Source]]],
    search: Callable[[Iterator[Source | None]], Iterable[tuple[int, R] | None]],
    *,
    size: Callable[[T], int],
    task: Task | None = None,
) -> Iterator[tuple[T, list[R]]]:
    """Searches a stream of items and yields each with the results of its sources, in the order of the items.

    sources_of: for each of some items, its sources, numbered uniquely; an item without sources needs no search. search:
    from sources to (number, result), in any order. size: the characters of an item. None in place of an item means that
    the next one has not arrived yet; None in place of a result, that the search has nothing to do. Memory does not grow
    with the number of items. task: counts items when their results are there, which may be long before their turn.
    """
    # Items wait here until all their results, and those of the items before them, are there.
    pending: deque[_Pending[T, R]] = deque()
    places: dict[int, tuple[_Pending[T, R], int]] = {}  # of each source's result, by its number

    def sources() -> Iterator[Source | None]:
        for window in windows(items, first=FIRST_WINDOW, last=LAST_WINDOW, size=size):
            if window is None:
                yield None
                continue
            arriving: list[Source] = []
            for item, item_sources in zip(window, sources_of(window), strict=True):
                entry: _Pending[T, R] = _Pending(item, [None] * len(item_sources))
                pending.append(entry)
                if task is not None and not item_sources:
                    task.advance()
                places.update({source.number: (entry, place) for place, source in enumerate(item_sources)})
                arriving += item_sources
            yield from sorted(arriving, key=lambda source: len(source.ids))

    def complete_items() -> Iterator[tuple[T, list[R]]]:
        while pending and pending[0].complete:
            entry = pending.popleft()
            yield entry.item, [result for result in entry.results if result is not None]

    # Results come in any order; what is complete at the front leaves.
    for numbered in search(sources()):
        if numbered is not None:
            number, result = numbered
            entry, place = places.pop(number)
            entry.results[place] = result
            if task is not None and entry.complete:
                task.advance()
        yield from complete_items()
    yield from complete_items()  # items without sources at the end of the stream
