#!/usr/bin/env bash
# torch.manual_seed takes 64 bits, and initial_seed() shows all of them.
# Expected: seeds that differ draw other numbers, as on a GPU.
# Happens: the CPU's generator, a Mersenne Twister, uses the lowest 32 bits. Seeds made by hashing, or by
# run * 2**32 + step, draw the same numbers on a CPU wherever these bits agree; get_state() differs, so comparing states
# does not show it. And the first numbers of randn depend on how many are drawn: below 16 they are made one by one,
# from 16 on in blocks, so randn(16) and randn(17) share only some.
# Seen with torch 2.13.0, the build for CPUs, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0 numpy
venv/bin/python - <<'EOF'
import torch

a, b = (torch.Generator().manual_seed(seed) for seed in (7, 7 + 2**33))
same = torch.equal(torch.randn(1000, generator=a), torch.randn(1000, generator=b))
print("seeds", a.initial_seed(), "and", b.initial_seed(), "draw the same numbers:", same)
assert same and a.initial_seed() != b.initial_seed() and not torch.equal(a.get_state(), b.get_state())
first = {}
for n in (8, 15, 16, 17):
    torch.manual_seed(0)
    first[n] = torch.randn(n)[:2].tolist()
print("the first two of randn(n):", first)
assert first[8] == first[15] != first[16] and first[16][0] == first[17][0] and first[16][1] != first[17][1]
EOF
