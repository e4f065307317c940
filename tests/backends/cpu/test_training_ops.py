"""The kernels against torch's own operations, forwards and backwards; dropout against its definition."""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import n_examples

from heed.backends.cpu import training_ops
from heed.backends.cpu.build import has_tiles, library
from heed.backends.cpu.packed import PackedSequences
from heed.backends.cpu.training import CpuBackend
from heed.backends.reference import ReferenceBackend
from heed.training.loss import consistent_loss_, projected_loss

pytestmark = pytest.mark.skipif(library() is None, reason="needs Linux and a C++ compiler")

# fp32 differs by the order of sums alone; bf16 keeps 8 bits: 2^-8 of the value, somewhat more after a sum.
TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}
both_types = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def leaf(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape) * scale).to(dtype).requires_grad_()


def assert_same(
    ours: torch.Tensor, reference: torch.Tensor, leaves: list[torch.Tensor], exact: list[torch.Tensor]
) -> None:
    """Values agree, and so do the gradients by `leaves` of one random sum with those by `exact`, their fp32 copies."""
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours.float(), reference, **tolerance)
    weights = torch.randn(reference.shape)
    ours_grads = torch.autograd.grad((ours * weights.to(ours.dtype)).sum(), leaves)
    for ours_grad, grad in zip(ours_grads, torch.autograd.grad((reference * weights).sum(), exact), strict=True):
        scale = float(grad.abs().max())
        torch.testing.assert_close(
            ours_grad.float() / scale, grad / scale, rtol=tolerance["rtol"], atol=2 * tolerance["atol"]
        )


def copies(leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x.detach().float().requires_grad_() for x in leaves]


@pytest.mark.slow
@given(
    m=st.integers(1, 100) | st.sampled_from([32, 64]), n=st.integers(1, 100),
    depth=st.integers(1, 2100) | st.just(2500), seed=st.integers(0, 2**31),
    turned=st.tuples(st.booleans(), st.booleans()), add=st.booleans(), biased=st.booleans(),
)  # fmt: skip
@settings(max_examples=n_examples(60))
def test_the_product_of_bf16_is_that_in_fp64(m, n, depth, seed, turned, add, biased):
    generator = torch.Generator().manual_seed(seed)

    def laid(rows: int, columns: int, is_turned: bool) -> torch.Tensor:
        x = torch.randn(rows, columns, generator=generator).bfloat16()
        return x.T.contiguous().T if is_turned else x

    a, b = laid(m, depth, turned[0]), laid(depth, n, turned[1])
    bias = torch.randn(n, generator=generator).bfloat16() if biased and not add else None
    out = torch.randn(m, n, generator=generator)
    expected = a.double() @ b.double() + (out if add else 0) + (0 if bias is None else bias)
    ours = training_ops.product(a, b, out=out if add else out.bfloat16(), add=add, bias=bias)
    tiled = has_tiles() and (a.stride(1) != 1 or depth >= 256)
    error = 1e-6 if add and tiled else 2**-8  # PyTorch makes the bf16 product before it is added
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=error * (float(expected.abs().max()) + depth**0.5))


@pytest.mark.slow
def test_products_made_side_by_side_are_those_made_one_by_one():
    torch.manual_seed(0)
    pairs = [(torch.randn(96, 640).bfloat16(), torch.randn(640, 80).bfloat16()) for _ in range(64)]

    def product(pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return training_ops.product(*pair, out=torch.empty(96, 80, dtype=torch.bfloat16))

    one_by_one = [product(pair) for pair in pairs]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(product, pairs), one_by_one))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("summed", [False, True], ids=["own", "main_grad"])
