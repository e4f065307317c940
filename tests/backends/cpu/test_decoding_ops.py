"""The kernels of a search's step against PyTorch's operations."""

import math
import os
import pickle
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import n_examples
from tests.decoding.searches import VOCAB_SIZE, sharp_model

from heed.backends.cpu import account_ops, decoding_ops, packed_weights
from heed.backends.cpu.build import has_bf16, has_int8, largest_int8_weight, library
from heed.backends.live_prefixes import NextIds
from heed.backends.reference_search import ReferenceSearchBackend
from heed.decoding.loading import prepack_models
from heed.runtime.device import native_kernels

needs_int8 = pytest.mark.skipif(not has_int8(), reason="no fast products of 8-bit integers")
needs_bf16 = pytest.mark.skipif(not has_bf16(), reason="no AVX-512 BF16")
KINDS = ["fp32", pytest.param("bf16", marks=needs_bf16), pytest.param("int8", marks=needs_int8)]


def packed_weight(kind, weight, bias, **options):
    pack = {"fp32": packed_weights.fp32_weight, "bf16": packed_weights.bf16_weight, "int8": packed_weights.int8_weight}[
        kind
    ]
    return pack(weight.numpy(), None if bias is None else bias.numpy(), **options)


def product(x, weight, *, relu=False):
    return torch.from_numpy(packed_weights.product(x.contiguous().numpy(), weight, relu=relu))


pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler: Heed's kernels are not at hand")


# Of products: tiles take whole 32 numbers of a row, in int8 whole 64.
SIZES = {
    "n": st.integers(1, 60),
    "d_in": st.integers(1, 70) | st.sampled_from([64, 128, 512]),
    "d_out": st.integers(1, 100),
}


@pytest.mark.slow
@given(**SIZES, bias=st.booleans())
@settings(max_examples=n_examples(60))
def test_the_product_is_torchs_and_each_row_has_the_bits_that_it_has_alone(n, d_in, d_out, bias):
    torch.manual_seed(n * 7919 + d_in * 101 + d_out)
    x, weight, b = torch.randn(n, d_in), torch.randn(d_out, d_in), torch.randn(d_out)
    packed = packed_weight("fp32", weight, b if bias else None)
    y = product(x, packed)
    torch.testing.assert_close(y, torch.nn.functional.linear(x, weight, b if bias else None), atol=1e-4, rtol=1e-4)
    assert torch.equal(product(x, packed, relu=True), torch.relu(y))
    for i in range(n):
        assert torch.equal(product(x[i : i + 1], packed)[0], y[i])


@pytest.mark.slow
@pytest.mark.parametrize("d_in", [100, 128, 2048])
def test_the_product_in_float_is_as_exact_as_a_running_sum(d_in):
    """PyTorch's own product is not a measure: on some processors it adds up parts of a long sum, and errs less."""
    torch.manual_seed(d_in)
    # Sizes from 1e-6 to 1e6, so that a product of fewer digits would show.
    x, weight = (torch.randn(*shape) * 10 ** torch.empty(shape).uniform_(-3, 3) for shape in ((64, d_in), (96, d_in)))
    running = torch.zeros(64, 96)
    for k in range(d_in):
        running = torch.addcmul(running, x[:, k, None], weight[:, k])
    exact = x.double() @ weight.double().T
    size = x.double().abs() @ weight.double().abs().T  # what a sum's rounding is measured by
    ours, plain = (
        ((y.double() - exact).abs() / size).max() for y in (product(x, packed_weight("fp32", weight, None)), running)
    )
    assert float(ours) < 2 * float(plain)


