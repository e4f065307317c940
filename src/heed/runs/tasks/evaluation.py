"""The scores of a model on one set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heed.evaluation.bleu import Score
from heed.training.logbook import short


@dataclass(frozen=True)
class Evaluation:
    """Scores on one set: BLEU and chrF of translations with the perplexity of the references, F1 of trees."""

    name: str
    n_lines: int
    scores: Mapping[str, Score]  # by key: bleu, chrf, f1
    perplexity: float | None = None  # per target token
    precision: str | None = None  # of a model's computation
    seconds: float | None = None  # that a model took to translate
    cut_off: int = 0  # translations that reached the longest length that is allowed
    without_perplexity: int = 0  # references that are too long for the loss, or that the vocabulary cannot write

    def numbers(self) -> dict[str, Any]:
        """For JSON and logs: each value with its signature."""
        numbers: dict[str, Any] = {"name": self.name, "lines": self.n_lines}
        for key, score in self.scores.items():
            numbers |= {key: score.value, f"{key}_signature": score.signature}
        more = {"perplexity": self.perplexity, "precision": self.precision}
        numbers |= {key: value for key, value in more.items() if value is not None}
        counts = {"cut_off": self.cut_off, "without_perplexity": self.without_perplexity}
        return numbers | {key: count for key, count in counts.items() if count}

    def __str__(self) -> str:
        parts = [str(score) for score in self.scores.values()]
        if self.perplexity is not None:
            parts.append(f"perplexity {short(self.perplexity)} a token")
        return "; ".join(parts)


def score_table(evaluations: Sequence[Evaluation]) -> list[str]:
    """A line of column titles and one for each evaluation, all with the same kinds of scores."""
    with_perplexity = any(evaluation.perplexity is not None for evaluation in evaluations)
    titles = [score.name for score in evaluations[0].scores.values()] + ["ppl"] * with_perplexity
    width = max(34, *(len(evaluation.name) for evaluation in evaluations))
    lines = [" " * width + "".join(f"{title:>9}" for title in titles)]
    for evaluation in evaluations:
        columns = "".join(f" {score.value:8.2f}" for score in evaluation.scores.values())
        if with_perplexity:
            columns += " " * 8 + "–" if evaluation.perplexity is None else f" {short(evaluation.perplexity):>8}"
        lines.append(f"{evaluation.name:{width}}{columns}")
    return lines
