#!/usr/bin/env bash
# optax with parameters and gradients in bf16: global_norm and clip_by_global_norm, adam, ema.
# Expected: results that are off by a per cent or so, as one number in bf16 is; sum() and torch's clip_grad_norm_ are.
# Happens: what optax adds up itself, it adds up in bf16, where 256 + 1 is 256. The norm of 1,000 arrays of norm 1 is 16
# instead of 31.6 (the squares of the arrays' norms are added one by one), so clip_by_global_norm(1) lets a gradient of
# norm 2 pass. Adam's second moment stays where large gradients left it: after 100 gradients of 1 and 4,000 of 0.01, it
# is 0.098 instead of 0.0018, and steps are a seventh of what they should be; mu_dtype=float32 is for the first moment.
# An average of 3,000 ones by ema(0.999) is 0.5 instead of 0.95. Under jit as without, and nothing warns.
# torch's clip_grad_norm_ is right (31.6), its Adam has the same second moment.
# Parameters in float32 that are cast to bf16 inside the loss have gradients in float32, and none of this.
# Seen with optax 0.2.8, jax 0.10.2 (CPU), Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q optax==0.2.8 jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu venv/bin/python - <<'EOF'
import jax
import jax.numpy as jnp
import optax


def repeated(transformation, *stages):
    """The last update, and the state behind it, of n gradients of a value each, stage by stage."""
    state, update = transformation.init(jnp.zeros(1, dtype)), jax.jit(transformation.update)
    for n, value in stages:
        gradient = jnp.full(1, value, dtype)
        for _ in range(n):
            changed, state = update(gradient, state)
    return float(changed[0]), state


found = {}
for dtype in (jnp.float32, jnp.bfloat16):
    ones = [jnp.ones(1, dtype)] * 1000
    norms = [float(of(ones)) for of in (optax.global_norm, jax.jit(optax.global_norm))]
    clip = optax.clip_by_global_norm(1.0)
    clipped, _ = jax.jit(clip.update)(ones, clip.init(ones))
    left = sum(float(one[0]) ** 2 for one in clipped) ** 0.5
    step, state = repeated(optax.adam(1.0, mu_dtype=jnp.float32), (100, 1.0), (4000, 0.01))
    average, _ = repeated(optax.ema(0.999, debias=False), (3000, 1.0))
    found[dtype.__name__] = *norms, left, float(state[0].nu[0]), -step, average
    names = "norm", "norm under jit", "norm after clipping to 1", "Adam's second moment", "Adam's step", "average"
    print(dtype.__name__, *(f"{name}: {value:.3g};" for name, value in zip(names, found[dtype.__name__], strict=True)))
exact, rounded = found["float32"], found["bfloat16"]
assert rounded[:2] == (16, 16) and exact[0] > 31 and rounded[2] > 1.9 and exact[2] < 1.01
assert rounded[3] > 50 * exact[3] and rounded[4] < exact[4] / 5 and rounded[5] == 0.5 and exact[5] > 0.94
EOF
