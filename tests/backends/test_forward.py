"""The forward pass as training and scoring run it, by each backend."""

import itertools

import pytest
import torch
from tests.conftest import OTHERS, batch_of, random_pairs

from heed.backends.dispatch import backend_for
from heed.backends.reference import ReferenceBackend
from heed.backends.training_protocol import Backend
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer


@pytest.fixture(params=["cpu", "reference"])
def backend(request) -> Backend:
    if request.param == "reference":
        return ReferenceBackend()
    found = backend_for(Transformer(Architecture(n_layers=1, d_model=2, d_ff=2, n_heads=1), 4))
    if isinstance(found, ReferenceBackend):
        pytest.skip("needs the kernels")
    return found


@pytest.mark.parametrize("kind", ["attention_dropout", "word_dropout"])
def test_other_kinds_of_dropout_act_in_training_alone(backend, small_arch, kind):
    model = Transformer(small_arch.model_copy(update={"dropout": 0.0, kind: 0.4}), 50)
    src, src_mask = random_pairs(6, seed=1)
    tgt, tgt_mask = random_pairs(6, seed=2)

    def features(seed):
        torch.manual_seed(seed)
        return backend.target_features(model, batch_of(src, src_mask, tgt, tgt_mask))

    model.train()
    assert torch.equal(features(1), features(1)) and not torch.allclose(features(1), features(2), atol=1e-2)
    model.eval()
    assert torch.equal(features(1), features(2))


def test_word_dropout_of_almost_all_leaves_positions_alone(backend, small_arch):
    model = Transformer(small_arch.model_copy(update={"dropout": 0.0, "word_dropout": 1 - 1e-9}), 50).train()
    mask = torch.ones(3, 8, dtype=torch.bool)
    ours, others = (
        backend.target_features(model, batch_of(torch.full((3, 8), i), mask, torch.full((3, 8), i + 1), mask))
        for i in (4, 30)
    )
    assert torch.equal(ours, others) and not torch.equal(ours[0], ours[1])


def test_tokens_that_are_cut_off_keep_their_positions_alone(backend, small_arch):
    model = Transformer(small_arch.model_copy(update={"dropout": 0.0}), 50).train()
    (src, src_mask), (tgt, tgt_mask) = random_pairs(6, seed=1), random_pairs(6, seed=2)
    src_kept, tgt_kept = torch.rand(src.shape) < 0.7, torch.rand(tgt.shape) < 0.7
    other_src, other_tgt = src.where(src_kept, 7), tgt.where(tgt_kept, 7)
    kept = src_kept[src_mask].numpy(), tgt_kept[tgt_mask].numpy()
    batches = [batch_of(src, src_mask, tgt, tgt_mask), batch_of(other_src, src_mask, other_tgt, tgt_mask)]
    whole, cut, cut_of_others = (
        backend.target_features(model, batch)
        for batch in (batches[0], *(batch._replace(keep_masks=kept) for batch in batches))
    )
    assert torch.equal(cut, cut_of_others) and not torch.allclose(cut, whole, atol=1e-2)


@pytest.mark.parametrize("changes", [{}, {"positions": "learned", "radius": 3}, {**OTHERS, "share": "tgt"}])
def test_packed_sequences_lack_the_words_of_the_padded_batch(changes):
    """Features and gradients with word dropout: without padding by the kernels, and with it by PyTorch alone."""
    torch.manual_seed(5)
    options = {"word_dropout": 0.3, "max_positions": 30, **changes}
    arch = Architecture(n_layers=2, d_model=48, d_ff=80, n_heads=3, dropout=0.0, **options)
    model = Transformer(arch, 120).train()
    lengths, tgt_lengths = torch.tensor([9, 1, 30, 4]), torch.tensor([3, 12, 1, 7])
    src_mask = torch.arange(30)[None] < lengths[:, None]
    tgt_mask = torch.arange(12)[None] < tgt_lengths[:, None]
    src, tgt_in = torch.randint(120, (4, 30)), torch.randint(120, (4, 12))
    weights = torch.randn(int(tgt_mask.sum()), 48)
    results = []
    for backend in (backend_for(model), ReferenceBackend()):
        torch.manual_seed(6)
        features = backend.target_features(model, batch_of(src, src_mask, tgt_in, tgt_mask))
        model.zero_grad()
        (features * weights).sum().backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        results.append((features.detach(), gradients))
    (ours, our_gradients), (reference, gradients) = results
    torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)
    assert our_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(our_gradients[name], gradient, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: n + m)


@pytest.mark.parametrize(("positions", "dropout"), [("sinusoid", 0.0), ("learned", 0.5)])
@pytest.mark.parametrize("wrong", [50, 10**6, -1, -(2**40)])
def test_ids_beyond_the_vocabulary_are_refused_everywhere(backend, wrong, positions, dropout):
    """Of a source, 20 more ids are known."""
    options = {"positions": positions, "word_dropout": dropout, "share": "none"}
    good, bad, bad_src = (torch.tensor([[3, i, 5]]) for i in (4, wrong, wrong + 20 if wrong > 0 else wrong))
    mask = torch.ones(1, 3, dtype=torch.bool)
    for start, (src, tgt) in itertools.product(("bos", "zero"), ((bad_src, good), (good, bad))):
        arch = Architecture(n_layers=1, d_model=16, d_ff=16, n_heads=2, decoder_start=start, **options)
        model = Transformer(arch, 50, 70).train()
        with pytest.raises(IndexError):
            backend.target_features(model, batch_of(src, mask, tgt, mask))
        with pytest.raises(IndexError):
            model(src, mask, tgt)
