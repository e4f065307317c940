"""Searches that all requests to a model share, each in its own thread.

Sentences of different requests are searched together, and each gets the bytes that it would get alone. Requests take
turns in the queue. Searches take equal parts of the sentences. One search alone computes by all threads; several at a
time divide them, since threads that share a search wait for each other.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from heed.apps.serving.metrics import Metrics
from heed.apps.serving.request_queue import (
    Closing,
    Outcome,
    Request,
    RequestQueue,
    SearchFailed,
    TooLate,
    TooLong,
)
from heed.apps.serving.search_thread import Result, SearchThread, error_reason
from heed.backends.choice import search_backend
from heed.decoding.beam import Hypothesis
from heed.decoding.parallel import MAX_SEARCHES
from heed.decoding.source_queue import PIECE_TOKENS
from heed.decoding.translation import Translation
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.model.cost import n_parameters

# One search of a smaller model is faster than the event loop, which reads and answers the requests. Two would wait for
# Python's lock, each with half of the sentences: 1.1 to 1.3 times the processor time of a request to the demo's model.
MANY_PARAMETERS = 2_000_000
SHORT = 2000  # characters that are split and encoded in a millisecond
MAX_KEPT_PAIRS = 1000  # of languages, whose translators are kept: a model may have forty thousand
T = TypeVar("T")


async def off_event_loop(n_chars: int, work: Callable[[], T]) -> T:
    """The result of work on a text of `n_chars`; in another thread if the text is long, so that the loop stays free."""
    return work() if n_chars <= SHORT else await asyncio.to_thread(work)


class _Outcomes:
    """What the threads of the searches hand to a coroutine, for at most `timeout_seconds`."""

    def __init__(self, timeout_seconds: float):
        self._loop, self._outcomes = asyncio.get_running_loop(), deque[Outcome]()
        self._deadline = self._loop.time() + timeout_seconds
        self._arrival: asyncio.Future[None] | None = None

    def put(self, outcome: Outcome) -> None:
        """Called in the event loop."""
        self._outcomes.append(outcome)
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def next(self) -> Outcome | None:
        """The next one; None if it is late. A future and a timer: `asyncio.wait_for` starts a task for each."""
        if not self._outcomes:
            self._arrival = self._loop.create_future()
            timer = None if self._deadline == math.inf else self._loop.call_at(self._deadline, self._wake)
            try:
                await self._arrival
            finally:
                if timer is not None:
                    timer.cancel()
        return self._outcomes.popleft() if self._outcomes else None


class Engine:
    """Translates the sentences of many requests at once with one translator. max_waiting: see RequestQueue."""

    def __init__(self, translator: Translator, *, max_waiting: int = 256, metrics: Metrics | None = None):
        self.translator = translator
        self.metrics = metrics or Metrics()
        self.metrics.engines.append(self)
        self._loop: asyncio.AbstractEventLoop | None = None  # that the requests come from
        self._by_pair: dict[tuple[str, str], Translator] = {}
        self.queue = RequestQueue(max_waiting, self.metrics)
        model = translator.models[0]
        n_threads = search_backend(model).search_threads(model)
        is_small = n_parameters(model.arch, model.vocab_size, model.src_vocab_size) < MANY_PARAMETERS
        self.searches: list[SearchThread] = []
        for _ in range(1 if is_small else min(n_threads, MAX_SEARCHES)):
            search = SearchThread(
                *(translator, self.queue, self.metrics, self.searches),
                n_threads=n_threads,
                deliver=partial(self._in_loop, self._take_results),
                fail=self._fail,
            )
            self.searches.append(search)

    def start(self) -> None:
        """Starts the threads."""
        for search in self.searches:
            search.thread.start()

    @property
    def n_waiting(self) -> int:
        """Sentences, or pieces of long ones, in the queue."""
        with self.queue.lock:
            return int(self.queue.n_waiting[0]) + sum(len(search.failed_pieces) for search in self.searches)

    @property
    def n_searching(self) -> int:
        """Sentences, or pieces of long ones, in a search."""
        return sum(len(search.searching) for search in self.searches)

    def between(self, pair: tuple[str, str]) -> Translator:
        """Its translator from and into these languages."""
        if self.translator.direction.of_several is None:
            return self.translator
        if (translator := self._by_pair.get(pair)) is None:
            if len(self._by_pair) == MAX_KEPT_PAIRS:
                self._by_pair.clear()
            translator = self._by_pair[pair] = self.translator.between(*pair)
        return translator

    async def translate(
        self,
        sentences: Sequence[str],
        pairs: Sequence[tuple[str, str]] | None = None,
        *,
        n_best: int = 1,
        prefix: str = "",
        timeout_seconds: float = math.inf,
    ) -> AsyncGenerator[tuple[int, Translation]]:
        """Yields each sentence's place and translation, as they are finished.

        pairs: of each sentence its languages, where the translator is not told them; they share a search.

        Raises QueueFull at once, TooLate, Closing, or SearchFailed. Close the iterator (`contextlib.aclosing`), and
        what is unfinished leaves the queue and the search.
        """
        # Encoding, in front of the queue: what has no room is rejected before this work.
        self._loop, outcomes = asyncio.get_running_loop(), _Outcomes(timeout_seconds)
        self.queue.check_room()
        translators = [self.translator] * len(sentences) if pairs is None else list(map(self.between, pairs))
        different = dict.fromkeys(translators)
        prefixes = await off_event_loop(len(prefix), lambda: {one: one.prefix(prefix) for one in different})
        longest = max((one.n_tokens for one in prefixes.values()), default=0)
        if longest > PIECE_TOKENS:  # a sentence so long would keep all others out of its search
            raise HeedError(f"the prefix has {longest:,} tokens, more than {PIECE_TOKENS}: shorten it.")
        n_chars = sum(map(len, sentences))
        pieces = await off_event_loop(n_chars, lambda: _pieces(sentences, translators))

        # A beam has as many hypotheses as it is wide, not more.
        n_best = min(n_best, self.translator.settings.beam_size)
        request = Request(sentences, n_best, translators, outcomes.put, n_unfinished=len(sentences))
        request.add_pieces(pieces, [prefixes[one] for one in translators])
        self.queue.add(request)

        # Whatever ends the iterator, a client that has gone included, takes the rest of the request away.
        try:
            for i, of_sentence in enumerate(pieces):
                if not of_sentence:
                    self._finish(request, i, [])
            for _ in sentences:
                outcome = await outcomes.next()
                if outcome is None:
                    late = TooLate("not finished in time")
                    if not request.shared:
                        late = TooLong("not finished in time: too long for this server; send it in parts")
                    raise self.queue.count_rejection(late)
                if isinstance(outcome, Exception):
                    raise outcome
                yield outcome
        except (GeneratorExit, asyncio.CancelledError):
            if not request.over:
                self.metrics.cancelled.inc()
            raise
        finally:
            self.queue.remove(request)

    def close(self, grace_seconds: float) -> None:
        """Finishes accepted requests for at most `grace_seconds`, then ends the threads; unfinished requests fail."""
        self.queue.close()
        self._join(grace_seconds)
        with self.queue.lock:
            searched = {piece.request for search in self.searches for piece in search.pieces()}
            left = searched.union(self.queue.requests())
        for request in left:
            self._fail(request, Closing("the server ends"))
        self._join(grace_seconds if left else 0)

    def _join(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for search in self.searches:
            search.thread.join(max(0.0, end - time.monotonic()))

    # Called by any thread

    def _in_loop(self, function: Callable[[T], None], argument: T) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                self._loop.call_soon_threadsafe(function, argument)

    def _fail(self, request: Request, error: Exception) -> None:
        if not request.over:
            self.queue.remove(request)
            self._in_loop(request.deliver, error)

    # Called in the event loop

    def _take_results(self, found: Sequence[Result]) -> None:
        """Finishes the sentences of which these were the last pieces."""
        self.metrics.tokens.labels("source").inc(sum(len(piece.ids) for piece, _, _ in found))
        self.metrics.tokens.labels("target").inc(sum(len(hypotheses[0].ids) for _, hypotheses, _ in found))
        for piece, hypotheses, seconds in found:
            self.queue.count_done(seconds / len(self.searches))
            results = piece.request.results[piece.sentence]
            results[piece.place] = hypotheses
            complete = [result for result in results if result is not None]
            if len(complete) == len(results):
                self._finish(piece.request, piece.sentence, complete)

    def _finish(self, request: Request, i: int, pieces: list[list[Hypothesis]]) -> None:
        """Delivers sentence i, joined from its pieces' hypotheses."""
        if request.over:
            return
        try:
            translation = request.translators[i].joined(request.sentences[i], pieces)
        except BaseException as error:  # of the tokenizer
            self._fail(request, SearchFailed(error_reason(error)))
            return
        request.n_unfinished -= 1
        request.over |= request.n_unfinished == 0
        request.deliver((i, translation))


def _pieces(sentences: Sequence[str], translators: Sequence[Translator]) -> list[list[list[int]]]:
    """The pieces of each sentence by its translator; sentences of one are encoded together."""
    pieces_by_sentence: list[list[list[int]]] = [[] for _ in sentences]
    for translator in dict.fromkeys(translators):
        places = [i for i, one in enumerate(translators) if one is translator]
        for i, pieces in zip(places, translator.pieces([sentences[i] for i in places]), strict=True):
            pieces_by_sentence[i] = pieces
    return pieces_by_sentence
