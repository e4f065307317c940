"""A feed-forward layer whose features are gated (Dauphin et al. 2017), trained on the files of own_data.py."""

import sys

import torch
from torch import Tensor, nn

import heed
from heed.model.transformer import FeedForward


class GatedFeedForward(FeedForward):
    def __init__(self, arch: heed.Architecture):
        super().__init__(arch)
        self.gate = nn.Linear(arch.d_model, arch.d_ff)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x) * torch.sigmoid(self.gate(x)))


class GatedTransformer(heed.Transformer):
    def __init__(self, arch: heed.Architecture, vocab_size: int, src_vocab_size: int | None = None):
        super().__init__(arch, vocab_size, src_vocab_size)
        for layer in (*self.encoder, *self.decoder):
            layer.feed_forward = GatedFeedForward(arch)


def main(max_steps: int = 1500) -> None:
    recipe = heed.read_recipe("own.toml", [f"training.max_steps={max_steps}"])
    trained = heed.train(recipe, "runs/gated", network=GatedTransformer, report=print)
    print(heed.load(trained.model, network=GatedTransformer).translate("two thousand seven").text)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
