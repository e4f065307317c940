"""The queue for the searches: requests take turns, a sentence each, so that a book never holds up a sentence."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from heed.apps.serving.metrics import Metrics
from heed.decoding.beam import Hypothesis
from heed.decoding.translation import Translation
from heed.decoding.translator import Translator
from heed.text.prefix import Prefix

QUEUE_TOKENS = 64  # average number of tokens allowed for a queued sentence


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


class TooLong(TooLate):
    """Nor would it be if it were sent again: it had the server to itself."""


class Closing(Rejected):
    """The server is about to end."""

    reason = "closing"


class SearchFailed(Exception):
    """The search of one of the request's sentences raised an error: one line says which."""


Outcome = tuple[int, Translation] | Exception  # a sentence's place and translation, or why the request failed


@dataclass(eq=False)
class Request:
    """The sentences of one request, and how far they are. translators: of each, from and into its languages."""

    sentences: Sequence[str]
    n_best: int
    translators: Sequence[Translator]
    deliver: Callable[[Outcome], None]
    arrived: float = field(default_factory=time.monotonic)
    waiting: deque["Piece"] = field(default_factory=deque)
    n_tokens: int = 0  # of the waiting pieces
    results: list[list[list[Hypothesis] | None]] = field(default_factory=list)  # of each piece of each sentence
    n_unfinished: int = 0
    over: bool = False
    shared: bool = False  # whether its pieces and those of another request have waited for each other

    def add_pieces(self, pieces: Sequence[Sequence[Sequence[int]]], prefixes: Sequence[Prefix]) -> None:
        """Lets the pieces of each sentence wait; a blank sentence has none. prefixes: how the sentences begin."""
        for i, of_sentence in enumerate(pieces):
            self.results.append([None] * len(of_sentence))
            following = self.translators[i].direction.forced
            begins = (following if place else prefixes[i] for place in range(len(of_sentence)))
            added = [Piece(self, i, place, *one) for place, one in enumerate(zip(of_sentence, begins, strict=True))]
            self.waiting.extend(added)
            self.n_tokens += sum(piece.n_tokens for piece in added)


@dataclass(eq=False)
class Piece:
    """A sentence, or the part of a long one at `place`, as the search takes it. prefix: how its target begins."""

    request: Request
    sentence: int
    place: int
    ids: Sequence[int]
    prefix: Prefix

    @property
    def n_tokens(self) -> int:
        """The tokens that it counts for in the queue."""
        return len(self.ids) + self.prefix.n_tokens


class RequestQueue:
    """Pieces that wait for a search. All searches of one beam share n_best, so requests queue by it.

    max_waiting: pieces that the queue holds; of tokens it holds QUEUE_TOKENS times as many. A request counts for at
    most half of either, so that a book leaves room for others, and an empty queue takes any request.
    """

    def __init__(self, max_waiting: int, metrics: Metrics):
        self._max_waiting, self._metrics = max_waiting, metrics
        # Guards the queue, which requests are over, and what the searches hold.
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)  # notified when pieces arrive
        self._queues: dict[int, deque[Request]] = {}  # by n_best; that of the longest wait first
        self.n_waiting = np.zeros(1, np.int64)  # in memory that a search's kernel sees between two steps
        self.closing = False
        self.n_done = 0  # pieces that have been searched
        self._seconds = 0.0  # that the queue took for them

    def requests(self) -> list[Request]:
        """The requests with waiting pieces."""
        with self.lock:
            return [request for queue in self._queues.values() for request in queue]

    def check_room(self, n_pieces: int = 0, n_tokens: int = 0) -> None:
        """Raises QueueFull or Closing. Cheap: a request that is rejected costs nothing more."""
        with self.lock:
            if self.closing:
                raise self.count_rejection(Closing("the server ends"))
            # An empty queue takes any request; else each counts for half of the queue at most.
            if not (requests := self.requests()):
                return
            most, most_tokens = self._max_waiting, self._max_waiting * QUEUE_TOKENS
            waiting = sum(min(len(request.waiting), most // 2) for request in requests)
            tokens = sum(min(request.n_tokens, most_tokens // 2) for request in requests)
            full = waiting + min(n_pieces, most // 2) > most or tokens + min(n_tokens, most_tokens // 2) > most_tokens
            if not (full or waiting == most):
                return
            # At the speed so far, all that waits now will then have been searched.
            seconds = self._seconds / max(1, self.n_done) * sum(len(request.waiting) for request in requests)
        retry_after = min(60, max(1, math.ceil(seconds)))
        raise self.count_rejection(
            QueueFull(f"the queue is full; try again in {retry_after} s", retry_after=retry_after)
        )

    def count_rejection(self, error: Rejected) -> Rejected:
        """The error, counted in the metrics."""
        self._metrics.rejected.labels(error.reason).inc()
        return error

    def add(self, request: Request) -> None:
        """Queues the pieces of a request, if it has any. Raises QueueFull or Closing."""
        with self.lock:
            if request.waiting:
                self.check_room(len(request.waiting), request.n_tokens)
                for other in (others := self.requests()):
                    other.shared = True
                request.shared = bool(others)
                self._queues.setdefault(request.n_best, deque()).append(request)
                self.n_waiting += len(request.waiting)
                self._changed.notify(len(request.waiting))

    def remove(self, request: Request) -> None:
        """Ends a request for which nobody waits: its waiting pieces go now, those in a search a few steps later."""
        with self.lock:
            request.over = True
            self.n_waiting -= len(request.waiting)
            request.waiting.clear()
            queue = self._queues.get(request.n_best, deque())
            if request in queue:
                queue.remove(request)

    def close(self) -> None:
        """Accepts no more requests; searches end when nothing waits."""
        with self.lock:
            self.closing = True
            self._changed.notify_all()

    def next_n_best(self) -> int | None:
        """The n_best that has waited longest, once there is one; None at the end."""
        with self.lock:
            while True:
                self._queues = {n_best: queue for n_best, queue in self._queues.items() if queue}
                if self._queues:
                    n_best = next(iter(self._queues))
                    self._queues[n_best] = self._queues.pop(n_best)  # the others first, the next time
                    return n_best
                if self.closing:
                    return None
                self._changed.wait()

    def first(self, n_best: int) -> Request | None:
        """The request whose turn it is."""
        with self.lock:
            queue = self._queues.get(n_best)
            return queue[0] if queue else None

    def wait(self, seconds: float) -> bool:
        """Waits for a piece, or the end; False if neither came."""
        with self.lock:
            return self._changed.wait_for(lambda: self.closing or any(self._queues.values()), seconds)

    def count_done(self, seconds: float) -> None:
        """Counts a piece that was searched, and the seconds until the next one can be."""
        self.n_done += 1
        self._seconds += seconds

    # For a search that has the lock

    def take(self, n_best: int) -> Piece | None:
        """The next piece of the request whose turn it is; None if no piece with this n_best waits."""
        queue = self._queues.get(n_best)
        if not queue:
            return None
        request = queue.popleft()
        piece = request.waiting.popleft()
        self.n_waiting -= 1
        request.n_tokens -= piece.n_tokens
        if request.waiting:
            queue.append(request)
        return piece

    def count(self, n_best: int) -> int:
        """Waiting pieces of this n_best."""
        return sum(len(request.waiting) for request in self._queues.get(n_best, ()))

    def others_wait(self, n_best: int) -> bool:
        """Whether requests of another n_best wait."""
        return any(queue for other, queue in self._queues.items() if other != n_best)