@pytest.mark.slow
@needs_int8
@given(**SIZES, relu=st.booleans(), by_relu=st.booleans())
@settings(max_examples=n_examples(40))
def test_the_8_bit_product_is_that_of_the_rounded_numbers(n, d_in, d_out, relu, by_relu):
    torch.manual_seed(n * 7919 + d_in * 101 + d_out)
    x, weight, bias = torch.randn(n, d_in), torch.randn(d_out, d_in), torch.randn(d_out)
    x[0] = 0  # a row without any number has no step
    x = torch.relu(x) if by_relu else x
    packed = packed_weight("int8", weight, bias, by_relu=by_relu)
    most = x.float().abs().amax(1, keepdim=True)
    rounded = torch.where(most > 0, (x.float() * (127 / most)).round(), 0).double() * (most / 127)
    steps = weight.abs().amax(1, keepdim=True) / (127 if by_relu else largest_int8_weight())
    expected = rounded @ ((weight / steps).round() * steps).double().T + bias
    # Numbers half-way between two steps may be rounded to either.
    slack = 2 * float((most / 127).max() * weight.abs().max()) + 1e-4
    expected = torch.relu(expected) if relu else expected
    whole = product(x.float(), packed, relu=relu)
    torch.testing.assert_close(whole.double(), expected, atol=slack, rtol=0)
    if d_in <= 70:  # more numbers of a row in bf16 may well have one that is half-way
        assert float((whole - expected).abs().median()) < 1e-4
    for i in range(n):
        assert torch.equal(product(x[i : i + 1], packed, relu=relu)[0], whole[i])


@needs_int8
@pytest.mark.parametrize("by_relu", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 12, 33])
def test_sums_of_8_bit_products_are_exact_at_their_extremes(n, by_relu):
    """Steps of 1, so that the sums are whole numbers of 22 bits: none of them may have been cut off at 16."""
    torch.manual_seed(n)
    largest = 127 if by_relu else largest_int8_weight()
    signs = [torch.ones, lambda *size: -torch.ones(*size), lambda *size: torch.randint(0, 2, size) * 2.0 - 1]
    weight = torch.cat([draw(17, 1024) for draw in signs]) * largest
    for draw in signs:
        x = draw(n, 1024) * 127
        x = torch.relu(x) if by_relu else x
        y = product(x, packed_weight("int8", weight, None, by_relu=by_relu))
        assert torch.equal(y.double(), x.double() @ weight.double().T)


@needs_bf16
@given(**SIZES, relu=st.booleans())
@settings(max_examples=n_examples(40))
def test_the_product_in_bf16_is_that_of_the_rounded_numbers(n, d_in, d_out, relu):
    torch.manual_seed(n * 7919 + d_in * 101 + d_out)
    x, weight, bias = torch.randn(n, d_in), torch.randn(d_out, d_in), torch.randn(d_out)
    packed = packed_weight("bf16", weight, bias)
    expected = x.bfloat16().double() @ weight.bfloat16().double().T + bias.bfloat16()
    expected = torch.relu(expected) if relu else expected
    y = product(x, packed, relu=relu)
    torch.testing.assert_close(y.double(), expected, atol=1e-4, rtol=1e-5)


