"""One step: micro-batches sum to the batch's gradient, Adam is the paper's, nothing waits for a GPU."""

from copy import deepcopy

import pytest
import torch
from tests.conftest import SPECIAL
from tests.training.runs import BF16, FP32, copy_corpus

from heed.backends.cpu.build import library
from heed.backends.cpu.training import CpuBackend
from heed.data.batches.token_batches import BatchLimits, TokenBatches
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.training import step
from heed.training.optimizer import Adam
from heed.training.settings import TrainingSettings
from heed.training.step import MasterWeights, OutOfMemory, micro_batch_loss, train_step

# Of two passes the second sees positions alone, so that which tokens are cut off does not depend on the micro-batches.
LIMITS = BatchLimits(10**6, 10**6, 10**6, seed=1)
TWO_PASSES = TrainingSettings(consistency=5.0, cutoff=1 - 1e-9)


@pytest.mark.parametrize("settings", [TrainingSettings(), TWO_PASSES], ids=["one pass", "two passes"])
def test_micro_batches_give_the_gradient_of_the_whole_batch(tmp_path, number_tokenizer, settings):
    torch.manual_seed(2)
    model = Transformer(Architecture(n_layers=1, d_model=16, d_ff=16, n_heads=2, dropout=0.0), 50)
    corpus = copy_corpus(tmp_path / "c", 50, n_pairs=40)
    batches = TokenBatches(corpus, SPECIAL, LIMITS)
    ((whole,),) = batches.plan(0)
    gradients = []
    for parts in ([whole], [whole[:5], whole[5:17], whole[17:]]):
        weights = MasterWeights(model, FP32)
        collated = [batches.collate(rows) for rows in parts]
        n_tokens = sum(batch.n_tgt_tokens for batch in collated)
        for batch in collated:
            loss, _ = micro_batch_loss(weights.model, batch, settings)
            (loss / n_tokens).backward()
            weights.collect_gradients()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        model.zero_grad()
    for one, summed in zip(*gradients, strict=True):
        assert torch.allclose(one, summed, atol=1e-6)


@pytest.mark.parametrize("dropout", ["dropout", "attention_dropout", "word_dropout", "cutoff"])
def test_both_passes_of_a_batch_are_under_other_dropout(tmp_path, dropout):
    weights, batches = weights_of(FP32, **{dropout: 0.2} if dropout != "cutoff" else {}), one_batch(tmp_path / "c")
    weights.model.train()

    def loss_of(batch, consistency):
        torch.manual_seed(3)
        cutoff = {"cutoff": 0.2} if dropout == "cutoff" else {}
        with torch.no_grad():
            return micro_batch_loss(weights.model, batch, TrainingSettings(consistency=consistency, **cutoff))

    for batch in batches:
        little, much, more = (loss_of(batch, alpha) for alpha in (1e-9, 5.0, 10.0))
        divergence = (much[0] - little[0]) / 5
        assert divergence / batch.n_tgt_tokens > 1e-4
        torch.testing.assert_close(more[0] - little[0], 10 * divergence, rtol=1e-3, atol=1e-3)  # α weighs it
        assert little[1] == much[1] == more[1]


def test_adam_is_the_one_of_section_5(number_tokenizer):
    # One parameter, two steps, by hand: Kingma & Ba's algorithm 1 with β 0.9 and 0.98.
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 1.0)
    optimizer = Adam(model.parameters(), TrainingSettings())
    value, first, second = 1.0, 0.0, 0.0
    for n, gradient in enumerate((0.5, -0.25), start=1):
        model.weight.grad = torch.tensor([[gradient]])
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step(torch.tensor(True))
        first, second = 0.9 * first + 0.1 * gradient, 0.98 * second + 0.02 * gradient**2
        value -= 0.1 * (first / (1 - 0.9**n)) / ((second / (1 - 0.98**n)) ** 0.5 + 1e-9)
        assert model.weight.item() == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    "kernels", [pytest.param(True, marks=pytest.mark.skipif(library() is None, reason="needs the kernels")), False]
)
def test_every_road_of_adam_takes_torchs_steps_and_leaves_out_those_not_finite(kernels):
    """The state, too, is torch.optim.Adam's, by name and value, so that its checkpoints are ours."""
    torch.manual_seed(1)
    ours = torch.nn.Linear(300, 70)
    theirs, settings = deepcopy(ours), TrainingSettings()
    optimizer = Adam(ours.parameters(), settings)
    torchs = torch.optim.Adam(theirs.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    optimizer.param_groups[0]["lr"] = 0.01
    for n in range(6):
        pairs = [(parameter, parameter) for parameter in ours.parameters()]
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            other.grad = torch.randn(other.shape) * 10.0 ** torch.randint(-6, 2, other.shape)
            mine.grad = other.grad.clone() if n % 3 != 1 else torch.full_like(mine, torch.nan)
        finite = torch.tensor(n % 3 != 1)
        if not kernels or not CpuBackend().adam_step(optimizer, pairs, torch.zeros(1), finite):
            optimizer.step(finite)
        if finite:
            torchs.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        # a moment may cancel, and rounding in other places shifts its last bits
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=5e-6)
        torch.testing.assert_close(optimizer.state[mine], torchs.state[other], rtol=1e-5, atol=5e-6)


