"""Counters, gauges and histograms, in Prometheus' text form. Their labels never hold an address, a key or a text."""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
Labels = tuple[str, ...]


class Counter:
    """A number for each combination of labels, that only grows."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = ()):
        self.name, self._meaning, self._labels = name, meaning, labels
        self._values: defaultdict[Labels, float] = defaultdict(float, {} if labels else {(): 0.0})
        self._lock = threading.Lock()

    def add(self, amount: float = 1, *labels: str) -> None:
        """Adds to the number with these labels."""
        with self._lock:
            self._values[labels] += amount

    def value(self, *labels: str) -> float:
        """The number with these labels."""
        return self._values.get(labels, 0.0)

    def lines(self) -> Iterator[str]:
        """As Prometheus reads it."""
        yield from _head(self.name, self._meaning, "counter")
        with self._lock:
            values = sorted(self._values.items())
        for labels, value in values:
            yield f"{self.name}{_shown(zip(self._labels, labels, strict=True))} {_number(value)}"


class Gauge:
    """A number that is asked for when the metrics are read."""

    def __init__(self, name: str, meaning: str, read: Callable[[], float]):
        self.name, self._meaning, self._read = name, meaning, read

    def lines(self) -> Iterator[str]:
        """As Prometheus reads it."""
        yield from _head(self.name, self._meaning, "gauge")
        yield f"{self.name} {_number(self._read())}"


class Histogram:
    """How many observations lie below each bound, for each combination of labels."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = (), bounds: Sequence[float] = SECONDS):
        self.name, self._meaning, self._labels, self._bounds = name, meaning, labels, bounds
        self._counts: dict[Labels, list[int]] = {}
        self._sums: defaultdict[Labels, float] = defaultdict(float)
        self._lock = threading.Lock()

    def observe(self, value: float, *labels: str) -> None:
        """Counts one observation."""
        with self._lock:
            counts = self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
            counts[bisect_left(self._bounds, value)] += 1
            self._sums[labels] += value

    def lines(self) -> Iterator[str]:
        """As Prometheus reads it."""
        yield from _head(self.name, self._meaning, "histogram")
        with self._lock:
            found = sorted((labels, list(counts), self._sums[labels]) for labels, counts in self._counts.items())
        for labels, counts, total in found:
            pairs = list(zip(self._labels, labels, strict=True))
            below = 0
            for bound, count in zip([*map(str, self._bounds), "+Inf"], counts, strict=True):
                below += count
                yield f"{self.name}_bucket{_shown([*pairs, ('le', bound)])} {below}"
            yield f"{self.name}_sum{_shown(pairs)} {_number(total)}"
            yield f"{self.name}_count{_shown(pairs)} {below}"


Metric = Counter | Gauge | Histogram


def exposition(metrics: Sequence[Metric]) -> str:
    """All of them as one page."""
    return "\n".join(line for metric in metrics for line in metric.lines()) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _head(name: str, meaning: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _shown(pairs: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
