"""Table 1: what a layer of each type costs, and how far apart it leaves two positions."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heed.model.transformer import Architecture, Dropout, Transformer, restricted_attention
from heed.paper.page import Page, command, prose
from heed.runtime import keep_freed_memory, n_threads

Activations = Float[Tensor, "batch position d_model"]

RADIUS = 64  # neighbours on each side: r
KERNEL = 3  # k
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)  # n, at d = 64
WIDTHS = (32, 64, 128, 256, 512, 1024)  # d, at n = 1024
WIDTH, LENGTH = 64, 1024


class FullAttention(nn.Module):
    """softmax(x xᵀ / √d) x: self-attention's mixing of positions alone, as the table counts it, in O(n² · d)."""

    def __init__(self, width: int):
        super().__init__()
        self.scale = width**-0.5

    def forward(self, x: Activations) -> Activations:
        return torch.softmax((x * self.scale) @ x.transpose(1, 2), dim=-1) @ x


class RestrictedAttention(nn.Module):
    """The same where a position sees `radius` neighbours on each side (section 4), in O(r · n · d)."""

    def __init__(self, width: int, radius: int = RADIUS):
        super().__init__()
        self.radius = radius

    def forward(self, x: Activations) -> Activations:
        x = x[:, None]  # one head
        return restricted_attention(x, x, x, None, radius=self.radius, causal=False, dropout=Dropout(0.0))[:, 0]


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
    """A convolution of every column by itself, then a map of the columns (section 4), in O(k · n · d + n · d²)."""

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
PUBLISHED = {  # complexity a layer, sequential operations, maximum path length
    "self-attention": ("O(n² · d)", "O(1)", "O(1)"),
    "restricted": ("O(r · n · d)", "O(1)", "O(n / r)"),
    "recurrent": ("O(n · d²)", "O(n)", "O(n)"),
    "convolution": ("O(k · n · d²)", "O(1)", "O(log_k n) dilated, O(n / k) contiguous"),
    "separable": ("O(k · n · d + n · d²)", "O(1)", "as convolution"),
}
EXPECTED = {  # exponents of n and of d
    "self-attention": (2, 1),
    "restricted": (1, 1),
    "recurrent": (1, 2),
    "convolution": (1, 2),
    "separable": (1, 2),
}


def seconds(layer: nn.Module, x: Tensor, *, budget: float) -> float:
    """The fastest of forward passes, as many as the budget of seconds allows, three at least.

    Not the median: what else the machine does only ever adds.
    """
    times: list[float] = []
    with torch.inference_mode():
        layer(x)
        while len(times) < 3 or (sum(times) < budget and len(times) < 50):
            started = time.perf_counter()
            layer(x)
            times.append(time.perf_counter() - started)
    return min(times)


