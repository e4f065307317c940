"""Divergence that stays finite: a model that predicts dev worse than the frequencies of the words alone do."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from heed.data.corpus.sharded import TrainingCorpus
from heed.errors import HeedError
from heed.training.checkpoint import TrainState
from heed.training.logbook import short
from heed.training.settings import TrainingSettings

MAX_DIVERGED = 3  # validations in a row after the warm-up
MARGIN = 0.1  # nats a token: a model that is only stuck at the words' frequencies is about as good as they are


class Diverged(HeedError):
    """Training has failed, though all its numbers are finite."""


def unigram_loss(train: TrainingCorpus, dev: TrainingCorpus, *, vocab_size: int, eos: int) -> float:
    """Cross-entropy of dev's targets, in nats a token, by how often each id occurs among train's; one is added to each.

    Every target ends with eos, as in the dev loss. What guesses without looking at the source has at least this loss.
    """
    counts = []
    for corpus in (train, dev):
        of_ids = corpus.counts("tgt", vocab_size=vocab_size)
        of_ids[eos] += len(corpus)
        counts.append(of_ids)
    seen, wanted = counts
    log_probs = np.log(seen + 1) - np.log(seen.sum() + vocab_size)
    return float(-(wanted @ log_probs) / max(1, wanted.sum()))


class DivergenceCheck:
    """Counts the validations in a row whose loss is above `unigram_loss`, and decides when training has failed."""

    def __init__(self, settings: TrainingSettings, state: TrainState, *, unigram_loss: float, vocab_size: int):
        self._settings, self._state, self._unigram_loss = settings, state, unigram_loss
        # Twice the loss of a model that holds all ids to be equally likely, near which training begins.
        self._hopeless_loss = 2 * math.log(vocab_size)

    def count(self, loss: float, *, train_nll: float) -> None:
        """Counts a validation, before `best_loss` does. train_nll: nats a token of the last steps' training text."""
        state = self._state
        # Neither a slow start counts, unless it is hopeless, nor overfitting, where the training loss is low.
        learning = loss < state.best_loss and loss < self._hopeless_loss
        is_worse = min(loss, train_nll) > self._unigram_loss + MARGIN
        if is_worse and not learning and state.step >= self._settings.warmup_steps:
            state.diverged_step = state.diverged_step if state.validations_diverged else state.step
            state.validations_diverged += 1
        else:
            state.validations_diverged = 0

    def failure(self, loss: float, path_of: Callable[[int], Path | None]) -> str:
        """Why training has failed though all numbers are finite, or an empty string.

        It has if the dev loss stays above that of the words' frequencies, or if it ends far above it without a
        checkpoint that is better. path_of: the folder of a step's checkpoint, if it is kept.
        """
        settings, state = self._settings, self._state
        learned = state.best_loss < self._unigram_loss
        if state.validations_diverged and state.finished and loss > self._hopeless_loss and not learned:
            state.validations_diverged = max(MAX_DIVERGED, state.validations_diverged)
        if state.validations_diverged < MAX_DIVERGED:
            return ""
        kept = path_of(state.best_step) if learned and state.best_step != state.step else None
        usable = (
            f" The best checkpoint, of step {state.best_step:,}, is kept as a usable model: {kept}." if kept else ""
        )
        return (
            f"training has diverged: since step {state.diverged_step:,}, the dev loss ({short(loss)} at step "
            f"{state.step:,}) has been above {self._unigram_loss:.3f}, what the frequencies of the target words alone "
            "give. Train again in another run folder (--run), with a lower training.learning_rate_factor (it was "
            f"{settings.learning_rate_factor:g}) or more training.warmup_steps (it was {settings.warmup_steps:,})."
            f"{usable}"
        )

    def warning(self) -> str:
        """A warning that training ends without a model better than the words' frequencies, or an empty string."""
        if self._state.best_loss <= self._unigram_loss or self._state.step < self._settings.warmup_steps:
            return ""
        return (
            f"The dev loss was never below {self._unigram_loss:.3f}, what the frequencies of the target words alone "
            "give: the model has learned nothing from its sources yet."
        )
