"""The network against Hugging Face's MarianMTModel, torch's own attention, and itself by other roads."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import OTHERS, SPECIAL, n_examples, random_pairs
from tests.model.hugging_face import marian_of
from torch import nn

from heed.config import validated
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.attention import AttentionMask, Dropout, attention, attention_probabilities
from heed.model.attention_weights import attention_weights
from heed.model.cost import n_parameters
from heed.model.transformer import Transformer, sinusoid


def with_all_parameters_in_use(model: Transformer) -> Transformer:
    """Biases and norms start as 0 and 1: other values show that they are used."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


@pytest.mark.parametrize(
    ("changes", "src_vocab_size"),
    [
        ({}, None),
        ({"activation": "gelu", "n_decoder_layers": 1}, None),
        (OTHERS | {"norm": "post", "share": "tgt"}, 70),
    ],
    ids=["paper", "gelu", "Marian's own"],
)
def test_logits_equal_those_of_marian_with_padding_on_both_sides(small_arch, changes, src_vocab_size):
    torch.manual_seed(1)
    model = Transformer(small_arch.model_copy(update=changes), 50, src_vocab_size)
    if model.arch.decoder_start == "zero":  # Hugging Face stores this as an embedding of zeros
        model.tgt_embedding.weight.data[SPECIAL.bos] = 0
    reference = marian_of(with_all_parameters_in_use(model))
    src, src_mask = random_pairs(6, vocab_size=model.src_vocab_size, seed=1)
    tgt, tgt_mask = random_pairs(6, seed=2)
    tgt[:, 0] = SPECIAL.bos
    if model.arch.decoder_start == "zero":  # Heed does not read it
        model.tgt_embedding.weight.data[SPECIAL.bos] = 1
        reference.lm_head.weight = torch.nn.Parameter(model.output.weight.detach().clone())
    with torch.no_grad():
        memory = model.encode(src, src_mask)
        logits = model(src, src_mask, tgt)
        expected = reference(input_ids=src, attention_mask=src_mask.long(), decoder_input_ids=tgt)
    expected_memory = expected.encoder_last_hidden_state
    assert torch.allclose(memory[src_mask], expected_memory[src_mask], atol=1e-4)
    assert torch.allclose(logits[tgt_mask], expected.logits[tgt_mask], atol=1e-4)
    assert logits[tgt_mask].std() > 0.1  # not all alike, so the comparison means something


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_stacks_equal_torchs_transformer_with_the_norm_behind_and_before(norm, activation):
    torch.manual_seed(1)
    arch = Architecture(
        n_layers=2, n_decoder_layers=3, d_model=32, d_ff=48, n_heads=4, norm=norm, activation=activation,
        attention_bias=True,
    )  # fmt: skip
    model = with_all_parameters_in_use(Transformer(arch, 50))
    options = {"nhead": 4, "dim_feedforward": 48, "activation": activation, "norm_first": norm == "pre"}

    def attention_state(theirs: str, qkv: list[nn.Linear], out: nn.Linear) -> dict[str, torch.Tensor]:
        return {
            f"{theirs}.in_proj_weight": torch.cat([part.weight for part in qkv]),
            f"{theirs}.in_proj_bias": torch.cat([part.bias for part in qkv]),
            f"{theirs}.out_proj.weight": out.weight,
            f"{theirs}.out_proj.bias": out.bias,
        }

    def torchs(layer: nn.Module) -> nn.Module:
        is_decoder = hasattr(layer, "cross_attention")
        kind = nn.TransformerDecoderLayer if is_decoder else nn.TransformerEncoderLayer
        state = attention_state("self_attn", [layer.self_attention.qkv], layer.self_attention.out)
        norms = [layer.self_attention_norm, layer.feed_forward_norm]
        if is_decoder:
            source = layer.cross_attention
            state |= attention_state("multihead_attn", [source.q, source.kv], source.out)
            norms.insert(1, layer.cross_attention_norm)
        parts = {"linear1": layer.feed_forward.inner, "linear2": layer.feed_forward.outer}
        parts |= {f"norm{i}": norm for i, norm in enumerate(norms, start=1)}
        for name, part in parts.items():
            state |= {f"{name}.weight": part.weight, f"{name}.bias": part.bias}
        theirs = kind(32, **options, batch_first=True).eval()
        theirs.load_state_dict(state)
        return theirs

    src, src_mask = random_pairs(6, seed=1)
    tgt, tgt_mask = random_pairs(6, seed=2)
    with torch.no_grad():
        x, y = model._embed(src, "src", start=0), model._embed(tgt, "tgt", start=0)
        for layer in map(torchs, model.encoder):
            x = layer(x, src_key_padding_mask=~src_mask)
        memory = model.encoder_norm(x)
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
        for layer in map(torchs, model.decoder):
            y = layer(y, memory, tgt_mask=causal, memory_key_padding_mask=~src_mask)
        features = model.decode_features(tgt, model.start(model.encode(src, src_mask), src_mask))
    torch.testing.assert_close(features[tgt_mask], model.decoder_norm(y)[tgt_mask], rtol=0, atol=1e-5)


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


