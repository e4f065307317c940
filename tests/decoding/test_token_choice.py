"""Continuations that a prefix, a minimum length or a random number decides."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from heed.data.batches.batch import make_batch
from heed.data.batches.padded import PaddedBatch
from heed.decoding.beam import beam_search
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.decoding.source_queue import Source
from heed.text.prefix import Prefix
from heed.text.tokenizer import SpecialIds
from tests.conftest import SPECIAL, n_examples
from tests.decoding.searches import MODEL, SHORT, VOCAB_SIZE, hypotheses_of, search

SOURCE_IDS = [5, 9, 11]
ONE_TOKEN = DecodingSettings(beam_size=1, max_tokens=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingSettings(temperature=0.8),
        SamplingSettings(top_k=3),
        SamplingSettings(top_p=0.8),
        SamplingSettings(top_k=5, top_p=0.9, temperature=1.3),
    ],
    ids=["temperature", "top k", "top p", "all"],
)
def test_samples_follow_the_shares_of_the_ids_that_are_left(sampling):
    drawn = hypotheses_of(MODEL, [SOURCE_IDS] * 4000, ONE_TOKEN, sampling=sampling)
    counts = np.zeros(VOCAB_SIZE)
    for (hypothesis,) in drawn:
        counts[hypothesis.ids[0] if hypothesis.ids else SPECIAL.eos] += 1
    rows = PaddedBatch.of(make_batch([(SOURCE_IDS, [])], SPECIAL))
    with torch.no_grad():
        logits = MODEL(rows.src, rows.src_mask, rows.tgt_in)[0, -1].double()
    logits[[SPECIAL.pad, SPECIAL.bos]] = -torch.inf
    probs = torch.softmax(logits / sampling.temperature, dim=-1).numpy()
    order = (-probs).argsort()
    kept = order[: sampling.top_k][(probs[order].cumsum() - probs[order])[: sampling.top_k] < sampling.top_p]
    kept = kept[probs[kept] > 0]
    assert 1 < len(kept) < VOCAB_SIZE
    expected = np.zeros(VOCAB_SIZE)
    expected[kept] = 4000 * probs[kept] / probs[kept].sum()
    assert not counts[expected == 0].any()
    often = expected > 5
    assert ((counts - expected)[often] ** 2 / expected[often]).sum() < 2 * often.sum() + 20  # chi-square, far tail


def test_samples_depend_on_seed_and_number_alone():
    def drawn(seed: int, n_sentences: int) -> list[tuple[int, ...]]:
        sampling = SamplingSettings(temperature=0.8, seed=seed)
        found = hypotheses_of(MODEL, [SOURCE_IDS] * 50, ONE_TOKEN, n_sentences=n_sentences, sampling=sampling)
        return [tuple(hypothesis.ids) for (hypothesis,) in found]

    assert drawn(1, 64) == drawn(1, 7) != drawn(2, 7)


@pytest.mark.slow
@given(source=SHORT)
@settings(max_examples=n_examples(10))
def test_drawing_among_one_id_is_greedy_search(source):
    options = DecodingSettings(beam_size=1, max_tokens=8)
    (greedy,) = beam_search(MODEL, [source], SPECIAL, options)[0]
    for sampling in (SamplingSettings(top_k=1), SamplingSettings(top_p=1e-9)):
        ((drawn,),) = hypotheses_of(MODEL, [source], options, sampling=sampling)
        assert drawn.ids == greedy.ids
        assert drawn.log_prob == pytest.approx(greedy.log_prob, abs=1e-4)


@pytest.mark.parametrize("sampling", [None, SamplingSettings()])
@pytest.mark.parametrize("special", [SpecialIds(0, 0, 0, unk=1), SpecialIds(39, 39, 0, unk=1)])
def test_a_search_writes_neither_pad_nor_bos_nor_unk_but_ends(special, sampling):
    sources = [Source(number, [5, 6 + number]) for number in range(20)]
    options = DecodingSettings(max_extra_tokens=30)
    found = dict(search([MODEL], sources, special, options, n_best=4, sampling=sampling))
    ids = [i for hypotheses in found.values() for hypothesis in hypotheses for i in hypothesis.ids]
    assert ids and not {special.pad, special.bos, special.eos, special.unk} & set(ids)
    assert any(hypothesis.ended for hypotheses in found.values() for hypothesis in hypotheses)


@pytest.mark.parametrize("wrong", [0, 1, 39, 40, -1])
def test_a_prefix_holds_no_id_that_a_target_cannot_have(wrong):
    special = SpecialIds(39, 39, 0, unk=1)
    with pytest.raises(IndexError, match="source 0: "):
        list(search([MODEL], [Source(0, [5], Prefix.of_ids([6, wrong]))], special, DecodingSettings()))