@pytest.mark.parametrize(("d_in", "d_out"), [(512, 1536), (128, 96), (50, 7)])
def test_linear_and_its_gradients_are_torchs(d_in, d_out, bias, summed):
    torch.manual_seed(d_in)
    leaves = [leaf(192, d_in, dtype=torch.bfloat16), leaf(d_out, d_in, dtype=torch.bfloat16, scale=d_in**-0.5)]
    leaves += [leaf(d_out, dtype=torch.bfloat16)] * bias
    exact = copies(leaves)
    if summed:
        leaves[1].main_grad = torch.full((d_out, d_in), 3.0)  # what earlier micro-batches left
    ours, reference = (training_ops.linear(*x, *[None] * (not bias)) for x in (leaves, exact))
    torch.testing.assert_close(ours.float(), reference, **TOLERANCE[torch.bfloat16])
    weights = torch.randn(192, d_out)
    (ours * weights.bfloat16()).sum().backward()
    (reference * weights).sum().backward()
    for x, exactly in zip(leaves, exact, strict=True):
        grad = x.main_grad - 3 if x.grad is None else x.grad.float()
        scale = float(exactly.grad.abs().max())
        torch.testing.assert_close(grad / scale, exactly.grad / scale, rtol=0, atol=2e-2)


@both_types
@pytest.mark.parametrize("d", [1, 16, 50, 512])
def test_add_norm_is_the_layer_norm_of_the_sum(dtype, d):
    torch.manual_seed(d)
    leaves = [leaf(3, 7, d, dtype=dtype), leaf(3, 7, d, dtype=dtype), leaf(d, dtype=dtype), leaf(d, dtype=dtype)]
    x, branch, gain, bias = exact = copies(leaves)
    _, ours = training_ops.sum_and_norm(*leaves, dropout=0.0, epsilon=1e-5)
    if d > 1:  # of one number every deviation is 0, and gradients are rounding
        assert_same(ours, F.layer_norm(x + branch, (d,), gain, bias, 1e-5), leaves, exact)
    else:
        torch.testing.assert_close(ours.float(), bias.expand(3, 7, 1))


@both_types
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_sum_that_is_used_besides_its_norm_has_the_gradients_of_both(dtype, dropout):
    torch.manual_seed(1)
    leaves = [leaf(9, 50, dtype=dtype), leaf(9, 50, dtype=dtype), leaf(50, dtype=dtype), leaf(50, dtype=dtype)]
    x, branch, gain, bias = exact = copies(leaves)
    total, y = training_ops.sum_and_norm(*leaves, dropout=dropout, epsilon=1e-5)
    kept = (total != leaves[0]).float() / (1 - dropout)
    assert dropout == 0 or 0.5 < float((kept > 0).float().mean()) < 0.7
    reference = x + branch * kept
    normalised = F.layer_norm(reference, (50,), gain, bias, 1e-5)
    assert_same(torch.cat([total, y]), torch.cat([reference, normalised]), leaves, exact)


@both_types
def test_bias_relu_is_relu_of_the_sum(dtype):
    leaves = [leaf(9, 33, dtype=dtype), leaf(33, dtype=dtype)]
    h, bias = exact = copies(leaves)
    assert_same(training_ops.bias_relu(leaves[0] * 1, leaves[1]), F.relu(h + bias), leaves, exact)


@both_types
def test_learned_positions_get_their_gradients_too(dtype):
    ids, positions = torch.tensor([3, 0, -1, 3, 3, 1]), torch.tensor([0, 1, 3, 2, 0, 1])
    leaves = [leaf(5, 24, dtype=dtype), leaf(7, 24, dtype=dtype)]
    table, position_table = exact = copies(leaves)
    ours = training_ops.embed(ids, positions, *leaves, scale=3.0, dropout=0.0, may_lack=True)
    words = table[ids] * 3.0 * (ids >= 0)[:, None]
    assert_same(ours, words + position_table[positions], leaves, exact)


@both_types
def test_embed_scales_adds_positions_and_sums_gradients_of_repeated_ids(dtype):
    """An id of -1 has no word, only its position."""
    ids, places = torch.tensor([3, 0, -1, 3, 3, 1]), torch.tensor([0, 1, 3, 2, 0, 1])
    leaves = [leaf(5, 24, dtype=dtype)]
    (table,) = exact = copies(leaves)
    positions = torch.randn(4, 24).to(dtype)
    ours = training_ops.embed(ids, places, leaves[0], positions, scale=math.sqrt(24), dropout=0.0, may_lack=True)
    words = table[ids] * math.sqrt(24) * (ids >= 0)[:, None]
    assert_same(ours, words + positions.float()[places], leaves, exact)


