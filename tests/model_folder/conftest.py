"""Two good model folders, a copy of one to damage, and what Heed 0.1 wrote."""

import json
import shutil

import pytest
import torch

from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model
from heed.runtime.manifest import seal

ARCH = Architecture(n_layers=1, d_model=8, d_ff=8, n_heads=2)
# What Heed 0.1 wrote, and the weights beside it.
OLD_ARCHITECTURE = {
    "n_layers": 1, "d_model": 8, "d_ff": 8, "n_heads": 2, "d_k": None, "d_v": None, "dropout": 0.1,
    "attention_dropout": 0.0, "word_dropout": 0.0, "radius": None, "positions": "sinusoid", "max_positions": 1024,
    "share": "all",
}  # fmt: skip
ENCODER_LAYER = (
    *("self_attention.qkv.weight", "self_attention.out.weight"),
    *("self_attention_norm.weight", "self_attention_norm.bias"),
    *("feed_forward.inner.weight", "feed_forward.inner.bias", "feed_forward.outer.weight", "feed_forward.outer.bias"),
    *("feed_forward_norm.weight", "feed_forward_norm.bias"),
)
DECODER_LAYER = (
    *ENCODER_LAYER,
    *("cross_attention.q.weight", "cross_attention.kv.weight", "cross_attention.out.weight"),
    *("cross_attention_norm.weight", "cross_attention_norm.bias"),
)


@pytest.fixture(scope="module")
def two_folders(tmp_path_factory, number_tokenizer):
    folders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = Transformer(Architecture(n_layers=1, d_model=8, d_ff=8, n_heads=2), len(number_tokenizer))
        folders.append(tmp_path_factory.mktemp("models") / str(seed))
        save_model(folders[-1], model, number_tokenizer, ModelCard("en", "de"))
    return folders


@pytest.fixture
def folder(two_folders, tmp_path):
    return shutil.copytree(two_folders[0], tmp_path / "model")


def change_config(folder, *path, value):
    """What a stranger can do: change config.json and seal the folder again."""
    config = json.loads((folder / "config.json").read_text())
    target = config
    for name in path[:-1]:
        target = target[name]
    target[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(config).replace("Infinity", "1e400"))
    seal(folder)
