#!/usr/bin/env bash
# numpy.random.Generator.integers with a dtype of 8 or 16 bits, or bool, as for dropout masks or bytes, drawn in parts
# instead of at once from the same seed.
# Expected: the same numbers, as with int32 and int64, random() in both widths, and normal(): the parts put together are
# the draws of one call.
# Happens: each call begins a new 32-bit draw and forgets the bytes that the one before has left, so the numbers depend
# on the sizes of the calls: a loader that draws a mask a batch gives other masks with another batch size or when it
# resumes in the middle.
# Seen with numpy 2.4.6, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q numpy==2.4.6
venv/bin/python - <<'EOP'
import numpy as np


def same(draw):
    once, parts = np.random.default_rng(5), np.random.default_rng(5)
    return bool((draw(once, 9) == np.concatenate([draw(parts, 3) for _ in range(3)])).all())


found = {
    dtype.__name__: same(lambda generator, n, dtype=dtype: generator.integers(0, 2, n, dtype=dtype))
    for dtype in (np.bool_, np.int8, np.uint8, np.int16, np.int32, np.int64)
}
found["float32"] = same(lambda generator, n: generator.random(n, dtype=np.float32))
found["normal"] = same(lambda generator, n: generator.normal(size=n))
print(found)
assert not any(found[name] for name in ("bool", "int8", "uint8", "int16"))
assert all(found[name] for name in ("int32", "int64", "float32", "normal"))
EOP