@given(
    n_sentences=st.integers(1, 4),
    beam=st.integers(1, 10),
    vocab_size=st.integers(8, 300) | st.integers(500, 1100),  # the kernel takes 512 at a time
    excluded=st.sampled_from([0, 20, 512]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=n_examples(80))
def test_the_best_continuations_are_those_of_a_whole_sort(n_sentences, beam, vocab_size, excluded, seed):
    torch.manual_seed(seed)
    logits = torch.randn(n_sentences * beam, vocab_size) * 3
    if excluded < vocab_size / 2:
        logits[:, vocab_size - excluded :] = -torch.inf
    log_probs = -torch.rand(n_sentences, beam, dtype=torch.float64) * 5
    log_probs[torch.rand(n_sentences, beam) < 0.2] = -torch.inf
    never = torch.zeros(vocab_size, dtype=torch.bool)
    never[[0, 1]] = True
    may_end = torch.rand(n_sentences) < 0.5
    only = torch.rand(n_sentences * beam, vocab_size) < torch.rand(n_sentences * beam, 1) ** 3
    some = torch.rand(n_sentences * beam) < 0.3
    allowed_ids = [row.nonzero()[:, 0].int().numpy() if of else None for row, of in zip(only, some, strict=True)]
    k = 2 * beam
    active = torch.rand(n_sentences * beam).gt(0.2).nonzero()[:, 0]
    next_ids = NextIds(never.numpy(), may_end.numpy(), 2, allowed_ids)
    arguments = (logits[active].numpy(), active.numpy(), log_probs.clone().numpy(), next_ids)
    found = account_ops.best_continuations(*arguments, k=k)
    values, index = map(torch.from_numpy, found)
    left_out = torch.ones(n_sentences * beam, dtype=torch.bool)
    left_out[active] = False
    log_probs.view(-1)[left_out] = -torch.inf
    allowed = torch.log_softmax(logits.double(), -1).masked_fill(never, -torch.inf).view(n_sentences, beam, -1)
    allowed[~may_end, :, 2] = -torch.inf
    allowed = allowed.masked_fill((some[:, None] & ~only).view(n_sentences, beam, -1), -torch.inf)
    total = (log_probs[..., None] + allowed).flatten(1)
    torch.testing.assert_close(values, total.topk(k, dim=1).values, atol=1e-5, rtol=1e-5)
    found = values.isfinite()
    torch.testing.assert_close(total.gather(1, index)[found], values[found], atol=1e-5, rtol=1e-5)
    for row, there in zip(index, found, strict=True):
        assert len(set(row[there].tolist())) == int(there.sum())


@pytest.mark.parametrize("n_models", [1, 3])
@given(n=st.integers(1, 9), vocab_size=st.integers(3, 300) | st.integers(500, 1100), seed=st.integers(0, 1000))
@settings(max_examples=n_examples(30))
def test_log_probabilities_and_the_mean_of_models_are_pytorchs(n_models, n, vocab_size, seed):
    torch.manual_seed(seed)
    logits = [torch.randn(n, vocab_size) * 5 for _ in range(n_models)]
    exact = torch.logsumexp(torch.stack([torch.log_softmax(x.double(), -1) for x in logits]), 0) - math.log(n_models)
    mean = account_ops.mean_logits([x.numpy() for x in logits])
    ids = torch.randint(-1, vocab_size, (n, 4))
    found = torch.from_numpy(account_ops.log_probs_of(mean, ids.numpy()))
    expected = exact.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-6)


