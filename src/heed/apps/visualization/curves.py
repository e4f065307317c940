"""Learning curves of runs, from their metrics.jsonl: as a picture, or as lines of text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from heed.errors import HeedError
from heed.runs.recipe import run_meant
from heed.training.logbook import read_entries, short

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 60  # of a curve of text, in characters
CLIPPED = 2.0  # a loss or perplexity is drawn up to this many times its lowest value: the first steps would flatten it


class Quantity(NamedTuple):
    """A number that a run logs. kind, name: of the entries that have it. falls: lower values are better."""

    title: str
    kind: str
    name: str
    falls: bool = False


QUANTITIES = (
    Quantity("training loss, nats a token", "train", "loss", falls=True),
    Quantity("dev loss, nats a token", "validation", "loss", falls=True),
    Quantity("dev perplexity", "validation", "perplexity", falls=True),
    Quantity("dev BLEU, greedy", "validation", "greedy_bleu"),
    Quantity("dev chrF, greedy", "validation", "greedy_chrf"),
    Quantity("dev F1, greedy", "validation", "greedy_f1"),
    Quantity("learning rate", "train", "learning_rate"),
    Quantity("target tokens/s", "train", "tgt_tokens_per_second"),
)


@dataclass(frozen=True)
class Curve:
    """One quantity of one run: values by step, in order. stages: where a new stage of a mix begins."""

    run: str
    steps: Sequence[int]
    values: Sequence[float]
    stages: Sequence[int] = ()


def curves_of(runs: Mapping[str, Path]) -> dict[Quantity, list[Curve]]:
    """The curves of runs by quantity, those that no run has left out. runs: folders, or their metrics.jsonl, by label.

    HeedError for a run that has logged nothing.
    """
    by_quantity: dict[Quantity, list[Curve]] = {}
    for label, run in runs.items():
        path = run if run.is_file() else run / "metrics.jsonl"
        entries = list(read_entries(path))
        curves = {quantity: _curve(label, entries, quantity) for quantity in QUANTITIES}
        if not any(curve.steps for curve in curves.values()):
            is_run = (path.parent / "config.toml").is_file()
            hint = run_meant(path.parent) or ("train it on." if is_run else "name a run folder.")
            raise HeedError(f"{path}: no training and no validation is logged there; {hint}")
        for quantity, curve in curves.items():
            if curve.steps:
                by_quantity.setdefault(quantity, []).append(curve)
    return {quantity: by_quantity[quantity] for quantity in QUANTITIES if quantity in by_quantity}


def _curve(label: str, entries: Sequence[Mapping[str, Any]], quantity: Quantity) -> Curve:
    """Returns a curve of the log; of a step that a resumed run took twice, the later value counts."""
    values = {
        entry["step"]: float(entry[quantity.name])
        for entry in entries
        if entry.get("kind") == quantity.kind and isinstance(entry.get(quantity.name), (int, float))
    }
    steps = sorted(values)
    stages = sorted({entry["step"] for entry in entries if entry.get("kind") == "stage"})
    return Curve(label, steps, [values[step] for step in steps], stages)


def text_of(curves: Mapping[Quantity, Sequence[Curve]]) -> Iterator[str]:
    """For each quantity a title, and for each run its curve, where it begins and ends, and its best value."""
    for quantity, of_runs in curves.items():
        best_of = min if quantity.falls else max
        low, high = _limits(quantity, of_runs)
        yield f"{quantity.title}, from {_number(low)} (▁) to {_number(high)} (█)"
        for curve in of_runs:
            best = best_of(curve.values)
            at = curve.steps[curve.values.index(best)]
            yield f"  {_blocks(curve, low, high)}  {curve.run}: steps {curve.steps[0]:,} to {curve.steps[-1]:,}"
            begun = f"; new stage at step {', '.join(f'{step:,}' for step in curve.stages)}" if curve.stages else ""
            yield (
                f"  {_number(curve.values[0])} → {_number(curve.values[-1])}; "
                f"{'lowest' if quantity.falls else 'highest'} {_number(best)} at step {at:,}{begun}"
            )


def _limits(quantity: Quantity, curves: Sequence[Curve]) -> tuple[float, float]:
    """The lowest and the highest value to show."""
    lowest = [min(curve.values) for curve in curves]
    high = max(max(curve.values) for curve in curves)
    return min(lowest), min(high, CLIPPED * max(lowest)) if quantity.falls else high


def _number(value: float) -> str:
    return f"{value:.2e}" if 0 < abs(value) < 0.01 else f"{value:,.0f}" if abs(value) >= 1000 else short(value)


def _blocks(curve: Curve, low: float, high: float) -> str:
    """The curve as blocks, each the mean of an equal share of its values."""
    n = min(WIDTH, len(curve.values))
    ends = [len(curve.values) * i // n for i in range(n + 1)]
    means = [sum(curve.values[a:b]) / (b - a) for a, b in pairwise(ends)]
    heights = [(min(max(mean, low), high) - low) / (high - low or 1.0) for mean in means]
    return "".join(BLOCKS[min(int(height * len(BLOCKS)), len(BLOCKS) - 1)] for height in heights)


def draw_curves(figure: Any, curves: Mapping[Quantity, Sequence[Curve]]) -> None:
    """On a matplotlib figure: a panel for each quantity."""
    n_columns = min(3, len(curves))
    n_rows = -(-len(curves) // n_columns)
    figure.set_size_inches(3.6 * n_columns, 2.8 * n_rows)
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for panel, (quantity, of_runs) in zip(panels, curves.items(), strict=False):
        for curve in of_runs:
            (line,) = panel.plot(curve.steps, curve.values, label=curve.run, linewidth=1)
            for step in curve.stages:
                panel.axvline(step, color=line.get_color(), linewidth=0.8, linestyle=":")
        low, high = _limits(quantity, of_runs)
        margin = 0.05 * (high - low) or 1.0
        panel.set_ylim(low - margin, high + margin)
        panel.set_title(quantity.title, fontsize=9)
        panel.set_xlabel("steps")
        panel.grid(alpha=0.3)
    for panel in panels[len(curves) :]:
        panel.set_visible(False)
    panels[0].legend(frameon=False)
