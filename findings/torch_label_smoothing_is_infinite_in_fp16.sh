#!/usr/bin/env bash
# torch.nn.functional.cross_entropy(logits, target, label_smoothing=0.1) on logits in float16.
# Expected: about the loss of float32, as without label smoothing: sums of 16-bit numbers are taken in float32.
# Happens: the loss is infinite for any batch of real size, such as 64 targets of 500 words: for the smoothing, log P is
# summed up over all words, then over all targets, and only then divided; each sum is stored in float16, which ends at
# 65,504. From some 8,000 words on, one target is enough, with reduction="none" too. The gradient is finite and right,
# so training goes well while its log shows inf, and code that skips batches with such a loss skips all of them.
# bfloat16 does not overflow. autocast makes float32 of the logits; a model in float16 (model.half()) does not.
# cross_entropy(logits.float(), ...) is right.
# Seen with torch 2.13.0, numpy 2.4.6, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0
venv/bin/pip install -q numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - <<'EOP'
import math

import torch
from torch.nn.functional import cross_entropy


def measure(logits, target, **options):
    logits = logits.detach().requires_grad_()
    loss = cross_entropy(logits, target, **options)
    loss.backward()
    return loss.item(), logits.grad.float()


for seed in range(3):
    for n_targets, n_words in ((4, 500), (64, 500), (4, 1000), (64, 4000), (1, 10_000), (4, 32_000)):
        torch.manual_seed(seed)
        logits, target = torch.randn(n_targets, n_words), torch.randint(n_words, (n_targets,))
        right, gradient = measure(logits, target, label_smoothing=0.1)
        found, rounded = measure(logits.half(), target, label_smoothing=0.1)
        plain, _ = measure(logits.half(), target)
        brain, _ = measure(logits.bfloat16(), target, label_smoothing=0.1)
        single = cross_entropy(logits.half(), target, label_smoothing=0.1, reduction="none")
        print(f"{n_targets} targets, {n_words} words: float32 {right:.2f}, float16 {found:.2f} (without smoothing "
              f"{plain:.2f}), bfloat16 {brain:.2f}; gradients differ by {(gradient - rounded).abs().max():.0e}")
        assert math.isinf(found) == (n_targets * n_words > 5000) and math.isfinite(plain)
        assert single.isinf().all() if n_words > 9000 else single.isfinite().all()
        assert abs(brain - right) < 0.1 and (gradient - rounded).abs().max() < 2e-3 * gradient.abs().max()
        assert abs(measure(logits.half().float(), target, label_smoothing=0.1)[0] - right) < 0.01
EOP