def by_sentence(x: torch.Tensor, tgt: PackedSequences, n_heads: int) -> list[torch.Tensor]:
    """(head, position, width) of each sentence."""
    ends = tgt.offsets.tolist()
    return [x[a:b].unflatten(1, (n_heads, -1)).transpose(0, 1) for a, b in itertools.pairwise(ends)]


def reference_attention(q, k, v, tgt, src, n_heads, causal, factors=None):
    """factors: for each sentence what dropout multiplies its weights by, (head, query, key)."""
    rows = []
    sides = (by_sentence(x, s, n_heads) for x, s in ((q, tgt), (k, src), (v, src)))
    for s, (queries, keys, values) in enumerate(zip(*sides, strict=True)):
        scores = queries @ keys.transpose(1, 2) / math.sqrt(keys.shape[2])
        if causal:
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
        weights = scores.softmax(-1) * (1 if factors is None else factors[s])
        rows.append((weights @ values).transpose(0, 1).flatten(1))
    return torch.cat(rows)


def sequences_of(lengths: list[int]) -> PackedSequences:
    return PackedSequences.of(np.array(lengths))


@both_types
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n_heads", "d_k", "d_v"), [(4, 32, 32), (2, 64, 64), (3, 5, 7), (1, 16, 40)])
def test_self_attention_is_torchs(dtype, causal, n_heads, d_k, d_v):
    torch.manual_seed(n_heads)
    tgt = sequences_of([1, 17, 30, 3, 16, 64])
    widths = [n_heads * d_k, n_heads * d_k, n_heads * d_v]
    leaves = [leaf(len(tgt.positions), sum(widths), dtype=dtype)]
    (qkv,) = exact = copies(leaves)
    ours = training_ops.self_attention(leaves[0], tgt, n_heads=n_heads, widths=widths, causal=causal, dropout=0.0)
    assert_same(ours, reference_attention(*qkv.split(widths, 1), tgt, tgt, n_heads, causal), leaves, exact)


@both_types
@pytest.mark.parametrize(("n_heads", "d_k", "d_v"), [(8, 3, 5), (2, 32, 32), (1, 64, 64)])
def test_cross_attention_is_torchs(dtype, n_heads, d_k, d_v):
    tgt, src = sequences_of([5, 1, 20, 16]), sequences_of([33, 2, 1, 17])
    widths = [n_heads * d_k, n_heads * d_v]
    shapes = ((len(tgt.positions), widths[0]), (len(src.positions), sum(widths)))
    leaves = [leaf(*shape, dtype=dtype) for shape in shapes]
    q, kv = exact = copies(leaves)
    ours = training_ops.cross_attention(*leaves, tgt, src, n_heads=n_heads, widths=widths, dropout=0.0)
    reference = reference_attention(q, *kv.split(widths, 1), tgt, src, n_heads, False)
    assert_same(ours, reference, leaves, exact)


def attend(q, k, v, tgt, src, n_heads, causal, rate, seed):
    """self_attention where causal, else cross_attention, with the dropout of this seed."""
    torch.manual_seed(seed)
    widths = [x.shape[1] for x in (q, k, v)]
    if causal:
        qkv = torch.cat([q, k, v], 1)
        return training_ops.self_attention(qkv, tgt, n_heads=n_heads, widths=widths, causal=True, dropout=rate)
    kv = torch.cat([k, v], 1)
    return training_ops.cross_attention(q, kv, tgt, src, n_heads=n_heads, widths=widths[1:], dropout=rate)


def dropout_factors(tgt, src, n_heads, causal, rate, seed):
    """What each weight is multiplied by, a sentence (head, query, key): equal weights of one-hot values show it."""
    width = int(src.offsets.diff().max())
    q, k = torch.zeros(len(tgt.positions), n_heads), torch.zeros(len(src.positions), n_heads)
    lengths = src.offsets.diff().tolist()  # the padding is the last sentence
    v = torch.cat([torch.eye(width)[:n] for n in lengths]).repeat(1, n_heads)
    seen = by_sentence(attend(q, k, v, tgt, src, n_heads, causal, rate, seed), tgt, n_heads)
    if causal:
        return [x[:, :, :n] * torch.arange(1, n + 1)[:, None] for x, n in zip(seen, lengths, strict=True)]
    return [x[:, :, :n] * n for x, n in zip(seen, lengths, strict=True)]


