"""One of an engine's searches, in its own thread: sentences of many requests enter and leave it at any step."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from heed.apps.serving.metrics import Metrics
from heed.apps.serving.request_queue import Piece, Request, RequestQueue, SearchFailed
from heed.backends.choice import search_backend
from heed.decoding.beam import Hypothesis, SearchPlan
from heed.decoding.distinct import distinct_search
from heed.decoding.source_queue import MAX_SENTENCES, Source
from heed.decoding.translator import Translator
from heed.errors import HeedError, is_out_of_memory

# Sentences of one n_best that are searched before another n_best, which waits, has its turn.
TURN = MAX_SENTENCES
# Calls of a few steps for which a sentence waits for others if they fill less than a quarter of the search.
PATIENCE = 3
Result = tuple[Piece, list[Hypothesis], float]  # what was found for a piece; the seconds since the one before it
IDLE_SECONDS = 1.0  # after which a search ends, and frees the keys and values of the largest crowd that it has seen


class SearchThread:
    """Searches what the queue holds until the queue is closed and empty.

    peers: all searches of the engine, this one included, which divide sentences and threads equally. deliver: takes
    what was found for some pieces at once, since each call wakes the event loop. fail: ends a request with an error.
    """

    def __init__(
        self,
        translator: Translator,
        queue: RequestQueue,
        metrics: Metrics,
        peers: Sequence["SearchThread"],
        *,
        n_threads: int,
        deliver: Callable[[list[Result]], None],
        fail: Callable[[Request, Exception], None],
    ):
        self._translator, self._queue, self._metrics = translator, queue, metrics
        self._peers, self._deliver, self._fail = peers, deliver, fail
        self._results: list[Result] = []  # that are not yet delivered
        self._n_threads_of_all, self._n_threads = n_threads, 0
        self.searching: dict[int, Piece] = {}  # by number; written by this thread alone
        self.failed_pieces: deque[Piece] = deque()  # were in a search that failed, and are searched alone
        self._n_best: int | None = None
        self._last_number, self._busy_since = 0, 0.0
        self._is_idle = False  # nothing came for IDLE_SECONDS
        self.thread = threading.Thread(target=self._run, name="heed-search", daemon=True)

    def pieces(self) -> list[Piece]:
        """The pieces in this search, and those that wait to be searched alone."""
        return [*self.searching.values(), *self.failed_pieces]

    def takes(self, n_best: int) -> bool:
        """Whether a piece of this n_best could enter."""
        return n_best == self._n_best or not self.searching

    def _run(self) -> None:
        while (n_best := self._queue.next_n_best()) is not None:
            self._n_best, self._busy_since, self._is_idle = n_best, time.monotonic(), False
            try:
                self._search(n_best, self._sources(n_best))
            except BaseException as error:  # whatever it is, the others' requests go on
                self._isolate(n_best, error)
            while self.failed_pieces:
                self._search_alone(self.failed_pieces.popleft())

    def _search(self, n_best: int, sources: Iterator[Source | None]) -> None:
        translator, n_searches = self._translator, len(self._peers)
        plan = SearchPlan(
            *(translator.models, translator.tokenizer.special, translator.settings),
            n_best=n_best,
            n_sentences=None if n_searches == 1 else -(-MAX_SENTENCES // n_searches),
            wait=self._wait_for_pieces,
            cancelled=self._is_cancelled,
            n_waiting=self._queue.n_waiting,
            n_searches=n_searches,
        )
        try:
            for result in distinct_search(plan, sources, text_of=translator.text_of):
                if result is not None:
                    number, hypotheses = result
                    now = time.monotonic()
                    seconds, self._busy_since = now - self._busy_since, now
                    self._results.append((self.searching.pop(number), hypotheses, seconds))
        finally:
            self._hand_over()

    def _hand_over(self) -> None:
        """Delivers what the last steps have found."""
        if self._results:
            self._deliver(self._results)
            self._results = []

    def _sources(self, n_best: int) -> Iterator[Source | None]:
        """The pieces of this n_best, one of each request in turn; ends when it is others' turn, or the queue's end.

        A few sentences wait briefly for others to enter the search with, since each one alone costs a pass through the
        encoder. A search with nothing to do waits a while, too, instead of being set up again for the next sentence.
        """
        # n_given: pieces of this turn; n_calls: calls in a row that gave none although some waited.
        queue = self._queue
        n_given, n_calls, giving = 0, 0, False
        while True:
            self._hand_over()
            # One lock for the whole decision: no other search takes a piece between the counts and the choice.
            with queue.lock:
                others_wait = queue.others_wait(n_best)
                turn_is_over = others_wait and n_given >= TURN

                # Once enough wait, or have waited long enough, all that fit enter.
                n_waiting = queue.count(n_best)
                giving = giving or 4 * n_waiting >= len(self.searching) or n_calls == PATIENCE

                # A search takes a piece while it holds less than its part of all that are searched or wait.
                sizes = [len(one.searching) for one in self._peers if one.takes(n_best)]
                is_mine = len(self.searching) * len(sizes) < sum(sizes) + n_waiting
                piece = queue.take(n_best) if giving and is_mine and not turn_is_over else None
                source = self._source(piece) if piece is not None else None
                n_busy = sum(len(one.searching) > 0 for one in self._peers)
            self._share_threads(n_busy)

            # The generator ends here alone; a search that still holds sentences goes on until they are done.
            if source is None and (
                turn_is_over or (not self.searching and (others_wait or queue.closing or self._is_idle))
            ):
                return

            # None lets the search take a few steps before it asks again.
            if source is not None:
                n_given += 1
            else:
                n_calls = n_calls + 1 if n_waiting and not giving else 0
                giving = False
            yield source

    def _share_threads(self, n_busy: int) -> None:
        """Computes by this search's part of the threads from now on."""
        # A small model's only search leaves a core to the event loop, which requests of a sentence or two keep busy.
        n_threads = max(1, self._n_threads_of_all // max(1, n_busy))
        if len(self._peers) == 1 and len(self.searching) <= 2 * len({one.request for one in self.searching.values()}):
            n_threads = 1
        if n_threads != self._n_threads:
            search_backend(self._translator.models[0]).use_threads(n_threads)
            self._n_threads = n_threads

    def _wait_for_pieces(self) -> None:
        self._is_idle = not self._queue.wait(IDLE_SECONDS)
        self._busy_since = time.monotonic()

    def _source(self, piece: Piece) -> Source:
        self._last_number += 1
        self.searching[self._last_number] = piece
        self._metrics.queue_seconds.observe(time.monotonic() - piece.request.arrived)
        return Source(self._last_number, piece.ids, piece.prefix)

    def _is_cancelled(self, number: int) -> bool:
        self._hand_over()  # a search asks this, or for sources, before it takes its next steps
        if self.searching[number].request.over:
            del self.searching[number]
            return True
        return False

    def _isolate(self, n_best: int, error: BaseException) -> None:
        """After a search that failed: each of its pieces is to be searched again alone, which finds the cause."""
        self._metrics.failures.inc()
        pieces = [piece for piece in self.searching.values() if not piece.request.over]
        self.searching.clear()
        self.failed_pieces.extend(pieces)
        # If the search could not even begin, the request whose turn it was fails.
        if not pieces and (request := self._queue.first(n_best)) is not None:
            self._fail(request, SearchFailed(error_reason(error)))

    def _search_alone(self, piece: Piece) -> None:
        if piece.request.over:
            return
        try:
            self._search(piece.request.n_best, iter([self._source(piece)]))
        except BaseException as error:
            self.searching.clear()
            self._fail(piece.request, SearchFailed(error_reason(error)))


def error_reason(error: BaseException) -> str:
    """One line for the client that asked for the translation; internal errors show only their type."""
    if isinstance(error, HeedError):
        return str(error).partition("\n")[0]
    return "not enough memory" if is_out_of_memory(error) else f"internal error: {type(error).__name__}"
