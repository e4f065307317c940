"""The losses of losses.py as Triton kernels: one program a token, whose row of logits stays in the GPU's cache.

Vocabulary and stride are constants of a kernel. Where rows begin at multiples of 16 numbers, it reads and writes the
padding behind a row too, up to the next multiple: only then does the compiler move 16 bytes at a time.
"""

# mypy: ignore-errors
from functools import partial

import triton
import triton.language as tl

BLOCK = 4096  # logits that a program holds at a time


@triton.jit
def _smoothed(
    logits,
    targets,
    weights,
    losses,
    n_tokens,
    vocab: tl.constexpr,
    stride: tl.constexpr,
    smoothing,
    BLOCK: tl.constexpr,
):
    width: tl.constexpr = (vocab + 15) // 16 * 16 if stride % 16 == 0 else vocab
    token = tl.program_id(0).to(tl.int64)
    row = logits + token * stride
    weight = tl.load(weights + token)
    target = tl.load(targets + token)
    # Before the first reduction, for which the program's warps wait: after the last, one may already store gradients.
    at_target = tl.load(row + target).to(tl.float32)
    # The largest logit and the sum of exponentials relative to it, in one reading; the plain sum for the smoothing.
    largest = -float("inf")
    total = 0.0
    plain = 0.0
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        there = columns < vocab
        x = tl.load(row + columns, mask=columns < width, other=0.0).to(tl.float32)
        x = tl.where(there, x, -float("inf"))
        new = tl.maximum(largest, tl.max(x, 0))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(x - new), 0)
        plain += tl.sum(tl.where(there, x, 0.0), 0)
        largest = new
    log_sum = largest + tl.log(total)
    nll = log_sum - at_target
    loss = (1 - smoothing) * nll + smoothing * (log_sum - plain / vocab)
    real = weight != 0
    tl.store(losses + token, tl.where(real, loss, 0.0))
    tl.store(losses + n_tokens + token, tl.where(real, nll, 0.0))
    # The gradient in place of the logits.
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        there = columns < vocab
        x = tl.load(row + columns, mask=columns < width, other=0.0).to(tl.float32)
        gradient = tl.exp(x - log_sum) - smoothing / vocab
        gradient = tl.where(columns == target, gradient - (1 - smoothing), gradient) * weight
        tl.store(row + columns, tl.where(real, gradient, 0.0).to(logits.dtype.element_ty), mask=columns < width)


@triton.jit
def _consistent(
    logits,
    targets,
    weights,
    losses,
    n_tokens,
    vocab: tl.constexpr,
    stride: tl.constexpr,
    smoothing,
    consistency,
    BLOCK: tl.constexpr,
):
    width: tl.constexpr = (vocab + 15) // 16 * 16 if stride % 16 == 0 else vocab
    token = tl.program_id(0).to(tl.int64)
    first = logits + token * stride
    second = logits + (token + n_tokens) * stride
    weight = tl.load(weights + token)
    target = tl.load(targets + token)
    # Early, as in _smoothed.
    at_target = tl.load(first + target).to(tl.float32) + tl.load(second + target).to(tl.float32)
    # Both passes' log-sums of exponentials and plain sums.
    largest_p = -float("inf")
    largest_q = -float("inf")
    total_p = 0.0
    total_q = 0.0
    plain = 0.0
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        there = columns < vocab
        x = tl.load(first + columns, mask=columns < width, other=0.0).to(tl.float32)
        x = tl.where(there, x, -float("inf"))
        y = tl.load(second + columns, mask=columns < width, other=0.0).to(tl.float32)
        y = tl.where(there, y, -float("inf"))
        new_p = tl.maximum(largest_p, tl.max(x, 0))
        new_q = tl.maximum(largest_q, tl.max(y, 0))
        total_p = total_p * tl.exp(largest_p - new_p) + tl.sum(tl.exp(x - new_p), 0)
        total_q = total_q * tl.exp(largest_q - new_q) + tl.sum(tl.exp(y - new_q), 0)
        plain += tl.sum(tl.where(there, x + y, 0.0), 0)
        largest_p = new_p
        largest_q = new_q
    log_p = largest_p + tl.log(total_p)
    log_q = largest_q + tl.log(total_q)
    # The divergences in both directions: p log p / q and q log q / p.
    forward = 0.0
    backward = 0.0
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        there = columns < vocab
        x = tl.load(first + columns, mask=columns < width, other=0.0).to(tl.float32) - log_p
        y = tl.load(second + columns, mask=columns < width, other=0.0).to(tl.float32) - log_q
        forward += tl.sum(tl.where(there, tl.exp(x) * (x - y), 0.0), 0)
        backward += tl.sum(tl.where(there, tl.exp(y) * (y - x), 0.0), 0)
    both = log_p + log_q
    nll = (both - at_target) / 2
    alpha = consistency / 4
    loss = (1 - smoothing) * nll + smoothing * (both - plain / vocab) / 2 + alpha * (forward + backward)
    real = weight != 0
    tl.store(losses + token, tl.where(real, loss, 0.0))
    tl.store(losses + n_tokens + token, tl.where(real, nll, 0.0))
    # The gradient in place of both passes' logits.
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        there = columns < vocab
        x = tl.load(first + columns, mask=columns < width, other=0.0).to(tl.float32) - log_p
        y = tl.load(second + columns, mask=columns < width, other=0.0).to(tl.float32) - log_q
        p = tl.exp(x)
        q = tl.exp(y)
        on_target = tl.where(columns == target, (1 - smoothing) / 2, 0.0) + smoothing / (2 * vocab)
        by_first = p * (0.5 + alpha * (1 - forward) + alpha * (x - y)) - alpha * q - on_target
        by_second = q * (0.5 + alpha * (1 - backward) + alpha * (y - x)) - alpha * p - on_target
        by_first = tl.where(real, by_first * weight, 0.0)
        by_second = tl.where(real, by_second * weight, 0.0)
        tl.store(first + columns, by_first.to(logits.dtype.element_ty), mask=columns < width)
        tl.store(second + columns, by_second.to(logits.dtype.element_ty), mask=columns < width)


def _launch(kernel, logits, targets, weights, losses, *factors):
    """Launches a program for each token."""
    n, vocab = len(targets), logits.shape[1]
    if not losses.is_contiguous():
        raise ValueError("losses must be contiguous.")
    arguments = (logits, targets, weights, losses, n, vocab, logits.stride(0), *factors)
    kernel[(n,)](*arguments, BLOCK=min(BLOCK, triton.next_power_of_2(vocab)), num_warps=8)


# The operations of losses.py, by their names.
smoothed_loss_, consistent_loss_ = partial(_launch, _smoothed), partial(_launch, _consistent)
