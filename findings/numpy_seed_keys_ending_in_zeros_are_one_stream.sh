#!/usr/bin/env bash
# numpy.random.default_rng((seed, epoch)) and default_rng((seed, epoch, 0)).
# Expected: keys of different lengths give different streams, as different keys do.
# Happens: a key is padded with zeros to four words of 32 bits, so (1, 2), (1, 2, 0) and (1, 2, 0, 0) draw the same
# numbers. A number above 32 bits is spread over several words, so [1, 2**32] is [1, 0, 1], and (1, 2) is the single
# number 1 + 2 * 2**32. SeedSequence(1, spawn_key=(2,)) is another stream, as are its children.
# Seen with numpy 2.4.6, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q numpy==2.4.6
venv/bin/python - <<'EOF'
import numpy as np

def draws(key):
    return np.random.default_rng(key).integers(0, 1000, 4).tolist()

for key in ((1, 2), (1, 2, 0), (1, 2, 0, 0), 1 + 2 * 2**32, (1, 2, 0, 0, 0), (1, 2, 1)):
    print(key, draws(key))
assert draws((1, 2)) == draws((1, 2, 0)) == draws((1, 2, 0, 0)) == draws(1 + 2 * 2**32)
assert draws([1, 2**32]) == draws([1, 0, 1])
assert draws(0) == draws((0, 0, 0)) and draws((1, 2)) != draws((1, 2, 1))
assert draws(np.random.SeedSequence(1, spawn_key=(2,))) != draws((1, 2))
EOF
