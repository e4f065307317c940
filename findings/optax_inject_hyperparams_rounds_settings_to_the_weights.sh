#!/usr/bin/env bash
# optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3), which shows settings and lets them be changed, with weights
# in bfloat16.
# Expected: the same training as by optax.adamw(1e-3), which keeps its settings as they are written.
# Happens: every number given, and every default, is rounded to the type of the weights. b2 = 0.999 becomes 1, and Adam,
# AdamW and LAMB write NaN into all weights at the first step, while the first step of RMSprop (decay 0.999) is 1, not
# 0.03; b1 = 0.9 is 0.898; a learning rate that is multiplied by 0.999 a thousand times stays where it was. Schedules
# are not rounded, and a single array of weights in float32 keeps all settings in float32.
# hyperparam_dtype=jnp.float32 keeps the settings; then updates, and Adam's first moment, are float32 after a step.
# Seen with optax 0.2.8, jax 0.10.2, numpy 2.4.6, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu venv/bin/python - <<'EOP'
import jax.numpy as jnp
import optax


def train(make, **settings):
    """Takes a step with a gradient of 0.1 from weights in bfloat16; returns the update and the settings."""
    weights = jnp.ones(2, jnp.bfloat16)
    optimizer = make(learning_rate=1e-3, **settings)
    state = optimizer.init(weights)
    step, state = optimizer.update(0.1 * weights, state, weights)
    return float(step[0]), getattr(state, "hyperparams", {})


for make, settings in ((optax.adam, {}), (optax.adamw, {}), (optax.lamb, {}), (optax.rmsprop, {"decay": 0.999})):
    plain, _ = train(make, **settings)
    injected, rounded = train(optax.inject_hyperparams(make), **settings)
    cured, kept = train(optax.inject_hyperparams(make, hyperparam_dtype=jnp.float32), **settings)
    name = "decay" if "decay" in rounded else "b2"
    print(f"{make.__name__}: plain {plain:.4f}, injected {injected:.4f} ({name} = {float(rounded[name])}), "
          f"with float32 {cured:.4f}")
    assert float(rounded[name]) == 1 and abs(float(kept[name]) - 0.999) < 1e-6
    assert abs(plain - cured) < 0.01 * abs(plain)
    assert injected < -0.9 if make is optax.rmsprop else injected != injected

scale = jnp.ones(2, jnp.float32)
mixed = optax.inject_hyperparams(optax.adamw)(1e-3).init([scale, scale.astype(jnp.bfloat16)])
assert abs(float(mixed.hyperparams["b2"]) - 0.999) < 1e-6


def decay(**options):
    optimizer = optax.inject_hyperparams(optax.sgd, **options)(1e-3)
    state = optimizer.init(jnp.ones(2, jnp.bfloat16))
    for _ in range(1000):
        state.hyperparams["learning_rate"] *= 0.999
        _, state = optimizer.update(jnp.ones(2, jnp.bfloat16), state, jnp.ones(2, jnp.bfloat16))
    return float(state.hyperparams["learning_rate"])


rates = decay(), decay(hyperparam_dtype=jnp.float32)
print(f"1e-3 times 0.999, a thousand times: {rates[0]:.6f}; in float32 {rates[1]:.6f}")
assert rates[0] > 0.00099 and abs(rates[1] - 1e-3 * 0.999**1000) < 1e-7
EOP
