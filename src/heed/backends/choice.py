"""Which backend runs a model: the fastest that covers it."""

import functools
import logging

import torch

from heed.backends import cpu
from heed.backends.cpu.build import state
from heed.backends.cpu.preference import wins
from heed.backends.gpu import training as gpu_training
from heed.backends.gpu.search import GpuSearchBackend
from heed.backends.protocol import Backend
from heed.backends.reference import ReferenceBackend
from heed.model.transformer import Transformer
from heed.runtime.device import native_kernels
from heed.runtime.instruction_sets import chosen_set

log = logging.getLogger(__name__)


def backend_for(model: Transformer, device: torch.device | None = None) -> Backend:
    """The fastest backend that covers this model, on its device or on another one.

    It is asked each time anew: a hook may have come since. What leaves a model to the plain network is said once.
    """
    weight = model.src_embedding.weight
    device = device or weight.device
    if model.training and gpu_training.supports(device):
        return _gpu_training_backend(model)
    if device.type == "cuda" and not model.training and native_kernels() != "none":
        return _gpu_search_backend(model)
    if not cpu.supports(device, weight.dtype):
        return ReferenceBackend(state()) if device.type == "cpu" else ReferenceBackend()
    if not wins(model.arch, training=model.training):
        return ReferenceBackend(f"PyTorch's operations are faster with {chosen_set().title}")
    if (missing := cpu.CpuBackend().covers(model)) is None:
        return cpu.CpuBackend()
    _say_once(f"PyTorch's operations compute the network: it has {missing}, which Heed's kernels do not cover.")
    return ReferenceBackend(f"the network has {missing}, which Heed's kernels do not cover")


def _gpu_training_backend(model: Transformer) -> Backend:
    backend = gpu_training.GpuTrainingBackend()
    if (missing := backend.covers(model)) is None:
        return backend
    _say_once(f"PyTorch's operations train the network: it has {missing}, which Heed's passes on a GPU do not cover.")
    return ReferenceBackend()


def _gpu_search_backend(model: Transformer) -> Backend:
    backend = GpuSearchBackend()
    if (missing := backend.covers(model)) is None:
        return backend
    _say_once(f"The plain network searches: it has {missing}, which Heed's search on a GPU does not cover.")
    return ReferenceBackend()


@functools.cache
def _say_once(line: str) -> None:
    log.warning("%s", line)


def kernels_state() -> str:
    """For the user to read: that Heed's CPU kernels are used, or why not. The first call compiles them."""
    return state()
