#!/usr/bin/env bash
# datasets' IterableDataset, and torchdata's StatefulDataLoader over it: state_dict() in the middle of an epoch, and in a
# new process load_state_dict(), the rest of the epoch, and more epochs; 40 rows, of which 12 had been read.
# Expected: 28 rows, then epochs of 40.
# Happens: every epoch has the same 28 rows; the first 12 are never trained on again. The state is used for each
# iteration, not for the first. The loader does the same with num_workers=0 and with persistent workers; with other
# workers its later epochs are whole. No message; logs show shorter epochs. A state saved in such an epoch is right.
# set_epoch() with another number than the saved one makes an epoch whole, but it must be called for each;
# load_state_dict() of a state without rows read does so as well. A dataset made of it by map() knows nothing of the
# state and begins at the first row.
# Seen with datasets 5.2.0, torchdata 0.11.0, torch 2.13.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0 numpy
venv/bin/pip install -q datasets==5.2.0 torchdata==0.11.0
HF_HUB_OFFLINE=1 venv/bin/python -W ignore - <<'EOF'
import datasets
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader


def make():
    return datasets.Dataset.from_dict({"x": list(range(40))}).to_iterable_dataset(num_shards=4)


def read(source, n=100):
    """Up to n rows or batches, as numbers of rows."""
    found = []
    for _, row in zip(range(n), source):
        x = row["x"]
        found += [x] if isinstance(x, int) else x.tolist()
    return found


def resume(dataset):
    before = make()
    assert read(before, 12) == list(range(12))
    dataset.load_state_dict(before.state_dict())
    return dataset


resumed = resume(make())
epochs = [read(resumed) for _ in range(3)]
print("dataset, rows of an epoch:", [len(rows) for rows in epochs])
assert epochs == [list(range(12, 40))] * 3
loader = DataLoader(resumed, batch_size=4)
print("DataLoader:", [len(read(loader)) for _ in range(2)], "map():", len(read(resumed.map(dict))))
assert len(read(loader)) == 28 and len(read(resumed.map(dict))) == 40

lengths = []
for epoch in (0, 1, 2, 0):
    resumed.set_epoch(epoch)
    lengths.append(len(read(resumed)))
print("set_epoch of 0, 1, 2, 0:", lengths)
assert lengths == [28, 40, 40, 28]
resumed.load_state_dict(make().state_dict())
assert len(read(resumed)) == 40

for n_workers, persistent, expected in ((0, False, [28, 28, 28]), (2, True, [28, 28, 28]), (2, False, [28, 40, 40])):
    def load():
        return StatefulDataLoader(make(), batch_size=4, num_workers=n_workers, persistent_workers=persistent)
    before, after = load(), load()
    batches = iter(before)
    assert len([next(batches) for _ in range(3)]) == 3
    after.load_state_dict(before.state_dict())
    assert [len(read(batches)), len(read(before))] == [28, 40]
    found = [len(read(after)) for _ in range(3)]
    print(f"StatefulDataLoader, {n_workers} workers, persistent {persistent}:", found)
    assert found == expected
EOF
