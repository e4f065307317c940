"""The loss against torch's, and worked out by hand."""

import pytest
import torch
import torch.nn.functional as F

from heed.backends.reference import ReferenceBackend
from heed.training.loss import projected_loss


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize(("n_tokens", "vocab_size"), [(7, 11), (3000, 1500), (0, 11)])
def test_loss_and_gradients_equal_torchs_cross_entropy(epsilon, n_tokens, vocab_size):
    torch.manual_seed(0)
    features = torch.randn(n_tokens, 16, requires_grad=True)
    weight = torch.randn(vocab_size, 16, requires_grad=True)
    targets = torch.randint(0, vocab_size, (n_tokens,))
    loss, nll = projected_loss(ReferenceBackend(), features, weight, targets, label_smoothing=epsilon)
    (loss / 3).backward()
    ours = features.grad, weight.grad
    features.grad = weight.grad = None
    logits = features @ weight.T
    expected = F.cross_entropy(logits, targets, label_smoothing=epsilon, reduction="sum")
    (expected / 3).backward()
    # fp32 sums of thousands of terms, in another order
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert nll.item() == pytest.approx(F.cross_entropy(logits, targets, reduction="sum").item(), rel=1e-5)
    assert torch.allclose(ours[0], features.grad, atol=1e-5)
    assert torch.allclose(ours[1], weight.grad, atol=1e-3)


def test_smoothed_loss_worked_out_by_hand():
    # Two ids of probabilities 0.8 and 0.2, the first is right, ε = 0.1: target 0.95 and 0.05.
    # -(0.95 · ln 0.8 + 0.05 · ln 0.2) = 0.211986 + 0.080472 = 0.292458
    features = torch.tensor([[1.0]])
    weight = torch.tensor([[torch.log(torch.tensor(0.8))], [torch.log(torch.tensor(0.2))]])
    loss, nll = projected_loss(ReferenceBackend(), features, weight, torch.tensor([0]), label_smoothing=0.1)
    assert loss.item() == pytest.approx(0.292458, abs=1e-5)
    assert nll.item() == pytest.approx(0.223144, abs=1e-5)
