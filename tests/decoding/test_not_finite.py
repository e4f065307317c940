"""Numbers that are not finite, and ids that do not exist, end a search with an error that says so."""

import copy
import math

import numpy as np
import pytest
import torch

from heed.backends.choice import prepack
from heed.backends.cpu.build import has_int8, has_tiles, library
from heed.data.batches.batch import make_batch
from heed.decoding.beam import beam_search
from heed.decoding.settings import DecodingSettings, SamplingSettings
from heed.decoding.source_queue import Source
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model
from heed.text.prefix import Prefix
from tests.conftest import SPECIAL
from tests.decoding.searches import search, token_log_probs

PRECISIONS = [
    "fp32",
    pytest.param("bf16", marks=pytest.mark.skipif(not has_tiles(), reason="no AMX")),
    pytest.param("int8", marks=pytest.mark.skipif(not has_int8(), reason="no 8-bit products here")),
]


class Anything:
    """A constraint that allows every id but pad and bos."""

    given = np.array([], np.int64)

    def admit(self, numbers):
        pass

    def choices(self, rows, steps_left):
        return np.tile(np.arange(2, 50), (len(rows), 1))

    def advance(self, rows, ids):
        pass


@pytest.fixture(params=["kernels", "PyTorch"])
def road(request):
    """On the kernels, and on PyTorch's operations alone."""
    if request.param == "PyTorch":
        request.getfixturevalue("without_kernels")
    elif library() is None:
        pytest.skip("no C++ compiler: Heed's kernels are not at hand")
    return request.param


def damaged(model: Transformer, value: float, part: str) -> Transformer:
    result = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            if part in name:
                parameter.fill_(value)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("part", "value", "how"),
    [
        ("embedding", math.inf, {}),
        ("encoder", 3e38, {}),
        *(
            (*damage, how)
            for damage in (("", math.nan), ("decoder.1.feed_forward_norm", math.inf))
            for how in ({}, {"sampling": SamplingSettings()}, {"constraint": Anything()})
        ),
    ],
)
def test_a_search_by_damaged_weights_is_an_error(small_model, road, precision, part, value, how):
    if road == "PyTorch" and precision != "fp32":
        pytest.skip("only Heed's kernels search in low precision on a CPU")
    model = prepack(damaged(small_model, value, part), precision)
    with pytest.raises(HeedError, match="numbers are not finite"):
        list(search([model], [Source(0, [5, 6, 7]), Source(1, [8])], SPECIAL, DecodingSettings(), **how))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_command_reports_weights_that_overflow_and_prints_nothing(number_tokenizer, tmp_path, heed, precision):
    arch = Architecture(n_layers=1, d_model=8, d_ff=8, n_heads=2)
    model = damaged(Transformer(arch, len(number_tokenizer)), 3e38, "")
    save_model(tmp_path / "model", model, number_tokenizer, ModelCard("en", "de"))
    done = heed("translate", tmp_path / "model", "--precision", precision, stdin="seven\n")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "numbers are not finite" in done.stderr


def test_a_score_that_is_nan_is_an_error_and_a_probability_of_zero_is_none(small_model):
    batch = make_batch([([5, 6], [7, 8])], SPECIAL)
    with pytest.raises(HeedError, match="numbers are not finite"):
        token_log_probs([damaged(small_model, math.nan, "encoder.0")], batch)
    certain = Transformer(Architecture(n_layers=1, d_model=4, d_ff=4, n_heads=1, share="none"), 50)
    with torch.no_grad():
        certain.decoder[0].feed_forward_norm.bias.fill_(1e10)  # type: ignore[union-attr]
        certain.output.weight.fill_(-7e27)  # logits of -2.8e38 and one of 2.8e38
        certain.output.weight[7] = 7e27
    assert token_log_probs([certain], batch).tolist() == [0, -math.inf, -math.inf]


@pytest.mark.parametrize(
    ("where", "i"), [("ids", 50), ("ids", -1), ("ids", 2**31), ("ids", 2**40), ("prefix", 50), ("prefix", -1)]
)
def test_an_id_beyond_the_vocabulary_is_an_index_error(small_model, road, where, i):
    source = Source(3, [5, i]) if where == "ids" else Source(3, [5], prefix=Prefix.of_ids([6, i]))
    with pytest.raises(IndexError, match=f"source 3: id {i}, but the vocabulary has 50 ids"):
        list(search([small_model], [source], SPECIAL, DecodingSettings()))
    if where == "ids":
        with pytest.raises(IndexError):
            beam_search(small_model, [[5, i]], SPECIAL, DecodingSettings())


@pytest.mark.parametrize("i", [SPECIAL.pad, SPECIAL.bos, SPECIAL.eos])
def test_a_prefix_of_special_ids_is_an_index_error(small_model, road, i):
    with pytest.raises(IndexError, match="pad, bos, eos or unk in its prefix"):
        list(search([small_model], [Source(0, [5], prefix=Prefix.of_ids([i]))], SPECIAL, DecodingSettings()))
