"""Weights prepacked for the few rows of a search, and their products by the kernels of csrc/*_products.h.

What numpy has no type for, a number in bf16, stands in 16 bits.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.backends.cpu.build import addresses, has_bf16, has_int8, kernel, largest_int8_weight, raw_addresses
from heed.backends.cpu.declarations import Structure, structure
from heed.errors import HeedError
from heed.model.cost import Rows

PANEL = 32  # outputs that lie together in a packed weight: PANEL of search_tiles.h
AT_A_TIME = 1024  # rows that are converted at a time, so that memory holds no more of them twice; whole panels
Floats32 = NDArray[np.float32]
Numbers = NDArray[Any]  # in float, or bf16 in 16 bits


def to_bf16(x: Rows) -> NDArray[np.uint16]:
    """Rounded to the nearest number in bf16, of two such to the even one; NaN stays NaN."""
    rounded = np.empty(x.shape, np.uint16)
    for first in range(0, x.shape[0], AT_A_TIME):
        some = np.ascontiguousarray(x[first : first + AT_A_TIME], np.float32)
        bits = some.view(np.uint32)
        halves = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        rounded[first : first + AT_A_TIME] = np.where(np.isnan(some), 0x7FC0, halves)
    return rounded


def from_bf16(x: NDArray[np.uint16]) -> Floats32:
    """In float, exactly."""
    return (x.astype(np.uint32) << 16).view(np.float32)


class PackedWeight:
    """A weight and bias as the products read them.

    arrays: panels, bias, of 8-bit weights their steps and perhaps offsets, as kernels.h describes them.
    """

    def __init__(self, d_in: int, d_out: int, **arrays: NDArray[Any]):
        self.d_in, self.d_out, self.arrays = d_in, d_out, arrays
        sizes = {"d_in": d_in, "d_out": d_out, "number_bytes": self.number_bytes}
        self.structure: Structure = structure("Weight", **raw_addresses(**arrays), **sizes)

    @property
    def number_bytes(self) -> int:
        """Bytes of a number in the panels: 4, 2 or 1."""
        return self.arrays["panels"].itemsize

    def __deepcopy__(self, memo: object) -> "PackedWeight":
        return self  # it never changes

    def __getstate__(self) -> tuple[int, int, dict[str, NDArray[Any]]]:
        return self.d_in, self.d_out, self.arrays

    def __setstate__(self, state: tuple[int, int, dict[str, NDArray[Any]]]) -> None:
        d_in, d_out, arrays = state
        PackedWeight.__init__(self, d_in, d_out, **{name: np.array(x) for name, x in arrays.items()})
        if not self._fits_here():
            raise HeedError("these weights were packed on another machine: load the model's folder here instead.")

    def _fits_here(self) -> bool:
        if self.number_bytes != 1:
            return self.number_bytes == 4 or has_bf16()
        exact = "offsets" not in self.arrays or int(np.abs(self.arrays["panels"]).max()) <= largest_int8_weight()
        return has_int8() and exact


Pack = Callable[[Rows, Floats32 | None], PackedWeight]  # of a weight (d_out, d_in) and its bias (d_out)


def fp32_weight(rows: Rows, bias: Floats32 | None) -> PackedWeight:
    """A weight in float."""
    d_out, d_in = (weight := rows[:]).shape
    n_whole = d_out // PANEL
    panels = np.zeros((-(-d_out // PANEL), d_in, PANEL), np.float32)
    panels[:n_whole] = weight[: n_whole * PANEL].reshape(n_whole, PANEL, d_in).transpose(0, 2, 1)
    if d_out % PANEL:
        panels[-1, :, : d_out % PANEL] = weight[n_whole * PANEL :].T
    return PackedWeight(d_in, d_out, panels=panels, bias=_padded_bias(d_out, bias))


def bf16_weight(weight: Rows, bias: Floats32 | None) -> PackedWeight:
    """A weight in bf16, its bias too."""
    d_out, d_in = weight.shape
    panels = _panels(to_bf16(weight), n=2)
    rounded = None if bias is None else from_bf16(to_bf16(bias))
    return PackedWeight(d_in, d_out, panels=panels, bias=_padded_bias(d_out, rounded))


@np.errstate(all="ignore")  # numbers that are not finite are found in what they lead to
def int8_weight(weight: Rows, bias: Floats32 | None, *, by_relu: bool = False) -> PackedWeight:
    """A weight in whole multiples of an output's step: its largest number / 127, or / 64 where the kernels need that.

    by_relu: only rows without negative numbers are multiplied, so 127 will always do.
    """
    d_out, d_in = weight.shape
    largest = largest_int8_weight()
    unsigned = by_relu and largest < 127
    steps = np.zeros(-(-d_out // PANEL) * PANEL, np.float32)
    panels = np.empty((-(-d_out // PANEL), -(-d_in // 4), PANEL, 4), np.int8)
    offsets = np.zeros(len(panels) * PANEL, np.int32)
    for first in range(0, d_out, AT_A_TIME):
        numbers = weight[first : first + AT_A_TIME]
        most = np.maximum(numbers.max(axis=1), -numbers.min(axis=1))  # without a copy of their size
        of_rows = np.maximum(most, np.float32(1e-30)) / np.float32(127 if unsigned else largest)
        steps[first : first + len(of_rows)] = of_rows
        whole = numbers / of_rows[:, None]
        np.rint(whole, out=whole)
        np.nan_to_num(whole, copy=False)  # of what is not finite the step is not either
        some = _panels(whole.astype(np.int8), n=4)
        panels[first // PANEL : first // PANEL + len(some)] = some
        offsets[first : first + len(whole)] = -128 * whole.sum(axis=1, dtype=np.float64)  # whole numbers: exact
    quantized = {"steps": steps} | ({} if unsigned else {"offsets": offsets})
    return PackedWeight(d_in, d_out, panels=panels, bias=_padded_bias(d_out, bias), **quantized)


def _panels(weight: NDArray[Any], *, n: int) -> NDArray[Any]:
    """(panel, d_in / n, PANEL, n): the numbers of 32 outputs together, n of each at a time, padded with zeros."""
    d_out, d_in = weight.shape
    if (lacking := (-d_out % PANEL, -d_in % n)) != (0, 0):
        weight = np.pad(weight, [(0, more) for more in lacking])
    return np.ascontiguousarray(weight.reshape(-1, PANEL, weight.shape[1] // n, n).transpose(0, 2, 1, 3))


def _padded_bias(d_out: int, bias: Floats32 | None) -> Floats32:
    padded = np.zeros(-(-d_out // PANEL) * PANEL, np.float32)
    if bias is not None:
        padded[:d_out] = bias
    return padded


def product(x: Floats32, weight: PackedWeight, *, relu: bool = False) -> Floats32:
    """x · Wᵀ + bias, of rows (row, d_in): a row's result has the same bits whatever rows lie beside it.

    With 8-bit weights rows are in 8 bits too, and the sums, of whole numbers, exact; with weights in bf16 rows are
    rounded to bf16.
    """
    y = np.empty((len(x), weight.d_out), np.float32)
    at = addresses("packed_product", x=(x, (len(x), weight.d_in), np.float32))
    kernel("packed_product")(**at, **raw_addresses(y=y), weight=weight.structure, n=len(x), relu=relu)
    return y


OUTLIER = 4.0  # times the median: what the largest weight of an input must be to count as one


@np.errstate(all="ignore")
def move_outliers(
    first: Floats32, first_bias: Floats32 | None, second: Floats32
) -> tuple[Floats32, Floats32 | None, Floats32]:
    """Makes weights smaller that force large steps on all others of their outputs, without another result in fp32.

    first, second: two matrices between which there is nothing but a ReLU or a weighted sum; returned as they are to be.
    An output has one step for its weights, so a single input of the second with wide ones costs the others their bits.
    A power of two moves from there to the output of the first that yields this input, where it scales a whole output
    and so its step.
    """
    n = second.shape[1]  # the last outputs of the first: of attention, the values
    largest = np.maximum(second.max(axis=0), -second.min(axis=0))
    usual = np.float32(OUTLIER / 2) * np.partition(largest, (n - 1) // 2)[(n - 1) // 2]  # of two middle ones the lower
    wide = (largest > 2 * usual) & (usual > 0) & np.isfinite(largest)
    if not wide.any():
        return first, first_bias, second
    powers = np.ones(n, np.float32)
    powers[wide] = np.exp2(np.ceil(np.log2(largest[wide] / usual)))
    times = np.concatenate([np.ones(len(first) - n, np.float32), powers])
    return first * times[:, None], None if first_bias is None else first_bias * times, second / powers