def one_batch(folder):
    batches = TokenBatches(copy_corpus(folder, 50, n_pairs=40), SPECIAL, LIMITS)
    ((rows,),) = batches.plan(0)
    return [batches.collate(rows[:10]), batches.collate(rows[10:])]


def weights_of(machine, **changes):
    torch.manual_seed(1)
    arch = Architecture(n_layers=1, d_model=16, d_ff=16, n_heads=2, **{"dropout": 0.0} | changes)
    return MasterWeights(Transformer(arch, 50), machine)


def test_the_views_of_what_is_summed_cover_its_memory_once(tmp_path):
    weights = weights_of(FP32)
    sums = weights.sums
    for i, view in enumerate((sums.gradients, sums.loss, sums.nll, sums.n_stopping, sums.seconds), start=1):
        assert not view.any()
        view.fill_(i)
    n_weights = sum(parameter.numel() for parameter in weights.masters.parameters())
    assert sums.buffer.tolist() == [1] * n_weights + [2, 3, 4, 5]
    assert all(bool((parameter.grad == 1).all()) for parameter in weights.masters.parameters())


@pytest.mark.parametrize("machine", [FP32, BF16], ids=["fp32", "bf16"])
def test_a_step_returns_its_sums_and_leaves_none(tmp_path, machine):
    weights, batches = weights_of(machine), one_batch(tmp_path / "c")
    with torch.no_grad():
        losses = [micro_batch_loss(weights.model, batch, TrainingSettings()) for batch in batches]
    optimizer = Adam(weights.masters.parameters(), TrainingSettings())
    options = {"rate": 1e-3, "stop": True, "seconds": 7.0}
    result = train_step(weights, optimizer, batches, TrainingSettings(), **options)
    assert result.loss == sum(loss for loss, _ in losses) and result.nll == sum(nll for _, nll in losses)
    assert result.wait() == (True, True, 7.0)
    assert not weights.sums.buffer.any()


@pytest.mark.parametrize("machine", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory."), ValueError("other")])
def test_a_step_that_memory_does_not_hold_changes_nothing(tmp_path, machine, error, monkeypatch):
    weights, batches = weights_of(machine), one_batch(tmp_path / "c")
    optimizer = Adam(weights.masters.parameters(), TrainingSettings())

    def move():
        return train_step(weights, optimizer, batches, TrainingSettings(), rate=1e-3)

    move()
    before = [tensor.clone() for p in weights.masters.parameters() for tensor in (p, *optimizer.state[p].values())]
    real, calls = step.micro_batch_loss, 0

    def limited(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise error
        return real(*arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(ValueError if str(error) == "other" else OutOfMemory):
        patch.setattr(step, "micro_batch_loss", limited)
        move()
    after = [tensor for p in weights.masters.parameters() for tensor in (p, *optimizer.state[p].values())]
    assert all(map(torch.equal, before, after))
    if str(error) != "other":
        assert not weights.sums.buffer.any()
        assert weights.model is weights.masters or all(p.grad is None for p in weights.model.parameters())


def test_clipping_divides_the_gradient_by_its_norm_over_the_limit(tmp_path):
    """By the first step of Adam, whose mean is a tenth of the gradient."""
    batches, gradients = one_batch(tmp_path / "c"), []
    for clip_norm in (None, 0.25):
        weights, settings = weights_of(FP32), TrainingSettings(clip_norm=clip_norm)
        optimizer = Adam(weights.masters.parameters(), settings)
        train_step(weights, optimizer, batches, settings, rate=1.0)
        means = [optimizer.state[parameter]["exp_avg"].flatten() for parameter in weights.masters.parameters()]
        gradients.append(10 * torch.cat(means))
    norm = torch.linalg.vector_norm(gradients[0])
    assert norm > 0.25
    torch.testing.assert_close(gradients[1], gradients[0] * 0.25 / norm, rtol=1e-5, atol=1e-8)
