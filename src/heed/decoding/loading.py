"""Model folders → models that are ready to search with; what Translator and Parser have in common around a search."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heed.backends.choice import backend_for
from heed.config import shown, validated
from heed.decoding.rules import SEARCH_RULES, Rule, check_rules
from heed.decoding.settings import DecodingOptions, DecodingSettings
from heed.errors import HeedError
from heed.model.cost import n_parameters
from heed.model.transformer import Transformer
from heed.model_folder import ModelFolder, load_model
from heed.runtime.device import DecodingPrecision, DecodingPrecisionChoice, choose_machine
from heed.runtime.files import as_path
from heed.text.printable import printable


def load_models(folders: Sequence[str | Path], *, device: str | None) -> list[ModelFolder]:
    """The model folders, their models on the device. HeedError if one is damaged, or if their tokenizers differ."""
    if not folders:
        raise HeedError("no model folder is given.")
    loaded = [load_model(as_path(folder)) for folder in folders]
    for folder, other in zip(folders[1:], loaded[1:], strict=True):
        if other.tokenizer != loaded[0].tokenizer:
            raise HeedError(f"{folder}: another vocabulary than {folders[0]}; only models of one can be joined.")
    machine = choose_machine("fp32", device=device)
    for one in loaded:
        one.model.to(machine.device)
    return loaded


def description(
    models: Sequence[Transformer], folders: Sequence[str | Path], *, task: str, precision: str, beam_size: int
) -> str:
    """One line of what decides a result: model folders, task, shape, parameters, precision, device, beam."""
    names = " + ".join(map(str, folders)) or "a model in memory"
    arch = models[0].arch
    layers = str(arch.n_layers)
    if arch.encoder_layers != arch.decoder_layers:
        layers = f"{arch.encoder_layers} + {arch.decoder_layers}"
    n = sum(n_parameters(model.arch, model.vocab_size, model.src_vocab_size) for model in models)
    device = models[0].src_embedding.weight.device
    return (
        f"{printable(names)}: {task}, {layers} layers, d_model {arch.d_model}, {n / 1e6:.1f}M parameters, "
        f"{precision} on {device}, beam {beam_size}"
    )


def recipe_settings(
    folder: ModelFolder, changes: DecodingOptions, *, where: str, rules: Sequence[Rule] = SEARCH_RULES
) -> DecodingSettings:
    """How the model's recipe says to search, except for those of `changes` that are not None.

    HeedError names the folder (`where`) only for a fault of its own settings. rules: what `changes` must keep.
    """
    check_rules(rules, changes)
    recipe = validated(DecodingSettings, folder.card.decoding, where=where)
    asked = {name: value for name, value in changes.items() if value is not None}
    return validated(DecodingSettings, recipe.model_dump() | asked, where="the search")


def prepack_models(
    models: Transformer | Sequence[Transformer], precision: DecodingPrecision, *, copy: bool
) -> list[Transformer]:
    """The models with their weights packed for the search. Without `copy` they are changed, which halves the memory."""
    models = [models] if isinstance(models, Transformer) else models
    return [backend_for(model).prepack(model, precision, copy=copy) for model in models]


def choose_precision(
    models: Transformer | Sequence[Transformer], precision: DecodingPrecisionChoice, *, report: Callable[[str], None]
) -> DecodingPrecision:
    """`precision`, or in place of "auto" the one in which these models search fastest, which is reported.

    HeedError if there is none of this name.
    """
    if precision not in (known := get_args(DecodingPrecisionChoice)):
        raise HeedError(f"precision {shown(precision)}: expected one of {', '.join(known)}.")
    if precision != "auto":
        return precision
    model = models if isinstance(models, Transformer) else models[0]
    fastest, why = backend_for(model).fastest_precision(model.src_embedding.weight.device)
    exact = "" if fastest == "fp32" else "; --precision fp32 is exact"
    report(f"Searching in {fastest}, the fastest precision here ({why}){exact}.")
    return fastest


def no_report(line: str) -> None:
    """Reports nothing."""


@dataclass(frozen=True)
class _TensorValue:
    """A tensor's content, which stands for it in a pickle."""

    content: NDArray[np.uint8]
    dtype: torch.dtype
    shape: tuple[int, ...]
    device: torch.device
    is_parameter: bool

    @classmethod
    def of(cls, x: Tensor) -> "_TensorValue":
        content = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        return cls(content, x.dtype, tuple(x.shape), x.device, isinstance(x, nn.Parameter))

    def tensor(self) -> Tensor:
        x = torch.tensor(self.content).view(self.dtype).view(self.shape).to(self.device)
        return nn.Parameter(x, requires_grad=False) if self.is_parameter else x


class PickledByValue:
    """Pickles its `models` with arrays in the place of tensors, packed weights included.

    Multiprocessing moves the tensors that it pickles to shared memory, also for the sender: away from the addresses
    that a running search holds. A pickle is for a machine with the same kernels.
    """

    models: list[Transformer]

    def __getstate__(self) -> dict[str, Any]:
        modules = [module for model in self.models for module in model.modules()]
        tensors = {id(x): x for module in modules for x in _tensors_of(module)}
        values: dict[int, Any] = {key: _TensorValue.of(x) for key, x in tensors.items()}
        contents = list(values.values())
        # A copy takes what its memo holds for an object in the place of the object.
        return vars(self) | {"models": deepcopy(self.models, values), "contents": contents}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tensors: dict[int, Any] = {id(value): value.tensor() for value in state.pop("contents")}
        vars(self).update(state | {"models": deepcopy(state["models"], tensors)})


def _tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """A module's own tensors: parameters, buffers, attributes; none of a module that says itself how it is pickled."""
    if not hasattr(type(module), "__deepcopy__"):
        attributes = (x for x in vars(module).values() if isinstance(x, Tensor))
        yield from itertools.chain(module.parameters(recurse=False), module.buffers(recurse=False), attributes)
