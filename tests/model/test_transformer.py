"""The network against torch's own attention, the formulas, and itself by other roads."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.conftest import random_pairs

from heed.config import validated
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.attention import AttentionMask, Dropout, attention, attention_probabilities
from heed.model.cost import n_parameters
from heed.model.transformer import Transformer, sinusoid


def test_attention_equals_torchs_fused_attention():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 6)
    mask = torch.rand(2, 1, 4, 5) > 0.4
    mask[..., 0] = True
    ours = attention(q, k, v, bias_of(mask), dropout=Dropout(0.0))
    assert torch.allclose(ours, F.scaled_dot_product_attention(q, k, v, attn_mask=mask), atol=1e-6)


@pytest.mark.parametrize("radius", [None, 3])
def test_attention_as_a_gpu_takes_it_gives_the_same_model(small_arch, radius, monkeypatch):
    """Logits and gradients of whole targets, and of targets id by id, with padding on both sides."""
    torch.manual_seed(1)
    model = Transformer(small_arch.model_copy(update={"dropout": 0.0, "radius": radius}), 50)
    src, src_mask = random_pairs(6, seed=1)
    tgt, tgt_mask = random_pairs(6, seed=2)
    results = []
    for fused in (False, True):
        if fused:
            monkeypatch.setattr(torch.Tensor, "is_cpu", False)  # the network asks nothing else about a device
        logits = model(src, src_mask, tgt)
        state = model.start(model.encode(src, src_mask), src_mask)
        steps = torch.cat([model.decode(tgt[:, i : i + 1], state) for i in range(tgt.shape[1])], dim=1)
        model.zero_grad()
        logits[tgt_mask].square().sum().backward()
        results.append((logits[tgt_mask], steps[tgt_mask], *(p.grad for p in model.parameters())))
    for reference, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-4)


def bias_of(mask: torch.Tensor, dtype: torch.dtype = torch.float32) -> AttentionMask:
    return AttentionMask(torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min / 2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "radius"), [(2, 1), (7, 3), (12, 3), (12, 5), (9, 20), (2100, 100)])
def test_restricted_attention_is_attention_under_a_band(n, radius, causal):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, n, 8), torch.randn(2, 3, n, 8), torch.randn(2, 3, n, 6)
    lengths = torch.tensor([n, max(1, n - 2)])
    real = (torch.arange(n) < lengths[:, None])[:, None, None, :]
    ahead = torch.arange(n) - torch.arange(n)[:, None]
    band = (ahead.abs() <= radius) & ((ahead <= 0) | (not causal))
    expected = attention(q, k, v, bias_of(band & real), dropout=Dropout(0.0))
    mask = AttentionMask(bias_of(real).bias, causal=causal, radius=radius)
    found = attention(q, k, v, mask, dropout=Dropout(0.0))
    probabilities = attention_probabilities(q, k, mask)
    some = (band & real).any(-1)[:, 0]  # a query of padding, all of whose neighbours are padding, may give anything
    for ours in (found, probabilities @ v):
        for sentence in range(2):
            assert torch.allclose(ours[sentence][:, some[sentence]], expected[sentence][:, some[sentence]], atol=1e-6)


@pytest.mark.parametrize("radius", [1, 3, 100])
def test_a_radius_holds_in_steps_and_at_once_and_one_as_long_as_the_text_restricts_nothing(radius):
    torch.manual_seed(1)
    arch = Architecture(n_layers=2, d_model=16, d_ff=32, n_heads=2, radius=radius)
    model = Transformer(arch, 50).eval()
    src, src_mask = random_pairs(3, seed=1)
    tgt = torch.randint(3, 50, (3, 9))
    with torch.no_grad():
        at_once = model(src, src_mask, tgt)
        state = model.start(model.encode(src, src_mask), src_mask)
        steps = [model.decode(tgt[:, i : i + n], state) for i, n in ((0, 1), (1, 1), (2, 3), (5, 1), (6, 1), (7, 2))]
        assert state.caches[0].k.shape[2] == min(9, radius)  # so a step costs no more the longer the text
        model.arch = arch.model_copy(update={"radius": None})
        unrestricted = model(src, src_mask, tgt)
    assert torch.allclose(torch.cat(steps, dim=1), at_once, atol=1e-5)
    assert torch.allclose(unrestricted, at_once, atol=1e-5) == (radius == 100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_that_may_attend_to_nothing_gives_numbers(dtype):
    q = k = v = torch.randn(1, 1, 2, 4, dtype=dtype)
    mask = torch.tensor([[[[True, False], [False, False]]]])
    result = attention(q, k, v, bias_of(mask, dtype), dropout=Dropout(0.0))
    assert torch.isfinite(result).all()
    assert torch.allclose(result[0, 0, 1].float(), v[0, 0].float().mean(0), atol=1e-2)


def test_position_table_equals_the_formula_worked_out_number_by_number():
    table = sinusoid(2000, 6)
    for pos in (0, 1, 7, 1999):
        for i in range(3):
            angle = pos / 10000 ** (2 * i / 6)
            assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize(
    ("arch", "vocab_size", "millions"),
    [  # Table 3's last column; the vocabulary that fits it is PAPER's "about 41,000", and 35,800 for big
        (Architecture(), 41_000, 65),
        (Architecture(), 37_000, 63),
        (Architecture(d_k=16, d_v=64), 41_000, 58),
        (Architecture(d_k=32, d_v=64), 41_000, 60),
        (Architecture(n_layers=2), 41_000, 36),
        (Architecture(n_layers=4), 41_000, 50),
        (Architecture(n_layers=8), 41_000, 80),
        (Architecture(d_model=256, d_k=32, d_v=32), 41_000, 28),
        (Architecture(d_model=1024, d_k=128, d_v=128), 41_000, 168),
        (Architecture(d_ff=1024), 41_000, 53),
        (Architecture(d_ff=4096), 41_000, 90),
        (Architecture(d_model=1024, d_ff=4096, n_heads=16), 35_800, 213),
    ],
)
def test_parameter_counts_are_those_of_table_3(arch, vocab_size, millions):
    assert n_parameters(arch, vocab_size) == pytest.approx(millions * 1e6, abs=0.75e6)


def test_dropout_drops_its_rate_and_keeps_the_mean():
    dropout = Dropout(0.3).train()
    torch.manual_seed(0)
    x = torch.ones(1000, 1001)
    y = dropout(x)
    # Standard deviations over a million draws: 0.0005 of the rate, 0.0007 of the mean; five of them allowed.
    assert (y == 0).float().mean().item() == pytest.approx(0.3, abs=0.0025)
    assert y.mean().item() == pytest.approx(1.0, abs=0.004)
    assert y.unique().tolist() == pytest.approx([0, 1 / 0.7], rel=1e-4)
    assert torch.equal(dropout.eval()(x), x)
    assert torch.isfinite(Dropout(1 - 2**-20).train()(x)).all()  # rounded to the largest rate below 1


def test_width_that_heads_do_not_divide_is_refused_with_both_numbers():
    with pytest.raises(HeedError, match=r"d_model=32 is not a multiple of n_heads=5"):
        validated(Architecture, {"d_model": 32, "n_heads": 5}, where="recipe.toml: model")


def test_more_positions_than_learned_are_refused():
    model = Transformer(Architecture(n_layers=1, d_model=8, n_heads=2, positions="learned", max_positions=4), 10)
    with pytest.raises(HeedError, match="max_positions=4"):
        model.encode(torch.full((1, 5), 3), torch.ones(1, 5, dtype=torch.bool))


@pytest.mark.parametrize("n_layers", [1, 6])
@pytest.mark.parametrize("d_model", [128, 512])
def test_a_new_models_encoder_keeps_its_tokens_apart(n_layers, d_model):
    torch.manual_seed(1)
    arch = Architecture(n_layers=n_layers, d_model=d_model, d_ff=2 * d_model, n_heads=4, dropout=0.0)
    model = Transformer(arch, 200).eval()
    src = torch.randint(0, 200, (8, 14))
    with torch.no_grad():
        memory, embedded = model.encode(src, torch.ones_like(src, dtype=torch.bool)), model.src_embedding(src)
    assert torch.cosine_similarity(memory, embedded, dim=-1).mean() > 0.6
    assert torch.cosine_similarity(memory[:, :1], memory[:, 1:], dim=-1).mean() < 0.5
    # Each sub-layer's last matrix, in Xavier's measure: deviation √(2 / (inputs + outputs)), times 1 / √(sub-layers).
    last = [
        [part for layer in model.encoder for part in (layer.self_attention.out, layer.feed_forward.outer)],
        [
            part
            for layer in model.decoder
            for part in (layer.self_attention.out, layer.cross_attention.out, layer.feed_forward.outer)
        ],
    ]
    for projections in last:
        for matrix in (projection.weight for projection in projections):
            expected = (2 / sum(matrix.shape) / len(projections)) ** 0.5
            assert matrix.std().item() == pytest.approx(expected, rel=0.02)
    for layer in model.encoder:
        assert layer.feed_forward.inner.weight.std().item() == pytest.approx((2 / (3 * d_model)) ** 0.5, rel=0.02)
