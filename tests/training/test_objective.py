"""The loss against torch's, equation 3 against numbers worked out by hand."""

import pytest
import torch
import torch.nn.functional as F

from heed.backends.reference import ReferenceBackend
from heed.training.objective import learning_rate, projected_loss


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


def test_equation_3_worked_out_by_hand():
    # 512^-0.5 = 0.04419417; at step 4000 both terms are 4000^-0.5 = 0.01581139: 6.987712e-4
    assert learning_rate(4000, d_model=512, warmup_steps=4000) == pytest.approx(6.987712e-4, rel=1e-6)
    # step 1: 0.04419417 · 4000^-1.5 = 0.04419417 · 3.952847e-6 = 1.746928e-7
    assert learning_rate(1, d_model=512, warmup_steps=4000) == pytest.approx(1.746928e-7, rel=1e-6)
    # step 100,000: 0.04419417 · 0.003162278 = 1.397542e-4
    assert learning_rate(100_000, d_model=512, warmup_steps=4000) == pytest.approx(1.397542e-4, rel=1e-6)
    assert learning_rate(7, d_model=512, warmup_steps=4000, factor=2.5) == pytest.approx(
        2.5 * learning_rate(7, d_model=512, warmup_steps=4000)
    )