@given(
    n=st.integers(1, 6),
    vocab_size=st.integers(5, 300),
    temperature=st.sampled_from([0.2, 1.0, 3.0]),
    top_k=st.sampled_from([None, 1, 7]),
    top_p=st.sampled_from([1.0, 0.6]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=n_examples(60))
def test_a_draw_is_that_of_the_whole_distribution_in_order(n, vocab_size, temperature, top_k, top_p, seed):
    """As the plain network's search sorts all of it; where a number lies on the edge of two ids, either may follow."""
    torch.manual_seed(seed)
    logits, numbers = torch.randn(2 * n, vocab_size) * 3, np.random.default_rng(seed).random(2 * n)
    never, may_end = np.arange(vocab_size) < 2, np.arange(n) % 2 == 0
    only = np.arange(3, vocab_size, 2, dtype=np.int32)
    allowed = [only if i == 1 else None for i in range(2 * n)]
    next_ids, options = (
        NextIds(never, may_end, 2, allowed),
        {"temperature": temperature, "top_k": top_k, "top_p": top_p},
    )
    ids, log_probs = account_ops.draw(logits.numpy(), numbers, next_ids, **options)
    expected, values = ReferenceSearchBackend().draw(logits, numbers, next_ids, **options)
    below, above = (
        ReferenceSearchBackend().draw(logits, numbers + more, next_ids, **options)[0] for more in (-1e-6, 1e-6)
    )
    assert ((ids == expected) | (ids == below) | (ids == above)).all()
    same = ids == expected
    np.testing.assert_allclose(log_probs[same], values[same], atol=2e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre", "activation": "gelu", "positions": "learned"},
        {"n_heads": 3, "d_k": 5, "d_v": 7, "activation": "swish", "attention_bias": True},
        {"d_model": 256, "d_k": 64, "d_v": 64, "d_ff": 100, "n_decoder_layers": 1},
    ],
)
@pytest.mark.parametrize("precision", ["fp32", pytest.param("int8", marks=needs_int8)])
def test_a_source_has_the_same_bits_in_every_batch_whatever_threads_share_it(precision, changes):
    (model,) = prepack_models(sharp_model(**changes), precision, copy=True)
    draw = torch.Generator().manual_seed(5)
    lengths = (1, 60, 7, 2, 33, 40, 8, 9)
    sources = [torch.randint(3, VOCAB_SIZE, (n,), generator=draw).numpy() for n in lengths]
    layers = decoding_ops.EncoderLayers(model)
    at_once = layers.encode(decoding_ops.PackedSentences(np.concatenate(sources), np.array(lengths)))
    torch.set_num_threads(3)
    try:
        by_three = layers.encode(decoding_ops.PackedSentences(np.concatenate(sources), np.array(lengths)))
    finally:
        torch.set_num_threads(1)
    assert np.array_equal(at_once, by_three)
    alone = [layers.encode(decoding_ops.PackedSentences(ids, np.array([len(ids)]))) for ids in sources]
    assert np.array_equal(at_once, np.concatenate(alone, axis=1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pickled", [pickle.dumps, ForkingPickler.dumps])
def test_a_packed_weight_can_be_pickled_and_stays_where_it_is(kind, pickled):
    torch.manual_seed(1)
    x, weight = torch.randn(3, 70), packed_weight(kind, torch.randn(50, 70), torch.randn(50))
    expected = product(x, weight)
    again = pickle.loads(pickled(weight))  # noqa: S301
    assert torch.equal(product(x, again), expected) and torch.equal(product(x, weight), expected)


LACKING_MEMORY = """
import resource
from pathlib import Path

import torch
from tests.conftest import SPECIAL
from tests.decoding.searches import search, sharp_model

from heed.backends.cpu.training_ops import loss_
from heed.decoding.loading import prepack_models
from heed.runtime.device import native_kernels
from heed.decoding.settings import DecodingSettings
from heed.decoding.source_queue import Source

def limit(more):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, -1))

def said_within(more, compute):
    try:
        compute(more)
    except (MemoryError, RuntimeError) as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    return "found"

logits, target = torch.zeros(1, 4_000_000), torch.tensor([1])  # each thread takes 16 MB beside them

def loss(more):
    limit(more)
    loss_(logits, target, label_smoothing=0.1)

(model,) = prepack_models(sharp_model(vocab_size=4000), "fp32", copy=False)

def hypotheses(more, *, beam_size=600):  # of which the kernels take some 20 MB, after PyTorch's 10
    def sources():
        limit(more)
        yield Source(0, (5, 6, 7))

    settings = DecodingSettings(beam_size=beam_size, max_tokens=3)
    return list(search([model], sources(), SPECIAL, settings, n_sentences=1))

hypotheses(2**28, beam_size=2)  # so that all threads are there
print(said_within(2**20, loss), said_within(2**28, loss), sep="\\n")
print(*dict.fromkeys(said_within(more * 2**20, hypotheses) for more in range(12, 60, 4)), sep="\\n")
"""


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux does")
@pytest.mark.skipif(
    native_kernels() == "sanitized", reason="what checks accesses to memory needs terabytes of addresses"
)
@pytest.mark.parametrize("n_threads", [1, 3])
def test_memory_that_a_kernel_lacks_is_an_error_in_python(n_threads):
    """In a region, and in a search's steps, whose other threads wait for what the first one announces."""
    # Every large block is mapped and unmapped, so that none is served from memory that was freed.
    env = {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": str(n_threads)}
    env |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", LACKING_MEMORY]
    done = subprocess.run(command, env=os.environ | env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    of_loss, with_memory, *of_search = done.stdout.splitlines()
    assert (of_loss, with_memory) == ("kernel smoothed_loss_float: not enough memory", "found")
    assert "kernel search_steps_float: not enough memory" in of_search and of_search[-1] == "found"
