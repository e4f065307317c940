#!/usr/bin/env bash
# A Transformer encoder of Keras' layers: Embedding(mask_zero=True), then blocks of MultiHeadAttention and Dense, each
# with a residual sum and LayerNormalization as in the paper (after the sum). Three words, alone and with padding behind.
# Expected: the mask goes through the model by itself, as Keras' guide to masking says: what becomes of the words, and
# the loss, do not depend on the padding.
# Happens: MultiHeadAttention takes the mask off the tensors it is given (its own output has one), so the sum
# Add()([x, attention]) finds only one mask and has none: from the second block on, words attend to padding, and the
# loss counts padding. Nothing warns. With `x + attention` there is no mask either: operators and keras.ops drop it.
# Where the norm comes first, attention is given the norm's output, x keeps its mask, and all is well with Add, not
# with `+`. Or pass the mask by hand: attention_mask=ids != 0 in each block, and sample weights to the loss.
# Seen with keras 3.15.1 on jax 0.10.2 (on torch and tensorflow alike), Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q keras==3.15.1 jax==0.10.2 jaxlib==0.10.2
KERAS_BACKEND=jax JAX_PLATFORMS=cpu venv/bin/python - <<'EOF' 2> log || { cat log; exit 1; }
import keras
import numpy as np
from keras import layers

words = np.array([[3, 4, 5], [6, 7, 8]])
padded = np.pad(words, ((0, 0), (0, 4)))


def encoder(norm_first, add, by_hand=False):
    keras.utils.set_random_seed(0)
    ids = layers.Input((None,), dtype="int32")
    options = {"attention_mask": (ids != 0)[:, None]} if by_hand else {}
    x = layers.Embedding(10, 8, mask_zero=True)(ids)
    for _ in range(2):
        for kind in ("attention", "feed-forward"):
            seen = layers.LayerNormalization()(x) if norm_first else x
            if kind == "attention":
                change = layers.MultiHeadAttention(num_heads=2, key_dim=4)(seen, seen, **options)
            else:
                change = layers.Dense(8)(layers.Dense(16, activation="relu")(seen))
            x = add(x, change)
            if not norm_first:
                x = layers.LayerNormalization()(x)
    model = keras.Model(ids, layers.Dense(10)(x))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def by_layer(a, b):
    return layers.Add()([a, b])


def by_operator(a, b):
    return a + b


found = {}
for name, options in {
    "norm after, Add": (False, by_layer),
    "norm after, +": (False, by_operator),
    "norm first, Add": (True, by_layer),
    "norm first, +": (True, by_operator),
    "norm after, Add, attention_mask": (False, by_layer, True),
}.items():
    model = encoder(*options)
    change = np.abs(model.predict(padded, verbose=0)[:, :3] - model.predict(words, verbose=0)).max()
    losses = [model.evaluate(x, x, verbose=0) for x in (words, padded)]
    found[name] = change, abs(losses[1] - losses[0])
    print(f"{name}: padding moves logits by {change:.2g}, the loss from {losses[0]:.3f} to {losses[1]:.3f}")
for name in ("norm after, Add", "norm after, +", "norm first, +"):
    assert min(found[name]) > 0.01
assert max(found["norm first, Add"]) < 1e-4
assert found["norm after, Add, attention_mask"][0] < 1e-4 and found["norm after, Add, attention_mask"][1] > 0.01
EOF
