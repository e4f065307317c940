#!/usr/bin/env bash
# torchmetrics' Perplexity on logits of a model in float16, as model.half() gives them for evaluation.
# Expected: about exp of PyTorch's mean cross entropy.
# Happens: the perplexity of the whole text is infinite as soon as one token's logit is 18 below the best one, that is
# if one token is as improbable as e^-18, which a noisy corpus or a confident model has at once: the metric takes
# log(softmax(x)) in the logits' type instead of log_softmax, and the probability is 0 there. In float32 and bfloat16 it
# takes a difference of about 100. The logarithms of a call are also summed up in the logits' type, so that 12,000
# tokens of a random model are infinite in float16 by their number, and bfloat16 is up to 2 % off.
# metric.update(logits.float(), target) is right up to that difference; cross_entropy of logits.float() always is.
# Seen with torchmetrics 1.9.0, torch 2.13.0, numpy 2.4.6, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0
venv/bin/pip install -q torchmetrics==1.9.0 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - <<'EOP'
import math

import torch
from torch.nn.functional import cross_entropy
from torchmetrics.text import Perplexity


def measure(logits, target):
    metric = Perplexity()
    metric.update(logits, target)
    own = cross_entropy(logits.flatten(0, 1).float(), target.flatten()).exp()
    return metric.compute().item(), own.item()


types, infinite = (torch.float32, torch.bfloat16, torch.float16), set()
for dtype in types:
    for gap in (10, 16, 18, 80, 105):  # 1,000 tokens, of which all but one are predicted
        logits, target = torch.full((10, 100, 50), -5.0), torch.zeros(10, 100, dtype=torch.long)
        logits[..., 0], target[3, 7] = gap - 5, 9
        found, right = measure(logits.to(dtype), target)
        print(f"{dtype}, one token {gap} below the best: {found:.3f} (cross entropy {right:.3f})")
        infinite |= {(dtype, gap)} if math.isinf(found) else set()
        assert 1 < right < 1.2 and (math.isinf(found) or abs(found - right) < 0.02)
assert infinite == {(torch.float16, 18), (torch.float16, 80)} | {(dtype, 105) for dtype in types}
for seed in range(3):
    torch.manual_seed(seed)
    logits, target = torch.randn(12, 1000, 1000), torch.randint(1000, (12, 1000))
    found = {str(dtype)[6:]: measure(logits.to(dtype), target)[0] for dtype in types}
    print("12,000 tokens of a random model:", found)
    assert math.isinf(found["float16"]) and 1500 < found["float32"] < 1800
EOP
