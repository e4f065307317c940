"""The model of own_data.py learns from new pairs, here a dialect that writes "zwo" for "zwei"."""

import sys
from pathlib import Path

import heed

RECIPE = """
[data]
src = "en"
tgt = "de"
train = ["new.en", "new.de"]
dev = ["dev.en", "dev.de"]

[training]
start_from = "runs/own/model"
max_steps = {max_steps}
warmup_steps = 20
learning_rate_factor = 0.2
batch_src_tokens = 2000
batch_tgt_tokens = 2000
checkpoint_every = "50 steps"
average_last = 1

[evaluation]
tokenize = "char"
"""


def main(max_steps: int = 200) -> None:
    sources, targets = (Path(f"train.{language}").read_text(encoding="utf-8") for language in ("en", "de"))
    Path("new.en").write_text(sources, encoding="utf-8")
    Path("new.de").write_text(targets.replace("zwei", "zwo"), encoding="utf-8")
    Path("fine-tuning.toml").write_text(RECIPE.format(max_steps=max_steps), encoding="utf-8")
    trained = heed.train("fine-tuning.toml", "runs/fine-tuned", report=print)
    for model in ("runs/own/model", trained.model):
        print(model, heed.load(model).translate("two thousand seven").text)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
