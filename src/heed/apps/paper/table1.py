"""Table 1: what a layer of each type costs, and how far apart it leaves two positions."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from heed.apps.paper.layer_types import (
    KERNEL,
    LAYERS,
    RADIUS,
    SEEN,
    Activations,
    layers_needed,
    path_lengths,
    sequential_operations,
)
from heed.apps.paper.result_page import Page, command, prose, table
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.runtime.device import n_threads, processor
from heed.runtime.progress import Task, progress, track

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)  # n, at d = 64
WIDTHS = (32, 64, 128, 256, 512, 1024)  # d, at n = 1024
WIDTH, LENGTH, THREADS_LENGTH = 64, 1024, 4096
CHAIN_LENGTHS = (32, 64, 128, 256)  # n for which chains of operations are counted
REACH_LENGTH, REACH_RADIUS = 28, 5  # of the picture of what sees what


PUBLISHED = {  # complexity a layer, sequential operations, maximum path length
    "self-attention": ("O(n² · d)", "O(1)", "O(1)"),
    "restricted": ("O(r · n · d)", "O(1)", "O(n / r)"),
    "recurrent": ("O(n · d²)", "O(n)", "O(n)"),
    "convolution": ("O(k · n · d²)", "O(1)", "O(log_k n) dilated, O(n / k) contiguous"),
    "separable": ("O(k · n · d + n · d²)", "O(1)", "as convolution"),
}
STYLES = ("o-", "s--", "^-.", "d:", "v-")  # lines that lie on one another stay to be seen
EXPECTED = {  # exponents of n and of d
    "self-attention": (2, 1),
    "restricted": (1, 1),
    "recurrent": (1, 2),
    "convolution": (1, 2),
    "separable": (1, 2),
}


def seconds(layer: nn.Module, x: Float[Tensor, "batch position width"], *, budget: float) -> float:
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


def kept_bytes(layer: nn.Module, x: Float[Tensor, "batch position width"]) -> int:
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


def by_threads(*, budget: float) -> dict[str, float]:
    """How many times longer each layer takes with one thread, at n = THREADS_LENGTH."""
    n_all, ratios = n_threads(), {}
    for name, make in track(LAYERS.items(), "Measuring with one thread", total=len(LAYERS), unit="layers"):
        layer, x = make(WIDTH), torch.randn(1, THREADS_LENGTH, WIDTH)
        together = seconds(layer, x, budget=budget)
        try:
            torch.set_num_threads(1)
            ratios[name] = seconds(layer, x, budget=budget) / together
        finally:
            torch.set_num_threads(n_all)
    return ratios


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the least-squares line through (log size, log cost)."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(x, y).slope


def measured(
    lengths: Sequence[int] = LENGTHS, widths: Sequence[int] = WIDTHS, *, budget: float = 1.0
) -> dict[str, dict[str, Any]]:
    """By layer: seconds and bytes by n and by d, and the exponents fitted to the largest half of each."""
    results: dict[str, dict[str, Any]] = {}
    n_shapes = len(LAYERS) * (len(lengths) + len(widths))
    with progress("Measuring layers", total=n_shapes, unit="shapes") as task:
        for name, make in LAYERS.items():
            results[name] = _measured_layer(make, lengths, widths, budget=budget, task=task)
    for name, ratio in by_threads(budget=budget).items():
        results[name]["one_thread"] = ratio
    return results


def _measured_layer(
    make: Callable[[int], nn.Module], lengths: Sequence[int], widths: Sequence[int], *, budget: float, task: Task
) -> dict[str, Any]:
    """Returns the costs of one layer, as in `measured`. task: counts the shapes that are measured."""
    result: dict[str, Any] = {}
    for axis, shapes in (("n", [(n, WIDTH) for n in lengths]), ("d", [(LENGTH, d) for d in widths])):
        times, sizes = [], []
        for n, d in shapes:
            torch.manual_seed(1)
            layer, x = make(d), torch.randn(1, n, d)
            times.append(seconds(layer, x, budget=budget))
            sizes.append(kept_bytes(layer, x))
            task.advance()
        result[axis] = _costs([n if axis == "n" else d for n, d in shapes], times, sizes)
    chains = [sequential_operations(make(WIDTH), n, WIDTH) for n in CHAIN_LENGTHS]
    result["sequential"] = {"sizes": list(CHAIN_LENGTHS), "operations": chains}
    result["sequential"]["exponent"] = exponent(CHAIN_LENGTHS, chains)
    return result


def model_costs(lengths: Sequence[int] = LENGTHS, *, budget: float = 1.0) -> dict[str, dict[str, Any]]:
    """Seconds and kept bytes of Heed's own layers, an encoder's and a decoder's, one head, all neighbours or RADIUS."""
    results = {}
    stacks = list(product(("encoder", "decoder"), (("all", None), (f"radius {RADIUS}", RADIUS))))
    each = track(stacks, "Measuring the model's own layers", total=len(stacks), unit="stacks")
    for side, (name, radius) in each:
        arch = Architecture(n_layers=1, d_model=WIDTH, d_ff=4 * WIDTH, n_heads=1, dropout=0.0, radius=radius)
        stack = _Stack(Transformer(arch, 100), side)
        times, sizes = [], []
        for n in lengths:
            times.append(seconds(stack, torch.zeros(1, n, 1), budget=budget))
            sizes.append(kept_bytes(stack, torch.zeros(1, n, 1)))
        results[f"{side}, {name}"] = _costs(lengths, times, sizes)
    return results


