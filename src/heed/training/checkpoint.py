"""Checkpoints: a model folder plus the trainer's state, kept to the last n; and their average."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from heed.config import HeedError, whole_folder
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, load_weights, read_weights, write_model, write_weights
from heed.text.tokenizer import Tokenizer


@dataclass
class Progress:
    """Where a run stands: all that it needs, beside weights and moments, to go on as if never stopped.

    Dropout needs no state: every step seeds it anew.
    """

    step: int = 0  # optimizer updates made
    epoch: int = 0
    batch: int = 0  # batches of this epoch already used
    n_src_tokens: int = 0
    n_tgt_tokens: int = 0
    seconds: float = 0.0  # of training, validation left out
    best_loss: float = float("inf")
    validations_since_best: int = 0
    finished: str = ""  # why training ended


class Checkpoints:
    """The checkpoints of a run, in folders named by step."""

    def __init__(self, folder: Path, *, keep: int, tokenizer: Tokenizer, card: ModelCard):
        self.folder, self._keep, self._tokenizer, self._card = folder, keep, tokenizer, card

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, oldest first."""
        return checkpoint_steps(self.folder)

    def save(self, model: Transformer, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        """Writes the checkpoint of this step, then deletes those beyond the last n."""
        with whole_folder(self.folder / str(progress.step)) as temporary:
            write_model(temporary, model, self._tokenizer, self._card)
            write_weights(temporary / "trainer.safetensors", _moments(model, optimizer))
            text = json.dumps(asdict(progress), indent=1)
            (temporary / "trainer.json").write_text(text + "\n", encoding="utf-8")
        for step in self.steps()[: -self._keep]:
            shutil.rmtree(self.folder / str(step), ignore_errors=True)

    def restore(self, model: Transformer, optimizer: torch.optim.Optimizer) -> Progress:
        """Fills model and optimizer from the newest checkpoint and returns its progress; a new one if there is none."""
        steps = self.steps()
        if not steps:
            return Progress()
        folder = self.folder / str(steps[-1])
        load_weights(model, read_weights(folder / "model.safetensors"), where=folder)
        moments = read_weights(folder / "trainer.safetensors")
        try:
            for name, parameter in model.named_parameters():
                optimizer.state[parameter] = {
                    kind: moments[f"{kind}.{name}"].to(parameter.device) for kind in ("step", "exp_avg", "exp_avg_sq")
                }
            progress = Progress(**json.loads((folder / "trainer.json").read_text(encoding="utf-8")))
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise HeedError(
                f"{folder}: damaged checkpoint ({error}); delete it to resume from the one before."
            ) from None
        return progress


def _moments(model: Transformer, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{kind}.{name}": tensor.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for kind, tensor in optimizer.state[parameter].items()
    }


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the whole checkpoints in a run's folder `checkpoints`, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def averaged_weights(folders: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the models' weights, summed in fp64 and rounded once; one checkpoint's tensors in memory at a time.

    The paper averages the last 5 (base) or 20 (big) checkpoints (section 6.1).
    """
    if not folders:
        raise HeedError("there is no checkpoint to average.")
    total: dict[str, Tensor] = {}
    for folder in folders:
        weights = read_weights(folder / "model.safetensors")
        if total and total.keys() != weights.keys():
            raise HeedError(f"{folder}: holds other weights than {folders[0]}; only one architecture can be averaged.")
        for name, tensor in weights.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(folders)).float() for name, tensor in total.items()}