@both_types
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("d_k", "d_v"), [(8, 6), (32, 32)])
def test_dropout_of_attention_weights_is_the_same_forwards_and_backwards(dtype, causal, d_k, d_v):
    tgt = sequences_of([1, 17, 30, 3, 16, 64])
    src = tgt if causal else sequences_of([5, 9, 1, 40, 2, 33])
    n_heads, rate = 4, 0.3
    shape = (tgt, src, n_heads, causal)
    factors = dropout_factors(*shape, rate, seed=7)
    every = [torch.ones_like(x, dtype=torch.bool) for x in factors]
    drawn = torch.cat([x[seen.tril() if causal else seen] for x, seen in zip(factors, every, strict=True)])
    assert float((drawn == 0).float().mean()) == pytest.approx(rate, abs=0.02)
    torch.testing.assert_close(drawn[drawn > 0], torch.full_like(drawn[drawn > 0], 1 / (1 - rate)))
    assert len({tuple(row.tolist()) for row in factors[5].flatten(0, 1)}) > 0.9 * n_heads * len(factors[5][0])
    sides = ((tgt, d_k), (src, d_k), (src, d_v))
    leaves = [leaf(len(s.positions), n_heads * width, dtype=dtype) for s, width in sides]
    exact = copies(leaves)
    ours = attend(*leaves, *shape, rate, seed=7)
    assert_same(ours, reference_attention(*exact, *shape, factors), leaves, exact)


def test_attention_that_does_not_fit_into_memory_is_an_error_in_python(monkeypatch):
    """In C++ it would end the process."""
    tgt = sequences_of([9000])
    qkv = torch.zeros(len(tgt.positions), 6)
    monkeypatch.setattr(training_ops, "free_memory", lambda: 2.0**20)
    with pytest.raises(MemoryError, match=r"attention of 9,000 tokens to 9,000 takes [0-9,]+ bytes"):
        training_ops.self_attention(qkv, tgt, n_heads=1, widths=[2, 2, 2], causal=True, dropout=0.0)


def test_attention_with_huge_scores_stays_finite():
    tgt = sequences_of([7])
    qkv = leaf(len(tgt.positions), 96, dtype=torch.float32, scale=300.0)
    out = training_ops.self_attention(qkv, tgt, n_heads=2, widths=[32, 32, 32], causal=True, dropout=0.0)
    (gradient,) = torch.autograd.grad(out.sum(), qkv)
    assert out.isfinite().all() and gradient.isfinite().all()


@both_types
@pytest.mark.parametrize(("n", "smoothing"), [(1, 0.0), (64, 0.1), (700, 0.1)])
@pytest.mark.parametrize("biased", [False, True])
def test_the_loss_and_its_gradients_are_torchs(dtype, smoothing, n, biased):
    torch.manual_seed(n)
    leaves = [leaf(n, 16, dtype=dtype), leaf(1001, 16, dtype=dtype, scale=0.2)]
    leaves += [leaf(1001, dtype=dtype)] if biased else []
    features, weight, *biases = exact = copies(leaves)
    targets = torch.randint(1001, (n,))
    options = {"label_smoothing": smoothing, "bias": leaves[2] if biased else None}
    loss, nll = projected_loss(CpuBackend(), *leaves[:2], targets, **options)
    logits = features @ weight.T + sum(biases)
    reference = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(nll, F.cross_entropy(logits, targets, reduction="sum"), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(loss, reference, rtol=1e-3, atol=1e-3)
    for ours, grad in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(reference, exact), strict=True):
        torch.testing.assert_close(ours.float(), grad, **TOLERANCE[dtype])


