"""A mix: several parts of training text, the share of the pairs that each has, and how the shares change with time."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from heed.config import Settings, shown
from heed.data.reading.files import stands_for_many
from heed.data.reading.text_files import check_test_names
from heed.text.printable import check_language, check_tag

Weight = Annotated[float, Field(ge=0, le=1_000_000_000)]


Language = Annotated[str, Field(min_length=1), AfterValidator(check_language)]
Tests = Annotated[dict[str, list[str]], AfterValidator(check_test_names)]


def _check_name(name: str) -> str:
    if not 1 <= len(name) <= 64 or not name.isprintable() or name != name.strip():
        raise ValueError(f"a part's name has 1 to 64 visible characters; found {shown(name)}")
    return name


class MixPart(Settings):
    """A part of the training text; one without files and corpus is the text of data.corpus or data.train."""

    name: Annotated[str, AfterValidator(_check_name)] = Field(description="what reports call the part")
    train: list[str] | None = Field(default=None, description="own files, named as those of data.train")
    corpus: str | None = Field(default=None, description="or the training text of a known corpus (heed data list)")
    variant: str = Field(default="raw", description="form of that corpus")
    weight: Weight | list[Weight] | None = Field(
        default=None,
        description="share of the training pairs, in proportion to the other parts' weights; with data.mix_stages a "
        "list with one weight a stage, 0 to leave the part out",
    )
    src: Language | None = Field(
        default=None,
        description="source language of the part, in a mix of several pairs of languages; not set: data.src",
    )
    tgt: Language | None = Field(
        default=None,
        description="target language of the part: each source of such a mix begins with a symbol of its target "
        "language, which no text spells (Johnson et al. 2017); not set: data.tgt",
    )
    tests: Tests = Field(
        default_factory=dict, description="test sets of the part's languages: name = [src file, tgt file]"
    )
    tag: Annotated[str, AfterValidator(check_tag)] | None = Field(
        default=None,
        description="a word put before each source, such as <~>, so that the model learns what kind of text it is "
        "(Caswell et al. 2019); an id of the vocabulary that is learned, and none of the tokens that limits count",
    )

    @property
    def has_languages(self) -> bool:
        """Whether it names any."""
        return self.src is not None or self.tgt is not None

    @property
    def is_own_text(self) -> bool:
        """Whether its pairs are those of data.corpus or data.train."""
        return self.train is None and self.corpus is None

    def weights(self, n_stages: int) -> list[float] | None:
        """The weight in each stage; None without a weight."""
        if self.weight is None or isinstance(self.weight, list):
            return self.weight
        return [self.weight] * n_stages


@dataclass(frozen=True)
class Mix:
    """The parts of a mix, the run's own text first.

    stages: the steps after which another stage begins. temperature: without weights, a part's share is in proportion to
    its number of pairs to the power of 1 / temperature (Arivazhagan et al. 2019); 1 is the parts' own sizes.
    """

    parts: tuple[MixPart, ...]
    stages: tuple[int, ...]
    temperature: float | None

    def stage_at(self, step: int) -> int:
        """The stage of the step that follows this many, counted from 0."""
        return bisect_right(self.stages, step)

    def end_of(self, stage: int) -> int | None:
        """The step after which a stage ends; None for the last one."""
        return self.stages[stage] if stage < len(self.stages) else None

    def shares(self, stage: int, sizes: Sequence[int]) -> list[float]:
        """The share of each part in a stage, 1 in all. sizes: their pairs."""
        power = 1 / (self.temperature or 1)
        try:
            flattened = [size**power for size in sizes]
        except OverflowError:  # of a low temperature; relative to the largest part nothing is too large
            flattened = [(size / max(sizes)) ** power for size in sizes]
        weights = [
            alone if given is None else given[stage] for alone, given in zip(flattened, self._weights(), strict=True)
        ]
        return [weight / sum(weights) for weight in weights]

    def _weights(self) -> list[list[float] | None]:
        return [part.weights(len(self.stages) + 1) for part in self.parts]

    def check(self) -> None:
        """ValueError if parts, weights, stages and temperature do not go together."""
        # The parts: each with text of its own, and one that is the recipe's.
        names = [part.name for part in self.parts]
        if len(set(names)) < len(names):
            raise ValueError("two parts of data.mix have the same name; give each its own")
        n_own = sum(part.is_own_text for part in self.parts)
        if n_own != 1:
            raise ValueError(
                f"{n_own} parts of data.mix are without train and corpus; exactly one must be: the text of data.train "
                "or data.corpus"
            )
        for part in self.parts:
            many = part.train is not None and any(map(stands_for_many, part.train))
            if part.train is not None and (part.corpus is not None or not (many or len(part.train) == 2)):
                raise ValueError(f"{part.name} of data.mix needs two files, train = [src, tgt], or a corpus")
            if part.has_languages and part.is_own_text:
                raise ValueError(
                    f"{part.name} of data.mix is in the languages data.src and data.tgt; leave out src, tgt"
                )
            if part.tests and not part.has_languages:
                raise ValueError(f"{part.name} of data.mix has tests, but no src or tgt; put them into data.tests")
            if part.tag is not None and any(one.has_languages for one in self.parts):
                raise ValueError(f"{part.name} of data.mix has a tag; in a mix of languages their symbols stand there")
            if part.corpus is None and part.variant != type(part).model_fields["variant"].default:
                raise ValueError(f"{part.name} of data.mix has a variant, but names no corpus; leave it out")

        # The shares: weights of all parts, or of none.
        if any(step <= before for before, step in zip((0, *self.stages), self.stages, strict=False)):
            raise ValueError("data.mix_stages must be steps above 0, each later than the one before")
        weights = self._weights()
        given = [of_part for of_part in weights if of_part is not None]
        if given and len(given) < len(weights):
            raise ValueError("some parts of data.mix have a weight and some none; give it to all, or to none")
        if given and self.temperature is not None:
            raise ValueError("data.mix_temperature is for parts without weights; leave one of them out")
        if not given and self.stages:
            raise ValueError("data.mix_stages has no effect on parts without weights; give each a list of weights")
        n_stages = len(self.stages) + 1
        for part, of_part in zip(self.parts, weights, strict=True):
            if of_part is not None and len(of_part) != n_stages:
                raise ValueError(
                    f"{part.name} of data.mix has {len(of_part)} weights, but data.mix_stages makes {n_stages} "
                    "stage(s); give one weight each"
                )
        for stage in range(n_stages if given else 0):
            if not any(of_part[stage] for of_part in given):
                raise ValueError(f"stage {stage + 1} of data.mix has no part with a weight above 0")

    def lines(self, sizes: Sequence[int] | None = None) -> list[str]:
        """For people: a line a stage, such as "until step 20,000: news 75.0 % + web 25.0 % (tag <web>)".

        sizes: the pairs of each part; where they are not known, shares that follow from them are not shown.
        """
        ends = [*(f"until step {end:,}: " for end in self.stages), "then " if self.stages else ""]
        return [end + self._line(stage, sizes) for stage, end in enumerate(ends)]

    def begun_after(self, sizes: Sequence[int]) -> dict[int, str]:
        """The steps after which another stage begins, and the shares of its parts as `lines` has them."""
        return {step: self._line(stage, sizes) for stage, step in enumerate(self.stages, start=1)}

    def _line(self, stage: int, sizes: Sequence[int] | None) -> str:
        known = sizes is not None or self.parts[0].weight is not None
        shares = self.shares(stage, sizes or [1] * len(self.parts)) if known else [None] * len(self.parts)
        texts = [
            part.name
            + (" by its size" if share is None else f" {share:.1%}")
            + (f" (tag {part.tag})" if part.tag else "")
            for part, share in zip(self.parts, shares, strict=True)
            if share != 0
        ]
        text = " + ".join(texts)
        if not known and self.temperature not in (None, 1):
            text += f", to the power of 1 / {self.temperature:g}"
        return text
