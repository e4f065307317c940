"""The settings of a run's text, `[data]` of a recipe."""

from types import NoneType
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from heed.config import Settings, shown
from heed.data.mix import Language, Mix, MixPart, Tests
from heed.data.reading.columns import holds_both_sides
from heed.data.reading.dev_split import MAX_SHARE, DevSplit
from heed.data.reading.files import stands_for_many

MAX_DEV_PAIRS = 1_000_000_000


def _files_or_size(dev: Any) -> Any:
    """Not by a Field's bounds, whose error would speak of all three types."""
    is_share, is_number = type(dev) is float and 0 < dev < MAX_SHARE, type(dev) is int and 1 <= dev <= MAX_DEV_PAIRS
    if isinstance(dev, (list, NoneType)) or is_share or is_number:
        return dev
    raise ValueError(
        "expected two files, [src, tgt], a number of pairs to split off the training text, such as 500, or their "
        f"share, such as 0.01, which is below {MAX_SHARE:g}; found {shown(dev)}"
    )


Dev = Annotated[list[str] | int | float | None, BeforeValidator(_files_or_size)]


class DataSettings(Settings):
    """The training text: a named corpus, or your own text files."""

    src: Language = Field(description="source language, as in file names: en")
    tgt: Language = Field(description="target language: de")
    corpus: str | None = Field(default=None, description="name of a known corpus (heed data list)")
    variant: str = Field(default="raw", description="form of a named corpus: raw, or lc.norm.tok where it is offered")
    train: list[str] | None = Field(
        default=None,
        description="own corpus: [src file, tgt file], plain, .gz or .zst; files of both sides (JSON Lines, Parquet, "
        ".csv, .tsv), patterns, folders",
    )
    dev: Dev = Field(
        default=None,
        description="own corpus: [src file, tgt file], or [file of both sides]; or how many pairs to split off the "
        "training text (500), or what share (0.01; text appended later moves no other pair), chosen by a hash of each "
        "pair",
    )
    added: list[str] | None = Field(
        default=None,
        description="more pairs to learn from, in addition to the corpus, named or your own: [src file, tgt file]",
    )
    tests: Tests = Field(default_factory=dict, description="own corpus: name = [src file, tgt file]")
    mix: list[MixPart] = Field(
        default_factory=list,
        description="parts of the training text in fixed shares: tables [[data.mix]], one of them the text of "
        "data.corpus or data.train itself",
    )
    mix_stages: list[Annotated[int, Field(ge=1)]] = Field(
        default_factory=list,
        description="steps after which the next of the weights of each part of data.mix holds, such as [20_000]",
    )
    mix_temperature: float | None = Field(
        default=None,
        ge=0.01,
        le=100,
        description="of a mix without weights: shares in proportion to the parts' sizes to the power of "
        "1 / temperature; not set: 1",
    )
    tgt_symbols: bool = Field(
        default=False,
        description="target lines are symbols separated by spaces, such as those of a tree, one id each; a word that "
        "begins with ▁ is text",
    )
    max_tokens: int = Field(
        default=256, ge=1, le=1_000_000, description="a training pair with a longer side is left out"
    )
    max_unknown: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="refuse a set if a larger share of a side's tokens is text that the vocabulary lacks; only a given "
        "model's vocabulary lacks any",
    )
    max_ratio: float = Field(
        default=9.0,
        ge=1,
        le=1_000_000,
        description="drop a training pair if one side is more than this many times longer than the other",
    )

    drop_duplicates: bool = Field(default=False, description="drop a training pair that is a copy of an earlier one")
    drop_identical: bool = Field(default=False, description="drop a training pair whose sides are the same text")
    check_languages: bool = Field(
        default=False, description="drop a training pair if a detector (py3langid) takes a side for another language"
    )
    columns: list[str] | None = Field(
        default=None,
        min_length=2,
        max_length=2,
        description="columns of files of both sides: [src, tgt], such as translation.en, or numbers from 1 in "
        "tables without a head; by default the languages' codes, or source and target if these are equal",
    )
    shard_pairs: int | None = Field(
        default=None,
        ge=1,
        le=2_000_000,
        description="keep the ids in shards of this many pairs; by default corpora of more than 10 million pairs have "
        "shards of 1,000,000, and smaller ones are one shard",
    )

    @property
    def column_names(self) -> tuple[str, str]:
        """The columns of sources and targets in files that hold both."""
        if self.columns is None and self.src == self.tgt:
            return "source", "target"
        src, tgt = self.columns or (self.src, self.tgt)
        return src, tgt

    @property
    def corpus_name(self) -> str:
        """The text's name in cards and captions."""
        return (self.corpus or "own files") + (" and added pairs" if self.added else "")

    @property
    def dev_split(self) -> DevSplit | None:
        """Which of the training pairs are dev, if it has no files of its own."""
        if self.dev is None or isinstance(self.dev, list):
            return None
        return DevSplit(size=self.dev, max_tokens=self.max_tokens, max_ratio=self.max_ratio)

    def languages_of(self, part: MixPart) -> tuple[str, str] | None:
        """The source and target language of a part of a mix of several pairs of languages; None of another mix."""
        if not any(one.has_languages for one in self.mix):
            return None
        return part.src or self.src, part.tgt or self.tgt

    @property
    def mixture(self) -> Mix | None:
        """The parts of a mix, the text of data.corpus or data.train first; None without one."""
        if not self.mix:
            return None
        parts = sorted(self.mix, key=lambda part: not part.is_own_text)
        return Mix(tuple(parts), tuple(self.mix_stages), self.mix_temperature)

    @model_validator(mode="after")
    def _a_mix_of_parts(self) -> Self:
        if self.mixture is not None:
            self.mixture.check()
        elif self.mix_stages or self.mix_temperature is not None:
            raise ValueError("data.mix_stages and data.mix_temperature have no effect without data.mix; leave them out")
        if self.check_languages and any(part.has_languages for part in self.mix):
            raise ValueError("data.check_languages is for one pair of languages; leave it out with those of data.mix")
        if self.mix and self.tgt_symbols:
            raise ValueError("data.mix is for translation; leave it out with data.tgt_symbols")
        return self

    @model_validator(mode="after")
    def _one_kind_of_corpus(self) -> Self:
        if self.columns is not None and self.columns[0] == self.columns[1]:
            raise ValueError("data.columns names one column twice; name that of the sources, then that of the targets")
        if self.corpus is not None and (self.train or self.dev or self.tests):
            raise ValueError(
                "data.corpus names a corpus, so data.train, data.dev and data.tests may not be set; to train on your "
                "own files, remove data.corpus and data.variant"
            )
        many = self.train is not None and any(map(stands_for_many, self.train))
        train = None if many else self.train
        for name, files in (("train", train), ("dev", self.dev), ("added", self.added), *self.tests.items()):
            if isinstance(files, list) and len(files) != 2 and not (len(files) == 1 and holds_both_sides(files[0])):
                raise ValueError(f"data.{name} needs two files, [src, tgt], or one of both sides; found {len(files)}")
        if self.corpus is None and self.variant != type(self).model_fields["variant"].default:
            raise ValueError("data.variant is a form of a named corpus, and there is none; remove it")
        return self
