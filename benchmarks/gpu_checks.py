"""Is the GPU's code right, and how fast are its parts? Prints a JSON object, and each fact to stderr as it is found.

    python benchmarks/gpu_checks.py                   # on a GPU
    python benchmarks/gpu_checks.py adam search       # only these
    python benchmarks/gpu_checks.py --small           # on a CPU: toy sizes, no times

A check that fails says so, and the next one runs. Errors are norms of differences, relative to the norm.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.gpu.losses import consistent_loss_by_formula_, smoothed_loss_by_formula_

Facts = dict[str, Any]
SMALL = "--small" in sys.argv
DEVICE = torch.device("cpu" if SMALL else "cuda:0")


def relative(found: Tensor, expected: Tensor) -> float:
    found, expected = found.double(), expected.double()
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))


def milliseconds(work: Callable[[], Any], n: int = 20) -> float | None:
    """The median of n runs by the device's own clock; None on a CPU, where the work runs once."""
    if SMALL:
        work()
        return None
    for _ in range(3):
        work()
    times: list[float] = []
    for _ in range(n):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[n // 2]


def rate(amount: float, ms: float | None) -> float | None:
    """Of an amount in this time, in billions a second."""
    return None if ms is None else float(round(amount / ms / 1e6, 1))


def random(*shape: int) -> Tensor:
    """Of the normal distribution, in bf16."""
    return torch.randn(shape, device=DEVICE).bfloat16()


def ceilings() -> Iterator[Facts]:
    """What this card does: copies (bytes read and written), bf16 products of base's and big's shapes, launches."""
    x = torch.empty(2**10 if SMALL else 2**30, dtype=torch.bfloat16, device=DEVICE)
    yield {"copy_GB_s": rate(4 * len(x), milliseconds(partial(torch.empty_like(x).copy_, x), 5))}
    del x
    rows = 32 if SMALL else 25_088
    sides = (
        (512, 1536),
        (512, 2048),
        (2048, 512),
        (512, 512),
        (512, 37_000),
        (512, 36_999),
        (1024, 4096),
        (4096, 1024),
    )
    for m, (k, n) in [(8192, (8192, 8192))] * (not SMALL) + [(rows, side) for side in sides]:
        ms = milliseconds(partial(torch.mm, random(m, k), random(n, k).T), 10)
        yield {"product": f"{m}x{k}x{n}", "GFLOP_s": rate(2 * m * n * k, ms)}
    z, started = torch.zeros(1, device=DEVICE), time.perf_counter()
    for _ in range(2000):
        z.add_(1)
    yield {"launch_us": None if SMALL else (float(z) and (time.perf_counter() - started) / 2000 * 1e6)}


def losses() -> Iterator[Facts]:
    """The kernels of the losses against PyTorch's operations; GB/s of one reading and one writing of the logits."""
    n = 64 if SMALL else 8192
    for vocab, consistency in product((37_000, 36_999, 3), (None, 5.0)):
        rows = n if consistency is None else 2 * n
        logits, targets = 3 * random(rows, vocab), torch.randint(0, vocab, (n,), device=DEVICE, dtype=torch.int32)
        weights = torch.rand(n, device=DEVICE) + 0.5
        weights[-5:], logits[n - 1] = 0, torch.nan  # padding may be anything
        both: list[Callable[..., None]] = [torch.ops.heed.smoothed_loss_, smoothed_loss_by_formula_]
        if consistency is not None:
            both = [torch.ops.heed.consistent_loss_, consistent_loss_by_formula_]
        options = (0.1,) if consistency is None else (0.1, consistency)
        sums, gradients, times = [], [], []
        for compute in both:
            gradient, found = logits.clone(), torch.full((2, n), torch.nan, device=DEVICE)
            work = partial(compute, gradient, targets, weights, found, *options)
            work()
            sums.append(found.clone())
            gradients.append(gradient.clone())
            times.append(milliseconds(work, 10))
        of_loss, of_gradient = relative(*sums), relative(*gradients)
        yield {
            "vocab": vocab, "consistency": consistency, "loss": of_loss, "gradient": of_gradient,
            "ok": of_loss < 1e-4 and of_gradient < 5e-3,
            "ms": times[0], "GB_s": rate(4 * rows * vocab, times[0]), "torch_ms": times[1],
        }  # fmt: skip


def relu() -> Iterator[Facts]:
    """The product with its maximum, against the same in two operations."""
    from heed.backends.gpu.relu_product import relu_product

    m, d, ff = (64, 32, 64) if SMALL else (25_088, 512, 2048)
    x, weight, bias = random(m, d), random(ff, d) * d**-0.5, random(ff)
    error = relative(relu_product(x, weight, bias), torch.relu(x.float() @ weight.float().T + bias.float()))
    yield {
        "error": error, "ok": error < 1e-2,
        "ms": milliseconds(lambda: relu_product(x, weight, bias)),
        "apart_ms": milliseconds(lambda: torch.addmm(bias, x, weight.T).relu_()),
        "without_relu_ms": milliseconds(lambda: torch.addmm(bias, x, weight.T)),
    }  # fmt: skip


def varlen() -> Iterator[Facts]:
    """Attention of packed sentences against plain attention in fp32, also with empty sentences behind them."""
    from torch.nn.attention.varlen import varlen_attn

    n_sentences, n_heads, width, longest = (6, 2, 8, 12) if SMALL else (900, 8, 64, 60)
    ends = [0, *torch.randint(2, longest, (n_sentences,)).cumsum(0).tolist()]

    def attend(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, window: tuple[int, int]) -> Tensor:
        out = varlen_attn(q, k, v, starts, starts, longest, longest, window_size=window)
        assert isinstance(out, Tensor)
        return out

    for n_empty, window in product((0, n_sentences, 12 * n_sentences), ((-1, -1), (-1, 0))):
        starts = torch.tensor([*ends, *[ends[-1]] * n_empty], dtype=torch.int32, device=DEVICE)
        q, k, v = (random(ends[-1], n_heads, width).requires_grad_() for _ in range(3))

        forward = partial(attend, q, k, v, starts, window)
        out, gradient = forward(), random(ends[-1], n_heads, width)
        found = [out, *torch.autograd.grad(out, (q, k, v), gradient)]
        wanted: list[list[Tensor]] = [[], [], [], []]
        compared = ends[:41]
        for start, end in pairwise(compared):
            own = [x[start:end].float().detach().transpose(0, 1)[None].requires_grad_() for x in (q, k, v)]
            mixed = F.scaled_dot_product_attention(own[0], own[1], own[2], is_causal=window[1] == 0)
            parts = torch.autograd.grad(mixed, own, gradient[start:end].float().transpose(0, 1)[None])
            for whole, part in zip(wanted, (mixed.detach(), *parts), strict=True):
                whole.append(part[0].transpose(0, 1))
        errors = [relative(a[: compared[-1]], torch.cat(b)) for a, b in zip(found, wanted, strict=True)]
        yield {
            "empty": n_empty, "window": window, "tokens": ends[-1], "errors": errors, "ok": max(errors) < 2e-2,
            "ms": milliseconds(forward),
            "with_backward_ms": milliseconds(
                lambda f=forward, x=(q, k, v), g=gradient: torch.autograd.grad(f(), x, g)  # type: ignore[misc]
            ),
        }  # fmt: skip


def training() -> Iterator[Facts]:
    """Recorded passes, as written and compiled, against the plain network, and with dropout against themselves."""
    from heed.backends.gpu.network import Regions
    from heed.backends.gpu.passes import GpuPasses
    from heed.backends.training_protocol import PassSettings
    from heed.data.batches.batch import make_batch
    from heed.model.architecture import Architecture
    from heed.model.transformer import Transformer
    from heed.runtime.device import Machine
    from heed.text.tokenizer import SpecialIds
    from heed.training.settings import TrainingSettings
    from heed.training.step import MasterWeights, micro_batch_loss

    shape: dict[str, Any] = {"n_layers": 2, "d_model": 512, "d_ff": 2048, "n_heads": 8}
    shape, vocab, n = (shape | {"d_model": 32, "d_ff": 64}, 50, 12) if SMALL else (shape, 1000, 600)
    settings, draw = TrainingSettings(), torch.Generator().manual_seed(1)

    def ids() -> list[int]:
        length = int(torch.randint(4, 40, (), generator=draw))
        found: list[int] = torch.randint(3, vocab, (length,), generator=draw).tolist()
        return found

    batches = [make_batch([(ids(), ids()) for _ in range(n)], SpecialIds()) for _ in range(2)]
    scale = 1 / sum(batch.n_tgt_tokens for batch in batches)

    def weights_of(dtype: torch.dtype, dropout: float = 0.0) -> MasterWeights:
        torch.manual_seed(3)
        model = Transformer(Architecture(dropout=dropout, **shape), vocab)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05 if SMALL else 0.01)
        weights = MasterWeights(model, Machine(DEVICE, dtype, "check"))
        weights.model.train()
        return weights

    def plain(dtype: torch.dtype) -> Tensor:
        weights = weights_of(dtype)
        for batch in batches:
            loss, nll = micro_batch_loss(weights.model, batch, settings)
            (loss * scale).backward()
            weights.collect_gradients()
            weights.sums.loss.add_(loss.detach())
            weights.sums.nll.add_(nll)
        return weights.sums.buffer

    exact, bf16 = plain(torch.float32), plain(torch.bfloat16)
    rounding = relative(bf16[:-4], exact[:-4])
    # What training takes comes first; dropout of a CPU is no part of a compiled region.
    compiled = "aot_eager" if SMALL else "inductor"
    for compiler, dropout in ((compiled, 0.0), (compiled, 0.1), (None, 0.0), (None, 0.1)):
        if SMALL and compiler and dropout:
            continue
        weights, started = weights_of(torch.bfloat16, dropout), time.perf_counter()
        chosen, regions = PassSettings(settings.label_smoothing), Regions(lambda name, c=compiler: c)  # type: ignore[misc]
        passes = GpuPasses(weights.model, weights.sums.scalars[:2], chosen, regions)
        passes.reserve(max(batch.n_tgt_tokens for batch in batches) + 200, 41)
        sums: list[Tensor] = []
        prepared = 0.0
        for seed in (5, 5, 6):
            weights.zero_sums()
            torch.manual_seed(seed)
            passes.run(batches, scale=scale)
            sums.append(weights.sums.buffer.clone())
            prepared = prepared or time.perf_counter() - started
        again, other = relative(sums[1], sums[0]), relative(sums[2][:-4], sums[0][:-4])
        error, loss = relative(sums[0][:-4], exact[:-4]), float(sums[0][-4] / exact[-4])
        yield {
            "compiler": compiler, "dropout": dropout, "seconds_to_prepare": prepared,
            "loss_to_fp32": loss, "gradient": error, "of_rounding": rounding, "same_seed": again, "other_seed": other,
            # With dropout: a seed draws the same again, and another one something else.
            "ok": again < 2e-2 < other and abs(loss - 1) < 0.05
            if dropout
            else error < 3 * rounding + 1e-3 and abs(loss - 1) < 2e-3 and again < 1e-2,
            "ms": milliseconds(lambda p=passes: p.run(batches, scale=scale)),  # type: ignore[misc]
        }  # fmt: skip


