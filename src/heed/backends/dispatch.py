"""Which backend runs a module of PyTorch: the fastest that covers it."""

import torch

from heed.backends.cpu import training as cpu_training
from heed.backends.cpu.preference import wins
from heed.backends.cpu.search import COVERAGE, UNCOVERED, CpuSearchBackend, why_not
from heed.backends.cpu.training import pack_module
from heed.backends.gpu import training as gpu_training
from heed.backends.gpu.search import GpuSearchBackend
from heed.backends.protocol import SearchModel, say_once
from heed.backends.reference import ReferenceBackend
from heed.backends.reference_search import ReferenceSearchBackend
from heed.backends.training_protocol import Backend
from heed.model.transformer import Transformer
from heed.runtime.device import DecodingPrecision, native_kernels


def backend_for(model: Transformer, device: torch.device | None = None) -> Backend:
    """The fastest backend that trains and validates this model, on its device or on another one.

    It is asked each time anew: a hook may have come since. What leaves a model to the plain network is said once.
    """
    weight = model.src_embedding.weight
    device = device or weight.device
    if model.training and gpu_training.supports(device):
        gpu = gpu_training.GpuTrainingBackend()
        if (missing := gpu.covers(model)) is None:
            return gpu
        say_once(
            f"PyTorch's operations train the network: it has {missing}, which Heed's passes on a GPU do not cover."
        )
        return ReferenceBackend()
    if not cpu_training.supports(device, weight.dtype) or not wins(model.arch, training=model.training):
        return ReferenceBackend()
    if (missing := cpu_training.CpuBackend().covers(model)) is None:
        return cpu_training.CpuBackend()
    say_once(f"PyTorch's operations compute the network: it has {missing}, which Heed's kernels do not cover.")
    return ReferenceBackend()


def search_backend_for(model: Transformer) -> ReferenceSearchBackend:
    """The fastest backend that searches with a module as it is, without packing its weights."""
    if not model.device_name.startswith("cuda") or native_kernels() == "none":
        return ReferenceSearchBackend(_why_not_packed(model) or "without Heed's kernels")
    if (missing := GpuSearchBackend().covers(model)) is None:
        return GpuSearchBackend()
    say_once(f"The plain network searches: it has {missing}, which Heed's search on a GPU does not cover.")
    return ReferenceSearchBackend()


def fastest_precision(model: Transformer) -> tuple[DecodingPrecision, str]:
    """The precision in which a search is fastest, and why."""
    if _why_not_packed(model) is None:
        return CpuSearchBackend().fastest_precision("cpu")
    return search_backend_for(model).fastest_precision(model.device_name)


def prepack(model: Transformer, precision: DecodingPrecision, *, copy: bool) -> SearchModel:
    """The model ready to search with. Without `copy` it is given up: its weights may be gone."""
    if (reason := _why_not_packed(model)) is None:
        return pack_module(model, precision, copy=copy)
    if model.device_name == "cpu" and UNCOVERED in reason:
        say_once(f"PyTorch's operations compute the network: {reason}.")
    return search_backend_for(model).prepack(model, precision, copy=copy)


def searchable(model: Transformer) -> SearchModel:
    """The model packed in fp32 if the kernels cover it, else as it is."""
    return model if model.training or _why_not_packed(model) else pack_module(model, "fp32", copy=True)


def _why_not_packed(model: Transformer) -> str | None:
    """None if searches with this module run by the kernels; else why not."""
    dtype = model.src_embedding.weight.dtype
    if model.device_name != "cpu" or dtype not in (torch.float32, torch.bfloat16):
        return f"a model in {dtype} on {model.device_name}"
    if (missing := COVERAGE.missing(model)) is not None:
        return f"the network has {missing}, {UNCOVERED}"
    return why_not(model.arch)
