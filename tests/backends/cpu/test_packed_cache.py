"""Packed weights that are kept for the next start: the same translations, and at worst they are packed anew."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from heed.backends.cpu import packed_cache
from heed.backends.cpu.build import has_int8, library
from heed.decoding.beam import beam_search
from heed.decoding.loading import no_report, ready_models
from heed.decoding.settings import DecodingSettings
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, ModelFolder, load_model, save_model
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


def test_a_second_start_reads_no_weight_of_the_folder_and_finds_the_same(folder):
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
