"""Searches that all requests to a model share, each in a thread of its own.

Sentences of different requests are searched together, and each gets the bytes that it would get alone. Requests take
turns, a sentence each, so that a book never holds up a sentence. Searches take equal parts of the sentences. One search
alone computes by all threads; several at a time divide them, since threads that share a search wait for each other.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from heed.apps.serving.metrics import Metrics
from heed.backends.choice import backend_for
from heed.decoding.beam import Hypothesis
from heed.decoding.distinct import distinct_search
from heed.decoding.parallel import MAX_SEARCHES
from heed.decoding.stream import MAX_SENTENCES, PIECE_TOKENS, Source
from heed.decoding.translator import Translation, Translator
from heed.errors import HeedError, is_out_of_memory
from heed.text.prefix import NO_PREFIX, Prefix

QUEUE_TOKENS = 64  # that a sentence of the queue may have on average
# Sentences of a kind that are searched before another kind, which waits, has its turn.
TURN = MAX_SENTENCES
PATIENCE = (
    3  # calls of a few steps for which a sentence waits for others if they fill less than a quarter of the search
)
IDLE_SECONDS = 1.0  # after which a search ends, and frees the keys and values of the largest crowd that it has seen
SHORT = 2000  # characters that are split and encoded in a millisecond


class Rejected(Exception):
    """A request was not accepted, or not finished: one line says why, and `retry_after` when to try again (seconds)."""

    reason = "rejected"

    def __init__(self, message: str, *, retry_after: int = 1):
        super().__init__(message)
        self.retry_after = retry_after


class QueueFull(Rejected):
    """There is no room for the request's sentences."""

    reason = "full"


class TooLate(Rejected):
    """The request was not finished within its time."""

    reason = "timeout"


class Closing(Rejected):
    """The server is about to end."""

    reason = "closing"


class SearchFailed(Exception):
    """The search of one of the request's sentences raised an error: one line says which."""


Outcome = tuple[int, Translation] | Exception
T = TypeVar("T")


async def beside_the_loop(n_chars: int, work: Callable[[], T]) -> T:
    """The result of work on a text of `n_chars`; in another thread if the text is long, so that the loop stays free."""
    return work() if n_chars <= SHORT else await asyncio.to_thread(work)


@dataclass(eq=False)
class _Request:
    """The sentences of one request, and what has become of them. n_best: its kind, as a search has one."""

    sentences: Sequence[str]
    n_best: int
    prefix: Prefix
    deliver: Callable[[Outcome], None]
    arrived: float = field(default_factory=time.monotonic)
    waiting: deque["_Piece"] = field(default_factory=deque)
    n_tokens: int = 0  # of what waits
    results: list[list[list[Hypothesis] | None]] = field(default_factory=list)
    n_unfinished: int = 0
    over: bool = False


@dataclass(eq=False)
class _Piece:
    """A sentence, or a part of one that is too long, as the search knows it."""

    request: _Request
    sentence: int
    place: int
    ids: Sequence[int]


