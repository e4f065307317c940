"""PyTorch's tensors as the kernels take them: what build.py has for numpy's arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heed.backends.cpu import build
from heed.backends.cpu.declarations import Address, address

IN_FP32: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever the program's own defaults are
Wanted = tuple[Tensor, tuple[int, ...], torch.dtype]
_DTYPES: dict[torch.dtype, np.dtype[Any]] = {torch.float32: np.dtype(np.float32), torch.bfloat16: np.dtype(np.uint16)}


def addresses(kernel: str, **arguments: Wanted) -> dict[str, Address]:
    """Where these tensors lie in memory: as `build.addresses`; ValueError too for one that is not on the CPU."""
    for name, (x, shape, dtype) in arguments.items():
        if x.shape != shape or x.dtype is not dtype or not x.is_contiguous() or not x.is_cpu:
            gaps = "" if x.is_contiguous() else " with gaps"
            is_what = f"{tuple(x.shape)} of {x.dtype} on {x.device}{gaps}"
            raise ValueError(f"kernel {kernel}: {name} is {is_what}; expected {tuple(shape)} of {dtype} on cpu.")
    return raw_addresses(**{name: x for name, (x, _, _) in arguments.items()})


def raw_addresses(**tensors: Tensor) -> dict[str, Address]:
    """Where tensors lie that were made for the kernel, or come from an earlier call of it."""
    return {name: address(x.data_ptr()) for name, x in tensors.items()}


def check_range(kernel: str, name: str, numbers: Tensor, *, least: int = 0, end: int) -> None:
    """Calls `build.check_range` for a tensor."""
    addresses(kernel, **{name: (numbers, tuple(numbers.shape), torch.int64)})
    build.check_range(kernel, name, numbers.numpy(), least=least, end=end)


def kernel(name: str, like: Tensor | None = None) -> Callable[..., None]:
    """Returns `build.kernel` for numbers of this tensor's type."""
    return build.kernel(name, None if like is None else _DTYPES[like.dtype])