@both_types
@pytest.mark.parametrize("n", [1, 64, 350])
@pytest.mark.parametrize("biased", [False, True])
def test_the_loss_of_two_passes_and_its_gradients_are_the_plain_ones(dtype, n, biased):
    torch.manual_seed(n)
    leaves = [leaf(2 * n, 16, dtype=dtype), leaf(1001, 16, dtype=dtype, scale=0.2)]
    leaves += [leaf(1001, dtype=dtype)] if biased else []
    exact, targets, options = copies(leaves), torch.randint(1001, (n,)), {"label_smoothing": 0.1, "consistency": 5.0}

    def losses(backend, features, weight, bias=None):
        return projected_loss(backend, features, weight, targets, bias=bias, **options)

    (loss, nll), (reference, true_nll) = losses(CpuBackend(), *leaves), losses(ReferenceBackend(), *exact)
    torch.testing.assert_close(nll, true_nll, rtol=1e-3, atol=1e-3)
    # Logits of size 1 are off by 2^-9 in bf16, and log P / Q by twice as much: of 2 nats of divergence that is little.
    torch.testing.assert_close(loss, reference, rtol=1e-4 if dtype is torch.float32 else 3e-3, atol=1e-3)
    for ours, grad in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(reference, exact), strict=True):
        scale = float(grad.abs().max())
        torch.testing.assert_close(ours.float() / scale, grad / scale, **TOLERANCE[dtype])


@pytest.mark.slow
@both_types
def test_the_gradient_of_two_passes_is_exact_whatever_their_distance(dtype):
    """By the logits as they are stored, so that nothing but the kernel's own arithmetic and the result is rounded."""
    torch.manual_seed(0)
    n, vocab, options = 40, 1001, {"label_smoothing": 0.1, "consistency": 5.0}
    for distance in (0.0, 1e-2, 1.0, 30.0):
        first = 3 * torch.randn(n, vocab)
        logits = torch.cat([first, 5 + first + distance * torch.randn(n, vocab)]).to(dtype)
        targets, exact, by_threads = torch.randint(vocab, (n,)), logits.double(), []
        expected = consistent_loss_(exact, targets, **options)
        for threads in (1, 3):
            ours = logits.clone()
            torch.set_num_threads(threads)
            by_threads.append((*training_ops.loss_(ours, targets, **options), ours))
            torch.set_num_threads(1)
        assert all(map(torch.equal, *by_threads))
        for found, true in zip(by_threads[0], expected, strict=False):
            torch.testing.assert_close(found.double(), true, rtol=1e-5, atol=1e-5)
        # bf16: half a unit of 8 bits.
        rtol, atol = (1e-4, 1e-5 * (1 + distance)) if dtype is torch.float32 else (2**-8, 1e-5 * (1 + distance))
        torch.testing.assert_close(by_threads[0][2].double(), exact, rtol=rtol, atol=atol)


@pytest.mark.parametrize("loss_of", [projected_loss, partial(projected_loss, consistency=5.0)], ids=["one", "two"])
def test_a_loss_of_nan_is_told(loss_of):
    features = torch.randn(4, 4)
    features[3] = math.nan
    targets = torch.tensor([1, 2, 0, 3] if loss_of is projected_loss else [1, 2])
    loss, _ = loss_of(CpuBackend(), features, torch.randn(9, 4), targets, label_smoothing=0.1)
    assert loss.isnan()


@given(st.floats(0.01, 0.9))
@settings(max_examples=n_examples(20))
def test_dropout_drops_its_share_and_keeps_the_mean(rate):
    torch.manual_seed(1)
    n, d = 500, 200
    ids = torch.arange(n)
    table = torch.ones(n, d)
    dropped = training_ops.embed(ids, torch.zeros_like(ids), table, torch.zeros(1, d), scale=1.0, dropout=rate)
    deviation = math.sqrt(rate * (1 - rate) / (n * d))
    assert abs(float((dropped == 0).float().mean()) - rate) < 6 * deviation
    assert set(dropped.unique().tolist()) <= {0.0, dropped.max().item()}
    assert dropped.max().item() == pytest.approx(1 / (1 - rate), rel=1e-5)
    by_column, by_row = (dropped == 0).float().mean(0), (dropped == 0).float().mean(1)
    assert float((by_column - rate).abs().max()) < 6 * math.sqrt(rate * (1 - rate) / n)
    assert float((by_row - rate).abs().max()) < 6 * math.sqrt(rate * (1 - rate) / d)