class Engine:
    """Translates the sentences of many requests at once with one translator.

    max_waiting: sentences that the queue holds; of tokens it holds QUEUE_TOKENS times as many. A request counts for at
    most half of either, so that a book leaves room for others, and an empty queue takes any request.
    """

    def __init__(self, translator: Translator, *, max_waiting: int = 256, metrics: Metrics | None = None):
        self.translator = translator
        self.metrics = metrics or Metrics()
        self.metrics.engines.append(self)
        self._max_waiting = max_waiting
        self._changed = threading.Condition(threading.RLock())  # guards the queues and whether requests are over
        self._queues: dict[int, deque[_Request]] = {}  # by kind; that of the longest wait first
        self._n_waiting = np.zeros(1, np.int64)  # pieces in the queues, where a search sees it between two steps
        self._closing = False
        self._busy_seconds, self._n_done = 0.0, 0
        self._n_threads = backend_for(translator.models[0]).search_threads(translator.models[0])
        self._searches = [_Search(self) for _ in range(min(self._n_threads, MAX_SEARCHES))]

    def start(self) -> None:
        """Starts the threads."""
        for one in self._searches:
            one.thread.start()

    @property
    def n_waiting(self) -> int:
        """Sentences, or pieces of long ones, in the queue."""
        with self._changed:
            return int(self._n_waiting[0]) + sum(len(one.suspects) for one in self._searches)

    @property
    def n_searching(self) -> int:
        """Sentences, or pieces of long ones, in a search."""
        return sum(len(one.searching) for one in self._searches)

    async def translate(
        self, sentences: Sequence[str], *, n_best: int = 1, prefix: str = "", timeout_seconds: float = math.inf
    ) -> AsyncGenerator[tuple[int, Translation]]:
        """Yields each sentence's place and translation, as they are finished.

        Raises QueueFull at once, TooLate, Closing, or SearchFailed. Close the iterator (`contextlib.aclosing`), and
        what is unfinished leaves the queue and the search.
        """
        deadline = time.monotonic() + timeout_seconds
        self.check_room()  # before the work of encoding
        begins_with = await beside_the_loop(len(prefix), lambda: self.translator.prefix(prefix))
        if begins_with.n_tokens > PIECE_TOKENS:  # a sentence so long would keep all others out of its search
            raise HeedError(f"the prefix has {begins_with.n_tokens:,} tokens, more than {PIECE_TOKENS}: shorten it.")
        n_chars = sum(map(len, sentences))
        pieces = await beside_the_loop(n_chars, lambda: self.translator.pieces(list(sentences)))
        loop, outcomes = asyncio.get_running_loop(), asyncio.Queue[Outcome]()

        def deliver(outcome: Outcome) -> None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(outcomes.put_nowait, outcome)

        request = self._accept(sentences, pieces, begins_with, n_best=n_best, deliver=deliver)
        try:
            for _ in sentences:
                seconds = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
                try:
                    outcome = await asyncio.wait_for(outcomes.get(), seconds)
                except TimeoutError:
                    raise self._rejection(TooLate("not finished in time")) from None
                if isinstance(outcome, Exception):
                    raise outcome
                yield outcome
        except (GeneratorExit, asyncio.CancelledError):
            if not request.over:
                self.metrics.cancelled.inc()
            raise
        finally:
            self._give_up(request)

    def close(self, grace_seconds: float) -> None:
        """Finishes what was accepted, at most for so long, and ends the threads; what is left fails."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._join(grace_seconds)
        with self._changed:
            left = {piece.request for one in self._searches for piece in one.pieces()} | set(self._all_waiting())
        for request in left:
            self._fail(request, Closing("the server ends"))
        self._join(grace_seconds if left else 0)

    def _join(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for one in self._searches:
            one.thread.join(max(0.0, end - time.monotonic()))

    # Called by any thread

    def _all_waiting(self) -> Iterator[_Request]:
        return (request for queue in self._queues.values() for request in queue)

    def check_room(self, n_pieces: int = 0, n_tokens: int = 0) -> None:
        """Raises QueueFull, or Closing. Cheap: it is all that a request costs for which there is no room."""
        with self._changed:
            if self._closing:
                raise self._rejection(Closing("the server ends"))
            most, most_tokens = self._max_waiting, self._max_waiting * QUEUE_TOKENS
            requests = list(self._all_waiting())
            waiting = sum(min(len(request.waiting), most // 2) for request in requests)
            tokens = sum(min(request.n_tokens, most_tokens // 2) for request in requests)
            full = waiting + min(n_pieces, most // 2) > most or tokens + min(n_tokens, most_tokens // 2) > most_tokens
            if not requests or not (full or waiting == most):
                return
            a_sentence = self._busy_seconds / len(self._searches) / max(1, self._n_done)
            seconds = a_sentence * sum(len(request.waiting) for request in requests)
        retry_after = min(60, max(1, math.ceil(seconds)))
        raise self._rejection(QueueFull(f"the queue is full; try again in {retry_after} s", retry_after=retry_after))

    def _rejection(self, error: Rejected) -> Rejected:
        self.metrics.rejected.labels(error.reason).inc()
        return error

    def _accept(
        self,
        sentences: Sequence[str],
        pieces: Sequence[Sequence[Sequence[int]]],
        prefix: Prefix,
        *,
        n_best: int,
        deliver: Callable[[Outcome], None],
    ) -> _Request:
        n_best = min(n_best, self.translator.settings.beam_size)
        request = _Request(sentences, n_best, prefix, deliver, n_unfinished=len(sentences))
        for i, of_sentence in enumerate(pieces):
            request.results.append([None] * len(of_sentence))
            request.waiting.extend(_Piece(request, i, place, ids) for place, ids in enumerate(of_sentence))
            request.n_tokens += sum(map(len, of_sentence)) + (prefix.n_tokens if of_sentence else 0)
        with self._changed:
            if request.waiting:
                self.check_room(len(request.waiting), request.n_tokens)
                self._queues.setdefault(n_best, deque()).append(request)
                self._n_waiting += len(request.waiting)
                self._changed.notify(len(request.waiting))
        for i, of_sentence in enumerate(pieces):
            if not of_sentence:
                self._finish(request, i, [])
        return request

    def _give_up(self, request: _Request) -> None:
        """Nobody waits for it: what waits leaves the queue now, and what is searched a few steps later."""
        with self._changed:
            request.over = True
            self._n_waiting -= len(request.waiting)
            request.waiting.clear()
            queue = self._queues.get(request.n_best, deque())
            if request in queue:
                queue.remove(request)

    def _fail(self, request: _Request, error: Exception) -> None:
        if not request.over:
            self._give_up(request)
            request.deliver(error)

    # Called by the threads of the searches

    def _next_kind(self) -> int | None:
        """The kind that has waited longest, once there is one; None at the end."""
        with self._changed:
            while True:
                self._queues = {kind: queue for kind, queue in self._queues.items() if queue}
                if self._queues:
                    kind = next(iter(self._queues))
                    self._queues[kind] = self._queues.pop(kind)  # the others first, the next time
                    return kind
                if self._closing:
                    return None
                self._changed.wait()

    def _next_piece(self, kind: int) -> _Piece | None:
        queue = self._queues.get(kind)
        if not queue:
            return None
        request = queue.popleft()
        piece = request.waiting.popleft()
        self._n_waiting -= 1
        request.n_tokens -= len(piece.ids) + (request.prefix.n_tokens if piece.place == 0 else 0)
        if request.waiting:
            queue.append(request)
        return piece

    def _take_result(self, piece: _Piece, hypotheses: list[Hypothesis], busy_seconds: float) -> None:
        self.metrics.tokens.labels("source").inc(len(piece.ids))
        self.metrics.tokens.labels("target").inc(len(hypotheses[0].ids))
        with self._changed:
            self._busy_seconds += busy_seconds
            self._n_done += 1
            results = piece.request.results[piece.sentence]
            results[piece.place] = hypotheses
            found = [result for result in results if result is not None]
        if len(found) == len(results):
            self._finish(piece.request, piece.sentence, found)

    def _finish(self, request: _Request, i: int, pieces: list[list[Hypothesis]]) -> None:
        if request.over:
            return
        try:
            translation = self.translator.joined(request.sentences[i], pieces)
        except BaseException as error:  # of the tokenizer
            self._fail(request, SearchFailed(_reason(error)))
            return
        with self._changed:
            request.n_unfinished -= 1
            request.over = request.n_unfinished == 0
        request.deliver((i, translation))


class _Search:
    """A search of an engine, and its thread."""

    def __init__(self, engine: Engine):
        self._engine, self._changed = engine, engine._changed
        self.searching: dict[int, _Piece] = {}  # by number; written by this thread alone
        self.suspects: deque[_Piece] = deque()  # were searched when the search failed, and are searched alone
        self._kind: int | None = None
        self._next_number, self._n_threads, self._busy_since = 0, 0, 0.0
        self._is_idle = False  # nothing came for IDLE_SECONDS
        self.thread = threading.Thread(target=self._run, name="heed-search", daemon=True)

    def pieces(self) -> list[_Piece]:
        """What is in this search, or waits to be searched alone."""
        return [*self.searching.values(), *self.suspects]

    def takes(self, kind: int) -> bool:
        """Whether a sentence of this kind could enter."""
        return kind == self._kind or not self.searching

    def _run(self) -> None:
        while (kind := self._engine._next_kind()) is not None:
            self._kind, self._busy_since, self._is_idle = kind, time.monotonic(), False
            try:
                self._search(kind, self._sources(kind))
            except BaseException as error:  # whatever it is, the others' requests go on
                self._examine(kind, error)
            while self.suspects:
                self._search_alone(self.suspects.popleft())

    def _search(self, n_best: int, sources: Iterator[Source | None]) -> None:
        translator, n_searches = self._engine.translator, len(self._engine._searches)
        for result in distinct_search(
            *(translator.models, sources, translator.tokenizer.special, translator.settings),
            n_best=n_best,
            text_of=translator.text_of,
            n_sentences=-(-MAX_SENTENCES // n_searches),
            wait=self._wait_for_sentences,
            cancelled=self._is_cancelled,
            n_waiting=self._engine._n_waiting,
            n_searches=n_searches,
        ):
            if result is not None:
                self._take_result(*result)

    def _sources(self, kind: int) -> Iterator[Source | None]:
        """The sentences of a kind, one of each request in turn; ends when it is others' turn, or the engine's end.

        A few sentences wait briefly for others to enter the search with, since each one alone costs a pass through the
        encoder. A search with nothing to do waits a while, too, instead of being set up again for the next sentence.
        """
        engine = self._engine
        n_given, n_steps, giving = 0, 0, False
        while True:
            with self._changed:
                others_wait = any(queue for other, queue in engine._queues.items() if other != kind)
                turn_is_over = others_wait and n_given >= TURN
                n_waiting = sum(len(request.waiting) for request in engine._queues.get(kind, ()))
                giving = giving or 4 * n_waiting >= len(self.searching) or n_steps == PATIENCE
                sizes = [len(one.searching) for one in engine._searches if one.takes(kind)]
                is_mine = len(self.searching) * len(sizes) < sum(sizes) + n_waiting  # less than its part of all
                piece = engine._next_piece(kind) if giving and is_mine and not turn_is_over else None
                if piece is not None:
                    source = self._source(piece)
                n_busy = sum(len(one.searching) > 0 for one in engine._searches)
            self._share_threads(n_busy)
            if piece is not None:
                n_given += 1
                yield source
            elif turn_is_over or (not self.searching and (others_wait or engine._closing or self._is_idle)):
                return
            else:
                n_steps = n_steps + 1 if n_waiting and not giving else 0
                giving = False
                yield None

    def _share_threads(self, n_busy: int) -> None:
        """Computes by this search's part of the threads from now on."""
        engine = self._engine
        n_threads = max(1, engine._n_threads // max(1, n_busy))
        if len(engine._searches) > 1 and n_threads != self._n_threads:
            backend_for(engine.translator.models[0]).use_threads(n_threads)
            self._n_threads = n_threads

    def _wait_for_sentences(self) -> None:
        with self._changed:
            self._is_idle = not self._changed.wait_for(
                lambda: self._engine._closing or any(self._engine._queues.values()), IDLE_SECONDS
            )
        self._busy_since = time.monotonic()

    def _source(self, piece: _Piece) -> Source:
        self._next_number += 1
        self.searching[self._next_number] = piece
        self._engine.metrics.queue_seconds.observe(time.monotonic() - piece.request.arrived)
        return Source(self._next_number, piece.ids, piece.request.prefix if piece.place == 0 else NO_PREFIX)

    def _is_cancelled(self, number: int) -> bool:
        if self.searching[number].request.over:
            del self.searching[number]
            return True
        return False

    def _take_result(self, number: int, hypotheses: list[Hypothesis]) -> None:
        piece = self.searching.pop(number)
        now = time.monotonic()
        busy_seconds, self._busy_since = now - self._busy_since, now
        self._engine._take_result(piece, hypotheses, busy_seconds)

    def _examine(self, kind: int, error: BaseException) -> None:
        """After a search that failed: what it held is searched again, each alone, which finds the cause."""
        engine = self._engine
        engine.metrics.failures.inc()
        pieces = [piece for piece in self.searching.values() if not piece.request.over]
        self.searching.clear()
        if pieces:
            self.suspects.extend(pieces)
            return
        with self._changed:  # the search could not even begin
            queue = engine._queues.get(kind)
            request = queue[0] if queue else None
        if request is not None:
            engine._fail(request, SearchFailed(_reason(error)))

    def _search_alone(self, piece: _Piece) -> None:
        if piece.request.over:
            return
        try:
            self._search(piece.request.n_best, iter([self._source(piece)]))
        except BaseException as error:
            self.searching.clear()
            self._engine._fail(piece.request, SearchFailed(_reason(error)))


def _reason(error: BaseException) -> str:
    """One line for whoever asked for the translation."""
    if isinstance(error, HeedError):
        return str(error).partition("\n")[0]
    return "not enough memory" if is_out_of_memory(error) else f"internal error: {type(error).__name__}"
