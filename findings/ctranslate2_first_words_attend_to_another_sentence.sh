#!/usr/bin/env bash
# CTranslate2's beam search on a batch of sentences, with return_attention (for alignments), replace_unknowns (a <unk>
# becomes the source word with the highest attention) and coverage_penalty; a small model of random weights.
# Expected: each sentence gets its own attention, as it does alone or with beam_size=1.
# Happens: the attention of each first word belongs to another sentence. The first step is made once a sentence and then
# copied for the beam, the attention without this copy: of the batch, sorted by length, sentence i gets the vector of
# sentence i // beam_size, cut to its own length. So the first word is aligned wrongly, a <unk> at the beginning becomes
# a word by accident, and with coverage_penalty scores, and some translations, depend on the rest of the batch. Only the
# longest sentence is right. The translations themselves do not suffer, and nothing warns.
# With max_batch_size=1, or greedy search, all is right.
# Seen with ctranslate2 4.8.5, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q ctranslate2==4.8.5 numpy==2.4.6
OMP_NUM_THREADS=1 venv/bin/python - <<'EOF'
from pathlib import Path

import ctranslate2
import numpy as np

D, WORDS, LONGEST = 16, [f"w{i}" for i in range(40)], 32
draw = np.random.default_rng(0)


def make(bias_of_unk, folder):
    """Saves a model of one layer; its output is <unk> each time if the bias is large."""
    def linear(spec, n_out, n_in, scale=1.0):
        spec.weight = (scale * draw.normal(size=(n_out, n_in)) / n_in**0.5).astype("float32")
        spec.bias = np.zeros(n_out, "float32")

    def norm(spec):
        spec.gamma, spec.beta = np.ones(D, "float32"), np.zeros(D, "float32")

    vocabulary = ["<unk>", "<s>", "</s>", *WORDS]
    spec = ctranslate2.specs.TransformerSpec.from_config(1, 2)
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    for side, embeddings in ((spec.encoder, spec.encoder.embeddings[0]), (spec.decoder, spec.decoder.embeddings)):
        embeddings.weight = draw.normal(size=(len(vocabulary), D)).astype("float32")
        side.position_encodings.encodings = draw.normal(size=(LONGEST, D)).astype("float32")
        norm(side.layer_norm)
        (layer,) = side.layer
        linear(layer.self_attention.linear[0], 3 * D, D)
        linear(layer.self_attention.linear[1], D, D)
        linear(layer.ffn.linear_0, 2 * D, D)
        linear(layer.ffn.linear_1, D, 2 * D)
        norm(layer.self_attention.layer_norm)
        norm(layer.ffn.layer_norm)
    linear(layer.attention.linear[0], D, D, 3)
    linear(layer.attention.linear[1], 2 * D, D)
    linear(layer.attention.linear[2], D, D)
    norm(layer.attention.layer_norm)
    linear(spec.decoder.projection, len(vocabulary), D)
    spec.decoder.projection.bias[0] = bias_of_unk
    spec.validate()
    spec.optimize()
    Path(folder).mkdir()
    spec.save(folder)
    return ctranslate2.Translator(folder, intra_threads=1)


model, unknowing = make(-9, "model"), make(30, "unknowing")
lengths = [12, 10, 9, 8, 7, 6, 5, 4]
batch = [[*draw.choice(WORDS, n, replace=False).tolist(), "</s>"] for n in lengths]


def both(translator, **options):
    options = {"min_decoding_length": 4, "max_decoding_length": 4, "return_scores": True} | options
    return translator.translate_batch(batch, **options), translator.translate_batch(batch, max_batch_size=1, **options)


for beam_size in (1, 2, 4):
    together, alone = both(model, beam_size=beam_size, return_attention=True)
    assert [x.hypotheses for x in together] == [x.hypotheses for x in alone]
    first, later, owners = [], [], []
    rows = [np.pad(x.attention[0][0], (0, LONGEST)) for x in alone]
    for x, y in zip(together, alone, strict=True):
        difference = np.abs(np.array(x.attention[0]) - np.array(y.attention[0])).max(1)
        first.append(difference[0])
        later.append(difference[1:].max())
        found = np.array(x.attention[0][0])
        owners += [[i for i, row in enumerate(rows) if np.abs(row[: len(found)] - found).max() < 1e-5]]
    print(f"beam {beam_size}: first words have the attention of sentence", [i for (i,) in owners])
    assert owners == [[i // beam_size] for i in range(len(batch))] and max(later) < 1e-5
    assert max(first) < 1e-5 if beam_size == 1 else min(first[1:]) > 0.01

together, alone = both(unknowing, beam_size=4, replace_unknowns=True)
words = [(x.hypotheses[0], y.hypotheses[0]) for x, y in zip(together, alone, strict=True)]
n_other = sum(x[0] != y[0] for x, y in words)
print(f"replace_unknowns: another first word for {n_other} of {len(batch)} sentences")
assert n_other >= 3 and all(x[1:] == y[1:] for x, y in words)

together, alone = both(model, beam_size=4, coverage_penalty=0.5)
scores = [(round(x.scores[0], 3), round(y.scores[0], 3)) for x, y in zip(together, alone, strict=True)]
print("coverage_penalty: scores in the batch and alone:", *scores)
assert sum(x != y for x, y in scores) >= 6 and scores[0][0] == scores[0][1]
EOF
