#!/usr/bin/env bash
# Keras' optimizers with a learning-rate schedule (warmup, then the inverse square root) and
# gradient_accumulation_steps=8, which makes one update of eight batches.
# Expected: the schedule counts updates, as optimizer.iterations does and as Adam's bias correction does: the same
# training as with batches that are eight times as large.
# Happens: the schedule is asked with the number of batches. A warmup of 32 ends after 4 updates, and from then on the
# rate is the one of eight times as many updates, less than half of what was meant. Two counters in one optimizer:
# `iterations` is divided by eight, what the schedule gets is not, and nothing says so.
# What helps: a schedule that divides its step by the number of accumulated batches.
# Seen with keras 3.15.1 (its numpy backend; jax does the same), Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q keras==3.15.1 jax==0.10.2 jaxlib==0.10.2
KERAS_BACKEND=numpy venv/bin/python - <<'EOF' 2> log || { cat log; exit 1; }
import keras
import numpy as np

WARMUP, BATCHES = 32, 8


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, batches=1):
        self.batches = batches

    def __call__(self, step):
        step = keras.ops.cast(step // self.batches, "float32") + 1
        return keras.ops.minimum(step / WARMUP, (WARMUP / step) ** 0.5)


def rates(n_updates, schedule, batches):
    """How far SGD with gradients of 1 moves in each update: its learning rate."""
    weight = keras.Variable(np.zeros(1, "float32"))
    optimizer = keras.optimizers.SGD(schedule, gradient_accumulation_steps=batches)
    optimizer.build([weight])
    places = [0.0]
    for _ in range(n_updates):
        for _ in range(batches or 1):
            optimizer.apply([np.ones(1, "float32")], [weight])
        places.append(-float(keras.ops.convert_to_numpy(weight)[0]))
    assert int(optimizer.iterations) == n_updates
    return np.diff(places)


n = 2 * WARMUP // BATCHES
plain = rates(2 * WARMUP, Warmup(), None)
accumulated, divided = rates(2 * WARMUP, Warmup(), BATCHES), rates(n, Warmup(BATCHES), BATCHES)
for update in (2, WARMUP // BATCHES, WARMUP, 2 * WARMUP):
    print(f"update {update}: rate {plain[update - 1]:.3f}, with {BATCHES} batches each {accumulated[update - 1]:.3f}")
print("highest rate at update", plain.argmax() + 1, "and", accumulated.argmax() + 1)
assert plain.argmax() + 1 == WARMUP and accumulated.argmax() + 1 == WARMUP // BATCHES
assert accumulated[-1] < 0.4 * plain[-1] and np.allclose(divided, plain[:n], atol=1e-4)
EOF
