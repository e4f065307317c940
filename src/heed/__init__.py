"""The Transformer of "Attention Is All You Need": parallel text in, a trained model and translations out.

Public names are loaded on first use, so that `import heed` does not import torch.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heed.decoding.translator import Translator

# A thread that waits for the others spins, by GCC's default for a third of a millisecond and more. Where other programs
# want the same cores that takes the time away from the very threads it waits for (docs/performance.md). GCC's OpenMP
# reads this when torch loads it.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

_HOMES = {
    "Architecture": "heed.model.transformer",
    "DecodingSettings": "heed.decoding.settings",
    "HeedError": "heed.errors",
    "Recipe": "heed.recipe",
    "Score": "heed.evaluation.bleu",
    "Tokenizer": "heed.text.tokenizer",
    "Transformer": "heed.model.transformer",
    "Translation": "heed.decoding.translator",
    "Translator": "heed.decoding.translator",
    "beam_search": "heed.decoding.beam",
    "bleu": "heed.evaluation.bleu",
    "chrf": "heed.evaluation.bleu",
}
__all__ = ["load", *sorted(_HOMES)]


def load(folder: Path | str) -> "Translator":
    """The translator of a model folder: `heed.load("runs/demo/model").translate(["forty-two"])[0].text`."""
    from heed.decoding.translator import Translator

    return Translator.load(folder)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'heed' has no attribute {name!r}")
