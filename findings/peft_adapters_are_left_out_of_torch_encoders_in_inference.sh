#!/usr/bin/env bash
# PEFT adapters (LoRA, IA3, LoHa) in nn.TransformerEncoder or the encoder of nn.Transformer: trained, then model.eval().
# Expected: the adapted model, in training as in evaluation, or an error.
# Happens: in evaluation the encoder is the one before the training. Its layers take a fast path there, which hands
# linear1.weight and self_attn.in_proj_weight to one kernel and calls no submodule, and under those names PEFT's layers
# have the base's weights. The training loss falls, but the same sentences in evaluation have the loss of a model whose
# encoder was never trained, without a warning: under no_grad() and, since the base's weights are frozen, with gradients
# on. The decoder has no fast path and keeps its adapter, so a translation model is half adapted.
# torch.backends.mha.set_fastpath_enabled(False) or merge_and_unload() brings the encoder's adapters back.
# Seen with peft 0.21.2, torch 2.13.0 (CPU), transformers 5.24.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q torch==2.13.0
venv/bin/pip install -q peft==0.21.2 transformers==5.24.0 accelerate==1.15.0
venv/bin/python - <<'EOF' 2> log || { cat log; exit 1; }
import peft
import torch
from torch import nn

torch.set_num_threads(1)
FEED_FORWARD = ["linear1", "linear2"]


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.output = nn.Linear(32, 20)

    def forward(self, ids):
        return self.output(self.encoder(self.embedding(ids), src_key_padding_mask=ids == 0))


def loss(model, mode):
    model.train(mode == "train")
    with torch.set_grad_enabled(mode != "eval, no_grad"):
        return nn.functional.cross_entropy(model(src).flatten(0, 1), tgt.flatten(), ignore_index=0)


src = torch.tensor([[3, 7, 5, 9, 4, 8], [6, 2, 11, 13, 0, 0], [10, 12, 4, 3, 7, 0]])
tgt = torch.where(src > 0, torch.roll(src, 1, 1) + 1, 0)
base = loss(Tagger(), "eval, no_grad").item()
for targets in (FEED_FORWARD, ["self_attn"]):
    model = peft.get_peft_model(Tagger(), peft.LoraConfig(r=8, target_modules=targets))
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        loss(model, "train").backward()
        optimizer.step()
    found = {mode: loss(model, mode).item() for mode in ("train", "eval", "eval, no_grad")}
    torch.backends.mha.set_fastpath_enabled(False)
    found["eval, no fast path"] = loss(model, "eval, no_grad").item()
    torch.backends.mha.set_fastpath_enabled(True)
    found["merged"] = loss(model.merge_and_unload(), "eval, no_grad").item()
    print("LoRA of", targets, f"before: {base:.3f}, after:", {mode: round(value, 3) for mode, value in found.items()})
    assert found["train"] < base / 4 and abs(found["eval"] - base) < 1e-5 > abs(found["eval, no_grad"] - base)
    assert max(abs(found[mode] - found["train"]) for mode in ("eval, no fast path", "merged")) < 1e-4


def transformer():
    torch.manual_seed(0)
    return nn.Transformer(32, 4, 2, 2, 64, dropout=0.0, batch_first=True)


x, y = torch.randn(3, 6, 32), torch.randn(3, 4, 32)
configs = (
    peft.LoraConfig(r=4, target_modules=FEED_FORWARD, init_lora_weights=False),
    peft.IA3Config(target_modules=FEED_FORWARD, feedforward_modules=[], init_ia3_weights=False),
    peft.LoHaConfig(r=4, target_modules=FEED_FORWARD, init_weights=False),
)
for config in configs:
    base, adapted = transformer(), peft.get_peft_model(transformer(), config).base_model.model
    for part in ("encoder", "decoder"):
        found = {}
        for mode in (True, False):
            for name, model in (("base", base), ("adapted", adapted)):
                model.train(mode)
                found[name, mode] = model.encoder(x) if part == "encoder" else model.decoder(y, x)
        kept = (found["adapted", True] - found["adapted", False]).abs().max().item()
        effect = (found["base", False] - found["adapted", False]).abs().max().item()
        print(type(config).__name__, part, f"from training to evaluation {kept:.2g}, from base to adapted {effect:.2g}")
        assert (kept > 0.05 and effect < 1e-5) if part == "encoder" else (kept < 1e-5 and effect > 0.05)
EOF
