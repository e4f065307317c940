"""The loss against torch's, and worked out by hand."""

import pytest
import torch
import torch.nn.functional as F

from heed.backends.reference import ReferenceBackend
from heed.training.loss import projected_loss


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize(("n_tokens", "vocab_size"), [(7, 11), (3000, 1500), (0, 11)])
@pytest.mark.parametrize("biased", [False, True])
def test_loss_and_gradients_equal_torchs_cross_entropy(epsilon, n_tokens, vocab_size, biased):
    torch.manual_seed(0)
    leaves = [torch.randn(n_tokens, 16), torch.randn(vocab_size, 16), torch.randn(vocab_size)]
    features, weight, bias = (leaf.requires_grad_() for leaf in leaves)
    used = leaves if biased else leaves[:2]
    targets = torch.randint(0, vocab_size, (n_tokens,))
    options = {"label_smoothing": epsilon, "bias": bias if biased else None}
    loss, nll = projected_loss(ReferenceBackend(), features, weight, targets, **options)
    logits = F.linear(features, weight, options["bias"])
    expected = F.cross_entropy(logits, targets, label_smoothing=epsilon, reduction="sum")
    # fp32 sums of thousands of terms, in another order
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert nll.item() == pytest.approx(F.cross_entropy(logits, targets, reduction="sum").item(), rel=1e-5)
    ours, theirs = (torch.autograd.grad(of / 3, used, retain_graph=True) for of in (loss, expected))
    for our_gradient, gradient, atol in zip(ours, theirs, (1e-5, 1e-3, 1e-3), strict=False):
        assert torch.allclose(our_gradient, gradient, atol=atol)


def test_smoothed_loss_worked_out_by_hand():
    # Two ids of probabilities 0.8 and 0.2, the first is right, ε = 0.1: target 0.95 and 0.05.
    # -(0.95 · ln 0.8 + 0.05 · ln 0.2) = 0.211986 + 0.080472 = 0.292458
    features = torch.tensor([[1.0]])
    weight = torch.tensor([[torch.log(torch.tensor(0.8))], [torch.log(torch.tensor(0.2))]])
    loss, nll = projected_loss(ReferenceBackend(), features, weight, torch.tensor([0]), label_smoothing=0.1)
    assert loss.item() == pytest.approx(0.292458, abs=1e-5)
    assert nll.item() == pytest.approx(0.223144, abs=1e-5)
