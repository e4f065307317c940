"""A model folder that was damaged anyhow is noticed, or does no harm."""

import json
import os
import shutil
import stat
import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.conftest import OTHERS, n_examples
from tests.model_folder.conftest import ARCH, change_config

from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, load_model, save_model, shared_weights
from heed.runtime.manifest import seal
from heed.text.sentencepiece import SentencePieceTokenizer, Vocabulary
from heed.text.tokenizer import SpecialIds
from heed.text.tokenizer_kinds import load_tokenizer

FILES = ("README.md", "config.json", "manifest.json", "model.safetensors", "tokenizer.json")


@pytest.mark.slow
@given(
    name=st.sampled_from(FILES),
    how=st.sampled_from(["cut", "flip", "empty", "remove", "swap", "noise", "folder"]),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
@settings(
    max_examples=n_examples(500), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_damage_is_noticed_or_harmless(two_folders, tmp_path_factory, name, how, place, bit):
    good, other = two_folders
    folder = tmp_path_factory.mktemp("damaged") / "model"
    shutil.copytree(good, folder)
    path = folder / name
    content = bytearray(path.read_bytes())
    at = int(place * len(content))
    if how == "cut":
        path.write_bytes(content[:at])
    elif how == "flip":
        content[at] ^= 1 << bit
        path.write_bytes(content)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "remove":
        path.unlink()
    elif how == "swap":
        shutil.copyfile(other / name, path)
    elif how == "noise":
        path.write_bytes(content[:at] + bytes([bit] * 16) + content[at:])
    else:
        path.unlink()
        path.mkdir()
    try:
        loaded = load_model(folder)
    except HeedError as error:
        assert str(folder) in str(error)
    else:
        expected = shared_weights(load_model(good).model)
        assert all(torch.equal(tensor, expected[key]) for key, tensor in shared_weights(loaded.model).items())
        assert loaded.tokenizer == load_model(good).tokenizer
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
def test_many_tiny_layers_are_refused_before_one_is_made(folder):
    """20,000 layers of width 2 in the weights' file, as many as fit into 1,000 in config.json."""
    change_config(folder, "architecture", value=Architecture(n_layers=1000, d_model=2, d_ff=1, n_heads=1).model_dump())
    tensors = {f"encoder.{i}.feed_forward.inner.bias": torch.zeros(1) for i in range(20_000)}
    save_file(tensors, folder / "model.safetensors")
    with (folder / "model.safetensors").open("ab") as file:
        file.write(bytes(50_000))
    seal(folder)
    started = time.process_time()
    with pytest.raises(HeedError, match=r"model\.safetensors"):
        load_model(folder)
    save_file(tensors | {"filling": torch.zeros(50_000)}, folder / "model.safetensors")
    seal(folder)
    with pytest.raises(HeedError, match="weight decoder.0.cross_attention.kv.weight is missing"):
        load_model(folder)
    assert time.process_time() - started < 20


def test_a_model_of_two_vocabularies_is_stored_and_loaded(number_tokenizer, tmp_path):
    n = 20
    words = (
        Vocabulary(pieces=["</s>", "<unk>", *map(str, range(n + 5))]),
        Vocabulary(pieces=["</s>", "<unk>", *map(str, range(n - 2))]),
    )
    tokenizer = SentencePieceTokenizer(*words, SpecialIds(0, 0, 0, 1))
    model = Transformer(ARCH.model_copy(update={"share": "tgt", **OTHERS}), n, n + 7)
    save_model(tmp_path / "other", model, number_tokenizer, ModelCard("en", "de"))
    with pytest.raises(HeedError, match=r"tokenizer.json has \d+ ids, config.json says 20"):
        load_model(tmp_path / "other")
    save_model(tmp_path / "model", model, tokenizer, ModelCard("en", "de"))
    loaded = load_model(tmp_path / "model").model
    assert (loaded.src_vocab_size, loaded.vocab_size) == (n + 7, n)
    for (name, ours), (expected, theirs) in zip(loaded.named_parameters(), model.named_parameters(), strict=True):
        assert name == expected and torch.equal(ours, theirs)
    assert f"3 + 1 layers, d_model 8, d_ff 8, 2 heads, {sum(p.numel() for p in model.parameters()):,} parameters, " in (
        readme := (tmp_path / "model" / "README.md").read_text()
    )
    assert f"{n + 7} source ids, {n} target ids" in readme


def test_two_vocabularies_cannot_share_all_matrices(folder):
    with pytest.raises(HeedError, match=r"30 ids and a target vocabulary of 20 cannot share one matrix"):
        Transformer(ARCH, 20, 30)
    change_config(folder, "src_vocab_size", value=30)
    with pytest.raises(HeedError, match=r"config\.json: vocab_size and src_vocab_size differ"):
        load_model(folder)


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_whoever_the_umask_lets_may_read_all_files(number_tokenizer, tmp_path, umask):
    before = os.umask(umask)
    try:
        model = Transformer(ARCH, len(number_tokenizer))
        save_model(tmp_path / "model", model, number_tokenizer, ModelCard("en", "de"))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "model").iterdir()} == {0o666 & ~umask}


def test_loading_is_refused_if_the_folder_is_replaced_meanwhile(two_folders, folder, monkeypatch):
    load = load_tokenizer

    def replaced_meanwhile(path):
        tokenizer = load(path)
        for name in ("manifest.json", "model.safetensors"):
            shutil.copyfile(two_folders[1] / name, folder / name)
        return tokenizer

    monkeypatch.setattr("heed.model_folder.folder.load_tokenizer", replaced_meanwhile)
    with pytest.raises(HeedError, match="was replaced while it was read"):
        load_model(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "manifest.json"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_is_no_regular_file_is_refused(folder, name, kind):
    (folder / name).unlink()
    os.mkfifo(folder / name) if kind == "fifo" else (folder / name).symlink_to("/dev/zero")
    with pytest.raises(HeedError, match=name):
        load_model(folder)


def test_the_command_reports_a_hostile_folder_in_one_line(folder, heed):
    change_config(folder, "card", "decoding", value=[1])
    done = heed("translate", folder, stdin="a b c\n")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "card.decoding" in done.stderr


def test_a_model_folder_loads_as_it_was_saved_and_names_what_is_wrong(tmp_path, number_tokenizer, small_arch):
    model = Transformer(small_arch, len(number_tokenizer))
    folder = tmp_path / "model"
    save_model(folder, model, number_tokenizer, ModelCard("en", "de", scores={"test": "BLEU 1"}))
    loaded = load_model(folder)
    assert all(torch.equal(t, shared_weights(model)[n]) for n, t in shared_weights(loaded.model).items())
    assert loaded.card.scores == {"test": "BLEU 1"}
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-100])
    with pytest.raises(HeedError, match="model.safetensors: damaged"):
        load_model(folder)
    weights.write_bytes(content)
    config = json.loads((folder / "config.json").read_text())
    config["architecture"]["d_model"] = 64
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(HeedError, match="config.json: damaged: not what manifest.json says"):
        load_model(folder)
    seal(folder)
    with pytest.raises(HeedError, match=r"weight .* has shape .*; config.json asks for"):
        load_model(folder)
    for shapes in ({"d_model": 2**16, "n_heads": 1}, {"n_layers": 1000}):  # more than the file holds
        config["architecture"] |= shapes
        (folder / "config.json").write_text(json.dumps(config))
        seal(folder)
        with pytest.raises(HeedError, match="weight"):
            load_model(folder)
    with pytest.raises(HeedError, match="no such folder"):
        load_model(tmp_path / "nowhere")
