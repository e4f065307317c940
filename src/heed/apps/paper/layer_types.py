"""The types of layers of Table 1: how each mixes positions, what it sees, and how long its chains of operations are."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from heed.model.attention import AttentionMask, Dropout, restricted_attention

Activations = Float[Tensor, "batch position d_model"]

RADIUS = 64  # neighbours on each side: r
KERNEL = 3  # k


class FullAttention(nn.Module):
    """softmax(x xᵀ / √d) x: self-attention's mixing of positions alone, as the table counts it, in O(n² · d)."""

    def __init__(self, width: int):
        super().__init__()
        self.scale = width**-0.5

    def forward(self, x: Activations) -> Activations:
        return torch.softmax((x * self.scale) @ x.transpose(1, 2), dim=-1) @ x


class RestrictedAttention(nn.Module):
    """Self-attention's mixing where a position sees `radius` neighbours on each side (section 4), in O(r · n · d)."""

    def __init__(self, width: int, radius: int = RADIUS):
        super().__init__()
        self.radius = radius

    def forward(self, x: Activations) -> Activations:
        x = x[:, None]  # one head
        return restricted_attention(x, x, x, AttentionMask(radius=self.radius), dropout=Dropout(0.0))[:, 0]


class Recurrent(nn.Module):
    """A plain recurrent layer, in O(n · d²), one step after the other."""

    def __init__(self, width: int):
        super().__init__()
        self.cell = nn.RNN(width, width, batch_first=True)

    def forward(self, x: Activations) -> Activations:
        return self.cell(x)[0]


class Convolution(nn.Module):
    """A convolution of KERNEL positions, `dilation` apart, in O(k · n · d²)."""

    def __init__(self, width: int, dilation: int = 1):
        super().__init__()
        self.filter = nn.Conv1d(width, width, KERNEL, padding=dilation * (KERNEL // 2), dilation=dilation)

    def forward(self, x: Activations) -> Activations:
        return self.filter(x.transpose(1, 2)).transpose(1, 2)


class SeparableConvolution(nn.Module):
    """A convolution of each column alone, then a map of the columns (section 4), in O(k · n · d + n · d²)."""

    def __init__(self, width: int):
        super().__init__()
        self.filter = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2, groups=width)
        self.map = nn.Linear(width, width)

    def forward(self, x: Activations) -> Activations:
        return self.map(self.filter(x.transpose(1, 2)).transpose(1, 2))


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "self-attention": FullAttention,
    "restricted": RestrictedAttention,
    "recurrent": Recurrent,
    "convolution": Convolution,
    "separable": SeparableConvolution,
}


def dilation(layer: int, n: int) -> int:
    """Returns a layer's dilation, counted from the output: k times the one before, as far as n asks for it."""
    return min(KERNEL**layer, max(1, n - 1 - (KERNEL**layer - 1) // 2))


# Which positions a position sees in one layer, by their distance: from the first to the second, the third apart. Of a
# recurrent layer: in one step.
SEEN: dict[str, Callable[[int, int, int], tuple[int, int, int]]] = {
    "self-attention": lambda n, radius, layer: (-n, n, 1),
    "restricted": lambda n, radius, layer: (-radius, radius, 1),
    "recurrent": lambda n, radius, layer: (-1, 0, 1),
    "convolution": lambda n, radius, layer: (-(KERNEL // 2), KERNEL // 2, 1),
    "convolution, dilated": lambda n, radius, layer: (
        -(KERNEL // 2) * dilation(layer, n),
        KERNEL // 2 * dilation(layer, n),
        dilation(layer, n),
    ),
}


def layers_needed(name: str, n: int, *, radius: int, of: int) -> NDArray[np.int64]:
    """For each of n inputs the layers (of a recurrent one: steps) until output number `of` has seen it; -1: never.

    From the connectivity: what one layer sees, followed layer by layer.
    """
    needed = np.full(n, -1)
    needed[of] = 0
    seen = needed == 0
    layer = 0
    while True:
        first, last, step = SEEN[name](n, radius, layer)
        # How many of the seen lie within reach, from sums up to each place, a stretch for each remainder.
        reached = np.zeros(n, np.bool_)
        for remainder in range(min(step, n)):
            sums = np.concatenate([[0], np.cumsum(seen[remainder::step])])
            place = np.arange(len(sums) - 1)
            low, high = ((place + distance).clip(0, len(place)) for distance in (-(last // step), 1 - first // step))
            reached[remainder::step] = sums[high] > sums[low]
        layer += 1
        new = reached & (needed < 0)
        if not new.any():
            return np.where(needed == 0, 1, needed)  # itself as well is seen through a layer
        needed[new] = layer
        seen = reached


@cache
def path_lengths(n: int, *, radius: int) -> dict[str, int]:
    """How many layers (of a recurrent one: steps) the last output needs to see the first input, by the connectivity."""
    return {name: int(layers_needed(name, n, radius=radius, of=n - 1)[0]) for name in SEEN}


def sequential_operations(layer: nn.Module, n: int, width: int) -> int:
    """The longest chain of operations of a forward pass each of which needs the one before: in autograd's graph."""
    output = layer(torch.randn(1, n, width, requires_grad=True))
    longest: dict[Any, int] = {}
    waiting = [output.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [other for other, _ in node.next_functions if other is not None]
        if unknown := [other for other in before if other not in longest]:
            waiting += unknown
        else:
            longest[waiting.pop()] = 1 + max((longest[other] for other in before), default=0)
    return longest[output.grad_fn]
