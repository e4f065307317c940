"""The kernels of a search's step against PyTorch's operations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.kernels import incremental
from heed.kernels.library import library

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler: Heed's kernels are not at hand")


@given(n=st.integers(1, 40), d_in=st.integers(1, 70), d_out=st.integers(1, 100), bias=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_product_is_torchs_and_each_row_has_the_bits_that_it_has_alone(n, d_in, d_out, bias):
    torch.manual_seed(n * 7919 + d_in * 101 + d_out)
    x, weight, b = torch.randn(n, d_in), torch.randn(d_out, d_in), torch.randn(d_out)
    filled = torch.nn.functional.pad(b, (0, -d_out % incremental.PANEL)) if bias else None
    panels = incremental.panels(weight)
    y = incremental.panel_product(x, panels, filled, d_out)
    torch.testing.assert_close(y, torch.nn.functional.linear(x, weight, b if bias else None), atol=1e-4, rtol=1e-4)
    for i in range(n):
        assert torch.equal(incremental.panel_product(x[i : i + 1], panels, filled, d_out)[0], y[i])


@given(n=st.integers(1, 20), d_in=st.integers(2, 70), d_out=st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_the_8_bit_product_is_that_of_the_rounded_numbers(n, d_in, d_out):
    torch.manual_seed(n * 7919 + d_in * 101 + d_out)
    x, bias = torch.randn(n, d_in), torch.randn(d_out)
    x[0] = 0  # a row without any number has no step
    q = torch.randint(-127, 128, (d_out, d_in), dtype=torch.int8)
    weight_steps = torch.rand(d_out)
    y = incremental.int8_product(x, q, weight_steps, bias)
    most = x.abs().amax(1, keepdim=True)
    rounded = torch.where(most > 0, (x * (127 / most)).round(), 0).double() * (most / 127)
    expected = rounded @ (q.double() * weight_steps[:, None]).T + bias
    torch.testing.assert_close(y.double(), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(
    n_sentences=st.integers(1, 4),
    beam=st.integers(1, 5),
    vocab_size=st.integers(8, 300),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_the_best_continuations_are_those_of_a_whole_sort(dtype, n_sentences, beam, vocab_size, seed):
    torch.manual_seed(seed)
    logits = (torch.randn(n_sentences * beam, vocab_size) * 3).to(dtype)
    log_probs = -torch.rand(n_sentences, beam, dtype=torch.float64) * 5
    log_probs[torch.rand(n_sentences, beam) < 0.2] = -torch.inf
    never = torch.zeros(vocab_size, dtype=torch.bool)
    never[[0, 1]] = True
    may_end = torch.rand(n_sentences) < 0.5
    required = torch.where(torch.rand(n_sentences, beam) < 0.2, torch.randint(3, vocab_size, (n_sentences, beam)), -1)
    k = 2 * beam
    values, index = incremental.best_continuations(logits, log_probs, required, never, may_end, eos=2, k=k)
    allowed = torch.log_softmax(logits.double(), -1).masked_fill(never, -torch.inf).view(n_sentences, beam, -1)
    allowed[~may_end, :, 2] = -torch.inf
    ids = torch.arange(vocab_size)
    allowed = allowed.masked_fill((required[..., None] >= 0) & (ids != required[..., None]), -torch.inf)
    total = (log_probs[..., None] + allowed).flatten(1)
    torch.testing.assert_close(values, total.topk(k, dim=1).values, atol=1e-5, rtol=1e-5)
    found = values.isfinite()
    torch.testing.assert_close(total.gather(1, index)[found], values[found], atol=1e-5, rtol=1e-5)
    for row, there in zip(index, found, strict=True):
        assert len(set(row[there].tolist())) == int(there.sum())
