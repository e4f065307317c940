"""Which backend searches with a model: the kernels on a CPU, without PyTorch, if they cover it; else PyTorch."""

from typing import TYPE_CHECKING, Any, cast

from heed.backends.cpu.build import state
from heed.backends.cpu.packed_cache import LEAST_WEIGHTS, packed_once
from heed.backends.cpu.packed_cache import packed_files as packed_files
from heed.backends.cpu.packed_model import PackedModel, PackedWeights, Packer
from heed.backends.cpu.search import UNCOVERED, CpuSearchBackend, why_not
from heed.backends.protocol import SearchBackend, SearchModel, say_once
from heed.model.architecture import Architecture
from heed.model.cost import Take, n_parameters
from heed.runtime.device import DecodingPrecision

if TYPE_CHECKING:
    from heed.model.transformer import Transformer


def search_backend(model: SearchModel) -> SearchBackend:
    """The backend of a model that is ready to search with."""
    if isinstance(model, PackedModel):
        return CpuSearchBackend()
    from heed.backends.dispatch import search_backend_for

    return search_backend_for(_module(model))


def prepack(model: SearchModel, precision: DecodingPrecision, *, copy: bool = True) -> SearchModel:
    """A module ready to search with in this precision; a PackedModel is that already.

    copy: whether the module stays as it is. HeedError if the precision is impossible here.
    """
    if isinstance(model, PackedModel):
        return model
    from heed.backends import dispatch

    return dispatch.prepack(_module(model), precision, copy=copy)


def searchable(model: SearchModel) -> SearchModel:
    """A model as a search takes it: a module that the kernels cover packed in fp32, all others as they are."""
    if isinstance(model, PackedModel):
        return model
    from heed.backends import dispatch

    return dispatch.searchable(_module(model))


def packs(arch: Architecture, device_name: str) -> bool:
    """Whether a model with these settings is searched with by the kernels, from weights that no module holds.

    Says once what leaves a model to PyTorch although the kernels are there.
    """
    if device_name != "cpu":
        return False
    if (reason := why_not(arch)) is not None and UNCOVERED in reason:
        say_once(f"PyTorch's operations compute the network: {reason}.")
    return reason is None


def packed(
    arch: Architecture,
    vocab_sizes: tuple[int, int | None],
    take: Take,
    precision: DecodingPrecision,
    *,
    content: str | None,
) -> SearchModel:
    """A model that `packs`, of weights that `take` gives up in fp32 by their names. vocab_sizes: target's, source's.

    content: a hash of these weights, by which large models keep them packed in int8 for the next start, or None.
    """

    def make(weights: PackedWeights) -> PackedModel:
        return PackedModel(arch, *vocab_sizes, weights, precision=precision)

    packer = Packer(take, precision, activation=arch.activation)
    # Weights in fp32 are packed as fast as they would be read.
    if content is None or precision != "int8" or n_parameters(arch, *vocab_sizes) < LEAST_WEIGHTS:
        return make(packer)
    return packed_once(make, packer, f"{content} {arch.model_dump_json()} {vocab_sizes} {precision}")


def fastest_precision(model: SearchModel | Architecture, device_name: str) -> tuple[DecodingPrecision, str]:
    """The precision in which a search is fastest, and why; of an architecture, if it `packs`."""
    if isinstance(model, Architecture):
        return CpuSearchBackend().fastest_precision(device_name)
    if isinstance(model, PackedModel):
        return model.precision, "as it was packed"
    from heed.backends import dispatch

    return dispatch.fastest_precision(_module(model))


def pickled_by_value(models: list[SearchModel]) -> Any:
    """What is pickled in the place of models, and becomes a list of them again: without tensors of PyTorch's."""
    if all(isinstance(model, PackedModel) for model in models):
        return models
    from heed.backends.pickling import ModulesByValue

    return ModulesByValue([_module(model) for model in models])


def _module(model: SearchModel) -> "Transformer":
    return cast("Transformer", model)


def kernels_state() -> str:
    """For the user to read: that Heed's CPU kernels are used, or why not. The first call compiles them."""
    return state()
