"""Checkpoints of a run that was never trained: random weights, and a log of what they cost."""

from pathlib import Path

import torch

from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard
from heed.text.tokenizer import Tokenizer
from heed.training.checkpoint import Checkpoints, TrainState

CARD = ModelCard("en", "de", trained_on={"corpus": "own files", "sustained FLOP/s": "1.00e+12"})


def write_checkpoints(
    run: Path, steps: list[int], arch: Architecture, tokenizer: Tokenizer
) -> dict[int, dict[str, torch.Tensor]]:
    """Writes RUN/checkpoints/STEP for each step, after 10 seconds each; returns the weights by step."""
    checkpoints = Checkpoints(run / "checkpoints", keep=len(steps), tokenizer=tokenizer, card=CARD)
    weights = {}
    for step in steps:
        torch.manual_seed(step)
        model = Transformer(arch, len(tokenizer))
        optimizer = torch.optim.Adam(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        checkpoints.save(model, optimizer, TrainState(step=step, seconds=10.0 * step, n_src_tokens=7, n_tgt_tokens=9))
        weights[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return weights