def test_the_backward_pass_drops_what_the_forward_pass_dropped():
    torch.manual_seed(2)
    table = torch.ones(50, 40, requires_grad=True)
    ids = torch.arange(50)
    dropped = training_ops.embed(ids, torch.zeros_like(ids), table, torch.zeros(1, 40), scale=1.0, dropout=0.4)
    (gradient,) = torch.autograd.grad(dropped.sum(), table)
    torch.testing.assert_close(gradient, dropped.detach())
    # LayerNorm(0 + dropout(branch)) with weights on one column only: a dropped element has no influence.
    branch = torch.randn(50, 40, requires_grad=True)

    def normalised(branch):
        torch.manual_seed(3)
        rest = (torch.ones(40), torch.zeros(40))
        return training_ops.sum_and_norm(torch.zeros(50, 40), branch, *rest, dropout=0.5, epsilon=1e-5)[1]

    y = normalised(branch)
    (gradient,) = torch.autograd.grad((y * torch.randn(50, 40)).sum(), branch)
    assert torch.equal(y, normalised(branch))
    fallen = (gradient == 0).float().mean().item()
    assert 0.4 < fallen < 0.6
    with torch.no_grad():
        moved = torch.where(gradient == 0, branch + 1.0, branch)
    assert torch.equal(normalised(moved), y)


@both_types
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_same_call_gives_the_same_bits_with_any_number_of_threads(dtype, dropout):
    """Whichever thread takes which rows: sums over rows are those of fixed pieces, added in their order."""
    torch.manual_seed(4)
    n, d, vocab = 999, 70, 50  # neither whole pieces nor whole vectors
    branch, table = leaf(n, d, dtype=dtype), leaf(vocab, d, dtype=dtype)
    gain, bias, weights = leaf(d, dtype=dtype), leaf(d, dtype=dtype), torch.randn(n, d)
    ids, places = torch.randint(vocab, (n,)), torch.arange(n) % 9
    runs = []
    try:
        for n_threads in (1, 2, 3, 5, 5, 5):
            torch.set_num_threads(n_threads)
            torch.manual_seed(5)  # of dropout
            x = training_ops.embed(ids, places, table, torch.ones(9, d, dtype=dtype), scale=2.0, dropout=dropout)
            _, normal = training_ops.sum_and_norm(x, branch, gain, bias, dropout=dropout, epsilon=1e-5)
            hidden = training_ops.bias_relu(normal * 2, bias)
            runs.append(torch.autograd.grad((hidden.float() * weights).sum(), [branch, table, gain, bias]))
    finally:
        torch.set_num_threads(1)
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


def test_two_dropouts_differ():
    ids = torch.arange(20)
    table, positions = torch.ones(20, 32), torch.zeros(1, 32)
    a, b = (training_ops.embed(ids, torch.zeros_like(ids), table, positions, scale=1.0, dropout=0.5) for _ in range(2))
    assert not torch.equal(a, b)


@pytest.mark.slow
@given(n=st.integers(1, 40_000), n_steps=st.integers(1, 4), in_bf16=st.booleans())
@settings(max_examples=n_examples(20))
def test_adam_is_torchs_and_leaves_no_gradient(n, n_steps, in_bf16):
    torch.manual_seed(n)
    weight = torch.randn(n)
    expected = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.Adam([expected], lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    mean, square, copy = torch.zeros(n), torch.zeros(n), weight.bfloat16() if in_bf16 else None
    for step in range(1, n_steps + 1):
        gradient = torch.randn(n) * 10.0 ** torch.randint(-6, 2, (n,))
        expected.grad = gradient.clone()
        optimizer.step()
        training_ops.adam_step(
            *(weight, mean, square, gradient), copy=copy, step=step, rate=0.01, betas=(0.9, 0.98), epsilon=1e-9
        )
        assert not gradient.any()
    state = optimizer.state[expected]
    for ours, torchs in ((weight, expected.detach()), (mean, state["exp_avg"]), (square, state["exp_avg_sq"])):
        torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=5e-6)  # moments may cancel
    assert copy is None or torch.equal(copy, weight.bfloat16())


def test_a_gradient_in_bf16_is_added_in_fp32():
    torch.manual_seed(1)
    total, gradient = torch.randn(3, 7001), torch.randn(3, 7001).bfloat16()
    expected = total + gradient.float()
    training_ops.add_gradient(gradient, total)
    assert torch.equal(total, expected)
