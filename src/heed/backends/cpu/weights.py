"""Weights prepacked for the few rows of a search, and their products by the kernels of csrc/*_products.h."""

from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from heed.backends.cpu.build import (
    IN_FP32,
    addresses,
    has_bf16,
    has_int8,
    has_tiles,
    kernel,
    largest_int8_weight,
    raw_addresses,
)
from heed.backends.cpu.declarations import Structure, structure
from heed.backends.protocol import NO_BF16, NO_INT8
from heed.errors import HeedError
from heed.model.transformer import CrossAttention, FeedForward, SelfAttention, Transformer
from heed.runtime.device import DecodingPrecision
from heed.runtime.process_tuning import give_back_freed_memory

PANEL = 32  # outputs that lie together in a packed weight: PANEL of search_tiles.h


class PackedWeight:
    """A weight and bias as the products read them."""

    def __init__(self, d_in: int, d_out: int, panels: Tensor, bias: Tensor | None, *quantized: Tensor):
        self.d_in, self.d_out = d_in, d_out
        bias = torch.zeros(d_out, **IN_FP32) if bias is None else bias.float()
        self._tensors: tuple[Tensor, ...] = (panels, *quantized, F.pad(bias, (0, -d_out % PANEL)))
        self.structure = self._structure()

    def _structure(self) -> Structure:
        panels, *quantized, bias = self._tensors
        tensors = {"panels": panels, "bias": bias} | dict(zip(("steps", "offsets"), quantized, strict=False))
        sizes = {"d_in": self.d_in, "d_out": self.d_out, "number_bytes": self.number_bytes}
        return structure("Weight", **raw_addresses(**tensors), **sizes)

    @property
    def number_bytes(self) -> int:
        """Bytes of a number in the panels: 4, 2 or 1."""
        return self._tensors[0].element_size()

    def __deepcopy__(self, memo: object) -> "PackedWeight":
        return self  # it never changes

    def __getstate__(self) -> tuple[int, int, list[NDArray[Any]]]:
        # Arrays, since multiprocessing moves tensors to shared memory, away from the structure's addresses.
        return self.d_in, self.d_out, [tensor.detach().numpy() for tensor in self._tensors]

    def __setstate__(self, state: tuple[int, int, list[NDArray[Any]]]) -> None:
        self.d_in, self.d_out, arrays = state
        self._tensors = tuple(torch.tensor(array) for array in arrays)
        if not self._fits_here():
            raise HeedError("these weights were packed on another machine: load the model's folder here instead.")
        self.structure = self._structure()

    def _fits_here(self) -> bool:
        return self.number_bytes == 4 or (self.number_bytes == 2 and has_bf16())


