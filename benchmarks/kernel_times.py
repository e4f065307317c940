"""Times each of Heed's CPU kernels beside PyTorch's operations, at the shapes of four models; marks those that lose.

python -m benchmarks.kernel_times base        # of tiny, recipe, base, big; --json: an object a line

Axes: row = hypotheses of a search; token = positions of a step of training.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heed.apps.bench.inputs import shape_of
from heed.backends import kernels
from heed.backends.beam_account import Ints
from heed.backends.cpu import account_ops, training_ops
from heed.backends.cpu.build import has_int8, has_tiles, kernel, library, raw_addresses
from heed.backends.cpu.packed import PackedSequences
from heed.backends.cpu.packed_weights import Pack, bf16_weight, fp32_weight, int8_weight
from heed.backends.cpu.search_state import CpuSearchState
from heed.backends.cpu.training import pack_module
from heed.backends.live_prefixes import NextIds
from heed.backends.protocol import SearchState
from heed.backends.reference_search import ReferenceSearchBackend, ReferenceSearchState
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.runs.recipe import read_preset, read_recipe
from heed.runtime.device import DecodingPrecision, choose_machine
from heed.training.loss import consistent_loss_, smoothed_loss_

SHAPES = ("tiny", "recipe", "base", "big")
RECIPE = "multi30k-en-de"  # the model of `recipe`
LEAST = 0.97  # of the speed of PyTorch's operations: a kernel below it loses
MIN_ROUNDS = 5
LENGTH = 25  # tokens of a sentence
TOKENS = 2000  # of a step of training, about: a worker's part of it
BEAM, SENTENCES = 4, 32
STEPS = 4  # of a search
FEW_LAYERS = {"n_layers": 2, "n_encoder_layers": None, "n_decoder_layers": None}
LABEL_SMOOTHING, CONSISTENCY = 0.1, 3.0
Work = Callable[[], object]


@dataclass(frozen=True)
class KernelTime:
    """Medians of runs in turns."""

    shape: str
    use: str
    kernel: str
    size: str
    kernel_seconds: float
    plain_seconds: float

    @property
    def speedup(self) -> float:
        """How many times as fast as PyTorch's operations the kernel is."""
        return self.plain_seconds / self.kernel_seconds

    @property
    def loses(self) -> bool:
        return self.speedup < LEAST

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self) | {"speedup": self.speedup, "loses": self.loses}


def kernel_times(shapes: Sequence[str] = SHAPES, *, seconds: float = 0.3) -> Iterator[KernelTime]:
    """The times of every kernel, each measured for `seconds`. HeedError where there are no kernels, or no such
    shape."""
    if unknown := [name for name in shapes if name not in SHAPES]:
        raise HeedError(f"{unknown[0]}: expected {', '.join(SHAPES)}.")
    if not kernels.are_usable():
        raise HeedError(f"no kernels to measure: {kernels.state()}; HEED_KERNELS=1 takes them all the same.")
    for shape in shapes:
        arch, vocab_size = _model(shape)
        for case in timed_kernels(arch, vocab_size):
            kernel, plain = _in_turns(case.kernel, case.plain, seconds)
            yield KernelTime(shape, case.use, case.name, case.size, kernel, plain)


def _model(shape: str) -> tuple[Architecture, int]:
    if shape == "recipe":
        recipe = read_recipe(RECIPE)
        return recipe.model, recipe.tokenizer.vocab_size
    return shape_of(read_preset(shape, where="shape"), preset=shape, vocab_size=None)


def _in_turns(first: Callable[[], object], second: Callable[[], object], seconds: float) -> tuple[float, float]:
    """The median seconds of each: they run one after the other, so that whatever disturbs one disturbs the other."""
    works = (first, second)
    times: tuple[list[float], list[float]] = ([], [])
    n = 0
    end = time.perf_counter() + seconds
    while n <= MIN_ROUNDS or time.perf_counter() < end:
        for work, taken in zip(works, times, strict=True):
            started = time.perf_counter()
            work()
            if n:  # the first round allocates memory and prepares
                taken.append(time.perf_counter() - started)
        n += 1
    return statistics.median(times[0]), statistics.median(times[1])


