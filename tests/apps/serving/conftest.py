"""A tiny model with random weights, and a real server of it."""

from pathlib import Path

import httpx
import pytest
from tests.conftest import sharp_model
from tests.servers import RunningServer

from heed.decoding.translator import Translator
from heed.model.architecture import Architecture
from heed.model_folder import ModelCard, save_model
from heed.text.tokenizer import Tokenizer


def write_model_folder(folder: Path, tokenizer: Tokenizer, **decoding: int) -> Path:
    """A model of English numbers that knows nothing, and says so at different lengths."""
    model = sharp_model(Architecture(n_layers=2, d_model=32, d_ff=64, n_heads=4), len(tokenizer), seed=11)
    save_model(folder, model, tokenizer, ModelCard("en", "de", decoding={"beam_size": 3} | decoding))
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory, number_tokenizer) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("serving") / "model", number_tokenizer)


@pytest.fixture(scope="session")
def slow_model_folder(tmp_path_factory, number_tokenizer) -> Path:
    """Every sentence takes 400 steps."""
    folder = tmp_path_factory.mktemp("serving") / "slow-model"
    return write_model_folder(folder, number_tokenizer, min_tokens=399, max_extra_tokens=400)


@pytest.fixture(scope="session")
def translator(model_folder) -> Translator:
    return Translator.load(model_folder, precision="fp32")


@pytest.fixture(scope="session")
def server(model_folder, commands):
    """A server that tests share; it must end well after all of them."""
    with RunningServer(commands, model_folder) as running:
        yield running
        assert running.stop() == 0, "".join(running.lines)


@pytest.fixture(scope="session")
def client(server):
    with httpx.Client(base_url=server.url, timeout=60) as found:
        yield found
