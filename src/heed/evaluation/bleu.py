"""BLEU and chrF with their signatures (Post 2018): a score without its signature cannot be compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from heed.errors import HeedError, refuse_text

Tokenization = Literal["13a", "none", "intl", "char", "zh"]


@dataclass(frozen=True)
class Score:
    """A value from 0 to 100 and how it was made."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def checked_tokenization(name: str) -> Tokenization:
    """The name, if it is one of sacrebleu's that Heed offers; else HeedError lists them."""
    known: Tokenization
    for known in get_args(Tokenization):
        if name == known:
            return known
    raise HeedError(f"unknown tokenisation {name!r}; known: {', '.join(get_args(Tokenization))}.")


def tokenization_advice(references: Sequence[str], tokenize: Tokenization) -> str | None:
    """What to tell the user if most lines end as tokenised text does, and BLEU would tokenise them again."""
    n_tokenised = sum(line.endswith(" .") for line in references)
    if tokenize == "none" or 2 * n_tokenised <= len(references):
        return None
    return f"{n_tokenised:,} of {len(references):,} references end in ' .'. If the text is tokenised: --tokenize none."


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], *others: Sequence[str], tokenize: Tokenization = "13a"
) -> Score:
    """Corpus BLEU. 13a fits detokenised text; "none" text that is already tokenised, as lc.norm.tok files are.

    others: further references of the same hypotheses.
    """
    _check_lengths(hypotheses, references, *others)
    metric = BLEU(tokenize=tokenize, force=True)  # no warning, which names an option of sacrebleu's
    value = metric.corpus_score(list(hypotheses), [list(of) for of in (references, *others)]).score
    return Score("BLEU", value, str(metric.get_signature()))


def chrf(hypotheses: Sequence[str], references: Sequence[str], *others: Sequence[str]) -> Score:
    """Corpus chrF2 (Popović 2015); others: further references, of which a sentence's best counts."""
    _check_lengths(hypotheses, references, *others)
    metric = CHRF()
    value = metric.corpus_score(list(hypotheses), [list(of) for of in (references, *others)]).score
    return Score("chrF2", value, str(metric.get_signature()))


def exact_matches(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Share of lines, 0 to 1, that equal their reference."""
    _check_lengths(hypotheses, references)
    return sum(h == r for h, r in zip(hypotheses, references, strict=True)) / len(references)


def _check_lengths(hypotheses: Sequence[str], *references: Sequence[str]) -> None:
    for of in references:
        refuse_text(hypotheses=hypotheses, references=of)
        if len(hypotheses) != len(of):
            raise HeedError(
                f"{len(hypotheses):,} hypotheses, {len(of):,} references: both must have the same number of lines."
            )
    if not hypotheses:
        raise HeedError("there is no line to score.")
