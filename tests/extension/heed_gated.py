"""A network, a schedule and a format of one's own."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from heed.model.architecture import Architecture
from heed.model.transformer import FeedForward, Transformer
from heed.model_folder import ModelFolder
from heed.training.schedule import ScheduleSettings


class GatedFeedForward(FeedForward):
    """Dauphin et al. 2017: half of the inner features gate the other half."""

    def __init__(self, arch: Architecture):
        super().__init__(arch)
        self.gate = nn.Linear(arch.d_model, arch.d_ff)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x) * torch.sigmoid(self.gate(x)))


class GatedTransformer(Transformer):
    def __init__(self, arch: Architecture, vocab_size: int, src_vocab_size: int | None = None):
        super().__init__(arch, vocab_size, src_vocab_size)
        for layer in (*self.encoder, *self.decoder):
            layer.feed_forward = GatedFeedForward(arch)


def triangle(step: int, settings: ScheduleSettings, d_model: int) -> float:
    """Up and down again, every 2 · warmup_steps."""
    at = step % (2 * settings.warmup_steps)
    return 1e-3 * settings.learning_rate_factor * min(at, 2 * settings.warmup_steps - at) / settings.warmup_steps


def write_names(folder: ModelFolder, out: Path, *, report: Callable[[str], None]) -> None:
    (out / "names.txt").write_text("\n".join(folder.model.state_dict()))
    report("Wrote the weights' names.")
