"""Training passes over packed tokens: the plain network's losses and gradients, by attention's CPU kernels."""

import gc
import itertools
import logging
import sys
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from heed.backends.gpu import losses
from heed.backends.gpu.network import Regions, check_window
from heed.backends.gpu.packing import MAX_SEQUENCES, PassInputs, PassShape, divided, fill
from heed.backends.gpu.passes import GpuPasses, _runs
from heed.backends.gpu.training import GpuTrainingBackend
from heed.backends.training_protocol import PassSettings
from heed.data.batches.batch import Batch, make_batch
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.runtime.device import Machine
from heed.training.loss import consistent_loss_, smoothed_loss_
from heed.training.memory_probe import MemoryProbe
from heed.training.settings import TrainingSettings
from heed.training.step import MasterWeights, micro_batch_loss
from tests.conftest import OTHERS, SPECIAL
from tests.gpu.conftest import CPU, SETTINGS, VOCAB_SIZE, Training, architecture
from tests.gpu.emulation import CUDA
from tests.gpu.losses import consistent_loss_by_formula_, smoothed_loss_by_formula_
from tests.gpu.waits import PASSES

OPTIONS: dict[str, dict[str, Any]] = {
    "base": {},
    "share the target's matrices": {"share": "tgt"},
    "share nothing, learned positions": {"share": "none", "positions": "learned", "max_positions": 12},
    "other Transformers'": OTHERS,
    "gelu and biases": {"activation": "gelu", "output_bias": True, "attention_bias": True},
}
TWO_PASSES = SETTINGS.model_copy(update={"consistency": 5.0})


def uncompiled() -> Regions:
    return Regions(lambda name: None)


def passes_on_cpu(
    weights: MasterWeights, settings: TrainingSettings, *, n_tokens: int = 128, longest: int = 11
) -> GpuPasses:
    chosen = PassSettings(settings.label_smoothing, settings.consistency, settings.cutoff)
    passes = GpuPasses(weights.model, weights.sums.scalars[:2], chosen, uncompiled())
    passes.reserve(n_tokens, longest)
    return passes


def random_pairs(n: int, *, longest: int = 9) -> list[tuple[list[int], list[int]]]:
    generator = torch.Generator().manual_seed(n)

    def ids() -> list[int]:
        length = int(torch.randint(1, longest, (), generator=generator))
        return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()

    return [(ids(), ids()) for _ in range(n)]


def batch_of(n: int) -> Batch:
    return make_batch(random_pairs(n), SPECIAL)  # type: ignore[arg-type]


def weights_on_cpu(arch: Architecture, dtype: torch.dtype = torch.float32) -> MasterWeights:
    torch.manual_seed(3)
    model = Transformer(arch, VOCAB_SIZE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)  # biases and gains too
    return MasterWeights(model, Machine(CPU, dtype, "test"))


def plain_sums(weights: MasterWeights, batch: Batch, settings: TrainingSettings, scale: float) -> Tensor:
    """Loss, negative log-likelihood and gradients by the plain network."""
    weights.model.train()
    loss, nll = micro_batch_loss(weights.model, batch, settings)
    (loss * scale).backward()
    weights.collect_gradients()
    weights.sums.loss.add_(loss.detach())
    weights.sums.nll.add_(nll)
    found = weights.sums.buffer.clone()
    weights.zero_sums()
    return found


