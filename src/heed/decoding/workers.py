"""A search on several threads: workers that each search by themselves and share one stream of sources."""

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence

import torch

from heed.data.batching import SpecialIds
from heed.decoding.search import DecodingSettings, Hypothesis, SamplingSettings, Source, search
from heed.model.inference import batch_invariant
from heed.model.transformer import Transformer
from heed.runtime import n_threads


def search_by_workers(
    models: Sequence[Transformer],
    sources: Iterable[Source | None],
    special: SpecialIds,
    settings: DecodingSettings,
    *,
    n_best: int = 1,
    n_sentences: int = 64,
    sampling: SamplingSettings | None = None,
) -> Iterator[tuple[int, list[Hypothesis]] | None]:
    """`search` by as many workers as there are threads, each with up to `n_sentences`, which finds the same.

    Workers never wait for each other, as threads that share the rows of one search do several times a step. Which of
    them takes a source is a matter of time, so models whose results depend on the batch are searched by one. Where the
    stream fails, all that came before is found first.
    """
    if n_threads() == 1 or not all(map(batch_invariant, models)):
        yield from search(
            models, sources, special, settings, n_best=n_best, n_sentences=n_sentences, sampling=sampling
        )  # fmt: skip
        return
    team = _Team(iter(sources), n_threads())

    def work(worker: int) -> None:
        found = search(
            models, team.sources(worker), special, settings, n_best=n_best, n_sentences=n_sentences, sampling=sampling
        )
        try:
            for result in found:
                if result is None:
                    team.set_busy(worker, False)
                else:
                    team.results.put(result)
        except BaseException as error:  # for the caller's thread to raise
            team.error = team.error or error
        finally:
            team.set_busy(worker, False)
            team.results.put(None)

    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(team.n_threads)]
    for worker in workers:
        worker.start()
    n_working = len(workers)
    try:
        while n_working:
            try:
                result = team.results.get(timeout=0.01)
            except queue.Empty:
                yield None
                continue
            if result is None:
                n_working -= 1
            else:
                yield result
        if team.error is not None:
            raise team.error
    finally:
        team.stopped = True
        while any(worker.is_alive() for worker in workers):
            try:
                team.results.get(timeout=0.01)
            except queue.Empty:
                continue
        torch.set_num_threads(team.n_threads)


class _Team:
    """What the workers share."""

    def __init__(self, stream: Iterator[Source | None], n_threads: int):
        self.n_threads = n_threads
        self.results: queue.Queue[tuple[int, list[Hypothesis]] | None] = queue.Queue(maxsize=1024)
        self.error: BaseException | None = None
        self.stopped = False
        self._stream, self._reading = stream, threading.Lock()
        self._busy = [False] * n_threads
        self._granted = [0] * n_threads

    def sources(self, worker: int) -> Iterator[Source | None]:
        """The stream as this worker sees it: None too while another one reads."""
        while not (self.stopped or self.error):
            source = None
            if self._reading.acquire(blocking=False):
                try:
                    source = next(self._stream)
                except StopIteration:
                    self.stopped = True
                except BaseException as error:
                    self.error = error
                finally:
                    self._reading.release()
            self.set_busy(worker, self._busy[worker] or source is not None)
            yield source

    def set_busy(self, worker: int, busy: bool) -> None:
        """Called by the worker: those that are busy divide the processor's threads among them."""
        self._busy[worker] = busy
        granted = max(1, self.n_threads // max(1, sum(self._busy)))
        if granted != self._granted[worker]:
            torch.set_num_threads(granted)
            self._granted[worker] = granted
