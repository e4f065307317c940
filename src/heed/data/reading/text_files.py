"""The text of a run: files of sentences, of a named corpus, one's own, or a treebank's."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from heed.config import shown
from heed.data.reading.dev_split import DevSplit
from heed.data.reading.pairs import FilePair

T = TypeVar("T")


@dataclass(frozen=True)
class TextPart:
    """A part of a mix: how many pairs of files it has, and the word put before each of its sources.

    languages: its source and target language, in a mix of several pairs of them.
    """

    n_files: int
    tag: str | None = None
    languages: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """Parallel text as pairs of (source, target) files, one sentence per line.

    In `train`, a file that holds both sides stands twice. dev_split: if given, `prepare` writes dev: pairs of the first
    `n_given` of `train`, which are not learned from. n_given: how many of `train` are the corpus itself; those after
    them were added. parts: of a mix, in the order of `train`; none without one.
    """

    train: tuple[FilePair, ...]  # several pairs are read one after another
    dev: FilePair
    tests: Mapping[str, FilePair] = field(default_factory=dict)  # by the name of the test set
    dev_split: DevSplit | None = None
    n_given: int = 1
    parts: tuple[TextPart, ...] = ()

    @property
    def evaluation_sets(self) -> dict[str, FilePair]:
        """dev and the test sets, by name: what is scored, and never learned from."""
        return {"dev": self.dev, **self.tests}

    @property
    def name_of_given(self) -> str:
        """What messages call the corpus itself."""
        if self.n_given > 1:
            return f"the {self.n_given:,} sources of the training text"
        return " and ".join(dict.fromkeys(map(str, self.train[0])))

    @property
    def holds_out_sides(self) -> bool:
        """Whether pairs that share one side with dev are left out of training."""
        return self.dev_split is not None and self.dev_split.either_side

    @property
    def tags(self) -> list[str | None]:
        """The tag of each pair of files in `train`."""
        return [part.tag for part in self.parts for _ in range(part.n_files)] or [None] * len(self.train)

    @property
    def directions(self) -> list[tuple[str, str]]:
        """The pairs of languages of the parts, the own text's first; none of a text in one pair."""
        return list(dict.fromkeys(part.languages for part in self.parts if part.languages))

    @property
    def learned_and_chosen_by(self) -> list[FilePair]:
        """The given files that shape the model: train, and dev unless it is split off."""
        return [*self.train, *(() if self.dev_split else (self.dev,))]

    @property
    def pairs(self) -> list[FilePair]:
        """All given pairs of files: train, dev unless it is split off, tests."""
        return [*self.learned_and_chosen_by, *self.tests.values()]


def check_test_names(tests: dict[str, T]) -> dict[str, T]:
    """The same, by name of the test set. ValueError for names that could be another file's: a run has files of them."""
    for name in tests:
        if not re.fullmatch(r"[\w+-](?:[\w.+ -]{0,62}[\w.+-])?", name):
            raise ValueError(
                f"a test set cannot be called {shown(name)}; a name has letters, digits and . _ - +, spaces within, "
                "64 characters at most, and begins with no dot"
            )
        if name.casefold() in ("train", "dev"):
            raise ValueError(f"a test set cannot be called {name}; take another name")
    return tests
