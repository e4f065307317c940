#!/usr/bin/env bash
# torch.distributed.checkpoint's get_state_dict(model, optimizer), which the tutorials of that package save with, called
# before the first step: to keep a checkpoint of step 0, or to see what will be saved.
# Expected: reading changes nothing; training goes on as if nobody had asked.
# Happens: for an optimizer without state it makes one by a real step() with zero gradients and a learning rate of 0. The
# weights stay, the state does not: Adam, AdamW and RAdam have counted a step whose gradients were 0, so the first real
# step of Adam is 26 % too short, and ten of them together 7 %. SGD with dampening makes a tenth of its first step,
# ASGD none of it. Rprop starts from steps of 1e-6 instead of its lr, which it reaches 38 steps later.
# A warmup that starts slowly hides it. optimizer.state_dict() and get_model_state_dict(model) change nothing, nor does
# get_state_dict after a step; or make a new optimizer after the call.
# Seen with torch 2.13.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0 numpy
venv/bin/python - <<'EOF' 2> log || { cat log; exit 1; }
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict

N_STEPS = 10


def distances(optimizer_class, options, ask, after=0):
    """How far the weights are from their start after each step; `ask` is called before step `after`."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = optimizer_class(model.parameters(), **options)
    start, found = model.weight.detach().clone(), []
    for step in range(N_STEPS):
        if step == after:
            before = model.weight.detach().clone()
            ask(model, optimizer)
            assert model.weight.equal(before)
        optimizer.zero_grad()
        (model(torch.ones(2, 4)) - 100).pow(2).sum().backward()
        optimizer.step()
        found.append((model.weight.detach() - start).abs().mean().item())
    return found


def nothing(model, optimizer):
    pass


def only_torch(model, optimizer):
    optimizer.state_dict(), get_model_state_dict(model)


shares = {}
for optimizer_class, options in (
    (torch.optim.Adam, {"lr": 1e-3}),
    (torch.optim.AdamW, {"lr": 1e-3}),
    (torch.optim.RAdam, {"lr": 1e-3}),
    (torch.optim.SGD, {"lr": 1e-4, "momentum": 0.9, "dampening": 0.9}),
    (torch.optim.ASGD, {"lr": 1e-4}),
    (torch.optim.Rprop, {"lr": 1e-3}),
):
    right = distances(optimizer_class, options, nothing)
    assert right == distances(optimizer_class, options, only_torch)
    assert right == distances(optimizer_class, options, get_state_dict, after=1)
    asked = distances(optimizer_class, options, get_state_dict)
    first, all_ = asked[0] / right[0], asked[-1] / right[-1]
    shares[optimizer_class.__name__] = first, all_
    print(f"{optimizer_class.__name__}: asked before, the first step is {first:.3f} of what it is otherwise, "
          f"{N_STEPS} steps are {all_:.3f}")
assert all(0.7 < shares[name][0] < 0.8 and 0.9 < shares[name][1] < 0.96 for name in ("Adam", "AdamW"))
assert shares["RAdam"][0] < 0.6 and shares["SGD"][0] < 0.11 and shares["ASGD"][0] == 0 and shares["Rprop"][1] < 0.01

model = torch.nn.Linear(4, 4)
_, state = get_state_dict(model, torch.optim.Adam(model.parameters()))
print("steps counted before the first:", [entry["step"].item() for entry in state["state"].values()])
assert all(entry["step"] == 1 for entry in state["state"].values())
EOF
