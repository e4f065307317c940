#!/usr/bin/env bash
# optax.softmax_cross_entropy_with_integer_labels with labels of -100 at the padding, as the collators of transformers
# write them and PyTorch's cross_entropy leaves them out; also -1, which others use.
# Expected: such labels are left out, or refused.
# Happens: they count from the end of the vocabulary, as indices of Python do. The loss of padding is that of the word
# V - 100 (or the last word), and the model learns to write it behind each sentence. All is finite and falls, and no
# message comes. Only where the vocabulary has less than 100 words is the loss NaN, and even there the gradient is
# finite: it lowers the words that the model prefers.
# Give the mask by hand: where(labels >= 0, losses, 0), divided by the number of real labels.
# Seen with optax 0.2.8, jax 0.10.2 (CPU), Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q optax==0.2.8 jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu venv/bin/python - <<'EOF'
import jax
import jax.numpy as jnp
import optax

loss_of = optax.softmax_cross_entropy_with_integer_labels


def trained(n_words, pad, mask):
    """What a table of logits, one row a position, prefers after training; the last two positions are padding."""
    labels = jnp.array([3, 5, pad, pad])

    def loss(logits):
        losses = loss_of(logits, labels)
        return jnp.where(labels >= 0, losses, 0).sum() / (labels >= 0).sum() if mask else losses.mean()

    step = jax.jit(jax.value_and_grad(loss))
    logits = jnp.zeros((4, n_words))
    for _ in range(50):
        value, gradient = step(logits)
        logits -= 5 * gradient
    return float(value), logits.argmax(-1).tolist(), bool(jnp.isfinite(logits).all())


for pad in (-100, -1):
    value, words, finite = trained(1000, pad, mask=False)
    print(f"1000 words, labels of {pad}: loss {value:.3f}, the model writes {words}")
    assert value < 1 and words == [3, 5, 1000 + pad, 1000 + pad] and finite
    value, words, finite = trained(1000, pad, mask=True)
    print(f"  with a mask: loss {value:.3f}, {words}")
    assert value < 1 and words[:2] == [3, 5] and words[2:] == [0, 0] and finite
value, words, finite = trained(50, -100, mask=False)
print(f"50 words, labels of -100: loss {value}, finite weights: {finite}, {words}")
assert value != value and finite and words[:2] == [3, 5]
EOF