@dataclass(frozen=True)
class TimedKernel:
    """One piece of work, by a kernel and by PyTorch's operations."""

    name: str
    use: str  # "search" or "training"
    size: str
    kernel: Work = field(repr=False)
    plain: Work = field(repr=False)
    kept: list[object] = field(default_factory=list, repr=False)  # what lies at addresses that the kernel is given


def timed_kernels(arch: Architecture, vocab_size: int) -> Iterator[TimedKernel]:
    """The kernels at this model's shapes. Nothing where they cannot be used."""
    if library() is None:
        return
    torch.manual_seed(1)
    with torch.no_grad():
        yield from _products(arch, vocab_size)
        yield from _search(arch, vocab_size)
        yield from _steps(arch, vocab_size)
    dtype = choose_machine(device="cpu").dtype
    yield from _training(arch, vocab_size, dtype)
    yield from _losses(vocab_size, dtype)


def _products(arch: Architecture, vocab_size: int) -> Iterator[TimedKernel]:
    d, d_ff = arch.d_model, arch.d_ff
    kinds: list[tuple[str, Pack]] = [("fp32", fp32_weight)]
    kinds += [("int8", int8_weight)] if has_int8() else []
    kinds += [("bf16", bf16_weight)] if has_tiles() else []
    for d_in, d_out in ((d, d), (d, d_ff), (d_ff, d), (d, vocab_size)):
        weight, bias = torch.randn(d_out, d_in) * d_in**-0.5, torch.randn(d_out)
        for name, pack in kinds:
            packed = pack(weight.numpy(), bias.numpy())
            for n in (BEAM, BEAM * SENTENCES):
                x = torch.randn(n, d_in)
                rows, y = x.numpy(), np.empty((n, d_out), np.float32)
                at = raw_addresses(x=rows, y=y)
                # With arguments that were made before, as a kernel that runs a whole step of a search has them.
                call = partial(kernel("packed_product"), **at, weight=packed.structure, n=n, relu=False)
                plain = partial(F.linear, x, weight, bias)
                yield TimedKernel(
                    f"product in {name}", "search", f"{n} × {d_in} × {d_out}", call, plain, [packed, rows, y]
                )