@pytest.mark.parametrize("settings", [SETTINGS, TWO_PASSES], ids=["one pass", "two passes"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_losses_and_gradients_are_the_plain_networks_in_fp32(options, settings):
    """Attention's rows of no sequence are NaN here, as unwritten memory may be: none reaches a sum."""
    weights = weights_on_cpu(architecture(**options))
    batch, scale = batch_of(40), 1 / 300
    expected = plain_sums(weights, batch, settings, scale)
    passes = passes_on_cpu(weights, settings)
    weights.model.train()
    passes.run([batch], scale=scale)
    # 40 sentences of about 5 tokens do not fit into one pass of 128.
    assert len(passes._parts([batch])) > 1
    found = weights.sums.buffer
    torch.testing.assert_close(found[-4:], expected[-4:], rtol=1e-5, atol=0)
    largest = expected[:-4].abs().max()
    assert float((found - expected)[:-4].abs().max() / largest) < 1e-5


@pytest.mark.parametrize("longest", [1, 2, 3, 5, 24, 25, 100, 1000])
@pytest.mark.parametrize("n_tokens", [1, 20, 1000, 25_000, 1_000_000])
def test_a_pass_holds_what_it_was_made_for_in_no_more_sequences_than_attention_takes(n_tokens, longest):
    whole = PassShape.for_tokens(n_tokens, longest)
    for n_sentences in (0, 1, n_tokens // 20, n_tokens):
        shape = whole.narrower(n_sentences)
        assert shape.n_padding < shape.n_sequences <= MAX_SEQUENCES
        assert longest <= shape.n_tokens == whole.n_tokens
    assert whole.n_tokens >= n_tokens or whole.n_padding > MAX_SEQUENCES // 5
    assert whole.n_padding < whole.capacity


@pytest.mark.parametrize(("share", "n_runs"), [("all", 1), ("none", 2)])
def test_gradients_are_added_to_their_sums_in_one_operation_for_neighbours(share, n_runs):
    """With a matrix of the output alone, whose sum the losses add to, there are gradients before and after it."""
    weights = weights_on_cpu(architecture(share=share, n_layers=1), torch.bfloat16)
    output = weights.model.output.weight if share == "none" else None
    found = [(p.main_grad, torch.rand_like(p)) for p in weights.model.parameters() if p is not output]
    for total, gradient in found:
        total.add_(gradient)
    expected = weights.sums.gradients.clone()
    weights.zero_sums()
    runs = _runs(found)
    for total, gradients in runs:
        total.add_(torch.cat(gradients))
    assert len(runs) <= n_runs and torch.equal(weights.sums.gradients, expected) and expected.any()


def test_passes_are_halved_until_they_cannot_become_smaller():
    passes, sizes = passes_on_cpu(weights_on_cpu(architecture(n_layers=1)), SETTINGS, n_tokens=1000, longest=5), []
    while not sizes or passes.halve():
        sizes.append(passes.n_tokens)
        assert len(sizes) < 10
    assert sizes == sorted(set(sizes), reverse=True) and sizes[-1] < 64


@pytest.mark.parametrize("lengths", [[1], [11] * 9, [1] * 60, list(range(1, 12)) * 3])
def test_every_token_lies_in_one_sequence_of_a_pass_none_longer_than_declared(lengths):
    """And no sequence has queries without keys: what attention would compute of it differs between GPUs."""
    generator = torch.Generator().manual_seed(0)
    pairs = [(list(range(3, 2 + n)), torch.randint(3, 9, (n - 1,), generator=generator).tolist()) for n in lengths]
    batch = make_batch(pairs, SPECIAL)
    whole = PassShape.for_tokens(20, 11)
    n_tokens = 0
    for part in divided(batch, whole):
        shape = whole.narrower(len(part.src_lengths))
        inputs = PassInputs.of(torch.full((shape.n_words,), -1, dtype=torch.int32), shape)
        fill(inputs, part, shape, scale=0.5)
        for starts, positions in ((inputs.src_starts, inputs.src_positions), (inputs.tgt_starts, inputs.tgt_positions)):
            sizes = starts.diff()
            assert starts[0] == 0 and starts[-1] == shape.capacity and sizes.min() >= 0 and sizes.max() <= 11
            assert positions.min() >= 0 and positions.max() < 11
        assert torch.equal(inputs.src_starts.diff() > 0, inputs.tgt_starts.diff() > 0)
        assert min(inputs.src.min(), inputs.tgt_in.min(), inputs.tgt_out.min()) >= 0
        assert inputs.scale == 0.5 and inputs.n_tgt_tokens == len(part.tgt_out)
        n_tokens += len(part.tgt_out)
    assert n_tokens == sum(lengths)


@pytest.mark.soak
def test_twenty_steps_in_bf16_lose_what_the_plain_network_loses(corpus, monkeypatch):
    """Within the noise of bf16, which is how far the plain network in bf16 is from itself in fp32."""
    settings = SETTINGS.model_copy(update={"batch_src_tokens": 150, "batch_tgt_tokens": 150})

    def losses_in(dtype: torch.dtype) -> list[float]:
        return Training.begin(corpus, architecture(n_layers=1), CPU, dtype, settings).losses(20)

    exact, plain = losses_in(torch.float32), losses_in(torch.bfloat16)
    monkeypatch.setattr("heed.training.step.backend_for", lambda model: GpuTrainingBackend())
    found = losses_in(torch.bfloat16)
    noise = max(abs(a / b - 1) for a, b in zip(plain, exact, strict=True))
    assert 0 < noise < 2e-3
    assert 0 < max(abs(a / b - 1) for a, b in zip(found, plain, strict=True)) < 2 * noise


@pytest.mark.slow
def test_two_hundred_batches_take_four_graphs_and_no_wait(emulated, corpus):
    training = Training.begin(corpus, architecture(n_layers=1, d_model=16, d_ff=16, n_heads=2), CUDA, torch.bfloat16)
    training.fit()
    emulated.forget()
    shapes = set()
    passes = training.weights.passes(training.settings)
    plans = itertools.chain.from_iterable(training.batches.plan(epoch) for epoch in itertools.count())
    for number, rows in enumerate(itertools.islice(plans, 200)):
        batches = [training.batches.collate(part) for part in training.batches.passes(rows, padded=False)]
        shapes |= passes.shapes(batches)
        if number < 4:
            training.step(batches)
    # A replay allocates nothing, and neither does what leads to it.
    passes.run(batches, scale=1.0)  # may be the first of its shape, which is recorded
    before = emulated.n_allocations
    passes.run(batches, scale=1.0)
    assert emulated.n_allocations == before
    # Recording waits for the device, and so does a step's own result once it is asked for.
    assert emulated.places() <= PASSES.keys()
    n_recordings = emulated.n_recordings - 1  # one is compared with the plain network before the first step
    assert 1 < n_recordings <= len(shapes) + 1 <= 4


def test_after_a_recording_that_failed_the_device_is_as_before_and_holds_none_of_its_tensors(emulated):
    """torch.cuda.graph then leaves its own stream the current one, and the generator part of the recording."""
    from heed.backends.gpu.capture import Captured

    before, kept = torch.cuda.current_stream(CUDA), []

    def work() -> None:
        x = torch.ones(4, device=CUDA)
        kept.append(weakref.ref(x))
        x.sum().item()

    gc.disable()  # which would find a cycle late, when memory has run out already
    try:
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            Captured(work, CUDA, n_warm_ups=0)
        assert [x() for x in kept] == [None]
    finally:
        gc.enable()
    assert torch.cuda.current_stream(CUDA) is before
    assert torch.rand(3, device=CUDA).tolist()


@pytest.mark.soak
def test_memory_that_runs_out_halves_the_passes_and_training_goes_on(emulated, corpus, caplog):
    arch = architecture(n_layers=1, d_ff=512)
    settings = SETTINGS.model_copy(update={"micro_batch_tokens": 600})
    expected = Training.begin(corpus, arch, CPU, torch.bfloat16, settings).losses(1)
    training = Training.begin(corpus, arch, CUDA, torch.bfloat16, settings)
    training.fit()
    passes = training.weights.passes(settings)
    before = passes.n_tokens
    passes.release()  # as if what is recorded had to be recorded again: a replay allocates nothing
    emulated.largest_allocation = 450 * 512 * 2
    with caplog.at_level(logging.WARNING):
        found = training.step(training.batch(0))
    assert "Memory ran out; training continues with passes of" in caplog.text and passes.n_tokens < 0.6 * before
    assert float(found.loss) == pytest.approx(expected[0], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "late",
    [False, pytest.param(True, marks=pytest.mark.soak)],
    ids=["before the first step", "later, of another shape"],
)
def test_passes_that_cannot_be_prepared_leave_training_to_the_plain_network(
    emulated, corpus, monkeypatch, caplog, late
):
    arch = architecture(n_layers=1)
    expected = Training.begin(corpus, arch, CPU, torch.bfloat16).losses(2)

    def fail(*_: object, **__: object) -> None:
        raise NotImplementedError("no kernel of this kind")

    training = Training.begin(corpus, arch, CUDA, torch.bfloat16)
    with caplog.at_level(logging.WARNING):
        if late:
            training.fit()
            training.weights.passes(training.settings).release()
        monkeypatch.setattr("heed.backends.gpu.passes.Captured", fail)
        if not late:
            training.fit()
        found = training.losses(2)
    assert caplog.text.count("Passes for the GPU cannot be prepared (NotImplementedError: no kernel of this kind)") == 1
    assert training.weights.passes(training.settings) is None
    assert found == pytest.approx(expected, rel=1e-3)


def sees_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a GPU's attention did not look at the target's future as a CPU's does."""
    from heed.backends.gpu import network

    right = network.varlen_attn

    def attention(*arguments: Any, window_size: tuple[int, int] = (-1, -1)) -> Tensor:
        return right(*arguments, window_size=(-1, -1))

    monkeypatch.setattr("heed.backends.gpu.network.varlen_attn", attention)


def wrongly_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions compiled as if the forward pass were right and the backward one twice as large."""

    def region(function: Any, compiler: Any) -> Any:
        def compiled(*arguments: Any, **options: Any) -> Tensor:
            y = function(*arguments, **options)
            return 2 * y - y.detach()

        return function if compiler is None else compiled

    monkeypatch.setattr("heed.backends.gpu.training.compiles_layers", lambda: True)
    monkeypatch.setattr("heed.backends.gpu.network._region", region)


def wrongly_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings as if they read memory that is no longer theirs."""
    from heed.backends.gpu.capture import Captured

    def replay(self: Any) -> None:
        self._graph.replay()
        self._graph.replay()

    monkeypatch.setattr(Captured, "replay", replay)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("break_passes", "message"),
    [
        (sees_the_future, "gradients differ from the plain network's by"),
        (wrongly_compiled, "compiled or recorded, their gradients differ from the plain network's by"),
        (wrongly_recorded, "compiled or recorded, their gradients differ from the plain network's by"),
    ],
)
def test_passes_with_other_gradients_than_the_plain_networks_are_not_taken(
    emulated, corpus, monkeypatch, caplog, break_passes, message
):
    break_passes(monkeypatch)
    training = Training.begin(corpus, architecture(n_layers=1, dropout=0.1), CUDA, torch.bfloat16)
    with caplog.at_level(logging.WARNING):
        training.fit()
    assert message in caplog.text
    assert training.weights.passes(training.settings) is None


@pytest.mark.soak
@pytest.mark.parametrize("settings", [SETTINGS, TWO_PASSES], ids=["once", "twice"])
def test_passes_stay_the_plain_networks_while_the_weights_are_trained(emulated, corpus, caplog, settings):
    training = Training.begin(corpus, architecture(dropout=0.1), CUDA, torch.bfloat16, settings)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            training.fit()
            training.losses(10)
    assert not caplog.text and training.weights.passes(training.settings) is not None


def test_passes_of_all_shapes_are_recorded_into_one_pool_on_one_stream(emulated, corpus):
    training = Training.begin(corpus, architecture(n_layers=1), CUDA, torch.bfloat16)
    training.fit()
    passes = training.weights.passes(training.settings)
    before = emulated.n_recordings
    for shape in (passes._shape, passes._shape.narrower(1)):
        passes._kinds.pop(shape, None)
        passes._kind(shape)
    one, other = emulated.graphs[before:]
    assert one.pool is other.pool is not None and one.stream is other.stream is not None


def test_passes_are_compared_with_the_plain_network_once_before_any_is_recorded(emulated, corpus, monkeypatch):
    compare, n_recorded = MemoryProbe._compare, []

    def counted(*arguments: Any) -> None:
        n_recorded.append(emulated.n_recordings)
        compare(*arguments)

    monkeypatch.setattr(MemoryProbe, "_compare", counted)
    training = Training.begin(corpus, architecture(n_layers=1), CUDA, torch.bfloat16)
    training.fit()
    assert n_recorded == [0] and emulated.n_recordings > 0


def test_attention_without_a_window_leaves_training_to_the_plain_network():
    def older(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = False) -> Tensor:
        return query

    with pytest.raises(ImportError, match="need PyTorch 2.11 or newer"):
        check_window(older)


@pytest.mark.parametrize("consistency", [None, 5.0])
def test_kernels_are_launched_on_the_device_of_the_logits(emulated, monkeypatch, consistency):
    """Triton launches on the current device, which may be another."""
    guarded, kernels = [], {}
    for kind in ("smoothed", "consistent"):
        kernels[f"{kind}_loss_"] = lambda *_: guarded.append(emulated.guarded)
    monkeypatch.setitem(sys.modules, "heed.backends.gpu.triton_losses", SimpleNamespace(**kernels))
    logits, numbers = torch.zeros(2, 8, device=CUDA), torch.zeros(2, device=CUDA)
    arguments = (logits, numbers, numbers, logits, 0.1)
    if consistency is None:
        losses._on_gpu("smoothed_loss_", *arguments)
    else:
        losses._on_gpu("consistent_loss_", *arguments, consistency)
    assert guarded == [1] and emulated.guarded == 0


@pytest.fixture(params=["formula", "triton"])
def loss_operations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """The losses by the formula, as on emulated devices, and by the kernels in Triton's interpreter."""
    if request.param == "formula":
        yield smoothed_loss_by_formula_, consistent_loss_by_formula_
        return
    pytest.importorskip("triton")
    from triton import knobs

    if not knobs.runtime.interpret:
        pytest.skip("needs TRITON_INTERPRET=1")
    from heed.backends.gpu import triton_losses

    yield triton_losses.smoothed_loss_, triton_losses.consistent_loss_


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in Triton's interpreter, of the NaN below
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("consistency", [None, 5.0])
def test_losses_in_one_pass_are_the_references(loss_operations, consistency, dtype):
    """Weighted, and zero where a token is padding, whose logits may be anything."""
    torch.manual_seed(0)
    n, vocab, n_padding = 7, 5000, 2
    n_rows = n if consistency is None else 2 * n
    logits = (3 * torch.randn(n_rows, vocab)).to(dtype)
    targets, weights = torch.randint(0, vocab, (n,)), torch.rand(n) + 0.5
    weights[-n_padding:] = 0
    # The reference, in fp32.
    of_reference = logits.float().clone()
    if consistency is None:
        loss, nll = smoothed_loss_(of_reference, targets, label_smoothing=0.1)
    else:
        loss, nll = consistent_loss_(of_reference, targets, label_smoothing=0.1, consistency=consistency)
    of_reference = of_reference * weights.repeat(n_rows // n)[:, None]
    logits[n - 1] = torch.nan
    found, gradient = torch.full((2, n), torch.nan), logits.clone()
    arguments = (gradient, targets.int(), weights, found, 0.1)
    loss_operations[0](*arguments) if consistency is None else loss_operations[1](*arguments, consistency)
    real = weights != 0
    torch.testing.assert_close(found, torch.stack([loss, nll]).where(real, 0), rtol=2e-5, atol=2e-5)
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 1e-5}
    torch.testing.assert_close(gradient.float(), of_reference.where(real.repeat(n_rows // n)[:, None], 0), **tolerance)
