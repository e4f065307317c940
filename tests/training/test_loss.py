"""The loss against torch's, and worked out by hand."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from heed.backends.reference import ReferenceBackend
from heed.training.loss import consistent_loss_, projected_loss, smoothed_loss_


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


def r_drop(logits, targets, *, label_smoothing, consistency):
    """(token): half the loss of Liang et al. 2021, equations 2 to 4, written out; logits: one pass, then the other."""
    smoothed = F.cross_entropy(logits, targets.repeat(2), label_smoothing=label_smoothing, reduction="none")
    log_p, log_q = torch.log_softmax(logits, dim=-1).chunk(2)
    divergences = (log_p.exp() * (log_p - log_q)).sum(-1) + (log_q.exp() * (log_q - log_p)).sum(-1)
    return (smoothed.view(2, -1).sum(0) + consistency / 2 * divergences) / 2


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [0.5, 5.0])
@pytest.mark.parametrize(("n_tokens", "vocab_size"), [(1, 2), (7, 11), (50, 1500)])
def test_the_loss_of_two_passes_and_its_gradient_are_those_of_r_drop(epsilon, alpha, n_tokens, vocab_size):
    torch.manual_seed(n_tokens)
    logits = 3 * torch.randn(2 * n_tokens, vocab_size, dtype=torch.float64)
    logits[n_tokens:] += 4  # which changes no probability
    targets, options = torch.randint(vocab_size, (n_tokens,)), {"label_smoothing": epsilon, "consistency": alpha}
    expected = r_drop(logits.requires_grad_(), targets, **options)
    (gradient,) = torch.autograd.grad(expected.sum(), logits)
    nll = F.cross_entropy(logits, targets.repeat(2), reduction="none").view(2, -1).mean(0)
    ours = logits.detach().clone()
    losses, nlls = consistent_loss_(ours, targets, **options)
    torch.testing.assert_close(losses, expected)  # fp64: to 1e-7 of the value
    torch.testing.assert_close(nlls, nll)
    torch.testing.assert_close(ours, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("n_tokens", "vocab_size"), [(7, 11), (1500, 1500), (0, 11)])
@pytest.mark.parametrize("biased", [False, True])
def test_gradients_of_two_passes_reach_features_weight_and_bias(n_tokens, vocab_size, biased):
    torch.manual_seed(0)
    leaves = [torch.randn(2 * n_tokens, 16), torch.randn(vocab_size, 16), torch.randn(vocab_size)]
    features, weight, bias = (leaf.requires_grad_() for leaf in leaves)
    used, targets = leaves if biased else leaves[:2], torch.randint(0, vocab_size, (n_tokens,))
    options = {"label_smoothing": 0.1, "consistency": 5.0}
    loss, _ = projected_loss(ReferenceBackend(), features, weight, targets, bias=bias if biased else None, **options)
    expected = r_drop(F.linear(features, weight, bias if biased else None), targets, **options).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)  # as above
    ours, theirs = (torch.autograd.grad(of / 3, used, retain_graph=True) for of in (loss, expected))
    for our_gradient, gradient in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our_gradient, gradient, rtol=1e-4, atol=1e-3)


def test_two_equal_passes_have_the_loss_and_the_gradient_of_one():
    torch.manual_seed(1)
    features, weight, targets = torch.randn(9, 16), torch.randn(30, 16), torch.randint(30, (9,))
    weight.requires_grad_()
    one = projected_loss(ReferenceBackend(), features, weight, targets, label_smoothing=0.1)
    options = {"label_smoothing": 0.1, "consistency": 5.0}
    two = projected_loss(ReferenceBackend(), features.repeat(2, 1), weight, targets, **options)
    torch.testing.assert_close(two, one)
    torch.testing.assert_close(*(torch.autograd.grad(of[0], weight)[0] for of in (two, one)))


def test_gradients_in_bf16_are_rounded_once():
    torch.manual_seed(2)
    in_bf16 = (8 * torch.randn(40, 50)).repeat(2, 1).add_(torch.randn(80, 50)).bfloat16()
    targets = in_bf16[:40].argmax(dim=1)  # where the gradient is a small difference of probability and target
    two_passes = partial(consistent_loss_, label_smoothing=0.1, consistency=5.0)
    one_pass = partial(smoothed_loss_, label_smoothing=0.1)
    for loss_of, logits in ((two_passes, in_bf16), (one_pass, in_bf16[:40])):
        ours, exact = logits.clone(), logits.float()
        loss_of(ours, targets)
        loss_of(exact, targets)
        torch.testing.assert_close(ours.float(), exact, rtol=2**-8, atol=1e-7)  # half a unit of 8 bits


def test_divergence_worked_out_by_hand():
    # P = (0.8, 0.2), Q = (0.5, 0.5), the first id is right, α = 6, nothing smoothed:
    # KL(P || Q) = 0.8 ln 1.6 + 0.2 ln 0.4 = 0.192745, KL(Q || P) = 0.5 ln 0.625 + 0.5 ln 2.5 = 0.223144.
    # (-ln 0.8 - ln 0.5) / 2 + 6 / 4 · (0.192745 + 0.223144) = 0.458145 + 0.623833 = 1.081979
    logits = torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log()
    loss, nll = consistent_loss_(logits, torch.tensor([0]), label_smoothing=0.0, consistency=6.0)
    assert loss.item() == pytest.approx(1.081979, abs=1e-5)
    assert nll.item() == pytest.approx(0.458145, abs=1e-5)