def adam() -> Iterator[Facts]:
    """The recorded step against torch's own, over five steps, one of which is not finite."""
    from heed.backends.gpu.training import GpuTrainingBackend

    found = []
    for is_recorded in (False, True):
        torch.manual_seed(0)
        masters = [torch.nn.Parameter(torch.randn(shape, device=DEVICE)) for shape in ((300, 40), (7,), (1,))]
        pairs = [(master, master.detach().bfloat16()) for master in masters]
        gradients = torch.zeros(sum(master.numel() for master in masters), device=DEVICE)
        for master, part in zip(masters, gradients.split([m.numel() for m in masters]), strict=True):
            master.grad = part.view_as(master)
        optimizer, backend = torch.optim.Adam(masters, betas=(0.9, 0.98), eps=1e-9), GpuTrainingBackend()
        for step in range(1, 6):
            gradients.copy_(torch.randn(len(gradients), generator=torch.Generator().manual_seed(step)))
            optimizer.param_groups[0]["lr"] = 0.01 * step
            if is_recorded:
                backend.adam_step(optimizer, pairs, gradients, torch.tensor(step != 3, device=DEVICE))
            elif step != 3:
                optimizer.step()
        found.append(torch.cat([master.detach().flatten() for master in masters]))
    error, copied = relative(found[1], found[0]), max(relative(copy, master.detach()) for master, copy in pairs)
    yield {"error": error, "copies": copied, "ok": error < 1e-6 and copied < 5e-3 and not gradients.any().item()}


