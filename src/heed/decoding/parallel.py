"""Several searches at a time, each by a thread of its own.

Threads that share a search wait for each other at every step: two searches of a small model, one per thread, take a
quarter less time than one search by two threads (docs/explain/performance.md). With few sentences, all threads work on
one search, which finishes them sooner.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from heed.backends.choice import search_backend, searchable
from heed.backends.protocol import SearchBackend
from heed.decoding.beam import Hypothesis, SearchPlan
from heed.decoding.distinct import distinct_search
from heed.decoding.source_queue import MAX_SENTENCES, Source

Result = tuple[int, list[Hypothesis]]
Run = Callable[[SearchPlan, Iterable[Source | None]], Iterator[Result | None]]
MANY = 2 * MAX_SENTENCES  # available sources that are worth dividing
MAX_SEARCHES = 8  # more would wait for Python's lock


def parallel_search(
    plan: SearchPlan, sources: Iterable[Source | None], *, text_of: Callable[[Hypothesis], str] | None
) -> Iterator[Result | None]:
    """Runs `distinct_search`, several times with `n_sentences` each while many sources are available.

    The timing of the threads decides which search takes a source, so use it only where results do not depend on the
    batch.
    """
    plan = replace(plan, models=[searchable(model) for model in plan.models])
    backend = search_backend(plan.models[0])
    n_threads = backend.search_threads(plan.models[0])
    if n_threads == 1:
        yield from distinct_search(plan, sources, text_of=text_of)
        return
    ahead = _ReadAhead(sources)
    while not ahead.exhausted:
        if ahead.many():
            run = partial(distinct_search, text_of=text_of)
            yield from _search_in_parallel(run, plan, ahead, backend, n_threads=n_threads)
        else:
            yield from distinct_search(plan, ahead.while_few(), text_of=text_of)


class _ReadAhead:
    """The stream of sources, with those that have already arrived read ahead."""

    def __init__(self, sources: Iterable[Source | None]):
        self._stream, self._read = iter(sources), deque[Source]()
        self._ended = False

    @property
    def exhausted(self) -> bool:
        return self._ended and not self._read

    def many(self) -> bool:
        """Whether MANY sources have arrived."""
        while len(self._read) < MANY and not self._ended:
            try:
                source = next(self._stream)
            except StopIteration:
                self._ended = True
                break
            if source is None:
                break
            self._read.append(source)
        return len(self._read) >= MANY

    def pop(self) -> Source | None:
        """The next source; None if it has not arrived."""
        return self._read.popleft() if self._read else None

    def while_few(self) -> Iterator[Source | None]:
        """The stream, until many sources have arrived."""
        while not self.many() and not self.exhausted:
            yield self.pop()


class _SharedQueue:
    """Sources that several searches take from, whichever has room, until `end`."""

    def __init__(self) -> None:
        self._sources, self._ended, self._changed = deque[Source](), False, threading.Condition()

    def __len__(self) -> int:
        return len(self._sources)

    def put(self, source: Source) -> None:
        with self._changed:
            self._sources.append(source)
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Source | None]:
        while True:
            with self._changed:
                source = self._sources.popleft() if self._sources else None
                if source is None and self._ended:
                    return
            yield source

    def wait(self) -> None:
        """Until there is another source, or the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._sources or self._ended)


def _search_in_parallel(
    run: Run, plan: SearchPlan, ahead: _ReadAhead, backend: SearchBackend, *, n_threads: int
) -> Iterator[Result]:
    """Searches all sources that have arrived. An exception in any search ends all and is raised here."""
    # One queue feeds all searches, one takes their results.
    n_searches = min(n_threads, MAX_SEARCHES)
    shared, results = _SharedQueue(), queue.SimpleQueue[Result | BaseException | None]()
    stopped = threading.Event()
    shared_plan = replace(plan, wait=shared.wait, cancelled=lambda _: stopped.is_set(), n_searches=n_searches)

    def work() -> None:
        try:
            backend.use_threads(n_threads // n_searches)
            for result in run(shared_plan, shared):
                if result is not None:
                    results.put(result)
            results.put(None)
        except BaseException as error:
            results.put(error)

    # Sources are read by this thread alone, since the stream belongs to it.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(n_searches)]
    for thread in threads:
        thread.start()
    try:
        # The queue always holds enough for every search; when the sources end, so does each search.
        n_running, feeding = n_searches, True
        while n_running:
            while feeding and len(shared) < MANY:
                ahead.many()
                if (source := ahead.pop()) is None:
                    feeding = False
                    shared.end()
                else:
                    shared.put(source)
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            if result is None:
                n_running -= 1
            else:
                yield result
    finally:
        # Whatever ends this generator, also its caller, ends the threads.
        stopped.set()
        shared.end()
        for thread in threads:
            thread.join()
