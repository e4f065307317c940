"""Packed weights: what memory they take, and what is kept of them for the next start, at worst to be packed anew."""

import dataclasses
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import SPECIAL

from heed.backends.choice import packed
from heed.backends.cpu import packed_cache, packed_model
from heed.backends.cpu.build import has_int8, largest_int8_weight, library
from heed.backends.cpu.training import pack_module
from heed.backends.cpu.weights import AT_A_TIME
from heed.decoding.beam import beam_search
from heed.decoding.loading import no_report, ready_models
from heed.decoding.settings import DecodingSettings
from heed.model.architecture import Architecture
from heed.model.cost import n_parameters
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, ModelFolder, load_model, save_model, shared_weights, write_weights
from heed.model_folder.weights import StoredWeights
from heed.runtime.device import cache_folder

pytestmark = pytest.mark.skipif(
    library() is None or not has_int8(), reason="no kernels or no 8-bit products: nothing is packed to be kept"
)
SOURCES = [[5, 6, 7, 2], [8, 2]]


@pytest.fixture(params=["all", "none"])
def folder(request, tmp_path, monkeypatch, number_tokenizer) -> Path:
    """A model large enough to be kept, in a home without kept weights but with the compiled kernels."""
    torch.manual_seed(1)
    arch = Architecture(n_layers=1, d_model=1024, d_ff=512, n_heads=4, share=request.param, norm="pre", dropout=0.0)
    folder = tmp_path / "model"
    save_model(folder, Transformer(arch, len(number_tokenizer)), number_tokenizer, ModelCard("en", "de"))
    kernels = cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for path in kernels.glob("kernels-*.so"):
        os.link(path, cache_folder() / path.name)
    return folder


def searched(folder: ModelFolder) -> list[tuple[list[int], float]]:
    [model], _ = ready_models([folder], "int8", device="cpu", report=no_report)
    results = beam_search(model, SOURCES, folder.tokenizer.special, DecodingSettings(max_extra_tokens=4))
    return [(list(best.ids), best.log_prob) for [best] in results]


def without_weights(folder: Path) -> ModelFolder:
    """The folder, of which no weight can be read."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is read again")

    return dataclasses.replace(load_model(folder), take=refuse)


@pytest.mark.parametrize("shared_size", [packed_model.SHARED_SIZE, 0])
def test_a_second_start_reads_no_weight_of_the_folder_and_finds_the_same(folder, shared_size, monkeypatch):
    monkeypatch.setattr(packed_model, "SHARED_SIZE", shared_size)
    first = searched(load_model(folder))
    assert len(packed_cache.packed_files()) == 1
    assert searched(without_weights(folder)) == first


@pytest.mark.parametrize("folder", ["all"], indirect=True)
@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "another file"])
def test_a_damaged_file_is_packed_anew(folder, damage):
    first = searched(load_model(folder))
    [kept] = packed_cache.packed_files()
    content = kept.read_bytes()
    middle = len(content) // 2
    kept.write_bytes(
        {
            "cut": content[:middle],
            "changed": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
            "empty": b"",
            "another file": b"no zip archive at all",
        }[damage]
    )
    assert searched(load_model(folder)) == first
    assert kept.read_bytes() == content
    assert searched(without_weights(folder)) == first


@pytest.mark.parametrize("folder", ["all"], indirect=True)
def test_other_weights_are_other_files_and_the_oldest_go_first(folder, tmp_path, monkeypatch, number_tokenizer):
    searched(load_model(folder))
    [old] = packed_cache.packed_files()
    os.utime(old, (0, 0))
    monkeypatch.setattr(packed_cache, "MOST_BYTES", 3 * old.stat().st_size // 2)
    torch.manual_seed(2)
    model = Transformer(load_model(folder).config.arch, len(number_tokenizer))
    save_model(tmp_path / "other", model, number_tokenizer, ModelCard("en", "de"))
    searched(load_model(tmp_path / "other"))
    [new] = packed_cache.packed_files()
    assert new != old


@pytest.mark.parametrize("folder", ["all"], indirect=True)
def test_a_model_is_searched_where_nothing_can_be_kept(folder, monkeypatch):
    (cache_folder() / "packed").write_text("a file where a folder should be")
    first = searched(load_model(folder))
    assert np.isfinite([log_prob for _, log_prob in first]).all()


@pytest.mark.parametrize("share", ["all", "tgt"])
def test_embeddings_of_whole_steps_are_the_same_in_the_outputs_matrix_as_in_bf16(share, monkeypatch):
    torch.manual_seed(3)
    arch = Architecture(n_layers=2, d_model=36, d_ff=48, n_heads=4, share=share, dropout=0.0)
    model = Transformer(arch, 70, None if share == "all" else 50).eval()
    with torch.no_grad():  # the largest number of each row is as many steps as there may be, each a power of two
        table, largest = model.tgt_embedding.weight, largest_int8_weight()
        table.copy_(torch.randint(-largest, largest + 1, table.shape))
        table[:, 5] = largest
        table.mul_(2.0 ** torch.randint(-9, -6, (len(table), 1)))
    in_bf16 = pack_module(model, "int8", copy=True)
    monkeypatch.setattr(packed_model, "SHARED_SIZE", 0)
    in_int8 = pack_module(model, "int8", copy=True)
    assert in_int8.tgt_embedding is in_int8.output and in_bf16.tgt_embedding.dtype == np.uint16
    assert (in_int8.src_embedding is in_int8.output) == (share == "all")
    settings = DecodingSettings(beam_size=3, max_extra_tokens=6)
    found = [beam_search(model, SOURCES * 5, SPECIAL, settings, n_best=3) for model in (in_int8, in_bf16)]
    assert found[0] == found[1]


def test_packing_holds_a_part_of_one_weight_in_fp32_however_many_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_model, "SHARED_SIZE", 0)
    most = 4 * AT_A_TIME * 128 * 4  # bytes: of these rows in fp32 some copies
    for n_layers, vocab_size in ((8, 2_000), (1, 40_000)):
        arch = Architecture(n_layers=n_layers, d_model=128, d_ff=256, n_heads=4)
        write_weights(tmp_path / "weights", shared_weights(Transformer(arch, vocab_size)))
        weights = StoredWeights(tmp_path / "weights")
        tracemalloc.start()
        try:
            model = packed(arch, (vocab_size, None), weights.take, "int8", content=None)
            rest, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert isinstance(model, packed_model.PackedModel) and peak < rest + most < 4 * n_parameters(arch, vocab_size)
        assert rest < 1.5 * n_parameters(arch, vocab_size)  # a byte each, and what describes them
