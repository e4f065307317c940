"""One recipe with several seeds: how much of a difference is chance."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heed.data.corpora.download import Corpora
from heed.errors import HeedError
from heed.runs.recipe import Recipe, read_recipe
from heed.training.logbook import read_entries

LAST = "(last checkpoint)"  # how names of scores end that are not the kept model's
METRICS = ("bleu", "chrf", "f1", "perplexity")
Group = Mapping[tuple[str, str], list[float]]  # (set, metric) → a value for each seed


@dataclass(frozen=True)
class Difference:
    """A group's mean minus the first group's. p: two-sided, by Student's t with pooled variance; None without two
    seeds in both."""

    set: str
    metric: str
    value: float
    t: float | None
    freedom: int
    p: float | None


def train_seeds(
    recipe: Recipe, run: Path, n_seeds: int, corpora: Corpora, *, train: Callable[[Recipe, Path, Corpora], object]
) -> Group:
    """Trains a recipe with training.seed = 1 to n_seeds in run/seed-N, and returns the scores of the kept models.

    train: train_recipe, or one that reports to a tracker. Finished runs are not trained again; an interrupted one is
    resumed.
    """
    for seed in range(1, n_seeds + 1):
        folder = run / f"seed-{seed}"
        training = recipe.training.model_copy(update={"seed": seed})
        seeded = recipe.model_copy(update={"training": training})
        if folder.is_dir() and _scores(folder) and _is_same(read_recipe(folder), seeded):
            continue
        corpora.report(f"Seed {seed} of {n_seeds}: {folder}.")
        train(seeded, folder, corpora)
    return scores_of_seeds(run)


def _is_same(one: Recipe, other: Recipe) -> bool:
    """Apart from the names of files, which a run folder has in full."""
    return (one.training, one.model, one.tokenizer) == (other.training, other.model, other.tokenizer)


def is_group(folder: Path) -> bool:
    """Whether it holds the runs of several seeds."""
    return (folder / "seed-1").is_dir()


def scores_of_seeds(run: Path) -> Group:
    """The scores of the kept models of all finished seeds. HeedError if none is finished."""
    finished = [scores for folder in sorted(run.glob("seed-*")) if (scores := _scores(folder))]
    if not finished:
        raise HeedError(f"{run}: no seed is trained to its end; give the command of heed train --seeds again.")
    common = [key for key in finished[0] if all(key in scores for scores in finished)]
    return {key: [scores[key] for scores in finished] for key in common}


def _scores(folder: Path) -> dict[tuple[str, str], float]:
    scores: dict[tuple[str, str], float] = {}
    for entry in read_entries(folder / "metrics.jsonl"):
        name = entry.get("name")
        if entry.get("kind") == "test" and isinstance(name, str) and not name.endswith(LAST):
            values = {metric: entry.get(metric) for metric in METRICS}
            scores |= {(name.partition(" (")[0], m): v for m, v in values.items() if isinstance(v, float)}
    return scores


def differences(first: Group, other: Group) -> list[Difference]:
    """The other group's differences from the first, for each score that both have."""
    return [_difference(*key, first[key], other[key]) for key in first if key in other]


def _difference(name: str, metric: str, first: Sequence[float], other: Sequence[float]) -> Difference:
    value, freedom = statistics.fmean(other) - statistics.fmean(first), len(first) + len(other) - 2
    if min(len(first), len(other)) < 2:
        return Difference(name, metric, value, None, freedom, None)
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in (first, other))
    error = math.sqrt(squares / freedom * (1 / len(first) + 1 / len(other)))
    t = value / error if error else math.copysign(math.inf, value) if value else 0.0
    return Difference(name, metric, value, t, freedom, student_p(t, freedom))


def student_p(t: float, freedom: int) -> float:
    """The two-sided p of Student's t, by its finite series for whole degrees of freedom (Abramowitz, Stegun 26.7)."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (k - 1) / k
        total += term
    inside = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return max(0.0, 1 - inside)


def table(groups: Mapping[str, Group]) -> list[str]:
    """A line for each score of each group: mean, standard deviation, seeds; then Student's t against the first."""
    width = max(map(len, (*groups, "group")))
    lines = [f"{'group':{width}}  set         score            mean  deviation  seeds  difference        t       p"]
    first = next(iter(groups.values()))
    for name, group in groups.items():
        by_score = {(one.set, one.metric): one for one in differences(first, group)} if group is not first else {}
        for (of_set, metric), values in group.items():
            spread = f"{statistics.stdev(values):9.2f}" if len(values) > 1 else f"{'–':>9}"
            line = (
                f"{name:{width}}  {of_set:10}  {metric:10}  {statistics.fmean(values):9.2f}  {spread}  {len(values):5}"
            )
            if one := by_score.get((of_set, metric)):
                line += f"  {one.value:+10.2f}" + ("" if one.p is None else f"  {one.t:7.2f}  {one.p:6.4f}")
            lines.append(line)
    return lines
