"""Table 1: the layers are what they are called, and gradients confirm how far they reach."""

import math

import numpy as np
import pytest
import torch

from heed.apps.paper.layer_types import (
    Convolution,
    FullAttention,
    Recurrent,
    RestrictedAttention,
    SeparableConvolution,
    dilation,
    layers_needed,
    path_lengths,
    sequential_operations,
)
from heed.apps.paper.table1 import exponent, kept_bytes, measured, model_costs, page

N, WIDTH, RADIUS = 28, 4, 5


def reached(stack: list[torch.nn.Module], n: int, width: int) -> np.ndarray:
    """(output, input): whether the input changes the output, so that its gradient there is not zero."""
    x = torch.randn(1, n, width, dtype=torch.float64, requires_grad=True)
    y = x
    for layer in stack:
        y = layer.double()(y)
    rows = [torch.autograd.grad(y[0, of].sum(), x, retain_graph=True)[0][0] for of in range(n)]
    return np.stack([(row.abs().sum(-1) > 0).numpy() for row in rows])


@pytest.mark.parametrize("n", [1, 4, 5, 11, 28])
def test_restricted_attention_is_full_attention_under_a_band(n):
    x = torch.randn(2, n, WIDTH, dtype=torch.float64)
    near = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= RADIUS
    expected = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=near)
    assert torch.allclose(RestrictedAttention(WIDTH, RADIUS)(x), expected)


STACKS = {
    "self-attention": lambda layers: [FullAttention(WIDTH)] * layers,
    "restricted": lambda layers: [RestrictedAttention(WIDTH, RADIUS) for _ in range(layers)],
    "convolution": lambda layers: [Convolution(WIDTH) for _ in range(layers)],
    "convolution, dilated": lambda layers: [Convolution(WIDTH, dilation(i, N)) for i in reversed(range(layers))],
}


@pytest.mark.parametrize("name", STACKS)
def test_gradients_confirm_what_sees_what_after_how_many_layers(name):
    torch.manual_seed(1)
    needed = np.stack([layers_needed(name, N, radius=RADIUS, of=of) for of in range(N)])
    assert needed[-1, 0] == path_lengths(N, radius=RADIUS)[name] <= needed.max()
    for layers in range(1, needed.max() + 1):
        assert (reached(STACKS[name](layers), N, WIDTH) == (needed <= layers)).all()
    if name == "convolution":
        assert (reached([SeparableConvolution(WIDTH) for _ in range(3)], N, WIDTH) == (needed <= 3)).all()


@pytest.mark.parametrize("n", [2, 3, 9, 10, 28, 100])
def test_path_lengths_are_those_of_the_formulas(n):
    dilated = next(layers for layers in range(1, 99) if (3**layers - 1) / 2 >= n - 1)
    expected = [1, math.ceil((n - 1) / RADIUS), n - 1, n - 1, dilated]
    assert list(path_lengths(n, radius=RADIUS).values()) == expected


def test_a_recurrent_layer_reaches_all_that_came_before_through_as_many_steps():
    layer = Recurrent(WIDTH)
    needed = np.stack([layers_needed("recurrent", N, radius=RADIUS, of=of) for of in range(N)])
    assert (reached([layer], N, WIDTH) == (needed > 0)).all()
    assert needed[-1, 0] == N - 1 == path_lengths(N, radius=RADIUS)["recurrent"]
    chains = [sequential_operations(Recurrent(WIDTH), n, WIDTH) for n in (8, 16, 32)]
    assert chains[2] - chains[1] == 2 * (chains[1] - chains[0]) > 0
    for parallel in (FullAttention(WIDTH), RestrictedAttention(WIDTH, RADIUS), Convolution(WIDTH)):
        assert sequential_operations(parallel, 8, WIDTH) == sequential_operations(parallel, 32, WIDTH)


def test_memory_grows_as_the_table_says():
    kept = {
        name: [kept_bytes(layer, torch.randn(1, n, WIDTH)) for n in (512, 1024, 2048)]
        for name, layer in (("full", FullAttention(WIDTH)), ("restricted", RestrictedAttention(WIDTH, 16)))
    }
    assert exponent((512, 1024, 2048), kept["full"]) == pytest.approx(2, abs=0.05)
    assert exponent((512, 1024, 2048), kept["restricted"]) == pytest.approx(1, abs=0.05)


def test_an_exponent_is_that_of_a_power():
    assert exponent([2, 4, 8], [3 * x**1.5 for x in (2, 4, 8)]) == pytest.approx(1.5)


@pytest.mark.slow
def test_the_page_shows_every_layer():
    results = measured((8, 16, 32, 64), (4, 8, 16, 32), budget=0)
    threads = torch.get_num_threads()
    shown = page(results, model_costs((8, 16, 32, 64), budget=0))
    assert all(name in shown.text for name in results) and torch.get_num_threads() == threads
    assert all(f"({plot})" in shown.text for plot in shown.plots)