def _costs(sizes: Sequence[int], times: list[float], n_bytes: list[int]) -> dict[str, Any]:
    """Seconds and kept bytes by size, with the exponents fitted to the largest half."""
    half = len(sizes) // 2
    return {
        "sizes": list(sizes),
        "seconds": times,
        "bytes": n_bytes,
        "exponent": exponent(sizes[half:], times[half:]),
        "bytes_exponent": exponent(sizes[half:], n_bytes[half:]),
    }


class _Stack(nn.Module):
    """A model's encoder, or its decoder with a source of a single id, on any ids of a length."""

    def __init__(self, model: Transformer, side: str):
        super().__init__()
        self.model, self.decodes = model, side == "decoder"

    def forward(self, x: Activations) -> Activations:
        ids = torch.full(x.shape[:2], 5)
        src = ids[:, :1] if self.decodes else ids
        mask = torch.ones_like(src, dtype=torch.bool)
        memory = self.model.encode(src, mask)
        return self.model.decode_features(ids, self.model.start(memory, mask)) if self.decodes else memory


def page(results: dict[str, dict[str, Any]], of_model: dict[str, dict[str, Any]]) -> Page:
    """The table, the fitted exponents, the path lengths, and plots; what `measured` and `model_costs` found."""
    sizes = results["self-attention"]["n"]["sizes"]
    lines = [
        "# Table 1: types of layers",
        "",
        *table(
            ("layer", "complexity", "sequential operations", "maximum path length"),
            ((name, *cells) for name, cells in PUBLISHED.items()),
        ),
        "",
        "## Measured",
        "",
        *_measured_lines(results),
        "",
        prose(_bends(results)),
        "",
        "## The model's own setting",
        "",
        prose(
            f"""`model.radius` restricts self-attention in encoder and decoder; a search keeps the keys and values of
            the last r positions alone. One layer of Heed's model with one head, d = {WIDTH}, projections and
            feed-forward sub-layer included, the decoder's with a source of one token; milliseconds (and MiB kept):"""
        ),
        "",
        "![the model's own layers](table1-model.svg)",
        "",
        *table(
            ("n", *of_model),
            [
                *((f"{n:,}", *(_cost(result, i) for result in of_model.values())) for i, n in enumerate(sizes)),
                ("larger half", *(f"n^{r['exponent']:.2f} (n^{r['bytes_exponent']:.2f})" for r in of_model.values())),
            ],
        ),
        "",
        "## Path lengths",
        "",
        "![path lengths](table1-paths.svg)",
        "",
        prose(
            f"""A path runs from the first input to the last output. Its length is counted in layers (of a recurrent
            layer, in steps), by following what each layer sees. A test finds the same lengths from gradients: for every
            input and output of {REACH_LENGTH} positions, after how many layers the gradient is no longer zero. The
            picture shows this for r = {REACH_RADIUS}. The last of the dilated convolutions has the smallest dilation;
            near the ends some neighbours need more layers, because the shortest way would leave the sequence."""
        ),
        "",
        "![what sees what](table1-reach.svg)",
        "",
        *table(("n", *SEEN), ((f"{n:,}", *(f"{v:,}" for v in path_lengths(n, radius=RADIUS).values())) for n in sizes)),
        "",
    ]
    plots = {
        "table1-cost.svg": lambda figure: _draw_cost(figure, results),
        "table1-model.svg": lambda figure: _draw_model(figure, of_model),
        "table1-paths.svg": lambda figure: _draw_paths(figure, sizes),
        "table1-reach.svg": _draw_reach,
    }
    return Page("table1", "\n".join(lines), command("table1"), plots)


