"""Two aligned text files become a model. Replace the four files by your own: a sentence a line, both sides in order."""

import sys
from pathlib import Path

import heed
from heed.text.numbers import english, german, number_splits

RECIPE = """
preset = "demo"

[data]
src = "en"
tgt = "de"
train = ["train.en", "train.de"]
dev = ["dev.en", "dev.de"]

[training]
max_steps = {max_steps}
"""


def main(max_steps: int = 1500, n_train: int = 40_000, n_dev: int = 200) -> None:
    splits = number_splits(n_train=n_train, n_dev=n_dev)
    for name in ("train", "dev"):
        for language, words in (("en", english), ("de", german)):
            lines = "".join(f"{words(number)}\n" for number in getattr(splits, name))
            Path(f"{name}.{language}").write_text(lines, encoding="utf-8")
    Path("own.toml").write_text(RECIPE.format(max_steps=max_steps), encoding="utf-8")
    trained = heed.train("own.toml", "runs/own", report=print)
    print(heed.load(trained.model).translate("two thousand seven").text)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