def _steps(arch: Architecture, vocab_size: int) -> Iterator[TimedKernel]:
    """An encoder and the first steps of a search together, as a search takes them."""
    model = Transformer(arch.model_copy(update=FEW_LAYERS), vocab_size).eval()
    precisions: list[DecodingPrecision] = ["fp32", "int8"] if has_int8() else ["fp32"]
    for precision in precisions:
        packed = pack_module(model, precision, copy=True)
        for sentences in (1, SENTENCES):
            src = torch.randint(3, vocab_size, (sentences * LENGTH,)).numpy()
            n = sentences * BEAM

            def run(state: SearchState, src: Ints = src, n: int = n) -> None:
                state.admit(src, np.full(n // BEAM, LENGTH))
                for _ in range(STEPS):
                    state.logits(np.full(n, 4))

            yield TimedKernel(
                f"steps in {precision}",
                "search",
                f"{n} rows",
                lambda n=sentences, of=packed, run=run: run(CpuSearchState(of, n_sentences=n, beam_size=BEAM)),  # type: ignore[misc]
                lambda n=sentences, run=run: run(_PlainSearch(model, n_sentences=n)),  # type: ignore[misc]
            )


class _PlainSearch(ReferenceSearchState):
    """Computes every row of a beam from the first step on, as the kernels do here."""

    def admit(self, src: Ints, lengths: Ints) -> None:
        sentences = np.split(src, lengths.cumsum()[:-1])
        super().admit(np.concatenate([ids for ids in sentences for _ in range(BEAM)]), lengths.repeat(BEAM))


def _search(arch: Architecture, vocab_size: int) -> Iterator[TimedKernel]:
    for sentences in (1, SENTENCES):
        # The choice of continuations from the logits of a full beam of which no hypothesis has ended.
        n = sentences * BEAM
        logits, log_probs = torch.randn(n, vocab_size), np.random.default_rng(1).standard_normal((sentences, BEAM))
        rest = (log_probs, NextIds(np.zeros(vocab_size, np.bool_), np.ones(sentences, np.bool_), eos=2))
        yield TimedKernel(
            "best_continuations",
            "search",
            f"{n} × {vocab_size}",
            partial(account_ops.best_continuations, logits.numpy(), np.arange(n), *rest, k=2 * BEAM),
            partial(ReferenceSearchBackend().best_continuations, logits, None, *rest, k=2 * BEAM),
        )


def _training(arch: Architecture, vocab_size: int, dtype: torch.dtype) -> Iterator[TimedKernel]:
    d, d_ff, rate = arch.d_model, arch.d_ff, arch.dropout
    sequences = PackedSequences.of(np.full(TOKENS // LENGTH, LENGTH))
    n, n_real = len(sequences.positions), sequences.n_real

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype).requires_grad_()

    # Forward and backward of each fused operation, next to the PyTorch operations that it replaces.
    x, branch, gain, bias, dy = leaf(n, d), leaf(n, d), leaf(d), leaf(d), torch.randn(n, d, dtype=dtype)
    norm = {"dropout": rate, "epsilon": 1e-5}
    yield TimedKernel(
        "add_norm",
        "training",
        f"{n} × {d}",
        lambda: training_ops.sum_and_norm(x, branch, gain, bias, **norm)[1].backward(dy),
        lambda: F.layer_norm(x + F.dropout(branch, rate), (d,), gain, bias, 1e-5).backward(dy),
    )
    # The feed-forward layer's bias and ReLU, and the embeddings with their positions and dropout.
    hidden, inner_bias, dh = torch.randn(n, d_ff, dtype=dtype), leaf(d_ff), torch.randn(n, d_ff, dtype=dtype)
    scale = leaf(1)  # so that what is rectified in place has a gradient and is not a leaf
    yield TimedKernel(
        "bias_relu",
        "training",
        f"{n} × {d_ff}",
        lambda: training_ops.bias_relu(hidden * scale, inner_bias).backward(dh),
        lambda: F.relu(hidden * scale + inner_bias).backward(dh),
    )
    ids, places = torch.randint(3, vocab_size, (n,)), sequences.positions
    table, positions = leaf(vocab_size, d), torch.randn(LENGTH, d, dtype=dtype)
    table.main_grad = torch.zeros(vocab_size, d)  # type: ignore[attr-defined]  # as training has it
    scaled = {"scale": d**0.5, "dropout": rate}
    yield TimedKernel(
        "embed",
        "training",
        f"{n} × {d}",
        lambda: training_ops.embed(ids, places, table, positions, **scaled).backward(dy),
        lambda: F.dropout(F.embedding(ids, table) * d**0.5 + positions[places], rate).backward(dy),
    )
    # Attention without padding; PyTorch's gets heads apart, as its own layers make them.
    n_heads, widths = arch.n_heads, [arch.n_heads * arch.key_width] * 2 + [arch.n_heads * arch.value_width]
    qkv, dout = leaf(n, sum(widths)), torch.randn(n, widths[2], dtype=dtype)
    heads = {"n_heads": n_heads, "widths": widths, "causal": True, "dropout": rate}

    def plain_attention() -> None:
        parts = qkv[:n_real].view(-1, LENGTH, sum(widths)).split(widths, dim=2)
        q, k, v = (part.unflatten(2, (n_heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=rate)
        mixed.transpose(1, 2).flatten(2).flatten(0, 1).backward(dout[:n_real])

    yield TimedKernel(
        "attend",
        "training",
        f"{TOKENS // LENGTH} sentences, {LENGTH} positions",
        lambda: training_ops.self_attention(qkv, sequences, **heads).backward(dout),  # type: ignore[arg-type]
        plain_attention,
    )
    # Matrix products, where tile registers beat the library.
    if has_tiles():
        a, b = torch.randn(n, d, dtype=torch.bfloat16), torch.randn(d_ff, d, dtype=torch.bfloat16)
        out = torch.empty(n, d_ff, dtype=torch.bfloat16)
        yield TimedKernel(
            "tile_product",
            "training",
            f"{n} × {d} × {d_ff}",
            lambda: training_ops.product(a, b.T, out=out),
            lambda: torch.mm(a, b.T, out=out),
        )
    yield from _updates(d, d_ff, dtype)


def _updates(d: int, d_ff: int, dtype: torch.dtype) -> Iterator[TimedKernel]:
    """The kernels that take a weight's gradient."""
    # Adam, which also renews the copy in bf16 and zeroes the gradient.
    weight, mean, square, gradient = (torch.rand(d_ff, d) for _ in range(4))
    copy = None if dtype == torch.float32 else weight.to(dtype)
    adam = {"step": 9, "rate": 1e-6, "betas": (0.9, 0.98), "epsilon": 1e-9}
    master = torch.rand(d_ff, d, requires_grad=True)
    master.grad = gradient.clone()
    optimizer = torch.optim.Adam([master], lr=1e-6, fused=True)

    @torch.no_grad()
    def plain_adam() -> None:
        optimizer.step()
        assert master.grad is not None
        master.grad.zero_()
        if copy is not None:
            copy.copy_(master)

    yield TimedKernel(
        "adam_step",
        "training",
        f"{d_ff} × {d}",
        lambda: training_ops.adam_step(weight, mean, square, gradient, copy=copy, **adam),  # type: ignore[arg-type]
        plain_adam,
    )
    # The sum in fp32 of a micro-batch's gradients in bf16.
    if dtype == torch.bfloat16:
        part, total = torch.randn(d_ff, d, dtype=dtype), torch.zeros(d_ff, d)
        yield TimedKernel(
            "add_gradient",
            "training",
            f"{d_ff} × {d}",
            lambda: training_ops.add_gradient(part, total),
            lambda: total.add_(part),
        )


def _losses(vocab_size: int, dtype: torch.dtype) -> Iterator[TimedKernel]:
    n = 512  # tokens whose logits are made at a time
    logits, targets = torch.randn(2 * n, vocab_size, dtype=dtype), torch.randint(vocab_size, (n,))
    # Each is given what the last one has left, the gradient: as good as any other numbers.
    smoothed = {"label_smoothing": LABEL_SMOOTHING}
    yield TimedKernel(
        "smoothed_loss",
        "training",
        f"{n} × {vocab_size}",
        lambda: training_ops.loss_(logits[:n], targets, **smoothed),
        lambda: smoothed_loss_(logits[:n], targets, **smoothed),
    )
    both = {"label_smoothing": LABEL_SMOOTHING, "consistency": CONSISTENCY}
    yield TimedKernel(
        "consistent_loss",
        "training",
        f"{n} × {vocab_size}",
        lambda: training_ops.loss_(logits, targets, **both),
        lambda: consistent_loss_(logits, targets, **both),
    )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", default=SHAPES)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    n_lost = 0
    for each in kernel_times(asked.shapes):
        n_lost += each.loses
        line = (
            f"{each.shape:6}  {each.kernel:23}  {each.size:32}  {each.kernel_seconds * 1e6:9,.0f} µs  "
            f"{each.plain_seconds * 1e6:9,.0f} µs  {each.speedup:6.2f}{'  loses' if each.loses else ''}"
        )
        print(json.dumps(each.numbers()) if asked.json else line, flush=True)
    if not asked.json:
        print(f"{n_lost} of them slower than PyTorch's operations.")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except HeedError as error:
        sys.exit(str(error))