def search() -> Iterator[Facts]:
    """The search in slots against the plain one: in fp32 the same hypotheses, in bf16 about the same scores."""
    from heed.decoding.beam import beam_search
    from heed.decoding.settings import DecodingSettings
    from heed.model.architecture import Architecture
    from heed.model.transformer import Transformer
    from heed.text.tokenizer import SpecialIds

    shape: dict[str, Any] = {"n_layers": 3, "d_model": 512, "d_ff": 2048, "n_heads": 8}
    shape, vocab, n = (shape | {"d_model": 32, "d_ff": 64}, 67, 9) if SMALL else (shape, 5003, 300)
    torch.manual_seed(2)
    model = Transformer(Architecture(dropout=0.0, **shape), vocab).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(1.5 if parameter.dim() > 1 else 1.0)
    sources = [torch.randint(3, vocab, (length,)).tolist() for length in torch.randint(1, 60, (n,)).tolist()]
    for dtype, (beam, n_best) in product((torch.float32, torch.bfloat16), ((4, 2), (1, 1))):
        model, settings = model.to(DEVICE, dtype), DecodingSettings(beam_size=beam, max_extra_tokens=20)
        found, seconds = [], []
        for kernels in ("0", ""):
            os.environ["HEED_KERNELS"] = kernels
            started = time.perf_counter()
            found.append(beam_search(model, sources, SpecialIds(), settings, n_best=n_best))
            seconds.append(time.perf_counter() - started)
        pairs = list(zip(*found, strict=True))
        same = sum([h.ids for h in plain] == [h.ids for h in ours] for plain, ours in pairs) / n
        gap = max(abs(plain[0].score / ours[0].score - 1) for plain, ours in pairs)
        yield {
            "dtype": str(dtype), "beam": beam, "sentences": n, "same": same, "score_gap": gap,
            "ok": same >= 0.98 and gap < 1e-3 if dtype == torch.float32 else gap < 0.2,
            "plain_seconds": seconds[0], "seconds": seconds[1],
        }  # fmt: skip


CHECKS: dict[str, Callable[[], Iterator[Facts]]] = {
    check.__name__: check for check in (adam, losses, search, training, ceilings, relu, varlen)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", metavar="check", help=f"default: {' '.join(CHECKS)}")
    parser.add_argument("--small", action="store_true", help="on a CPU, in toy sizes")
    arguments = parser.parse_args()
    if SMALL:
        import tests.gpu.varlen  # noqa: F401  # attention of packed tokens, which a CPU lacks

    everything: list[Facts] = []
    for name in arguments.checks or CHECKS:
        torch.manual_seed(0)
        try:
            for facts in CHECKS[name]():
                everything.append({"check": name} | facts)
                print(json.dumps(everything[-1]), file=sys.stderr, flush=True)
        except Exception as error:
            traceback.print_exc()
            everything.append({"check": name, "ok": False, "error": f"{type(error).__name__}: {error}"[:500]})
    wrong = [facts for facts in everything if not facts.get("ok", True)]
    print(json.dumps({"wrong": wrong, "checks": everything}, indent=1))


if __name__ == "__main__":
    main()
