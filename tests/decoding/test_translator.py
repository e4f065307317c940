"""Texts in, translations out, in order, whatever the batching."""

import pytest
import torch

from heed.decoding.search import DecodingSettings
from heed.decoding.translator import Translator
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.text.numbers import english


@pytest.fixture(scope="module")
def translator(number_tokenizer) -> Translator:
    torch.manual_seed(5)
    model = Transformer(Architecture(n_layers=1, d_model=32, d_ff=32, n_heads=4), len(number_tokenizer)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return Translator(model, number_tokenizer, DecodingSettings(max_extra_tokens=5))


def test_order_is_kept_and_batching_changes_nothing(translator):
    texts = [english(number) for number in (7, 987_654, 12, 55_555, 3, 700_001, 7)]
    together = translator.translate(texts)
    assert [t.source for t in together] == texts
    assert [t.text for t in together] == [translator.translate([text])[0].text for text in texts]
    assert together[0].text == together[-1].text


def test_blank_lines_stay_empty(translator):
    translations = translator.translate(["", "seven", "   "])
    assert [t.text for t in translations[::2]] == ["", ""]
    assert translations[0].score == 0.0


def test_a_stream_is_read_as_it_is_needed(translator):
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield "seven"

    stream = translator.stream(endless())
    next(stream)
    assert taken <= 256


def test_a_very_long_line_is_translated_in_pieces_and_reported(number_tokenizer, translator):
    lines: list[str] = []
    patient = Translator(translator.models, number_tokenizer, DecodingSettings(beam_size=1, max_extra_tokens=0))
    patient.report = lines.append
    (translation,) = patient.translate(["seven " * 1200])
    assert lines == ["line 1: 1,201 tokens, translated in 3 pieces."]
    assert translation.text


def test_given_targets_are_scored_alike_alone_and_together(translator):
    sources, targets = ["eighty-seven", "one", "two hundred"], ["siebenundachtzig", "", "zweihundert"]
    together = translator.log_probs(sources, targets)
    for source, target, log_probs in zip(sources, targets, together, strict=True):
        assert len(log_probs) == len(translator.tokenizer.encode(target)) + 1
        assert log_probs == pytest.approx(translator.log_probs([source], [target])[0], abs=1e-4)
