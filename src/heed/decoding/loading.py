"""Model folders → models that are ready to search with; what Translator and Parser have in common around a search."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from heed.backends.choice import fastest_precision, packed, packs, pickled_by_value, prepack
from heed.backends.protocol import SearchModel
from heed.config import shown, validated
from heed.decoding.option_rules import SEARCH_RULES, Rule, check_rules
from heed.decoding.settings import DecodingOptions, DecodingSettings
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.cost import n_parameters
from heed.model_folder import ModelFolder, load_model
from heed.runtime.device import DecodingPrecision, DecodingPrecisionChoice, search_device
from heed.runtime.files import as_path
from heed.text.printable import printable


def load_models(folders: Sequence[str | Path]) -> list[ModelFolder]:
    """The model folders. HeedError if one is damaged, or if their tokenizers differ."""
    if not folders:
        raise HeedError("no model folder is given.")
    loaded = [load_model(as_path(folder)) for folder in folders]
    for folder, other in zip(folders[1:], loaded[1:], strict=True):
        if other.tokenizer != loaded[0].tokenizer:
            raise HeedError(f"{folder}: another vocabulary than {folders[0]}; only models of one can be joined.")
    return loaded


def ready_models(
    folders: Sequence[ModelFolder],
    precision: DecodingPrecisionChoice,
    *,
    device: str | None,
    report: Callable[[str], None],
) -> tuple[list[SearchModel], DecodingPrecision]:
    """The folders' models, ready to search with; the precision in which they compute.

    Where Heed's kernels search, weights are packed as they are read, and PyTorch is not imported; else they are those
    of modules on the device.
    """
    device_name = search_device(None if device is None else str(device))  # torch.device, too
    chosen = folder_precision(folders[0], precision, device_name=device_name, report=report)
    models: list[SearchModel] = []
    for folder in folders:
        config = folder.config
        if packs(config.arch, device_name):
            sizes = config.vocab_size, config.src_vocab_size
            models.append(packed(config.arch, sizes, folder.take, chosen, content=folder.content))
        else:
            models.append(prepack(folder.model.to(device_name), chosen, copy=False))
    return models, chosen


def folder_precision(
    folder: ModelFolder,
    precision: DecodingPrecisionChoice,
    *,
    device_name: str,
    report: Callable[[str], None],
) -> DecodingPrecision:
    """Calls `choose_precision` for a folder's model."""
    model = folder.config.arch if packs(folder.config.arch, device_name) else folder.model.to(device_name)
    return choose_precision(model, precision, device_name=device_name, report=report)


def description(
    models: Sequence[SearchModel], folders: Sequence[str | Path], *, task: str, precision: str, beam_size: int
) -> str:
    """One line of what decides a result: model folders, task, shape, parameters, precision, device, beam."""
    names = " + ".join(map(str, folders)) or "a model in memory"
    arch = models[0].arch
    layers = str(arch.n_layers)
    if arch.encoder_layers != arch.decoder_layers:
        layers = f"{arch.encoder_layers} + {arch.decoder_layers}"
    n = sum(n_parameters(model.arch, model.vocab_size, model.src_vocab_size) for model in models)
    return (
        f"{printable(names)}: {task}, {layers} layers, d_model {arch.d_model}, {n / 1e6:.1f}M parameters, "
        f"{precision} on {models[0].device_name}, beam {beam_size}"
    )


def recipe_settings(
    folder: ModelFolder, changes: DecodingOptions, *, where: str, rules: Sequence[Rule] = SEARCH_RULES
) -> DecodingSettings:
    """How the model's recipe says to search, except for those of `changes` that are not None.

    HeedError names the folder (`where`) only for a fault of its own settings. rules: what `changes` must keep.
    """
    check_rules(rules, changes)
    recipe = validated(DecodingSettings, folder.card.decoding, where=where)
    given = {name: value for name, value in changes.items() if value is not None}
    return validated(DecodingSettings, recipe.model_dump() | given, where="the search")


def prepack_models(
    models: SearchModel | Sequence[SearchModel],
    precision: DecodingPrecision,
    *,
    copy: bool,
) -> list[SearchModel]:
    """The models ready to search with. Without `copy` modules are given up, which halves the memory."""
    return [prepack(model, precision, copy=copy) for model in list_of(models)]


def list_of(models: SearchModel | Sequence[SearchModel]) -> list[SearchModel]:
    """Several models, or one."""
    return list(models) if isinstance(models, Sequence) else [models]


def choose_precision(
    model: SearchModel | Architecture,
    precision: DecodingPrecisionChoice,
    *,
    device_name: str,
    report: Callable[[str], None],
) -> DecodingPrecision:
    """`precision`, or in place of "auto" the one in which this model searches fastest, which is reported.

    HeedError for an unknown name.
    """
    if precision not in (known := get_args(DecodingPrecisionChoice)):
        raise HeedError(f"precision {shown(precision)}: expected one of {', '.join(known)}.")
    if precision != "auto":
        return precision
    fastest, why = fastest_precision(model, device_name)
    exact = "" if fastest == "fp32" else "; --precision fp32 is exact"
    report(f"Searching in {fastest}, the fastest precision here ({why}){exact}.")
    return fastest


def no_report(line: str) -> None:
    """Reports nothing."""


class PickledByValue:
    """Pickles its `models` with arrays in the place of PyTorch's tensors, if they are modules.

    Multiprocessing moves the tensors that it pickles to shared memory, also for the sender: away from the addresses
    that a running search holds. A pickle is for a machine with the same kernels.
    """

    models: list[SearchModel]

    def __getstate__(self) -> dict[str, Any]:
        lists = {name: value for name, value in vars(self).items() if name in ("models", "_given")}
        return vars(self) | {name: pickled_by_value(models) for name, models in lists.items()}
