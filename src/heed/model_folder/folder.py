"""The one thing users own: config.json, tokenizer.json, model.safetensors, their manifest.json, README.md.

Nothing in it can run code. What is read is first compared with the manifest, and no memory of the model's size is
taken before the shapes in config.json agree with those in the file. README.md is for people; Heed never reads it.
"""

import functools
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heed.errors import HeedError
from heed.model.cost import Take
from heed.model_folder.card import ModelCard, ModelConfig, read_config, write_config
from heed.model_folder.weights import check_weights
from heed.runtime.files import whole_folder
from heed.runtime.manifest import MANIFEST, check, manifest, seal
from heed.text.tokenizer_kinds import AnyTokenizer, load_tokenizer

if TYPE_CHECKING:
    from heed.model.transformer import Transformer

MODEL_FILES = ("config.json", "tokenizer.json", "model.safetensors")
MODEL_FOLDER_NAMES = (*MODEL_FILES, MANIFEST, "README.md")


@dataclass(frozen=True)
class ModelFolder:
    """A loaded folder: what config.json says, the tokenizer, and the weights, which are read when they are taken."""

    config: ModelConfig
    tokenizer: AnyTokenizer
    take: Take
    content: str | None = None  # a hash of the weights, None if they are those of no file

    @property
    def card(self) -> ModelCard:
        return self.config.card

    @functools.cached_property
    def model(self) -> "Transformer":
        """PyTorch's module, in fp32 and in evaluation mode, made when it is first asked for."""
        from heed.model_folder.network import model_of

        return model_of(self.config, self.take)


def replace_card(folder: Path, card: ModelCard) -> None:
    """Writes another card into a model folder. HeedError if a file is damaged, which a new manifest would hide."""
    check(folder, MODEL_FILES)
    config = read_config(folder)
    with whole_folder(folder) as temporary:
        for name in MODEL_FILES[1:]:
            shutil.copyfile(folder / name, temporary / name)
        write_config(temporary, config._replace(card=card))
        seal(temporary)


def load_model(folder: Path) -> ModelFolder:
    """The folder's model, tokenizer and card. HeedError if any of it is damaged, or its network is missing."""
    if read_config(folder).arch.network is not None:  # which says what is wrong with a folder that is none
        from heed.model.networks import network_of

        network_of(read_config(folder).arch, where=str(folder))
    sealed = manifest(folder)
    try:
        loaded = _loaded(folder, read_config(folder), sealed)
    except HeedError:
        _check_not_replaced(folder, sealed)  # else parts of two models would be called damaged
        raise
    _check_not_replaced(folder, sealed)
    return loaded


def _check_not_replaced(folder: Path, sealed: dict[str, dict[str, Any]]) -> None:
    if manifest(folder) != sealed:
        raise HeedError(f"{folder}: was replaced while it was read; try again.")


def _loaded(folder: Path, config: ModelConfig, sealed: dict[str, dict[str, Any]]) -> ModelFolder:
    check(folder, MODEL_FILES[:2])
    with ThreadPoolExecutor(1) as pool:  # a large vocabulary takes as long as the weights
        reading = pool.submit(load_tokenizer, folder / "tokenizer.json")
        check(folder, MODEL_FILES[2:])
        weights = check_weights(folder / "model.safetensors", config)
        tokenizer = reading.result()
    sizes = (
        (len(tokenizer), config.vocab_size),
        (tokenizer.src_vocab_size, config.src_vocab_size or config.vocab_size),
    )
    for n_ids, expected in sizes:
        if n_ids != expected:
            raise HeedError(f"{folder}: tokenizer.json has {n_ids:,} ids, config.json says {expected:,}.")
    return ModelFolder(config, tokenizer, weights.take, sealed["model.safetensors"]["sha256"])
