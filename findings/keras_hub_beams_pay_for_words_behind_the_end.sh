#!/usr/bin/env bash
# KerasHub's BeamSampler with stop_token_ids, as its models call it, on models of words that depend on the word before
# (tables of random probabilities), and a beam search written here in a few lines.
# Expected: a beam that has produced the stop token keeps its log-probability; the best finished one is returned.
# Happens: the search goes on behind the stop token, until every sentence of the batch and every beam has one, and adds
# the log-probabilities of what follows there, which no model was trained for. A beam that ends early pays most, so one
# output in ten is less probable than that of greedy search, and 8 beams find worse outputs than 2 of a search that
# stops. Beams that are the same up to the stop token are kept as different ones, the scores of return_all_beams are far
# too low, and since whoever ends early pays until the longest of the batch has ended, outputs depend on the batch.
# What helps: a model whose `next` gives the stop token a probability of 1 behind a stop token.
# Seen with keras-hub 0.32.0, keras 3.15.1 on jax 0.10.2, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q keras-hub==0.32.0 keras==3.15.1 jax==0.10.2 jaxlib==0.10.2
KERAS_BACKEND=jax JAX_PLATFORMS=cpu venv/bin/python - <<'EOF' 2> log || { cat log; exit 1; }
import keras_hub
import numpy as np
from keras import ops

START, STOP, N_WORDS, LONGEST, N_MODELS = 0, 1, 10, 16, 100
tables = np.random.default_rng(0).normal(scale=2, size=(N_MODELS, N_WORDS, N_WORDS))
tables[:, :, START] = -30
tables[:, :, STOP] += 2
tables = (tables - np.log(np.exp(tables).sum(-1, keepdims=True))).astype("float32")


def keras_search(tables, n_beams):
    """The best output for each table, all of them in one batch, and its score."""
    def next_word(prompt, cache, index):
        last = ops.take(prompt, index - 1, axis=1)
        table = ops.repeat(ops.convert_to_tensor(tables), n_beams, axis=0)
        return table[ops.arange(len(tables) * n_beams), last], None, cache

    prompt = np.full((len(tables), LONGEST), START, "int32")
    mask = np.arange(LONGEST)[None] < np.ones((len(tables), 1))
    sampler = keras_hub.samplers.BeamSampler(num_beams=n_beams, return_all_beams=True)
    beams, scores = sampler(next_word, prompt=ops.convert_to_tensor(prompt), cache=ops.zeros((len(tables), 1)), index=1,
                            mask=ops.convert_to_tensor(mask), stop_token_ids=[STOP])
    outputs = [up_to_stop(beam[0]) for beam in np.array(beams).tolist()]
    return outputs, np.array(scores)[:, 0], np.array(beams).tolist()


def up_to_stop(ids):
    return ids[: ids.index(STOP) + 1] if STOP in ids else ids


def plain_search(table, n_beams):
    beams = [([START], 0.0)]
    for _ in range(LONGEST - 1):
        longer = [(ids, score) for ids, score in beams if ids[-1] == STOP]
        for ids, score in beams:
            if ids[-1] != STOP:
                longer += [([*ids, word], score + table[ids[-1], word]) for word in range(N_WORDS)]
        beams = sorted(longer, key=lambda beam: -beam[1])[:n_beams]
    return beams[0][0]


def log_p(table, ids):
    return sum(table[a, b] for a, b in zip(ids, ids[1:], strict=False))


greedy, _, _ = keras_search(tables, 1)
assert greedy == [plain_search(table, 1) for table in tables]
greedy_p = np.array([log_p(table, ids) for table, ids in zip(tables, greedy, strict=True)])
for n_beams in (2, 4, 8):
    outputs, scores, beams = keras_search(tables, n_beams)
    plain = [plain_search(table, n_beams) for table in tables]
    found_p, plain_p = (
        np.array([log_p(table, ids) for table, ids in zip(tables, found, strict=True)]) for found in (outputs, plain)
    )
    worse, plain_worse = ((p < greedy_p - 1e-3).sum() for p in (found_p, plain_p))
    twins = sum(len({*map(tuple, map(up_to_stop, of_one))}) < n_beams for of_one in beams)
    n_other = sum(a != b for a, b in zip(outputs, plain, strict=True))
    print(f"{n_beams} beams: other outputs than by plain search: {n_other} of {N_MODELS}; less probable than"
          f" greedy's: {worse}, by plain search: {plain_worse}; mean log P: greedy {greedy_p.mean():.2f}, KerasHub"
          f" {found_p.mean():.2f}, plain {plain_p.mean():.2f}; KerasHub's scores are too low by"
          f" {(found_p - scores).mean():.2f}; with two beams of one text: {twins}")
    assert n_other >= 15 and worse >= 5 > plain_worse and twins >= 50
    assert found_p.mean() < plain_p.mean() - 0.5 and (found_p - scores).mean() > 3
    closed = tables.copy()
    closed[:, STOP] = np.where(np.arange(N_WORDS) == STOP, 0, -1e4)
    assert keras_search(closed, n_beams)[0] == plain
alone = [keras_search(table[None], 8)[0][0] for table in tables[:60]]
n_other = sum(a != b for a, b in zip(outputs, alone, strict=False))
print(f"8 beams: others alone than in the batch: {n_other} of {len(alone)}")
assert n_other
EOF
