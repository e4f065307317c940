"""Divergence that stays finite: a model that predicts dev worse than the frequencies of the words alone do."""

import numpy as np

from heed.data.corpus import ParallelCorpus
from heed.errors import HeedError

MAX_DIVERGED = 3  # validations in a row after the warm-up
MARGIN = 0.1  # nats a token: a model that is only stuck at the words' frequencies is about as good as they are


class Diverged(HeedError):
    """Training has failed, though all its numbers are finite."""


def unigram_loss(train: ParallelCorpus, dev: ParallelCorpus, *, vocab_size: int, eos: int) -> float:
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
