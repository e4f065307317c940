"""The text of a run: files of sentences, of a named corpus, one's own, or a treebank's."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from heed.data.dev_split import DevSplit
from heed.data.lines import FilePair


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """Parallel text as pairs of (source, target) files, plain or .gz, one sentence per line.

    dev_split: if given, `prepare` writes dev: pairs of the first of `train`, which are not learned from.
    """

    train: tuple[FilePair, ...]  # several pairs are read one after another
    dev: FilePair
    tests: Mapping[str, FilePair] = field(default_factory=dict)  # by the name of the test set
    dev_split: DevSplit | None = None

    @property
    def evaluation_sets(self) -> dict[str, FilePair]:
        """dev and the test sets, by name: what is scored, and never learned from."""
        return {"dev": self.dev, **self.tests}

    @property
    def learned_and_chosen_by(self) -> list[FilePair]:
        """The given files that shape the model: train, and dev unless it is split off."""
        return [*self.train, *(() if self.dev_split else (self.dev,))]

    @property
    def pairs(self) -> list[FilePair]:
        """All given pairs of files: train, dev unless it is split off, tests."""
        return [*self.learned_and_chosen_by, *self.tests.values()]
