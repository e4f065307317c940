"""The trainer's step on a GPU: the CPU's losses, and nothing in it waits for the device."""

import pytest
import torch

from heed.errors import HeedError
from heed.training.step import accumulate_gradients
from tests.conftest import OTHERS
from tests.gpu.conftest import CPU, SETTINGS, Training, architecture
from tests.gpu.emulation import CUDA

OPTIONS = {
    "base": {},
    "share the target's matrices": {"share": "tgt"},
    "other Transformers'": OTHERS,
    "all others at once": {"share": "none", "positions": "learned", "radius": 3, "d_k": 7, "d_v": 5},
}
RANDOM = {
    "all dropouts": {"dropout": 0.1, "attention_dropout": 0.1, "word_dropout": 0.1},
    "all dropouts and a radius": {"dropout": 0.1, "attention_dropout": 0.1, "word_dropout": 0.1, "radius": 2},
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# fp32: the order of sums. bf16: a number has 8 significant bits, 0.4 %, and attention rounds at other places; over the
# 300 tokens of a loss most of that cancels.
TOLERANCES = {"fp32": 1e-6, "bf16": 1e-3}


@pytest.mark.slow
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_step_has_the_losses_of_the_cpu_and_waits_for_nothing(cuda, corpus, options, precision):
    """Waiting: reading a number, indices from a mask or from CPU memory, a copy that is pageable or blocks, an event.

    From the batches in CPU memory to the optimizer's last operation. The first step is left out, where tables grow.
    """
    arch, dtype = architecture(**options), DTYPES[precision]
    expected = Training.begin(corpus, arch, CPU, dtype).losses(3)
    training = Training.begin(corpus, arch, CUDA, dtype)
    results = [training.step(training.batch(0))]
    cuda.forget()
    results += [training.step(training.batch(number)) for number in (1, 2)]
    assert not cuda.waits
    assert [float(result.loss) for result in results] == pytest.approx(expected, rel=TOLERANCES[precision])
    assert [result.wait().finite for result in results] == [True] * 3
    assert cuda.places() == {("training/step.py", "QueuedStep.wait")}


@pytest.mark.slow
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("options", RANDOM.values(), ids=RANDOM)
def test_a_step_with_dropout_depends_on_the_seed_alone_and_waits_for_nothing(cuda, corpus, options, precision):
    losses = []
    for _ in range(2):
        training = Training.begin(corpus, architecture(**options), CUDA, DTYPES[precision])
        first = training.step(training.batch(0))
        cuda.forget()
        second = training.step(training.batch(1))
        assert not cuda.waits
        losses.append([float(result.loss) for result in (first, second)])
    assert losses[0] == losses[1]
    without = Training.begin(corpus, architecture(), CPU, DTYPES[precision]).losses(2)
    # What dropout changes in an untrained model's loss, and more than rounding does.
    assert losses[0] == pytest.approx(without, rel=0.05) and losses[0] != pytest.approx(without, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("precision", DTYPES)
def test_a_step_of_two_passes_has_the_loss_of_the_cpu_and_waits_for_nothing(cuda, corpus, precision):
    """Almost all is cut off in the second, since a GPU draws other numbers."""
    settings = SETTINGS.model_copy(update={"consistency": 5.0, "cutoff": 1 - 1e-9})
    training = Training.begin(corpus, architecture(), CUDA, DTYPES[precision], settings)
    results = [training.step(training.batch(0))]
    cuda.forget()
    results.append(training.step(training.batch(1)))
    assert not cuda.waits
    expected = Training.begin(corpus, architecture(), CPU, DTYPES[precision], settings).losses(2)
    assert [float(result.loss) for result in results] == pytest.approx(expected, rel=TOLERANCES[precision])


@pytest.mark.slow
@pytest.mark.parametrize("precision", DTYPES)
def test_clipping_bounds_the_gradient_and_waits_for_nothing(cuda, corpus, precision):
    clip_norm = 1e-3
    settings = SETTINGS.model_copy(update={"clip_norm": clip_norm})
    training = Training.begin(corpus, architecture(), CUDA, DTYPES[precision], settings)
    first = training.step(training.batch(0))
    # Adam's first moment after one step is 1 - β1 of the gradient (Kingma & Ba's algorithm 1).
    moments = [state["exp_avg"].flatten() for state in training.optimizer.state.values()]
    norm = float(torch.linalg.vector_norm(torch.cat(moments)))
    assert norm == pytest.approx((1 - settings.adam_beta1) * clip_norm, rel=1e-3)
    cuda.forget()
    second = training.step(training.batch(1))
    assert not cuda.waits
    expected = Training.begin(corpus, architecture(), CPU, DTYPES[precision], settings).losses(2)
    assert [float(first.loss), float(second.loss)] == pytest.approx(expected, rel=TOLERANCES[precision])


@pytest.mark.slow
@pytest.mark.parametrize("precision", DTYPES)
def test_a_step_that_is_not_finite_leaves_the_weights_alone(cuda, corpus, precision):
    training = Training.begin(corpus, architecture(), CUDA, DTYPES[precision])
    training.step(training.batch(0))
    gain = dict(training.weights.masters.named_parameters())["encoder.0.feed_forward_norm.weight"]
    healthy = gain.detach().clone()
    with torch.no_grad():
        gain[3] = torch.nan
    training.weights.copy_to_compute()
    before = training.parameters()
    cuda.forget()
    result = training.step(training.batch(1))
    assert not cuda.waits
    assert not result.wait().finite and float(result.loss) == float(result.nll) == 0
    for name, tensor in training.parameters().items():
        assert torch.equal(tensor.nan_to_num(), before[name].nan_to_num()), name
    with torch.no_grad():
        gain.copy_(healthy)
    training.weights.copy_to_compute()
    result = training.step(training.batch(1))
    assert result.wait().finite and float(result.loss) > 0
    moved = [name for name, tensor in training.parameters().items() if not torch.equal(tensor, before[name])]
    assert len(moved) == len(before)


def test_micro_batches_become_so_small_that_the_device_holds_them(emulated, corpus):
    """The feed-forward layer's inner activations are the largest tensors: tokens × d_ff × 4 bytes."""
    d_ff = 4096
    arch = architecture(n_layers=1, d_ff=d_ff)
    settings = SETTINGS.model_copy(update={"micro_batch_tokens": 600})
    training = Training.begin(corpus, arch, CUDA, settings=settings)
    emulated.largest_allocation = 200 * d_ff * 4
    training.fit()
    assert training.batches.micro_tokens == 150
    assert training.step(training.batch(0)).wait().finite
    emulated.largest_allocation = 5 * d_ff * 4
    with pytest.raises(HeedError, match="not even one pair of 10 tokens fits into memory"):
        training.fit()


def test_no_causal_mask_is_built_where_the_fused_attention_needs_none(emulated, corpus):
    training = Training.begin(corpus, architecture(), CUDA)
    training.step(training.batch(0))
    assert emulated.operations["scaled_dot_product_attention"] == 3 * 2 * len(training.batch(0))
    assert emulated.operations["tril"] == 0


def test_masks_are_built_once_for_all_layers(emulated, corpus):
    n_operations = []
    for n_layers in (1, 3):
        training = Training.begin(corpus, architecture(n_layers=n_layers), CUDA)
        training.step(training.batch(0))
        emulated.forget()
        accumulate_gradients(training.weights, training.batch(1), training.settings, n_tgt_tokens=1)
        n_operations.append(emulated.mask_operations.copy())
    assert n_operations[0] and n_operations[0] == n_operations[1]