class Fp32Weight(PackedWeight):
    """In float."""

    def __init__(self, weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None):
        d_out, d_in = weight.shape
        n_whole = d_out // PANEL
        panels = torch.zeros(-(-d_out // PANEL), d_in, PANEL, **IN_FP32)
        panels[:n_whole] = weight[: n_whole * PANEL].view(n_whole, PANEL, d_in).transpose(1, 2)
        if d_out % PANEL:
            panels[-1, :, : d_out % PANEL] = weight[n_whole * PANEL :].T
        super().__init__(d_in, d_out, panels, bias)


class Bf16Weight(PackedWeight):
    """In bf16, its bias too."""

    def __init__(self, weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None):
        d_out, d_in = weight.shape
        filled = F.pad(weight.bfloat16(), (0, -d_in % 2, 0, -d_out % PANEL))
        panels = filled.view(-1, PANEL, filled.shape[1] // 2, 2).transpose(1, 2).contiguous()
        bias = None if bias is None else bias.bfloat16()
        super().__init__(d_in, d_out, panels.view(torch.int16), bias)  # numpy, which pickles weights, has no bf16


class Int8Weight(PackedWeight):
    """In whole multiples of an output's step, which is its largest number / 127, or / 64 where the kernels need it.

    by_relu: only rows without negative numbers are multiplied, so 127 will always do.
    """

    def __init__(
        self, weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None, *, by_relu: bool = False
    ):
        d_out, d_in = weight.shape
        weight = weight.float()
        largest = largest_int8_weight()
        unsigned = by_relu and largest < 127
        steps = weight.abs().amax(dim=1).clamp(min=1e-30) / (127 if unsigned else largest)
        whole = (weight / steps[:, None]).round_().nan_to_num_()  # of what is not finite the step is not either
        filled = F.pad(whole.to(torch.int8), (0, -d_in % 4, 0, -d_out % PANEL))
        panels = filled.view(-1, PANEL, filled.shape[1] // 4, 4).transpose(1, 2).contiguous()
        offsets = -128 * filled.sum(dim=1, dtype=torch.int32)
        quantized = (F.pad(steps, (0, -d_out % PANEL)), *([] if unsigned else [offsets]))
        super().__init__(d_in, d_out, panels, bias, *quantized)

    def _fits_here(self) -> bool:
        panels, _steps, *offsets, _bias = self._tensors
        return has_int8() and (not offsets or int(panels.abs().max()) <= largest_int8_weight())


def fp32_product(
    x: Float[Tensor, "*row d_in"], weight: Fp32Weight, *, relu: bool = False
) -> Float[Tensor, "*row d_out"]:
    """x · Wᵀ + bias: a row's result has the same bits whatever rows lie beside it."""
    return _product("panel_product", x, weight, relu)


def int8_product(
    x: Float[Tensor, "*row d_in"], weight: Int8Weight, *, relu: bool = False
) -> Float[Tensor, "*row d_out"]:
    """x · Wᵀ + bias, x in 8 bits by rows; the sums are whole numbers, so they are exact."""
    return _product("int8_product", x, weight, relu)


def bf16_product(
    x: Float[Tensor, "*row d_in"], weight: Bf16Weight, *, relu: bool = False
) -> Float[Tensor, "*row d_out"]:
    """x · Wᵀ + bias, x rounded to bf16, sums in float."""
    return _product("bf16_product", x, weight, relu)


def _product(name: str, x: Tensor, weight: PackedWeight, relu: bool) -> Tensor:
    x = x.contiguous()
    y = x.new_empty(*x.shape[:-1], weight.d_out)
    at = addresses(name, x=(x, (*x.shape[:-1], weight.d_in), x.dtype))
    kernel(name, x)(**at, **raw_addresses(y=y), weight=weight.structure, n=x.numel() // weight.d_in, relu=relu)
    return y


class Fp32Linear(nn.Module):
    """An nn.Linear in fp32 by the kernels."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.packed = Fp32Weight(linear.weight.detach(), linear.bias)

    def forward(self, x: Float[Tensor, "*row d_in"]) -> Float[Tensor, "*row d_out"]:
        return fp32_product(x, self.packed)


class Bf16Linear(nn.Module):
    """An nn.Linear in bf16 by the kernels."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.packed = Bf16Weight(linear.weight.detach(), linear.bias)

    def forward(self, x: Float[Tensor, "*row d_in"]) -> Float[Tensor, "*row d_out"]:
        return bf16_product(x, self.packed)


class Int8Linear(nn.Module):
    """An nn.Linear in 8-bit integers by the kernels. by_relu: it only gets what a ReLU leaves."""

    def __init__(self, linear: nn.Linear, *, by_relu: bool = False):
        super().__init__()
        self.packed = Int8Weight(linear.weight.detach(), linear.bias, by_relu=by_relu)

    def forward(self, x: Float[Tensor, "*row d_in"]) -> Float[Tensor, "*row d_out"]:
        return int8_product(x, self.packed)


PACKED: tuple[type[nn.Module], ...] = (Fp32Linear, Bf16Linear, Int8Linear)


def _after_relu(module: nn.Module) -> nn.Module | None:
    """The part of a module that gets what a ReLU leaves."""
    return module.outer if isinstance(module, FeedForward) and module.activation == "relu" else None


OUTLIER = 4.0  # times the median: what the largest weight of an input must be to count as one


def _move_outliers(module: nn.Module) -> None:
    """Makes weights smaller that force large steps on all others of their outputs, without another result in fp32.

    An output has one step for its weights, so a single input with wide ones costs the others their bits. Where that
    input is a number that another matrix yields, and nothing but a ReLU or a weighted sum lies between the two, a power
    of two moves from the one to the other, where it scales a whole output and so its step.
    """
    if type(module) is FeedForward and module.activation == "relu":
        first, second = module.inner, module.outer
    elif type(module) is SelfAttention:
        first, second = module.qkv, module.out
    elif type(module) is CrossAttention:
        first, second = module.kv, module.out
    else:
        return
    n = second.in_features  # the last outputs of the first: of attention, the values
    largest = second.weight.abs().amax(dim=0)
    usual = OUTLIER / 2 * largest.median()
    wide = (largest > 2 * usual) & (usual > 0) & largest.isfinite()
    powers = torch.where(wide, torch.exp2(torch.log2(largest / usual).ceil()), 1.0)
    second.weight.div_(powers)
    first.weight[-n:].mul_(powers[:, None])
    if first.bias is not None:
        first.bias[-n:].mul_(powers)


def prepack(model: Transformer, precision: DecodingPrecision, *, copy: bool = True) -> Transformer:
    """A model to translate with, its weights in the order in which the products read them.

    int8: products in 8 bits, the rest in bf16, the logits in fp32. HeedError where the processor cannot do that, and
    for bf16 where both others are faster.
    Without `copy` the model itself is changed, and a weight is freed as soon as it is packed: memory never holds all of
    them twice.
    """
    if precision == "int8" and not has_int8():
        raise HeedError(NO_INT8)
    if precision == "bf16" and not has_tiles():
        raise HeedError(NO_BF16)
    if any(isinstance(module, PACKED) for module in model.modules()):
        raise ValueError("the model is prepacked already; give the one it was made of.")
    model = (deepcopy(model) if copy else model).eval().requires_grad_(False)
    kinds: dict[DecodingPrecision, type[nn.Module]] = {"fp32": Fp32Linear, "bf16": Bf16Linear, "int8": Int8Linear}
    if precision == "int8":
        for module in model.modules():
            _move_outliers(module)
    # The output projection, the largest, comes last, when the others have shrunk.
    for module in [module for module in model.modules() if not isinstance(module, nn.Linear)][::-1]:
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                by_relu = precision == "int8" and child is _after_relu(module)
                setattr(module, name, Int8Linear(child, by_relu=True) if by_relu else kinds[precision](child))
        give_back_freed_memory()
    return model.to(torch.float32 if precision == "fp32" else torch.bfloat16)
