#!/usr/bin/env bash
# Grain: data = MapDataset.range(100).shuffle(seed=0), then train, valid = data[:90], data[90:], and train.repeat().
# Expected: 90 examples to train on, in another order in each epoch, and 10 that are never trained on: a slice, so its
# docstring, is "a dataset containing only the elements with indices in" it.
# Happens: a slice keeps positions, not elements. In each epoch all 100 are shuffled anew and the slice takes its places
# of the new order, so after three epochs training has seen all 100, and the validation set, repeated, is not the same
# ten examples either. In one epoch all looks right. Shards, data[i::4], for which the docstring recommends slices,
# draw from all examples in the same way, so a worker's share is not its own. Infinite training (repeat() without a
# number) does it too.
# What helps: slice first and shuffle each part, or repeat(reseed_each_epoch=False), which also keeps the order.
# Seen with grain 0.2.18, numpy 2.4.6, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q grain==0.2.18 numpy==2.4.6
venv/bin/python - <<'EOF' 2> log || { cat log; exit 1; }
import itertools

import grain


def seen(dataset, n_epochs, **options):
    return {int(x) for x in dataset.repeat(n_epochs, **options).to_iter_dataset()}


for name, make in {
    "shuffle(seed)": lambda: grain.MapDataset.range(100).shuffle(seed=0),
    "seed().shuffle()": lambda: grain.MapDataset.source(list(range(100))).seed(1).shuffle(),
    "shuffle, map": lambda: grain.MapDataset.range(100).shuffle(seed=2).map(int),
}.items():
    data = make()
    train, valid = data[:90], data[90:]
    held_out = seen(valid, 1)
    leaked = [len(seen(train, n_epochs) & held_out) for n_epochs in (1, 2, 3, 10)]
    drawn = [len(seen(valid, n_epochs)) for n_epochs in (1, 2, 3, 10)]
    forever = {int(x) for x in itertools.islice(train.repeat(), 900)}
    shards = [len(seen(data[i::4], 3)) for i in range(4)]
    print(f"{name}: of 10 held out, trained on after 1, 2, 3, 10 epochs: {leaked}; validation sees {drawn} examples; "
          f"each of 4 shards sees {shards} in 3 epochs")
    assert leaked[0] == 0 and min(leaked[1:3]) >= 5 and leaked[3] == len(forever & held_out) == 10
    assert drawn[0] == 10 and drawn[1] > 15 and min(shards) > 45
    assert not seen(train, 10, reseed_each_epoch=False) & held_out
    assert all(len({int(train[i]) for i in range(epoch, epoch + 90)}) == 90 for epoch in (0, 90, 180))

data = grain.MapDataset.range(100)
train, valid = data[:90].shuffle(seed=0), data[90:].shuffle(seed=0)
assert seen(train, 10) == set(range(90)) and seen(valid, 10) == set(range(90, 100))
orders = [[int(train[i]) for i in range(epoch, epoch + 90)] for epoch in (0, 90)]
assert orders[0] != orders[1]
print("sliced, then shuffled: nothing leaks")
EOF
