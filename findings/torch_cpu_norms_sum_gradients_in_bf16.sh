#!/usr/bin/env bash
# The gradients of LayerNorm's and Embedding's weights in bf16 on a CPU, where 10,000 rows each add 1.0.
# Expected: 10,000, or 9,984, the nearest number in bf16: sums are taken in fp32 and rounded once, as those of Linear's
# bias, RMSNorm's weight and sum() are.
# Happens: 256, since 256 + 1 is 256 in bf16; each row is added to a sum in bf16. So do LayerNorms under
# torch.autocast("cpu"), whose weights and gradients are float32: 256.0, without a word. In a TransformerEncoderLayer in
# bf16 the gradients of the norms' biases are off by more than 10 % after some 10,000 tokens, those of Linear by 1 %.
# Forward passes and the gradients of inputs are right, so no loss shows it at once. In float16 it is 2,048.
# Norms and embeddings that compute in fp32 help: norm(x.float()).to(x.dtype) with the norm's weights in fp32.
# Seen with torch 2.13.0 and 2.14.1 on a CPU, one thread (each thread has a sum of its own), Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0 numpy
OMP_NUM_THREADS=1 venv/bin/python - <<'EOF'
import copy

import torch
from torch import nn

N, D = 10_000, 64


def gradient(module, x, parameter="bias", autocast=False):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = module(x)
    y.backward(torch.ones_like(y))
    found = getattr(module, parameter).grad
    return found.flatten()[0].item(), str(found.dtype).removeprefix("torch.")


x, ids = torch.ones(N, D), torch.zeros(N, dtype=torch.long)
found = {
    "LayerNorm, fp32": gradient(nn.LayerNorm(D), x),
    "LayerNorm, bf16": gradient(nn.LayerNorm(D).bfloat16(), x.bfloat16()),
    "LayerNorm, autocast": gradient(nn.LayerNorm(D), x.bfloat16(), autocast=True),
    "LayerNorm, fp16": gradient(nn.LayerNorm(D).half(), x.half()),
    "Embedding, fp32": gradient(nn.Embedding(2, D), ids, "weight"),
    "Embedding, bf16": gradient(nn.Embedding(2, D).bfloat16(), ids, "weight"),
    "Embedding, fp16": gradient(nn.Embedding(2, D).half(), ids, "weight"),
    "Linear, bf16": gradient(nn.Linear(D, D).bfloat16(), x.bfloat16()),
    "RMSNorm, bf16": gradient(nn.RMSNorm(D).bfloat16(), x.bfloat16(), "weight"),
}
for name, value in found.items():
    print(f"{name}:", *value)

torch.manual_seed(0)
in_fp32 = nn.TransformerEncoderLayer(D, 4, D, dropout=0.0, batch_first=True)
in_bf16 = copy.deepcopy(in_fp32).bfloat16()
x, dy = torch.randn(N // 20, 20, D), torch.randn(N // 20, 20, D)
in_fp32(x).backward(dy)
in_bf16(x.bfloat16()).backward(dy.bfloat16())
errors = {}
for (name, exact), rounded in zip(in_fp32.named_parameters(), in_bf16.parameters()):
    errors[name] = ((rounded.grad.float() - exact.grad).norm() / exact.grad.norm()).item()
    print(f"{name}: off by {errors[name]:.1%}")
assert found["LayerNorm, autocast"] == (256.0, "float32") and found["LayerNorm, fp32"][0] == N
for name in ("LayerNorm", "Embedding"):
    assert (found[f"{name}, bf16"][0], found[f"{name}, fp16"][0]) == (256, 2048)
assert found["Linear, bf16"][0] == found["RMSNorm, bf16"][0] == 9984
assert errors["norm2.bias"] > 0.08 and errors["linear2.bias"] < 0.02
EOF