def kept_bytes(layer: nn.Module, x: Tensor) -> int:
    """Bytes that a forward pass keeps for the backward one, its input among them, weights left out."""
    known = {tensor.untyped_storage().data_ptr() for tensor in layer.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = layer(x.requires_grad_())
    del output
    return sum(kept.values())


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the least-squares line through (log size, log cost)."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(x, y).slope


def measured(
    lengths: Sequence[int] = LENGTHS, widths: Sequence[int] = WIDTHS, *, budget: float = 1.0
) -> dict[str, dict[str, Any]]:
    """By layer: seconds and bytes by n and by d, and the exponents fitted to the largest half of each."""
    keep_freed_memory()  # else the system hands out, and wipes, large blocks anew in every pass
    results: dict[str, dict[str, Any]] = {}
    for name, make in LAYERS.items():
        result: dict[str, Any] = {}
        for axis, shapes in (("n", [(n, WIDTH) for n in lengths]), ("d", [(LENGTH, d) for d in widths])):
            times, sizes = [], []
            for n, d in shapes:
                torch.manual_seed(1)
                layer, x = make(d), torch.randn(1, n, d)
                times.append(seconds(layer, x, budget=budget))
                sizes.append(kept_bytes(layer, x))
            values = [n if axis == "n" else d for n, d in shapes]
            half = len(values) // 2
            result[axis] = {
                "sizes": values,
                "seconds": times,
                "bytes": sizes,
                "exponent": exponent(values[half:], times[half:]),
                "bytes_exponent": exponent(values[half:], sizes[half:]),
            }
        results[name] = result
    return results


def model_costs(lengths: Sequence[int] = LENGTHS, *, budget: float = 1.0) -> dict[str, dict[str, Any]]:
    """Seconds and kept bytes of Heed's own encoder, one layer and one head, with all neighbours and with RADIUS."""
    results = {}
    for name, radius in (("all", None), (f"radius {RADIUS}", RADIUS)):
        arch = Architecture(n_layers=1, d_model=WIDTH, d_ff=4 * WIDTH, n_heads=1, dropout=0.0, radius=radius)
        encoder = _Encoder(Transformer(arch, 100))
        times, sizes = [], []
        for n in lengths:
            times.append(seconds(encoder, torch.zeros(1, n, 1), budget=budget))
            sizes.append(kept_bytes(encoder, torch.zeros(1, n, 1)))
        half = len(lengths) // 2
        results[name] = {
            "sizes": list(lengths),
            "seconds": times,
            "bytes": sizes,
            "exponent": exponent(lengths[half:], times[half:]),
            "bytes_exponent": exponent(lengths[half:], sizes[half:]),
        }
    return results


class _Encoder(nn.Module):
    """A model's encoder on any ids of a length."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model

    def forward(self, x: Activations) -> Activations:
        ids = torch.full(x.shape[:2], 5)
        return self.model.encode(ids, torch.ones_like(ids, dtype=torch.bool))


def path_lengths(n: int, *, radius: int, kernel: int = KERNEL) -> dict[str, int]:
    """The layers (of a recurrent one: steps) that a signal needs from the first position to the last of n."""
    reach = kernel // 2
    dilated = 0
    while reach * (kernel**dilated - 1) // (kernel - 1) < n - 1:  # reach · (1 + k + k² + …)
        dilated += 1
    return {
        "self-attention": 1,
        "restricted": math.ceil((n - 1) / radius),
        "recurrent": n - 1,
        "convolution": math.ceil((n - 1) / reach),
        "convolution, dilated": dilated,
    }


def reached(stack: Sequence[nn.Module], n: int, width: int) -> list[bool]:
    """Which inputs change the last output: those where its gradient is not zero."""
    x = torch.randn(1, n, width, dtype=torch.float64, requires_grad=True)
    y: Tensor = x
    for layer in stack:
        y = layer.double()(y)
    y[0, -1].sum().backward()
    assert x.grad is not None
    return (x.grad[0].abs().sum(-1) > 0).tolist()


def page(results: dict[str, dict[str, Any]], of_model: dict[str, dict[str, Any]]) -> Page:
    """The table, the fitted exponents, the path lengths, and plots; what `measured` and `model_costs` found."""
    lines = [
        "# Table 1: types of layers",
        "",
        "| layer | complexity | sequential operations | maximum path length |",
        "|---|---|---|---|",
        *(f"| {name} | {' | '.join(cells)} |" for name, cells in PUBLISHED.items()),
        "",
        "## Measured",
        "",
        prose(
            f"""The fastest forward pass of one layer, fp32, {n_threads()} threads of a CPU, one sequence; n varies
            at d = {WIDTH}, d at n = {LENGTH}; r = {RADIUS}, k = {KERNEL}. Attention is without its projections,
            as counted there. Bytes are those that the pass keeps for the backward one. Exponents are fitted to
            the larger half of the sizes."""
        ),
        "",
        "![time and memory](table1-cost.svg)",
        "",
        "| layer | time ~ n^ | published | memory ~ n^ | time ~ d^ | published | memory ~ d^ |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        in_n, in_d = result["n"], result["d"]
        lines.append(
            f"| {name} | {in_n['exponent']:.2f} | {EXPECTED[name][0]} | {in_n['bytes_exponent']:.2f} | "
            f"{in_d['exponent']:.2f} | {EXPECTED[name][1]} | {in_d['bytes_exponent']:.2f} |"
        )
    sizes = results["self-attention"]["n"]["sizes"]
    lines += ["", "Milliseconds (and MiB kept) by n:", "", "| n | " + " | ".join(results) + " |"]
    lines.append("|---|" + "---|" * len(results))
    for i, n in enumerate(sizes):
        cells = (f"{r['n']['seconds'][i] * 1e3:.2f} ({r['n']['bytes'][i] / 2**20:.1f})" for r in results.values())
        lines.append(f"| {n:,} | " + " | ".join(cells) + " |")
    times = results["self-attention"]["n"]["seconds"]
    slopes = [exponent(sizes[i : i + 2], times[i : i + 2]) for i in range(len(sizes) - 1)]
    steepest = slopes.index(max(slopes))
    weights = [f"{sizes[i] ** 2 * 4 / 2**20:.0f}" for i in (steepest, steepest + 1)]
    lines += [
        "",
        prose(
            f"""Where the machine bends the curves: self-attention is steepest from n = {sizes[steepest]:,} to
            {sizes[steepest + 1]:,} (n^{max(slopes):.1f}), where a matrix of its weights grows from {weights[0]} to
            {weights[1]} MiB: compare the processor's caches. At the smallest sizes the cost of calling an operation
            hides that of arithmetic, which also keeps the recurrent layer below d²: each of its n steps is a call."""
        ),
        "",
        "## The model's own setting",
        "",
    ]
    lines.append(
        prose(
            f"""`model.radius` restricts self-attention in encoder and decoder. One encoder layer of Heed's model with
            one head, d = {WIDTH}, projections and feed-forward sub-layer included; milliseconds (and MiB kept) by n:"""
        )
    )
    lines += ["", "| n | " + " | ".join(of_model) + " |", "|---|" + "---|" * len(of_model)]
    for i, n in enumerate(sizes):
        cells = (f"{r['seconds'][i] * 1e3:.2f} ({r['bytes'][i] / 2**20:.1f})" for r in of_model.values())
        lines.append(f"| {n:,} | " + " | ".join(cells) + " |")
    exponents = (f"n^{r['exponent']:.2f} (n^{r['bytes_exponent']:.2f})" for r in of_model.values())
    lines.append("| larger half | " + " | ".join(exponents) + " |")
    lines += ["", "## Path lengths", "", "![path lengths](table1-paths.svg)", ""]
    lines.append(
        prose(
            """From the connectivity: how many layers (of a recurrent one: steps) a signal needs from the first position
            to the last. A test verifies each by gradients: with so many layers every input reaches the last output,
            with one fewer the first does not."""
        )
    )
    names = list(path_lengths(2, radius=RADIUS))
    lines += ["", "| n | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for n in sizes:
        lines.append(f"| {n:,} | " + " | ".join(f"{v:,}" for v in path_lengths(n, radius=RADIUS).values()) + " |")
    lines += [""]
    plots = {"table1-cost.svg": lambda figure: _draw_cost(figure, results), "table1-paths.svg": _draw_paths}
    return Page("table1", "\n".join(lines), command("table1"), plots)


def _draw_cost(figure: Any, results: dict[str, dict[str, Any]]) -> None:
    axes = figure.subplots(1, 3)
    for name, result in results.items():
        axes[0].loglog(result["n"]["sizes"], [s * 1e3 for s in result["n"]["seconds"]], "o-", ms=3, label=name)
        axes[1].loglog(result["n"]["sizes"], [b / 2**20 for b in result["n"]["bytes"]], "o-", ms=3)
        axes[2].loglog(result["d"]["sizes"], [s * 1e3 for s in result["d"]["seconds"]], "o-", ms=3)
    axes[0].set(xlabel="n", title=f"ms, d = {WIDTH}")
    axes[1].set(xlabel="n", title=f"MiB kept, d = {WIDTH}")
    axes[2].set(xlabel="d", title=f"ms, n = {LENGTH:,}")
    axes[0].legend(frameon=False, fontsize=7)


def _draw_paths(figure: Any) -> None:
    axes = figure.subplots()
    lengths = [2**i for i in range(3, 15)]
    by_length = [path_lengths(n, radius=RADIUS) for n in lengths]
    for name in by_length[0]:
        axes.loglog(lengths, [paths[name] for paths in by_length], "o-", ms=3, label=name)
    axes.set(xlabel="n", ylabel="maximum path length")
    axes.legend(frameon=False)
