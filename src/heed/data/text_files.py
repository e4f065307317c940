"""The text of a run: files of sentences, of a named corpus, one's own, or a treebank's."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from heed.data.lines import FilePair


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """Parallel text as pairs of (source, target) files, plain or .gz, one sentence per line."""

    train: tuple[FilePair, ...]  # several pairs are read one after another
    dev: FilePair
    tests: Mapping[str, FilePair] = field(default_factory=dict)  # by the name of the test set

    @property
    def evaluation_sets(self) -> dict[str, FilePair]:
        """dev and the test sets, by name: what is scored, and never learned from."""
        return {"dev": self.dev, **self.tests}

    @property
    def pairs(self) -> list[FilePair]:
        """All pairs of files: train, dev, tests."""
        return [*self.train, *self.evaluation_sets.values()]
