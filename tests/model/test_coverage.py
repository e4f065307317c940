"""A network that was changed is computed as it is or refused by name: nothing that is faster takes it for another."""

from collections.abc import Callable
from typing import Literal, get_args, get_origin

import pytest
import torch
import torch.nn.functional as F
from tests.conftest import sharp_model
from tests.decoding.searches import token_log_probs
from torch import Tensor, nn
from torch.nn.utils import parametrize

from heed.apps.exchange import ctranslate2, huggingface, marian
from heed.apps.exchange.unmerged_weights import check_covered
from heed.backends.choice import prepack
from heed.backends.cpu import search, training
from heed.backends.cpu.build import has_int8, library
from heed.backends.dispatch import backend_for
from heed.backends.gpu import training as gpu_training
from heed.backends.reference import ReferenceBackend
from heed.data.batches.batch import make_batch
from heed.data.batches.padded import PaddedBatch
from heed.decoding.beam import beam_search
from heed.decoding.settings import DecodingSettings
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import ACTIVATIONS, AddNorm, FeedForward, Transformer
from heed.text.tokenizer import SpecialIds
from heed.training.settings import TrainingSettings
from heed.training.step import micro_batch_loss

COVERAGES = {
    "the kernels": training.COVERAGE,
    "the kernels in a search": search.COVERAGE,
    "a GPU's training passes": gpu_training.COVERAGE,
    "Hugging Face": huggingface.COVERAGE,
    "Marian": marian.COVERAGE,
    "CTranslate2": ctranslate2.COVERAGE,
}
EXPORTERS = {"Marian": marian, "Hugging Face": huggingface, "CTranslate2": ctranslate2}
FOR_MARIAN = {"positions": "sinusoid-t2t", "decoder_start": "zero"}


@pytest.mark.parametrize("whose", COVERAGES)
def test_each_setting_of_a_network_and_each_of_its_values_is_answered(whose):
    answered = COVERAGES[whose].settings
    assert set(answered) == set(Architecture.model_fields), "answer for each field of Architecture"
    for name, about in Architecture.model_fields.items():
        values = {True, False} if about.annotation is bool else set(get_args(about.annotation))
        is_choice = about.annotation is bool or get_origin(about.annotation) is Literal
        kinds = [get_args(part) for part in values if get_origin(part) is Literal]
        if kinds:  # a union of several
            values, is_choice = {value for kind in kinds for value in kind}, True
        if is_choice:
            assert set(answered[name]) == values, f"answer for each value of {name}"


class Squared(FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.relu(self.inner(x)) ** 2)


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class OfOnesOwn(Transformer):
    def encode(self, *args, **options) -> Tensor:
        return 0.5 * super().encode(*args, **options)


class MoreSettings(Architecture):
    scale: float = 1.0


def subclassed(model, monkeypatch):
    for layer in (*model.encoder, *model.decoder):
        layer.feed_forward.__class__ = Squared


def replaced(model, monkeypatch):
    inner = model.encoder[1].feed_forward.inner
    model.encoder[1].feed_forward.inner = nn.Sequential(inner, Doubled())


def hooked(model, monkeypatch):
    model.decoder[0].cross_attention.register_forward_hook(lambda module, args, output: -output)


def hooked_before(model, monkeypatch):
    model.decoder[1].feed_forward.register_forward_pre_hook(lambda module, args: (2 * args[0],))


def hooked_everywhere(model, monkeypatch):
    def hook(module, args, output):
        return 2 * output if type(module) is AddNorm else None

    monkeypatch.setitem(nn.modules.module._global_forward_hooks, -1, hook)  # as register_module_forward_hook does


def parametrised(model, monkeypatch):
    parametrize.register_parametrization(model.decoder[0].self_attention.out, "weight", Doubled())


def normalised_weight(model, monkeypatch):
    linear = model.encoder[0].feed_forward.outer
    nn.utils.parametrizations.weight_norm(linear)
    with torch.no_grad():
        linear.parametrizations.weight.original0 *= 2


def a_method(model, monkeypatch):
    layer = model.encoder[0].feed_forward
    layer.forward = lambda x: -FeedForward.forward(layer, x)


def the_class(model, monkeypatch):
    forward = FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: -forward(self, x))


def the_table(model, monkeypatch):
    monkeypatch.setitem(ACTIVATIONS, "relu", torch.tanh)


def one_activation(model, monkeypatch):
    model.decoder[0].feed_forward.activation = "gelu"


def one_norm(model, monkeypatch):
    model.decoder[1].feed_forward_norm.eps = 10.0


def fewer_layers(model, monkeypatch):
    del model.decoder[1]


