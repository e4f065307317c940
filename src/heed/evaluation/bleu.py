"""BLEU and chrF with their signatures (Post 2018): a score without its signature cannot be compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sacrebleu.metrics.chrf import CHRF

from heed.errors import HeedError, check_texts
from heed.evaluation.tokenization import TokenizationChoice, bleu_metric, check_tokenization, choose_tokenization


@dataclass(frozen=True)
class Score:
    """A value from 0 to 100 and how it was made."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], *others: Sequence[str], tokenize: TokenizationChoice = "auto"
) -> Score:
    """Corpus BLEU.

    tokenize: one of sacrebleu's: 13a fits detokenised text, "none" text that is already tokenised, as lc.norm.tok files
    are. "auto" is 13a, or another if the references are written without spaces (evaluation/tokenization.py).

    others: further references of the same hypotheses; a blank line is none.
    """
    _check_lengths(hypotheses, references, *others)
    metric = bleu_metric(choose_tokenization(check_tokenization(tokenize), list(chain(references, *others))))
    value = metric.corpus_score(list(hypotheses), _without_blanks(references, *others)).score
    return Score("BLEU", value, str(metric.get_signature()))


def chrf(hypotheses: Sequence[str], references: Sequence[str], *others: Sequence[str]) -> Score:
    """Corpus chrF2 (Popović 2015); others: further references, of which a sentence's best counts; a blank is none."""
    _check_lengths(hypotheses, references, *others)
    metric = CHRF()
    value = metric.corpus_score(list(hypotheses), _without_blanks(references, *others)).score
    return Score("chrF2", value, str(metric.get_signature()))


def _without_blanks(*references: Sequence[str]) -> list[Any]:
    """The references with None for each blank one of a sentence, but for the first if all are blank.

    To BLEU, a blank reference would be the closest in length to a short hypothesis and switch off its penalty.
    """
    rows = []
    for of_sentence in zip(*references, strict=True):
        row = [text if text.strip() else None for text in of_sentence]
        rows.append(row if any(row) else [of_sentence[0], *row[1:]])
    return [list(of) for of in zip(*rows, strict=True)]


def exact_matches(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Share of lines, 0 to 1, that equal their reference."""
    _check_lengths(hypotheses, references)
    return sum(h == r for h, r in zip(hypotheses, references, strict=True)) / len(references)


def _check_lengths(hypotheses: Sequence[str], *references: Sequence[str]) -> None:
    for of in references:
        check_texts(hypotheses=hypotheses, references=of)
        if len(hypotheses) != len(of):
            raise HeedError(
                f"{len(hypotheses):,} hypotheses, {len(of):,} references: both must have the same number of lines."
            )
    if not hypotheses:
        raise HeedError("there is no line to score.")
