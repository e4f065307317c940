"""Equation 3's schedule, the position table's linearity (section 3.5), the variance of dot products (footnote 4)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from heed.apps.paper.result_page import Page, command, prose, table
from heed.model.transformer import sinusoid
from heed.training.schedule import learning_rate

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # d_k
N_KEYS = 64
N_DRAWS = 2000
OFFSETS = (1, 2, 5, 10, 50, 100)
N_POSITIONS = 512
D_MODEL = 512


def offset_matrix(offset: int, d_model: int) -> Float[Tensor, "d_model d_model"]:
    """M with PE(pos + offset) = M · PE(pos) for every pos: each pair of sine and cosine turned by offset · ω."""
    frequencies = 10000 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    sine, cosine = torch.sin(offset * frequencies), torch.cos(offset * frequencies)
    turned = torch.zeros(d_model, d_model, dtype=torch.float64)
    even = torch.arange(0, d_model, 2)
    turned[even, even], turned[even, even + 1] = cosine, sine
    turned[even + 1, even], turned[even + 1, even + 1] = -sine, cosine
    return turned


def position_errors(offsets: Sequence[int] = OFFSETS) -> dict[int, float]:
    """By offset: the largest |PE(pos + offset) - M · PE(pos)| over positions and columns of Heed's own table."""
    table = sinusoid(N_POSITIONS + max(offsets), D_MODEL).double()
    return {
        offset: float(
            (table[offset : offset + N_POSITIONS] - table[:N_POSITIONS] @ offset_matrix(offset, D_MODEL).T).abs().max()
        )
        for offset in offsets
    }


def dot_products(widths: Sequence[int] = WIDTHS, *, seed: int = 1) -> list[dict[str, float]]:
    """By d_k: variance of q · k for components of variance 1, and what it does to the softmax over N_KEYS keys.

    gradient: mean Frobenius norm of ∂softmax/∂scores, without and with the division by √d_k; entropy: of the weights,
    over that of equal ones.
    """
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for width in widths:
        q = torch.randn(N_DRAWS, 1, width, generator=draw)
        k = torch.randn(N_DRAWS, N_KEYS, width, generator=draw)
        scores = (q @ k.transpose(1, 2))[:, 0]
        row: dict[str, float] = {"d_k": width, "variance": float(scores.var())}
        for name, x in (("plain", scores), ("scaled", scores / math.sqrt(width))):
            weights = torch.softmax(x, dim=-1)
            jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]
            row[f"{name}_gradient"] = float(jacobian.flatten(1).norm(dim=1).mean())
            entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean()
            row[f"{name}_entropy"] = float(entropy) / math.log(N_KEYS)
        rows.append(row)
    return rows


def schedule() -> list[dict[str, Any]]:
    """Equation 3 of base and big: the peak rate, where it lies, and the rate at the end."""
    return [
        {
            "model": name,
            "d_model": d_model,
            "peak_step": 4000,
            "peak_rate": learning_rate(4000, d_model=d_model, warmup_steps=4000),
            "last_step": last,
            "last_rate": learning_rate(last, d_model=d_model, warmup_steps=4000),
        }
        for name, d_model, last in (("base", 512, 100_000), ("big", 1024, 300_000))
    ]


def results() -> dict[str, Any]:
    """All numbers of the page."""
    return {"schedule": schedule(), "position_errors": position_errors(), "dot_products": dot_products()}


