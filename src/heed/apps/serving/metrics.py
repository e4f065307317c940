"""A server's metrics, as Prometheus reads them. Labels never hold an address, a key or a text."""

from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CONTENT_TYPE = "text/plain; version=0.0.4"  # of generate_latest, whatever the package's latest format is

disable_created_metrics()  # type: ignore[no-untyped-call] # a second line for each number, that nobody asks for


class Queue(Protocol):
    """The numbers of an engine that the gauges read."""

    @property
    def n_waiting(self) -> int: ...

    @property
    def n_searching(self) -> int: ...


class Metrics:
    """The counters and histograms of a server, and the gauges that are read when the page is."""

    def __init__(self) -> None:
        # A registry of our own: that of the library is shared by the whole process.
        self.engines: list[Queue] = []  # each adds itself
        self._registry = CollectorRegistry()

        # Every request, refused ones included (`Guard`).
        self.requests = Counter("heed_requests_total", "Requests.", ["endpoint", "status"], registry=self._registry)
        self.request_seconds = Histogram(
            "heed_request_seconds", "Time that a request takes.", ["endpoint"], buckets=SECONDS, registry=self._registry
        )

        # Sentences, which wait and are searched one by one.
        self.queue_seconds = Histogram(
            "heed_queue_seconds",
            "Time that a sentence waits before it is searched.",
            buckets=SECONDS,
            registry=self._registry,
        )
        self.tokens = Counter("heed_tokens_total", "Tokens of finished sentences.", ["side"], registry=self._registry)

        self.blank = Counter(
            "heed_blank_translations_total",
            "Sentences whose best translation was empty, which the next one or the sentence itself replaced.",
            registry=self._registry,
        )

        # Work that came to nothing, by its cause.
        self.cancelled = Counter(
            "heed_cancelled_total", "Requests given up by their clients before they were done.", registry=self._registry
        )
        self.rejected = Counter(
            "heed_rejected_total", "Requests not accepted or not finished.", ["reason"], registry=self._registry
        )
        self.failures = Counter(
            "heed_search_failures_total", "Searches that ended with an error.", registry=self._registry
        )

        # Gauges ask the engines when the page is read, so no number has to be kept in step with them.
        waiting = Gauge("heed_queue_sentences", "Sentences that wait.", registry=self._registry)
        waiting.set_function(lambda: sum(engine.n_waiting for engine in self.engines))
        searching = Gauge("heed_batch_sentences", "Sentences that are being searched.", registry=self._registry)
        searching.set_function(lambda: sum(engine.n_searching for engine in self.engines))

    def value(self, name: str, **labels: str) -> float:
        """The number with these labels; 0 if nothing has been counted."""
        return self._registry.get_sample_value(name, labels) or 0.0

    def page(self) -> bytes:
        """All of them in Prometheus' text form."""
        return generate_latest(self._registry)
