"""The scores of a model on one set; needs no PyTorch."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heed.data.settings import DataSettings
from heed.decoding.scoring import perplexity
from heed.decoding.translator import Translator
from heed.evaluation.bleu import Score, bleu, chrf
from heed.evaluation.tokenization import Tokenization
from heed.model_folder import ModelCard
from heed.text.line_rules import Mentions, reason_against_loss
from heed.training.logbook import short

LONGEST_PAIR = "tokens of the longest side"  # on the card


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


def longest_pair(card: ModelCard) -> int:
    """The most tokens that a side of a pair may have which counts for perplexity: that of the model's training."""
    longest = card.trained_on.get(LONGEST_PAIR)
    return longest if type(longest) is int and longest > 0 else int(DataSettings.model_fields["max_tokens"].default)


def evaluate_translations(
    translator: Translator,
    sources: list[str],
    references: list[str],
    *others: list[str],
    name: str,
    tokenize: Tokenization,
    max_tokens: int,
) -> Evaluation:
    """BLEU and chrF of the model's translations, and its perplexity per token of the references.

    others: further references, which count for BLEU and chrF. max_tokens: perplexity leaves out the pairs that
    preparation leaves out of dev, those with a longer side among them (`reason_against_loss`); if none is left, there
    is none.
    """
    # The pairs that have a perplexity: learned positions are a limit, too, for every model of an ensemble.
    tokenizer, without = translator.tokenizer, Mentions()
    positions = [model.arch.max_positions - 1 for model in translator.models if model.arch.positions == "learned"]
    scored = []
    lines = zip(sources, references, strict=True)
    ids = zip(tokenizer.encode_lines(sources), tokenizer.encode_targets(references), strict=True)
    for i, (pair, pair_ids) in enumerate(zip(lines, ids, strict=True)):
        reason = reason_against_loss(pair, pair_ids, tokenizer, max_tokens=min([max_tokens, *positions]))
        if reason is None:
            scored.append(i)
        else:
            without.add(f"line {i + 1:,} ({reason})")
    if without:
        translator.report(f"{name}: perplexity leaves out {without}.")

    # Perplexity is of the references, so no search is involved; only the search is timed.
    log_probs = translator.log_probs([sources[i] for i in scored], [references[i] for i in scored])
    exchanged = translator.log_probs([references[i] for i in scored[:100]], [sources[i] for i in scored[:100]])
    if _per_token(exchanged) > _per_token(log_probs[:100]) + 2:  # nats; the sides of a good model differ by more
        translator.report(
            f"{name}: its sides seem to be exchanged: to this model, the sources are far more probable as translations "
            "of the references than the other way round."
        )
    started = time.perf_counter()
    translations = translator.translate(sources)
    seconds = time.perf_counter() - started

    texts = [translation.text for translation in translations]
    ppl = perplexity(-_per_token(log_probs)) if log_probs else None  # all pairs may have been left out
    scores = {"bleu": bleu(texts, references, *others, tokenize=tokenize), "chrf": chrf(texts, references, *others)}
    return Evaluation(
        name,
        len(sources),
        scores,
        ppl,
        translator.precision,
        seconds,
        cut_off=sum(not translation.ended for translation in translations),
        without_perplexity=len(without),
    )


def _per_token(log_probs: Sequence[Sequence[float]]) -> float:
    return sum(map(sum, log_probs)) / max(1, sum(map(len, log_probs)))


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
