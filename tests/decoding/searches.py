"""A small model whose hypotheses differ clearly in probability, sources for it, and searches of them."""

from itertools import chain, product

import numpy as np
import torch
from hypothesis import strategies as st

from heed.decoding import beam
from heed.decoding.given_pairs import pair_log_probs
from heed.decoding.source_queue import Source
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.text.prefix import NO_PREFIX, Spellings
from tests import conftest
from tests.conftest import SPECIAL

VOCAB_SIZE = 40


def sharp_model(seed: int = 7, *, vocab_size: int = VOCAB_SIZE, **changes) -> Transformer:
    arch = Architecture(**({"n_layers": 2, "d_model": 32, "d_ff": 48, "n_heads": 4} | changes))
    return conftest.sharp_model(arch, vocab_size, seed=seed)


MODEL = sharp_model()
# Of every id what it spells, one to three letters; no two spell the same.
LETTERS = [letters for n in (1, 2, 3) for letters in map("".join, product("abc", repeat=n))]
SPELLED = dict(enumerate(LETTERS[: VOCAB_SIZE - 3], start=3))
SPELLINGS = Spellings([(i, letters.encode()) for i, letters in SPELLED.items()], n_dropped_spaces=0)
SOURCE = st.lists(st.integers(3, VOCAB_SIZE - 1), min_size=0, max_size=200)
SHORT = st.lists(st.integers(3, VOCAB_SIZE - 1), min_size=0, max_size=8)


def search(models, sources, special, settings, **options):
    return beam.search(beam.SearchPlan(models, special, settings, **options), sources)


def hypotheses_of(model, sources, options, *, prefixes=None, n_best=1, n_sentences=64, sampling=None):
    prefixes = [NO_PREFIX] * len(sources) if prefixes is None else prefixes
    numbered = [Source(number, *source) for number, source in enumerate(zip(sources, prefixes, strict=True))]
    results = search([model], numbered, SPECIAL, options, n_best=n_best, n_sentences=n_sentences, sampling=sampling)
    found = dict(result for result in results if result is not None)
    return [found[number] for number in range(len(sources))]


def token_log_probs(models, batch, special=SPECIAL):
    """(tgt_token): of every id of tgt_out by the models' mean probability."""
    sides = ((batch.src, batch.src_lengths), (batch.tgt_out, batch.tgt_lengths))
    ids = [[of_one[:-1].tolist() for of_one in np.split(side, np.cumsum(n)[:-1])] for side, n in sides]
    log_probs = pair_log_probs(models, list(zip(*ids, strict=True)), special)
    return torch.tensor(list(chain.from_iterable(log_probs)), dtype=torch.float64)
