"""8-bit integers, and 7-bit ones where AVX2 needs them, with weights of very different sizes."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from tests.decoding.searches import search

from heed.backends.choice import prepack
from heed.backends.cpu.build import has_int8, largest_int8_weight
from heed.decoding.settings import DecodingSettings
from heed.decoding.source_queue import Source
from heed.model_folder import load_model
from heed.text.numbers import english, number_splits
from heed.text.tokenizer import SpecialIds

FOLDER = Path(__file__).parents[2] / "golden" / "models" / "byte-pairs"
LINES = [english(number) for number in number_splits(n_train=1, n_dev=1, n_test=60).test]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_int8(), reason="no fast products of 8-bit integers")]


def widened(model, times, *, n=2):
    """The same function in fp32, but for n hidden numbers of each part: they are smaller, and their weights wider."""
    model, draw = deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in [*model.encoder, *model.decoder]:
            pairs = [(layer.feed_forward.inner, layer.feed_forward.outer)]
            pairs.append((layer.self_attention.qkv, layer.self_attention.out))
            if hasattr(layer, "cross_attention"):
                pairs.append((layer.cross_attention.kv, layer.cross_attention.out))
            for first, second in pairs:
                for j in torch.randperm(second.in_features, generator=draw)[:n]:
                    row = first.out_features - second.in_features + j
                    first.weight[row] /= times
                    if first.bias is not None:
                        first.bias[row] /= times
                    second.weight[:, j] *= times
    return model


def found_by(model, sources, precision):
    ready = prepack(model, precision)
    numbered = [Source(number, ids) for number, ids in enumerate(sources)]
    found = dict(filter(None, search([ready], numbered, SpecialIds(), DecodingSettings(), n_sentences=32)))
    return [found[number][0].ids for number in range(len(sources))]


@pytest.mark.parametrize("largest", [64, 127])
def test_wide_weights_do_not_cost_the_others_their_bits(largest, monkeypatch):
    """Without moving them, no translation would be that of fp32 where weights are 256 times as wide."""
    if largest > largest_int8_weight():
        pytest.skip("the processor's instructions want 7 bits")
    monkeypatch.setattr("heed.backends.cpu.packed_weights.largest_int8_weight", lambda: largest)
    loaded = load_model(FOLDER)
    sources = loaded.tokenizer.encode_lines(LINES)
    expected = found_by(loaded.model, sources, "fp32")

    def agreement(model):
        same = zip(found_by(model, sources, "int8"), expected, strict=True)
        return sum(list(ours) == list(theirs) for ours, theirs in same) / len(sources)

    model = widened(loaded.model, 256)
    assert [list(ids) for ids in found_by(model, sources, "fp32")] == [list(ids) for ids in expected]
    usual = agreement(loaded.model)
    assert usual > 0.55  # of a model that has just begun to learn, whose hypotheses are near to each other
    assert agreement(model) > usual - 0.15
    monkeypatch.setattr("heed.backends.cpu.packed_model.move_outliers", lambda *given: given)
    assert agreement(model) < 0.1
