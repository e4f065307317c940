"""The interface of tasks, and the task of a recipe."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from heed.data.corpora.download import Corpora, Report
from heed.data.reading.pairs import FilePair
from heed.data.reading.text_files import TextFiles
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard
from heed.runs.recipe import Recipe
from heed.runs.tasks.evaluation import Evaluation
from heed.runs.tasks.parsing_task import ParsingTask
from heed.runs.tasks.translation_task import TranslationTask
from heed.text.tokenizer_kinds import AnyTokenizer
from heed.training.distributed import Workers


class Validator(Protocol):
    """Scores a model in training on the dev set."""

    def __call__(self, model: Transformer) -> dict[str, float]:
        """Scores from 0 to 100 by name, by greedy search; that of training.best_by among them if it is one."""


class Task(Protocol):
    """The part of a run that depends on its task: text, validation, scores, the model's card.

    ranked_by: key of the score, among those of an evaluation, by which one model is better than another.
    """

    @property
    def ranked_by(self) -> str: ...

    def text_files(self, run: Path, corpora: Corpora) -> TextFiles:
        """The text to train and evaluate on, downloaded or written into the run folder if need be."""

    def count_pairs(self, corpora: Corpora) -> int | None:
        """Number of training pairs; None if they are not on this machine yet. Reads all text and changes nothing."""

    def card(self, files: TextFiles) -> ModelCard:
        """The model card before training: languages, search settings, name of the corpus. files: of `text_files`."""

    def validator(
        self, files: TextFiles, tokenizer: AnyTokenizer, report: Report = ..., *, workers: Workers = ...
    ) -> Validator:
        """For models in training: greedy search ranks checkpoints as beam search does, in a fraction of the time.

        All workers call it, may share the work, and the first one has the scores.
        """

    def evaluate(
        self, model_folder: Path, sets: Mapping[str, FilePair], *, title: str, report: Report
    ) -> Iterator[Evaluation]:
        """Scores a model on each set in turn, with the recipe's own search. title: what reports call the model."""

    def next_commands(self, model_folder: Path, files: TextFiles) -> list[str]:
        """Three commands for the user's shell: to try the trained model, to score it, and what else it is for."""


def task_of(recipe: Recipe) -> Task:
    """Parsing if the recipe has a table [parsing], else translation."""
    return TranslationTask(recipe) if recipe.parsing is None else ParsingTask(recipe, recipe.parsing)