def _measured_lines(results: dict[str, dict[str, Any]]) -> list[str]:
    shown = ", ".join(map(str, CHAIN_LENGTHS))
    chains = (f"{name} {', '.join(map(str, r['sequential']['operations']))}" for name, r in results.items())
    return [
        prose(
            f"""The fastest forward pass of one layer, fp32, {n_threads()} threads of a CPU, one sequence; n varies
            at d = {WIDTH}, d at n = {LENGTH}; r = {RADIUS}, k = {KERNEL}. Attention is without its projections,
            as counted there. Bytes are those that the pass keeps for the backward one. Exponents are fitted to
            the larger half of the sizes. Sequential: the longest chain of operations each of which needs the one
            before, counted in PyTorch's graph for n = {shown}: {"; ".join(chains)}."""
        ),
        "",
        "![time and memory](table1-cost.svg)",
        "",
        *table(
            (
                "layer", "time ~ n^", "published", "memory ~ n^", "time ~ d^", "published", "memory ~ d^",
                "sequential ~ n^",
            ),
            (
                (
                    name,
                    f"{r['n']['exponent']:.2f}", EXPECTED[name][0], f"{r['n']['bytes_exponent']:.2f}",
                    f"{r['d']['exponent']:.2f}", EXPECTED[name][1], f"{r['d']['bytes_exponent']:.2f}",
                    f"{r['sequential']['exponent']:.2f}",
                )
                for name, r in results.items()
            ),
        ),
        "",
        "Milliseconds (and MiB kept) by n:",
        "",
        *table(
            ("n", *results),
            (
                (f"{n:,}", *(_cost(result["n"], i) for result in results.values()))
                for i, n in enumerate(results["self-attention"]["n"]["sizes"])
            ),
        ),
    ]  # fmt: skip


def _cost(result: dict[str, Any], i: int) -> str:
    return f"{result['seconds'][i] * 1e3:.2f} ({result['bytes'][i] / 2**20:.1f})"


