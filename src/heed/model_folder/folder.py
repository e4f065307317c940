"""The one thing users own: config.json, tokenizer.json, model.safetensors, their manifest.json, README.md.

Nothing in it can run code. What is read is first compared with the manifest, and no memory of the model's size is
taken before the shapes in config.json agree with those in the file. Weights that are kept packed in the user's own
folder, under the manifest's hash, need not be read. README.md is for people; Heed never reads it.
"""

import functools
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heed.errors import HeedError
from heed.model.cost import Rows, Take, weight_shapes
from heed.model.weight_files import write_weights
from heed.model_folder.card import ModelCard, ModelConfig, read_config, write_config
from heed.model_folder.weights import StoredWeights, check_weights, compare_shapes, finite_rows
from heed.runtime.files import whole_folder
from heed.runtime.manifest import MANIFEST, check, manifest, seal
from heed.runtime.process_tuning import give_back_freed_memory
from heed.runtime.verified import is_verified, verify
from heed.text.tokenizer_kinds import AnyTokenizer, load_tokenizer

if TYPE_CHECKING:
    from heed.model.transformer import Transformer

WEIGHTS = "model.safetensors"
MODEL_FILES = ("config.json", "tokenizer.json", WEIGHTS)
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


def copy_model(out: Path, folder: ModelFolder) -> None:
    """Writes a folder of these weights, whole or not at all; memory holds a part of one weight at a time."""
    names = weight_shapes(folder.config.arch, folder.config.vocab_size, folder.config.src_vocab_size)
    weights = {name: weight for name in names if (weight := folder.take(name)) is not None}
    with whole_folder(out) as temporary:
        write_config(temporary, folder.config)
        folder.tokenizer.save(temporary / "tokenizer.json")
        write_weights(temporary / "model.safetensors", weights)
        seal(temporary)


def folder_of(config: ModelConfig, weights: Mapping[str, Rows], tokenizer: AnyTokenizer, *, where: Path) -> ModelFolder:
    """The folder of these weights. HeedError if they are not those that config asks for, or once one that is read is
    not finite."""
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    compare_shapes(weight_shapes(config.arch, config.vocab_size, config.src_vocab_size), shapes, where=where)
    checked = {name: finite_rows(name, weight, where=where) for name, weight in weights.items()}
    return ModelFolder(config, tokenizer, checked.get)


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
        take = _verified_take(folder, config, sealed)
        tokenizer = reading.result()
    give_back_freed_memory()  # of a large tokenizer.json, before weights are read
    sizes = (
        (len(tokenizer), config.vocab_size),
        (tokenizer.src_vocab_size, config.src_vocab_size or config.vocab_size),
    )
    for n_ids, expected in sizes:
        if n_ids != expected:
            raise HeedError(f"{folder}: tokenizer.json has {n_ids:,} ids, config.json says {expected:,}.")
    return ModelFolder(config, tokenizer, take, sealed[WEIGHTS]["sha256"])


def _verified_take(folder: Path, config: ModelConfig, sealed: dict[str, dict[str, Any]]) -> Take:
    """Gives the weights, which are hashed before any is read: here, or, if they were before, when the first is asked
    for, which is never where they are kept packed."""
    path = folder / WEIGHTS

    @functools.cache
    def verified() -> StoredWeights:
        verify(folder, WEIGHTS)
        weights = check_weights(path, config)
        _check_not_replaced(folder, sealed)
        return weights

    if is_verified(folder, WEIGHTS):
        check_weights(path, config)
    else:
        verified()
    return lambda name: verified().take(name)
