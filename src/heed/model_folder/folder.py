"""The one thing users own: config.json, tokenizer.json, model.safetensors, their manifest.json, README.md.

Nothing in it can run code. What is read is first compared with the manifest, and no memory of the model's size is
taken before the shapes in config.json agree with those in the file. README.md is for people; Heed never reads it.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.errors import HeedError
from heed.model.networks import network_of
from heed.model.transformer import Transformer
from heed.model_folder.card import ModelCard, ModelConfig, read_config, write_config
from heed.model_folder.weights import check_weights, model_of_weights, shared_weights, write_weights
from heed.runtime.files import whole_folder
from heed.runtime.manifest import MANIFEST, check, manifest, seal
from heed.text.tokenizer_kinds import AnyTokenizer, load_tokenizer

MODEL_FILES = ("config.json", "tokenizer.json", "model.safetensors")
MODEL_FOLDER_NAMES = (*MODEL_FILES, MANIFEST, "README.md")


@dataclass(frozen=True)
class ModelFolder:
    """A loaded folder: the model in fp32 and in evaluation mode, its tokenizer, its card."""

    model: Transformer
    tokenizer: AnyTokenizer
    card: ModelCard


def save_model(folder: Path, model: Transformer, tokenizer: AnyTokenizer, card: ModelCard) -> None:
    """Writes the folder, whole or not at all."""
    with whole_folder(folder) as temporary:
        write_model(temporary, model, tokenizer, card)
        seal(temporary)


def write_model(folder: Path, model: Transformer, tokenizer: AnyTokenizer, card: ModelCard) -> None:
    """Writes the files into an existing folder, to be sealed: checkpoints add theirs first."""
    src_vocab_size = None if model.src_vocab_size == model.vocab_size else model.src_vocab_size
    write_config(folder, ModelConfig(model.arch, model.vocab_size, card, src_vocab_size))
    tokenizer.save(folder / "tokenizer.json")
    write_weights(folder / "model.safetensors", shared_weights(model))


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
    network_of(read_config(folder).arch, where=str(folder))  # says what is wrong with a folder that is none
    sealed = manifest(folder)
    try:
        loaded = _loaded(folder, read_config(folder))
    except HeedError:
        _check_not_replaced(folder, sealed)  # else parts of two models would be called damaged
        raise
    _check_not_replaced(folder, sealed)
    return loaded


def _check_not_replaced(folder: Path, sealed: dict[str, dict[str, Any]]) -> None:
    if manifest(folder) != sealed:
        raise HeedError(f"{folder}: was replaced while it was read; try again.")


def _loaded(folder: Path, config: ModelConfig) -> ModelFolder:
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
    for found, expected in sizes:
        if found != expected:
            raise HeedError(f"{folder}: tokenizer.json has {found:,} ids, config.json says {expected:,}.")
    return ModelFolder(model_of_weights(config, weights).eval(), tokenizer, config.card)
