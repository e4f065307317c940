"""Table 1: the layers are what they are called, and gradients confirm how far they reach."""

import pytest
import torch

from heed.paper.table1 import (
    Convolution,
    FullAttention,
    Recurrent,
    RestrictedAttention,
    SeparableConvolution,
    exponent,
    kept_bytes,
    measured,
    model_costs,
    page,
    path_lengths,
    reached,
)

N, WIDTH, RADIUS = 28, 4, 5


@pytest.mark.parametrize("n", [1, 4, 5, 11, 28])
def test_restricted_attention_is_full_attention_under_a_band(n):
    x = torch.randn(2, n, WIDTH, dtype=torch.float64)
    near = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= RADIUS
    expected = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=near)
    assert torch.allclose(RestrictedAttention(WIDTH, RADIUS)(x), expected)


@pytest.mark.parametrize(
    ("name", "stack"),
    [
        ("self-attention", lambda layers: [FullAttention(WIDTH)] * layers),
        ("restricted", lambda layers: [RestrictedAttention(WIDTH, RADIUS) for _ in range(layers)]),
        ("convolution", lambda layers: [Convolution(WIDTH) for _ in range(layers)]),
        ("convolution", lambda layers: [SeparableConvolution(WIDTH) for _ in range(layers)]),
        ("convolution, dilated", lambda layers: [Convolution(WIDTH, 3**i) for i in range(layers)]),
    ],
)
def test_gradients_confirm_the_path_lengths(name, stack):
    torch.manual_seed(1)
    layers = path_lengths(N, radius=RADIUS)[name]
    assert all(reached(stack(layers), N, WIDTH))
    if layers > 1:
        assert not reached(stack(layers - 1), N, WIDTH)[0]


def test_a_recurrent_layer_reaches_all_that_came_before_through_as_many_steps():
    layer = Recurrent(WIDTH)
    assert all(reached([layer], N, WIDTH))
    x = torch.randn(1, N, WIDTH, dtype=torch.float64, requires_grad=True)
    layer(x)[0, 0].sum().backward()
    assert not x.grad[0, 1:].any()
    assert path_lengths(N, radius=RADIUS)["recurrent"] == N - 1


def test_memory_grows_as_the_table_says():
    kept = {
        name: [kept_bytes(layer, torch.randn(1, n, WIDTH)) for n in (512, 1024, 2048)]
        for name, layer in (("full", FullAttention(WIDTH)), ("restricted", RestrictedAttention(WIDTH, 16)))
    }
    assert exponent((512, 1024, 2048), kept["full"]) == pytest.approx(2, abs=0.05)
    assert exponent((512, 1024, 2048), kept["restricted"]) == pytest.approx(1, abs=0.05)


def test_an_exponent_is_that_of_a_power():
    assert exponent([2, 4, 8], [3 * x**1.5 for x in (2, 4, 8)]) == pytest.approx(1.5)


def test_the_page_shows_every_layer():
    results = measured((8, 16, 32, 64), (4, 8, 16, 32), budget=0)
    text = page(results, model_costs((8, 16, 32, 64), budget=0)).text
    assert all(name in text for name in results)
