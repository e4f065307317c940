"""A small model whose hypotheses differ clearly in probability, sources for it, and searches of them."""

from itertools import product

import torch
from hypothesis import strategies as st

from heed.decoding.beam import search
from heed.decoding.pairs import pair_log_probs
from heed.decoding.stream import Source
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.text.prefix import NO_PREFIX, Spellings
from tests.conftest import SPECIAL

VOCAB_SIZE = 40


def sharp_model(seed: int = 7, *, vocab_size: int = VOCAB_SIZE, **changes) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(
        Architecture(**({"n_layers": 2, "d_model": 32, "d_ff": 48, "n_heads": 4} | changes)), vocab_size
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model.eval()


MODEL = sharp_model()
# Of every id what it spells, one to three letters; no two spell the same.
LETTERS = [letters for n in (1, 2, 3) for letters in map("".join, product("abc", repeat=n))]
SPELLED = dict(enumerate(LETTERS[: VOCAB_SIZE - 3], start=3))
SPELLINGS = Spellings([(i, letters.encode()) for i, letters in SPELLED.items()], n_dropped_spaces=0)
SOURCE = st.lists(st.integers(3, VOCAB_SIZE - 1), min_size=0, max_size=200)
SHORT = st.lists(st.integers(3, VOCAB_SIZE - 1), min_size=0, max_size=8)


def hypotheses_of(model, sources, options, *, prefixes=None, n_best=1, n_sentences=64, sampling=None):
    prefixes = [NO_PREFIX] * len(sources) if prefixes is None else prefixes
    numbered = [Source(number, *source) for number, source in enumerate(zip(sources, prefixes, strict=True))]
    results = search([model], numbered, SPECIAL, options, n_best=n_best, n_sentences=n_sentences, sampling=sampling)
    found = dict(result for result in results if result is not None)
    return [found[number] for number in range(len(sources))]


def token_log_probs(models, batch, special=SPECIAL):
    """(sentence, tgt): of every id of tgt_out by the models' mean probability; 0 at padding."""
    pairs = [
        (src[src_mask][:-1].tolist(), tgt[tgt_mask][:-1].tolist())
        for src, src_mask, tgt, tgt_mask in zip(batch.src, batch.src_mask, batch.tgt_out, batch.tgt_mask, strict=True)
    ]
    rows = torch.zeros(batch.tgt_out.shape, dtype=torch.float64)
    for row, log_probs in zip(rows, pair_log_probs(models, pairs, special), strict=True):
        row[: len(log_probs)] = torch.tensor(log_probs)
    return rows
