"""The context that all steps of a run share."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from heed.data.corpora.download import Corpora, Report
from heed.runs.recipe import Recipe
from heed.runs.tasks.task import Task, task_of
from heed.runtime.device import Machine
from heed.training.distributed import Workers


@dataclass(frozen=True)
class RunContext:
    """A run's recipe, its folder, the corpora that it reads, and what computes it. Made once, when the run begins.

    recipe: with absolute file names. run: its folder.
    """

    recipe: Recipe
    run: Path
    corpora: Corpora
    machine: Machine
    workers: Workers

    @cached_property
    def task(self) -> Task:
        """The recipe's task."""
        return task_of(self.recipe)

    @property
    def report(self) -> Report:
        """Takes lines for people to read; of the first worker only."""
        return self.corpora.report
