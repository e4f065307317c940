"""Modules as pickles that hold arrays in the place of tensors."""

import itertools
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class ModulesByValue:
    """Modules that are pickled with arrays in the place of their tensors, and come back as a list of modules.

    Multiprocessing moves the tensors that it pickles to shared memory, also for the sender: away from where a running
    search reads them.
    """

    def __init__(self, modules: list[nn.Module]):
        self._modules = modules

    def __reduce__(self) -> tuple[Any, ...]:
        modules = [module for model in self._modules for module in model.modules()]
        tensors = {id(x): x for module in modules for x in _tensors_of(module)}
        values: dict[int, Any] = {key: _TensorValue.of(x) for key, x in tensors.items()}
        contents = list(values.values())
        # A copy takes what its memo holds for an object in the place of the object.
        return _restored, (deepcopy(self._modules, values), contents)


def _restored(modules: list[nn.Module], contents: list["_TensorValue"]) -> list[nn.Module]:
    tensors: dict[int, Any] = {id(value): value.tensor() for value in contents}
    return deepcopy(modules, tensors)


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


def _tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """A module's own tensors: parameters, buffers, attributes."""
    attributes = (x for x in vars(module).values() if isinstance(x, Tensor))
    yield from itertools.chain(module.parameters(recurse=False), module.buffers(recurse=False), attributes)
