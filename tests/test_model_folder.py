"""A model folder that was damaged anyhow is noticed, or does no harm."""

import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heed.config import HeedError
from heed.model.transformer import Architecture, Transformer
from heed.model_folder import ModelCard, load_model, save_model, shared_weights

FILES = ("README.md", "config.json", "manifest.json", "model.safetensors", "tokenizer.json")


@pytest.fixture(scope="module")
def two_folders(tmp_path_factory, number_tokenizer):
    folders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = Transformer(Architecture(n_layers=1, d_model=8, d_ff=8, n_heads=2), len(number_tokenizer))
        folders.append(tmp_path_factory.mktemp("models") / str(seed))
        save_model(folders[-1], model, number_tokenizer, ModelCard("en", "de"))
    return folders


@given(
    name=st.sampled_from(FILES),
    how=st.sampled_from(["cut", "flip", "empty", "remove", "swap", "noise", "folder"]),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