def _bends(results: dict[str, dict[str, Any]]) -> str:
    """Where cache, calls and threads keep the curves from being powers."""
    in_n, in_d = results["self-attention"]["n"], results["recurrent"]["d"]
    sizes = in_n["sizes"]
    slopes = _slopes(in_n)
    steepest = slopes.index(max(slopes))
    weights = [f"{sizes[i] ** 2 * 4 / 2**20:.0f}" for i in (steepest, steepest + 1)]
    first = {name: _slopes(result["n"])[0] for name, result in results.items()}
    flattest = min(first, key=lambda name: first[name] / EXPECTED[name][0])
    ratios = ", ".join(f"{name} {result['one_thread']:.1f}" for name, result in results.items())
    return f"""Where the machine ({processor()}) bends the curves. Cache: self-attention is steepest from n =
        {sizes[steepest]:,} to {sizes[steepest + 1]:,} (n^{max(slopes):.1f}), where a matrix of its weights grows from
        {weights[0]} to {weights[1]} MiB. Calls: from n = {sizes[0]:,} to {sizes[1]:,} the cost of calling an operation
        hides that of arithmetic most in {flattest} (n^{first[flattest]:.1f}); the recurrent layer, each of whose n
        steps is a call, grows with d^{_slopes(in_d)[0]:.1f} from d = {in_d["sizes"][0]} to {in_d["sizes"][1]} and with
        d^{_slopes(in_d)[-1]:.1f} from {in_d["sizes"][-2]} to {in_d["sizes"][-1]:,}. Threads: at
        n = {THREADS_LENGTH:,}, one thread takes this many times as long as {n_threads()}: {ratios}."""


def _slopes(result: dict[str, Any]) -> list[float]:
    """Between neighbouring sizes."""
    sizes, times = result["sizes"], result["seconds"]
    return [exponent(sizes[i : i + 2], times[i : i + 2]) for i in range(len(sizes) - 1)]


def _draw_cost(figure: Any, results: dict[str, dict[str, Any]]) -> None:
    axes = figure.subplots(1, 4)
    for (name, result), style in zip(results.items(), STYLES, strict=True):
        for place, (axis, what, unit) in enumerate(
            (("n", "seconds", 1e-3), ("n", "bytes", 2**20), ("d", "seconds", 1e-3), ("d", "bytes", 2**20))
        ):
            values = [value / unit for value in result[axis][what]]
            axes[place].loglog(result[axis]["sizes"], values, style, ms=4, label=name, mfc="none")
    for place, (axis, title) in enumerate(
        (("n", f"ms, d = {WIDTH}"), ("n", f"MiB kept, d = {WIDTH}"), ("d", f"ms, n = {LENGTH:,}"),
         ("d", f"MiB kept, n = {LENGTH:,}"))
    ):  # fmt: skip
        axes[place].set(xlabel=axis, title=title)
    axes[0].legend(frameon=False, fontsize=7)


def _draw_model(figure: Any, of_model: dict[str, dict[str, Any]]) -> None:
    axes = figure.subplots(1, 2)
    for (name, result), style in zip(of_model.items(), STYLES, strict=False):
        axes[0].loglog(result["sizes"], [s * 1e3 for s in result["seconds"]], style, ms=4, label=name, mfc="none")
        axes[1].loglog(result["sizes"], [b / 2**20 for b in result["bytes"]], style, ms=4, mfc="none")
    axes[0].set(xlabel="n", title="ms")
    axes[1].set(xlabel="n", title="MiB kept")
    axes[0].legend(frameon=False)


def _draw_paths(figure: Any, lengths: Sequence[int]) -> None:
    axes = figure.subplots()
    by_length = [path_lengths(n, radius=RADIUS) for n in lengths]
    for name, style in zip(by_length[0], STYLES, strict=True):
        axes.loglog(lengths, [paths[name] for paths in by_length], style, ms=5, label=name, mfc="none")
    axes.set(xlabel="n", ylabel="maximum path length")
    axes.legend(frameon=False)


def _draw_reach(figure: Any) -> None:
    axes = figure.subplots(1, len(SEEN))
    n = REACH_LENGTH
    for place, name in zip(axes, SEEN, strict=True):
        needed = np.stack([layers_needed(name, n, radius=REACH_RADIUS, of=of) for of in range(n)])
        image = place.imshow(np.where(needed < 0, np.nan, needed), cmap="viridis_r", vmin=1, vmax=max(2, needed.max()))
        place.set(title=name, xlabel="input", xticks=(), yticks=())
        figure.colorbar(image, ax=place, orientation="horizontal", shrink=0.9)
    axes[0].set(ylabel="output")
    figure.suptitle("layers (recurrent: steps) until an output has seen an input; white: never", fontsize=9)
