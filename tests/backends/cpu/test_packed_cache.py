"""Packed weights: what memory they take, and what is kept of them for the next start, at worst to be packed anew."""

import dataclasses
import json
import os
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import SPECIAL

from heed.backends.choice import packed
from heed.backends.cpu import packed_cache, packed_model
from heed.backends.cpu.build import has_int8, largest_int8_weight, library
from heed.backends.cpu.packed_weights import AT_A_TIME
from heed.backends.cpu.training import pack_module
from heed.decoding.beam import beam_search
from heed.decoding.loading import no_report, ready_models
from heed.decoding.settings import DecodingSettings
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.cost import n_parameters
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, ModelFolder, load_model, save_model, shared_weights, write_weights
from heed.model_folder.weights import StoredWeights
from heed.runtime import verified as verified_files
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


# Which weights a start need not hash again


@pytest.fixture
def verified(folder, monkeypatch) -> Path:
    """The folder, whose weights have been hashed, packed and noted, although they are new."""
    monkeypatch.setattr(verified_files, "SETTLED", 0.0)
    searched(load_model(folder))
    assert verified_files.is_verified(folder, "model.safetensors")
    return folder


def other_content(path: Path) -> bytes:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    return bytes(content)


@pytest.mark.parametrize("folder", ["all"], indirect=True)
@pytest.mark.parametrize("change", ["edited in place", "replaced", "through a memory mapping", "cut"])
def test_a_change_of_the_weights_is_noticed_whatever_their_size_and_times(verified, change):
    path = verified / "model.safetensors"
    before, other = path.stat(), other_content(path)
    if change == "edited in place":
        with path.open("r+b") as file:
            file.write(other)
    elif change == "replaced":
        (verified / "new").write_bytes(other)
        os.replace(verified / "new", path)
    elif change == "cut":
        os.truncate(path, before.st_size - 1)
    else:
        mapped = np.memmap(path, np.uint8, "r+")
        mapped[-1] ^= 1
        mapped.flush()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not verified_files.is_verified(verified, path.name)
    with pytest.raises(HeedError, match=r"model\.safetensors: damaged"):
        load_model(verified)


@pytest.mark.parametrize("folder", ["all"], indirect=True)
def test_a_moved_folder_is_known_and_a_copy_is_hashed_once(verified, tmp_path):
    moved, copied = tmp_path / "moved", tmp_path / "copied"
    verified.rename(moved)
    shutil.copytree(moved, copied)
    (copied / "README.md").write_text("Heed never reads it.")
    assert verified_files.is_verified(moved, "model.safetensors")
    assert not verified_files.is_verified(copied, "model.safetensors")
    assert searched(load_model(copied)) == searched(load_model(moved))
    assert verified_files.is_verified(copied, "model.safetensors")


@pytest.mark.parametrize("folder", ["all"], indirect=True)
def test_another_manifest_makes_the_same_file_another(verified):
    """A stranger who knows the hash of other weights cannot have these taken for them."""
    manifest = json.loads((verified / "manifest.json").read_text())
    manifest["files"]["model.safetensors"]["sha256"] = "0" * 64
    (verified / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(HeedError, match=r"model\.safetensors: damaged"):
        load_model(verified)


@pytest.mark.parametrize("folder", ["all"], indirect=True)
def test_where_times_say_nothing_no_changed_weight_is_read(verified, monkeypatch):
    """As on a file system without them: the search goes on with what was verified, and reading hashes again."""
    first, path = searched(load_model(verified)), verified / "model.safetensors"
    monkeypatch.setattr(verified_files, "_identity", lambda path: (1, 2, path.stat().st_size, 3, 4))
    searched(load_model(verified))
    path.write_bytes(other_content(path))
    assert verified_files.is_verified(verified, path.name)
    assert searched(load_model(verified)) == first
    loaded = load_model(verified)
    with pytest.raises(HeedError, match=r"model\.safetensors: damaged"):
        ready_models([loaded], "fp32", device="cpu", report=no_report)
    for kept in packed_cache.packed_files():
        kept.unlink()
    with pytest.raises(HeedError, match=r"model\.safetensors: damaged"):
        searched(load_model(verified))


@pytest.mark.parametrize("folder", ["all"], indirect=True)
def test_weights_that_have_just_changed_are_hashed_at_the_next_start_too(folder, monkeypatch):
    """A second change within the same tick of the clock would not show."""
    load_model(folder)
    assert not verified_files.is_verified(folder, "model.safetensors")
    monkeypatch.setattr(verified_files, "SETTLED", 0.0)
    monkeypatch.setattr(verified_files, "MOST_NOTES", 2)
    for _ in range(4):
        load_model(folder)
        assert verified_files.is_verified(folder, "model.safetensors")
        (folder / "model.safetensors").touch()
    assert len(list((cache_folder() / "verified").iterdir())) == 2


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
