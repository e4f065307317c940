"""Beam search against exhaustive search and forced scoring."""

import itertools

import pytest
import torch

from heed.data.batches.batch import make_batch
from heed.decoding.beam import beam_search
from heed.decoding.scoring import length_penalty
from heed.decoding.settings import DecodingSettings
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.text.tokenizer import SpecialIds
from tests.conftest import SPECIAL
from tests.decoding.searches import token_log_probs


def search(model, sources, *, n_best=1, special=SPECIAL, **changes):
    return beam_search(model, sources, special, DecodingSettings(**changes), n_best=n_best)


def forced_log_prob(model, source, target_ids, *, special=SPECIAL) -> float:
    batch = make_batch([(source, target_ids)], special)
    return float(token_log_probs([model], batch, special).double().sum())


SOURCES = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14], [], [20, 21, 5], [5, 6, 7]]


# Of imported models: Marian's begin with eos and have no pad, OPUS-MT's begin with pad.
SPECIALS = {SPECIAL: [3, 4, 5], SpecialIds(0, 0, 0, unk=1): [2, 3, 4, 5], SpecialIds(5, 5, 0, unk=1): [2, 3, 4]}


@pytest.mark.slow
@pytest.mark.parametrize("special", SPECIALS)
def test_a_beam_of_everything_finds_what_exhaustive_search_finds(special):
    for seed, alpha in enumerate([0.0, 0.6, 0.6, 1.5, 1.5]):
        torch.manual_seed(seed)
        model = Transformer(Architecture(n_layers=1, d_model=16, d_ff=16, n_heads=2), 6).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        source, limit = [3, 4], 4
        best_score, best_ids = -float("inf"), None
        for n_ids in range(limit):
            for ids in itertools.product(SPECIALS[special], repeat=n_ids):
                score = forced_log_prob(model, source, list(ids), special=special) / length_penalty(n_ids + 1, alpha)
                if score > best_score:
                    best_score, best_ids = score, ids
        settings = {"beam_size": 256, "length_penalty": alpha, "max_extra_tokens": limit - len(source)}
        (found,) = search(model, [source], special=special, **settings)[0]
        assert found.ids == best_ids
        assert found.score == pytest.approx(best_score, abs=1e-4)
