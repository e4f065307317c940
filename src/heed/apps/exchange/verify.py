"""The check of an exported model: the same ids through Heed's plain network and the other program."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from heed.config import validated
from heed.decoding.settings import DecodingSettings
from heed.errors import HeedError
from heed.model_folder import ModelCard, ModelFolder

if TYPE_CHECKING:
    from torch import Tensor

# (sentence, src), its mask, (sentence, tgt) → (sentence, tgt, vocab)
Logits: TypeAlias = "Callable[[Tensor, Tensor, Tensor], Tensor]"
TOLERANCE = 1e-4  # of the largest logit: fp32 sums of another order differ by a hundredth of that


def ranking_note(card: ModelCard, program: str) -> str | None:
    """How a beam of the other program ranks hypotheses, if not as Heed does; lengths count eos in all of them."""
    settings = validated(DecodingSettings, card.decoding, where="the model's search settings")
    if settings.length_penalty_form != "paper" or settings.length_penalty == 0:
        return None
    return (
        f"{program} divides a hypothesis's log-probability by length^α, the paper by ((5 + length) / 6)^α: with a "
        "beam, scores differ, and occasionally so does the best hypothesis."
    )


def sample_ids(folder: ModelFolder) -> tuple[list[list[int]], list[list[int]]]:
    """Two sources and two targets, without special symbols, the first shorter than the second."""
    special = folder.tokenizer.special
    draws = random.Random(1)

    def draw(n: int, vocab_size: int) -> list[int]:
        ids = [draws.randrange(vocab_size) for _ in range(n)]
        return [i for i in ids if i not in (special.pad, special.bos, special.eos)] or [0]

    tgt_size = folder.config.vocab_size
    src_size = folder.config.src_vocab_size or tgt_size
    return [draw(4, src_size), draw(9, src_size)], [draw(3, tgt_size), draw(7, tgt_size)]


def compare_logits(theirs: Logits, folder: ModelFolder) -> float:
    """The largest difference of a logit from the plain network's, as a share of the largest one. HeedError if rounding
    cannot explain it."""
    import torch

    model, special = folder.model, folder.tokenizer.special
    sources, targets = sample_ids(folder)
    worst = largest = 0.0
    for src, tgt in zip(sources, targets, strict=True):
        # The shorter source is padded: a mask that is lost would show.
        longest = max(map(len, sources)) + 1
        rows = torch.tensor([src + [special.eos] + [special.pad] * (longest - len(src) - 1)])
        mask = torch.arange(longest)[None] <= len(src)
        tgt_in = torch.tensor([[special.bos, *tgt]])
        with torch.inference_mode():
            state = model.start(model.encode(rows, mask), mask)
            a, b = model.decode(tgt_in, state), theirs(rows, mask, tgt_in)
        if a.shape != b.shape:
            raise HeedError(f"the exported model has logits of shape {tuple(b.shape)}, Heed's {tuple(a.shape)}.")
        worst, largest = max(worst, float((a - b).abs().max())), max(largest, float(a.abs().max()))
    if not worst <= TOLERANCE * largest:
        raise HeedError(f"the exported model's logits differ by {worst:.1e}; nothing was written. Please report this.")
    return worst / largest
