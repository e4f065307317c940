"""Model folders → models that are ready to search with; what Translator and Parser have in common around a search."""

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heed.backends.base import backend_for
from heed.config import validated
from heed.decoding.settings import DecodingSettings
from heed.errors import HeedError
from heed.model.transformer import Transformer
from heed.model_folder import ModelFolder, load_model
from heed.runtime.device import DecodingPrecision, choose_machine


def load_models(folders: Sequence[str | Path], *, device: str | None) -> list[ModelFolder]:
    """The model folders, their models on the device. HeedError if one is damaged, or if their tokenizers differ."""
    loaded = [load_model(Path(folder)) for folder in folders]
    for folder, other in zip(folders[1:], loaded[1:], strict=True):
        if other.tokenizer != loaded[0].tokenizer:
            raise HeedError(f"{folder}: another vocabulary than {folders[0]}; only models of one can be joined.")
    machine = choose_machine("fp32", device=device)
    for one in loaded:
        one.model.to(machine.device)
    return loaded


def recipe_settings(folder: ModelFolder, changes: Mapping[str, Any], *, where: str) -> DecodingSettings:
    """How the model's recipe says to search, except for those of `changes` that are not None."""
    values = folder.card.decoding | {name: value for name, value in changes.items() if value is not None}
    return validated(DecodingSettings, values, where=where)


def prepacked(
    models: Transformer | Sequence[Transformer], precision: DecodingPrecision, *, copy: bool
) -> list[Transformer]:
    """The models with their weights packed for the search. Without `copy` they are changed, which halves the memory."""
    models = [models] if isinstance(models, Transformer) else models
    return [backend_for(model).prepack(model, precision, copy=copy) for model in models]


def no_report(line: str) -> None:
    """Reports nothing."""


class PickledByValue:
    """Pickled as one block of bytes, packed weights included, for a machine with the same kernels.

    Multiprocessing's pickler moves tensors to shared memory, also for the sender, away from the addresses that a
    running search holds.
    """

    def __getstate__(self) -> bytes:
        return pickle.dumps(self.__dict__)

    def __setstate__(self, state: bytes) -> None:
        self.__dict__.update(pickle.loads(state))  # noqa: S301  # part of a pickle that the caller already trusts