def a_wider_layer(model, monkeypatch):
    layer = model.encoder[0].feed_forward
    layer.inner, layer.outer = nn.Linear(32, 96), nn.Linear(96, 32)


def a_class(model, monkeypatch):
    model.__class__ = OfOnesOwn


def other_settings(model, monkeypatch):
    model.arch = MoreSettings(**model.arch.model_dump())


CHANGES = {
    subclassed: "a Squared at ",
    replaced: "a Sequential at encoder.1.feed_forward.inner",
    hooked: "a hook at decoder.0.cross_attention",
    hooked_before: "a hook at decoder.1.feed_forward",
    hooked_everywhere: "a global hook",
    parametrised: "a ParametrizedLinear at decoder.0.self_attention.out",
    normalised_weight: "a ParametrizedLinear at encoder.0.feed_forward.outer",
    a_method: "a method of its own at encoder.0.feed_forward",
    the_class: "another FeedForward.forward",
    the_table: "another function for activation = relu",
    one_activation: "a FeedForward unlike its settings at decoder.0.feed_forward",
    one_norm: "a AddNorm unlike its settings at decoder.1.feed_forward_norm",
    fewer_layers: "2 and 1 layers, unlike its settings",
    a_wider_layer: "a FeedForward unlike its settings at encoder.0.feed_forward",
    a_class: "a class of its own, OfOnesOwn",
    other_settings: "settings of another class, MoreSettings",
}
PAIRS = [([5, 6, 7], [8, 9]), ([10, 11], [12, 13, 14])]


@pytest.fixture
def model() -> Transformer:
    return sharp_model(Architecture(n_layers=2, d_model=32, d_ff=64, n_heads=4, dropout=0.0), 50, seed=3)


@pytest.fixture(params=CHANGES, ids=lambda change: change.__name__)
def change(request, monkeypatch) -> tuple[Callable[[Transformer], None], str]:
    """What changes a network, and what is said of it then."""
    return lambda model: request.param(model, monkeypatch), CHANGES[request.param]


def logits(model: Transformer) -> Tensor:
    """As the network itself computes them."""
    rows = PaddedBatch.of(make_batch(PAIRS, SpecialIds()))
    return model(rows.src, rows.src_mask, rows.tgt_in).flatten(0, 1)[rows.tgt_places]


@pytest.mark.skipif(library() is None, reason="needs the kernels")
def test_a_changed_network_is_computed_as_it_is(model, change):
    make, said = change
    batch = make_batch(PAIRS, SpecialIds())
    with torch.no_grad():
        before = logits(model)
    assert not isinstance(backend_for(model), ReferenceBackend)
    make(model)
    with torch.no_grad():
        expected = logits(model)
        backend = backend_for(model)
        assert torch.allclose(model.output(backend.target_features(model, batch)), expected, atol=1e-5)
    assert isinstance(backend, ReferenceBackend)
    assert "settings of another" in said or not torch.allclose(expected, before, atol=0.01)

    expected_nll = F.cross_entropy(expected, torch.tensor([8, 9, SpecialIds().eos, 12, 13, 14, SpecialIds().eos]))
    found = token_log_probs([model], batch)
    assert torch.allclose(-found.mean().float(), expected_nll, atol=1e-5)
    _, nll = micro_batch_loss(model, batch, TrainingSettings())
    assert torch.allclose(torch.as_tensor(nll / 7).float(), expected_nll, atol=1e-5)

    settings = DecodingSettings(beam_size=1, max_extra_tokens=3, min_tokens=3)
    for packed in (model, prepack(model, "fp32")):
        [[best]] = beam_search(packed, [[5, 6, 7]], SpecialIds(), settings)
        scored = token_log_probs([model], make_batch([([5, 6, 7], best.ids)], SpecialIds()))
        assert best.log_prob == pytest.approx(float(scored[: len(best.ids) + best.ended].sum()), abs=1e-4)


@pytest.mark.skipif(not has_int8(), reason="no 8-bit products here")
def test_where_there_is_no_other_road_a_changed_network_is_refused_by_name(model, change):
    make, said = change
    make(model)
    with pytest.raises(HeedError, match="int8 needs") as refused:
        prepack(model, "int8")
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_an_exporter_refuses_by_name_what_its_program_lacks():
    lacking = {"network": "own", "radius": 3, "d_k": 4}
    for name, exporter in EXPORTERS.items():
        for setting, value in lacking.items():
            settings = {"d_model": 32, "n_heads": 4, setting: value} | (FOR_MARIAN if name == "Marian" else {})
            with pytest.raises(HeedError, match=f"{setting.removesuffix('_k')}.*which {name} cannot express"):
                check_covered(exporter.covers(Architecture.model_construct(**settings)), program=name)