def test_other_programs_positions_equal_their_formulas():
    """Hugging Face's Marian (all sines first), and tensor2tensor's get_timing_signal_1d, which Marian follows."""
    halves, t2t = sinusoid(300, 6, "sinusoid-halves"), sinusoid(300, 6, "sinusoid-t2t")
    log_increment = math.log(10_000) / (6 / 2 - 1)
    for pos in (0, 1, 7, 299):
        for i in range(3):
            angle = pos / 10000 ** (2 * i / 6)
            assert halves[pos, i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert halves[pos, 3 + i].item() == pytest.approx(math.cos(angle), abs=1e-6)
            angle = pos * math.exp(-i * log_increment)
            assert t2t[pos, i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert t2t[pos, 3 + i].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_a_shifted_position_is_a_linear_function_of_the_position():
    # Section 3.5: PE(pos + k) = R(k) · PE(pos), one rotation a pair of columns.
    table, k = sinusoid(50, 8).double(), 5
    for i in range(4):
        angle = k / 10000 ** (2 * i / 8)
        rotation = torch.tensor(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], dtype=torch.float64
        )
        pair = table[:, 2 * i : 2 * i + 2]
        assert torch.allclose(pair[k:], pair[:-k] @ rotation.T, atol=1e-5)


@given(change_at=st.integers(1, 8), new_id=st.integers(3, 49))
@settings(max_examples=n_examples(20))
def test_no_position_sees_a_later_one(change_at, new_id):
    torch.manual_seed(3)
    model = Transformer(Architecture(n_layers=2, d_model=16, d_ff=32, n_heads=2), 50).eval()
    src, src_mask = random_pairs(2)
    tgt = torch.randint(3, 50, (2, 9))
    changed = tgt.clone()
    changed[:, change_at] = torch.where(tgt[:, change_at] == new_id, 3 + (new_id - 2) % 47, new_id)
    with torch.no_grad():
        before, after = model(src, src_mask, tgt), model(src, src_mask, changed)
    assert torch.equal(before[:, :change_at], after[:, :change_at])
    assert not torch.allclose(before[:, change_at:], after[:, change_at:])


def test_padding_never_changes_logits(small_model):
    src, mask = random_pairs(5)
    tgt = torch.randint(3, 50, (5, 6))
    with torch.no_grad():
        together = small_model(src, mask, tgt)
        for i in range(5):
            n = int(mask[i].sum())
            alone = small_model(src[i : i + 1, :n], mask[i : i + 1, :n], tgt[i : i + 1])
            # 1e-4: sums over keys in another order.
            assert torch.allclose(together[i], alone[0], atol=1e-4)


@pytest.mark.parametrize("positions", ["sinusoid", "learned"])
def test_decoding_step_by_step_equals_one_full_pass(positions):
    torch.manual_seed(4)
    arch = Architecture(n_layers=2, d_model=32, d_ff=64, n_heads=4, d_k=5, d_v=7, positions=positions)
    model = Transformer(arch, 50).eval()
    src, mask = random_pairs(3)
    tgt = torch.randint(3, 50, (3, 8))
    with torch.no_grad():
        full = model(src, mask, tgt)
        state = model.start(model.encode(src, mask), mask)
        parts = [model.decode(tgt[:, :3], state)] + [model.decode(tgt[:, i : i + 1], state) for i in range(3, 8)]
    assert torch.allclose(full, torch.cat(parts, dim=1), atol=1e-5)


def test_rows_of_a_beam_share_their_sentences_memory(small_model):
    src, mask = random_pairs(3)
    tgt = torch.randint(3, 50, (6, 4))
    with torch.no_grad():
        shared = small_model.decode(tgt, small_model.start(small_model.encode(src, mask), mask))
        copied = small_model(src.repeat_interleave(2, 0), mask.repeat_interleave(2, 0), tgt)
    assert torch.allclose(shared, copied, atol=1e-5)


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


def test_traced_attention_is_what_marian_attends_to(small_arch):
    torch.manual_seed(3)
    model = Transformer(small_arch, 50).eval()
    reference = marian_of(model)
    reference.set_attn_implementation("eager")
    src, tgt_in = torch.tensor([5, 9, 30, 2]), torch.tensor([1, 8, 8, 41, 7])
    traced = attention_weights(model, src.tolist(), tgt_in.tolist())
    with torch.no_grad():
        expected = reference(input_ids=src[None], decoder_input_ids=tgt_in[None], output_attentions=True)
    for ours, theirs in (
        (traced.encoder, expected.encoder_attentions),
        (traced.decoder, expected.decoder_attentions),
        (traced.cross, expected.cross_attentions),
    ):
        torch.testing.assert_close(ours, torch.cat(theirs), atol=1e-5, rtol=1e-4)


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
