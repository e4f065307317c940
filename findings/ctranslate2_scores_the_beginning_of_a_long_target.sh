#!/usr/bin/env bash
# CTranslate2's Translator.score_batch(source, target, max_input_length=n), by default 1024 ("Truncate inputs after this
# many tokens").
# Expected: the source is cut; a target is scored as it is, or refused if it is longer than the model's positions.
# Happens: the target is cut too, to n - 1 tokens, and the end symbol is scored behind its stump: the sum of a long
# target's log-probabilities is that of another text, often better than that of a shorter one, in silence. Whoever
# filters or ranks pairs by it keeps the pairs that it has not read. max_input_length=0 scores everything.
# Seen with ctranslate2 4.8.5, numpy 2.4.6, Python 3.11 (a small model with random weights).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q ctranslate2==4.8.5 numpy==2.4.6
venv/bin/python - <<'EOP'
import os

import ctranslate2
import numpy as np
from ctranslate2.specs import transformer_spec

D, VOCABULARY = 16, ["<blank>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(16))]
draw = np.random.default_rng(3)


def table(*shape):
    return draw.normal(0, 0.5, shape).astype(np.float32)


def fill(layer, shapes, norm):
    for linear, shape in zip(layer, shapes, strict=True):
        linear.weight, linear.bias = table(*shape), np.zeros(shape[0], np.float32)
    norm.gamma, norm.beta = np.ones(D, np.float32), np.zeros(D, np.float32)


model = transformer_spec.TransformerSpec.from_config((1, 1), 2, pre_norm=False)
for stack in (model.encoder, model.decoder):
    embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
    embeddings.weight, stack.scale_embeddings = table(len(VOCABULARY), D), True
    stack.position_encodings.encodings = table(2000, D)
    layer = stack.layer[0]
    fill(layer.self_attention.linear, [(3 * D, D), (D, D)], layer.self_attention.layer_norm)
    fill([layer.ffn.linear_0, layer.ffn.linear_1], [(24, D), (D, 24)], layer.ffn.layer_norm)
    if stack is model.decoder:
        fill(layer.attention.linear, [(D, D), (2 * D, D), (D, D)], layer.attention.layer_norm)
model.decoder.projection.weight = table(len(VOCABULARY), D)
model.decoder.projection.bias = np.zeros(len(VOCABULARY), np.float32)
model.register_source_vocabulary(VOCABULARY)
model.register_target_vocabulary(VOCABULARY)
os.mkdir("model")
model.validate()
model.save("model")

translator = ctranslate2.Translator("model", intra_threads=1)
target = [f"w{i % 16}" for i in range(1500)]


def score(target, **options):
    return translator.score_batch([["w1", "w2"]], [target], **options)[0]


default, whole, shorter = score(target), score(target, max_input_length=0), score(target[:1023])
sums = [round(sum(one.log_probs)) for one in (default, whole, shorter)]
print("tokens:", [len(one.tokens) for one in (default, whole, shorter)], "log P:", sums)
assert len(default.tokens) == 1024 and default.tokens[-1] == "</s>" and len(whole.tokens) == 1501
assert sums[0] == sums[2] > sums[1]
EOP