def page() -> Page:
    """The three as tables and plots."""
    numbers = results()
    errors = numbers["position_errors"]
    # One list, to be read from top to bottom as the page is.
    lines = [
        "# Equations: what they do",
        "",
        "## Equation 3: the learning rate",
        "",
        "Linear for 4,000 steps, then as step^-0.5, times d_model^-0.5.",
        "",
        "![the schedule](equations-schedule.svg)",
        "",
        "| model | peak rate | at step | last rate | at step |",
        "|---|---|---|---|---|",
        *(
            f"| {r['model']} | {r['peak_rate']:.2e} | {r['peak_step']:,} | {r['last_rate']:.2e} | {r['last_step']:,} |"
            for r in numbers["schedule"]
        ),
        "",
        "## Section 3.5: positions",
        "",
        prose(
            f"""PE(pos + k) is a linear function of PE(pos): each pair of sine and cosine is turned by the angle k · ω,
            by one matrix for all positions. The largest error over {N_POSITIONS} positions and {D_MODEL} columns of
            Heed's table, which is rounded to fp32 (half a step is 3e-8 near 1):"""
        ),
        "",
        "![the table and its products](equations-positions.svg)",
        "",
        *table(("k", *errors), [("largest error", *(f"{error:.1e}" for error in errors.values()))]),
        "",
        "## Footnote 4: why scores are divided by √d_k",
        "",
        prose(
            f"""Components of queries and keys drawn with mean 0 and variance 1: the variance of q · k is d_k. Undivided
            scores drive the softmax (here over {N_KEYS} keys) to where its gradient vanishes: it grows until d_k is
            about 16, where one key has most of the weight, then falls. Divided by √d_k, neither changes with d_k."""
        ),
        "",
        "![variance and gradient](equations-dot-products.svg)",
        "",
        "| d_k | variance of q · k | gradient, undivided | gradient, divided | entropy, undivided | entropy, divided |",
        "|---|---|---|---|---|---|",
        *(
            f"| {r['d_k']} | {r['variance']:.1f} | {r['plain_gradient']:.4f} | {r['scaled_gradient']:.4f} | "
            f"{r['plain_entropy']:.2f} | {r['scaled_entropy']:.2f} |"
            for r in numbers["dot_products"]
        ),
        "",
        prose(
            f"""Gradient: mean Frobenius norm of ∂softmax/∂scores over {N_DRAWS:,} draws. Entropy: of the weights, over
            that of equal ones."""
        ),
        "",
    ]
    return Page(
        "equations",
        "\n".join(lines),
        command("equations"),
        {
            "equations-schedule.svg": _draw_schedule,
            "equations-positions.svg": _draw_positions,
            "equations-dot-products.svg": lambda figure: _draw_dot_products(figure, numbers["dot_products"]),
        },
    )


def _draw_schedule(figure: Any) -> None:
    axes = figure.subplots()
    steps = range(1, 100_001, 50)
    for d_model, warmup in ((512, 4000), (512, 8000), (256, 4000), (1024, 4000)):
        rates = [learning_rate(step, d_model=d_model, warmup_steps=warmup) for step in steps]
        axes.plot(steps, rates, label=f"d_model {d_model}, warmup {warmup:,}")
    axes.set(xlabel="step", ylabel="learning rate")
    axes.legend(frameon=False)


def _draw_positions(figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    table = sinusoid(100, 128)
    image = left.imshow(table.T.numpy(), aspect="auto", cmap="RdBu", vmin=-1, vmax=1, interpolation="nearest")
    left.set(xlabel="position", ylabel="column (d_model 128)", title="PE(pos)")
    figure.colorbar(image, ax=left)
    longer = sinusoid(201, D_MODEL)
    right.plot(range(-100, 101), (longer @ longer[100] / (D_MODEL / 2)).numpy())
    right.set(xlabel="offset", title="PE(100) · PE(100 + offset) / (d_model / 2)")


def _draw_dot_products(figure: Any, rows: list[dict[str, float]]) -> None:
    left, right = figure.subplots(1, 2)
    widths = [row["d_k"] for row in rows]
    left.loglog(widths, [row["variance"] for row in rows], "o", label="measured")
    left.loglog(widths, widths, "-", color="grey", label="d_k")
    left.set(xlabel="d_k", title="variance of q · k")
    left.legend(frameon=False)
    for name, label in (("plain", "undivided"), ("scaled", "divided by √d_k")):
        right.semilogx(widths, [row[f"{name}_gradient"] for row in rows], "o-", label=label)
    right.set(xlabel="d_k", title="norm of ∂softmax/∂scores", ylim=(0, None))
    right.legend(frameon=False)
