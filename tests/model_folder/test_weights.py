"""Weights are stored once each, and what is wrong with a file of weights is noticed before they take memory."""

import json
import math
import os

import pytest
import torch
from safetensors.torch import save_file
from tests.conftest import OTHERS
from tests.model_folder.conftest import ARCH

from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.cost import n_parameters, weight_shapes
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, load_model, read_weights, save_model, shared_weights, write_weights
from heed.model_folder.weights import StoredWeights
from heed.runtime.manifest import seal

NAME = "encoder.0.feed_forward.inner.bias"


@pytest.mark.parametrize(
    "arch",
    [
        Architecture(n_layers=2, d_model=8, d_ff=6, n_heads=2, share=share, positions=positions, **widths)
        for share in ("all", "tgt", "none")
        for positions in ("sinusoid", "learned")
        for widths in ({}, {"d_k": 3, "d_v": 5})
    ]
    + [
        Architecture(n_layers=2, d_model=8, d_ff=6, n_heads=2, d_k=3, d_v=5, share=share, **changes)
        for share in ("all", "tgt", "none")
        for changes in ({name: value} for name, value in OTHERS.items())
    ]
    + [Architecture(d_model=8, d_ff=6, n_heads=2, share=share, **OTHERS) for share in ("all", "tgt", "none")],
)
def test_the_shapes_by_formula_are_those_of_the_model(arch):
    for sizes in ((20,), (20, 20 if arch.share == "all" else 30)):
        model = Transformer(arch, *sizes)
        assert weight_shapes(arch, *sizes) == {n: tuple(w.shape) for n, w in shared_weights(model).items()}
        assert n_parameters(arch, *sizes) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("share", ["all", "tgt", "none"])
def test_a_loaded_model_is_the_saved_one_with_its_matrices_shared(number_tokenizer, tmp_path, share):
    model = Transformer(ARCH.model_copy(update={"share": share}), len(number_tokenizer))
    save_model(tmp_path / "model", model, number_tokenizer, ModelCard("en", "de"))
    loaded = load_model(tmp_path / "model").model
    assert [name for name, _ in loaded.named_parameters()] == [name for name, _ in model.named_parameters()]
    for ours, theirs in zip(loaded.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs) and ours.requires_grad and ours.device.type == "cpu"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(folder, value):
    weights = read_weights(folder / "model.safetensors")
    weights["encoder.0.feed_forward.inner.bias"][3] = value
    write_weights(folder / "model.safetensors", weights)
    seal(folder)
    with pytest.raises(
        HeedError, match=r"model\.safetensors: encoder.0.feed_forward.inner.bias holds numbers that are"
    ):
        _ = load_model(folder).model


def test_the_bytes_of_a_file_are_those_of_the_library(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("heed.model.weight_files.BLOCK", 10)
    tensors = read_weights(folder / "model.safetensors") | {
        "é of no axes": torch.tensor(3.0),
        "empty": torch.ones(0, 4),
    }
    write_weights(tmp_path / "ours", tensors)
    save_file(tensors, tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_in_other_precisions_are_read(folder, dtype):
    weights = read_weights(folder / "model.safetensors")
    others = {name: tensor.to(dtype) for name, tensor in weights.items()}
    save_file(others, folder / "model.safetensors")
    seal(folder)
    for name, tensor in shared_weights(load_model(folder).model).items():
        assert torch.equal(tensor, others[name].float())


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float8_e4m3fn, torch.uint8])
def test_weights_that_are_no_floats_are_refused(folder, dtype):
    weights = read_weights(folder / "model.safetensors")
    weights["encoder.0.feed_forward.inner.bias"] = torch.ones(8).to(dtype)
    save_file(weights, folder / "model.safetensors")
    seal(folder)
    with pytest.raises(HeedError, match="model.safetensors: tensor .* expected F32, F16, BF16, F64: take the model"):
        load_model(folder)


def header_of(path) -> tuple[dict, bytes]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_header(path, header: bytes, data: bytes, *, length: int | None = None):
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry",
    [
        {"data_offsets": [0, 32]},  # over another tensor
        {"data_offsets": [0, 2**62]},
        {"data_offsets": [-32, 0]},
        {"data_offsets": [64, 32]},
        {"data_offsets": [0.0, 32.0]},
        {"data_offsets": "0:32"},
        {"shape": [2**40, 2**40]},
        {"shape": [-8, -1]},
        {"shape": [True] * 8},
        {"shape": [10**4000] * 5000},
        {"shape": None},
        {"dtype": ["F32"]},
        {"dtype": None},
    ],
)
def test_a_header_with_impossible_places_is_refused(folder, entry):
    path = folder / "model.safetensors"
    header, data = header_of(path)
    header[NAME] |= entry
    write_header(path, json.dumps(header).encode(), data)
    seal(folder)
    with pytest.raises(HeedError, match="damaged or not a safetensors file"):
        load_model(folder)


@pytest.mark.parametrize("header", [b"[" * 100_000, b"[]", b"1", b"", b"\xff\xff", b'{"a": 1}', b"9" * 100_000])
@pytest.mark.parametrize("length", [None, 2**60, 2**63 - 1])
def test_a_header_that_is_none_is_refused(folder, header, length):
    write_header(folder / "model.safetensors", header, bytes(100_000), length=length)
    seal(folder)
    with pytest.raises(HeedError, match="damaged or not a safetensors file"):
        load_model(folder)


def test_a_file_that_is_cut_while_it_is_read_is_an_error_not_a_signal(folder):
    path = folder / "model.safetensors"
    weights = StoredWeights(path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(HeedError, match="cut while it was read"):
        for name in weights.shapes:
            weights.take(name)[:]
