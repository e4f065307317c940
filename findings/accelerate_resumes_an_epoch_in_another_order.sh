#!/usr/bin/env bash
# Accelerate, in the middle of the third epoch: save_state, and in a new process load_state and skip_first_batches, as
# its guide to checkpoints says; or a stateful loader (use_stateful_dataloader=True), which skips by itself.
# Expected: the rest of the epoch, then the next epochs as they would have been without the break.
# Happens: load_state restores the random state of the moment of saving, when the order of the epoch had long been
# drawn. The loader draws another and skips the beginning of that: of 64 examples, 13 to 15 come twice in the epoch and
# as many never. The stateful loader does the same. use_seedable_sampler=True alone begins again at the order of the
# first epoch, and shows it again in the next. No message in any case, and the number of batches is right.
# What helps: use_seedable_sampler=True together with loader.set_epoch(epoch) before each epoch, also the resumed one.
# set_epoch without the seedable sampler does nothing.
# Seen with accelerate 1.15.0, torchdata 0.11.0, torch 2.13.0, Python 3.11, one process.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0 numpy
venv/bin/pip install -q accelerate==1.15.0 torchdata==0.11.0
venv/bin/python - <<'EOF' 2> log || { cat log; exit 1; }
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader

EXAMPLES, EPOCH, BATCHES = range(64), 2, 5


class Run:
    def __init__(self, folder, seed, set_epoch, options):
        self.folder = folder
        set_seed(seed)
        self.accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        loader = DataLoader(list(EXAMPLES), batch_size=4, shuffle=True)
        self.loader = self.accelerator.prepare(model, optimizer, loader)[-1]
        self.stateful, self.set_epoch = options.get("use_stateful_dataloader"), set_epoch

    def epoch(self, number, skip=0, save_after=None):
        """The batches of an epoch."""
        if self.set_epoch:
            self.loader.set_epoch(number)
        loader = self.accelerator.skip_first_batches(self.loader, skip) if skip and not self.stateful else self.loader
        batches = []
        for batch in loader:
            batches.append(batch.tolist())
            if len(batches) == save_after:
                self.accelerator.save_state(self.folder)
        return batches


def resumed(name, set_epoch=False, **options):
    found = []
    for seed in range(3):
        folder = f"{name} {seed}"
        run = Run(folder, seed, set_epoch, options)
        first = [run.epoch(number) for number in range(EPOCH)][0]
        whole, following = run.epoch(EPOCH, save_after=BATCHES), run.epoch(EPOCH + 1)
        run = Run(folder, seed, set_epoch, options)
        run.accelerator.load_state(folder)
        rest = run.epoch(EPOCH, skip=BATCHES)
        seen = sum(whole[:BATCHES] + rest, [])
        assert len(seen) == len(EXAMPLES)
        next_epoch = run.epoch(EPOCH + 1)
        found.append((len(EXAMPLES) - len({*seen}), next_epoch == following, rest == first[BATCHES:],
                      next_epoch == first))
    print(f"{name}: never seen in the epoch: {[one[0] for one in found]} of {len(EXAMPLES)}; "
          f"next epoch as without a break: {[one[1] for one in found]}")
    return found


for wrong in (resumed("default"), resumed("set_epoch", True), resumed("stateful", use_stateful_dataloader=True)):
    assert all(missing > 8 and not next_is_right for missing, next_is_right, _, _ in wrong)
for missing, next_is_right, *as_first in resumed("seedable sampler", use_seedable_sampler=True):
    assert missing > 8 and not next_is_right and all(as_first)
for right in (
    resumed("seedable sampler and set_epoch", True, use_seedable_sampler=True),
    resumed("stateful, seedable sampler and set_epoch", True, use_seedable_sampler=True, use_stateful_dataloader=True),
):
    assert all(missing == 0 and next_is_right for missing, next_is_right, _, _ in right)
EOF
