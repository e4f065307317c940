"""How to search and how to sample; the length penalty that scores a target."""

from typing import Literal, SupportsIndex, TypedDict

from pydantic import Field, model_validator

from heed.config import Settings
from heed.errors import HeedError, check_type

LengthPenalty = Literal["paper", "average", "none"]
MAX_BEAM_SIZE = 1000


class DecodingSettings(Settings):
    """How to search; defaults are the paper's."""

    # The commands' options come from these fields (apps/cli/options.py), the keywords of `load` too.

    beam_size: int = Field(
        default=4, ge=1, le=MAX_BEAM_SIZE, description="hypotheses kept for each sentence; 1 is greedy"
    )
    length_penalty: float = Field(
        default=0.6, ge=0, le=10, description="exponent α of the length penalty; 0 compares plain log-probabilities"
    )
    length_penalty_form: LengthPenalty = Field(
        default="paper",
        description="a score is log P / ((5 + length) / 6)^α (paper), / length^α (average), or log P (none)",
    )
    max_extra_tokens: int = Field(
        default=50, ge=0, le=10_000, description="an output has at most this many tokens more than its input"
    )
    max_length_factor: float | None = Field(
        default=None,
        ge=0.01,
        le=1000,
        description="an output has at most this many times the tokens of its input, eos counted on both sides",
    )
    max_tokens: int | None = Field(
        default=None, ge=1, le=10_000, description="maximum number of tokens in an output, eos included"
    )
    early_stopping: bool = Field(
        default=False,
        description="end a sentence when beam_size hypotheses have ended, even if another could still score higher; "
        "otherwise only when none can",
    )
    min_tokens: int = Field(
        default=0, ge=0, le=10_000, description="minimum number of tokens in a translation, eos not included"
    )
    no_repeat_ngram_size: int = Field(
        default=0, ge=0, le=100, description="no sequence of this many tokens occurs twice in a translation; 0: any may"
    )
    repetition_penalty: float = Field(
        default=1.0,
        ge=1,
        le=100,
        description="multiplies the log-probability of a token that the translation has already (Keskar et al. 2019)",
    )

    @model_validator(mode="after")
    def _no_more_than_the_most(self) -> "DecodingSettings":
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}")
        return self


class DecodingOptions(TypedDict, total=False):
    """DecodingSettings as keywords, for type checkers; None keeps the recipe's value, as leaving it out does."""

    beam_size: int | None
    length_penalty: float | None
    length_penalty_form: LengthPenalty | None
    max_extra_tokens: int | None
    max_length_factor: float | None
    max_tokens: int | None
    early_stopping: bool | None
    min_tokens: int | None
    no_repeat_ngram_size: int | None
    repetition_penalty: float | None


def check_n_best(n_best: int) -> None:
    """HeedError if a search cannot give that many hypotheses."""
    check_type(SupportsIndex, "a whole number", n_best=n_best)
    if n_best < 1:
        raise HeedError(f"n_best is {n_best}; it must be at least 1.")


class SamplingSettings(Settings):
    """How to draw instead of searching; a draw depends only on the seed and the number of its source."""

    temperature: float = Field(default=1.0, ge=0.01, le=100, description="divides the logits")
    top_k: int | None = Field(default=None, ge=1, le=2**24, description="draw from the k most probable ids")
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="draw from the fewest ids whose probabilities add up to p"
    )
    seed: int = Field(default=1, ge=0, le=2**63 - 1, description="of the draws")


def limits_to_raise(settings: DecodingSettings) -> str:
    """The limits that a user may raise so that translations can be longer."""
    limits = {
        "max_extra_tokens": settings.max_extra_tokens,
        "max_length_factor": settings.max_length_factor,
        "max_tokens": settings.max_tokens,
    }
    given = [f"{name} ({value:g})" for name, value in limits.items() if value is not None]
    return f"Raise {' or '.join(given)}."
