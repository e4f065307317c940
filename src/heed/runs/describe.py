"""Facts of a model, a run or a recipe: shapes, parameters by part, training, scores."""

from pathlib import Path
from typing import Any

from heed.errors import HeedError
from heed.model.cost import parameters_by_part
from heed.model_folder import read_config
from heed.model_folder.card import EXAMPLES
from heed.runs.recipe import read_recipe
from heed.runs.recipes import recipe_names


def describe(path: Path, *, vocab_size: int | None = None) -> dict[str, Any]:
    """Facts of a model folder, a recipe, or a run folder, which stands for its model or else its last checkpoint.

    vocab_size: with which a recipe's parameters are counted; by default tokenizer.vocab_size.
    """
    if not path.is_dir() and (path.suffix == ".toml" or path.is_file() or str(path) in recipe_names()):
        recipe = read_recipe(str(path) if str(path) in recipe_names() else path)
        arch, vocab_size, src_vocab_size = recipe.model, vocab_size or recipe.tokenizer.vocab_size, None
        source: dict[str, Any] = {"recipe": str(path)}
        if mix := recipe.data.mixture:
            source["mix"] = "; ".join(mix.lines())
        rest = {name: settings for name, settings in recipe.model_dump().items() if name != "model"}
    else:
        if vocab_size is not None:
            raise HeedError(f"{path}: a model has its own vocabulary; --vocab-size is for recipes.")
        path = _model_in(path)
        arch, vocab_size, card, src_vocab_size = read_config(path)
        source = {"model": str(path), "languages": f"{card.src} → {card.tgt}"}
        rest = {
            "trained on": card.trained_on | ({EXAMPLES: " · ".join(card.examples)} if card.examples else {}),
            "scores": card.scores,
            "decoding": card.decoding,
        }
    parts = parameters_by_part(arch, vocab_size, src_vocab_size)
    return source | {
        "vocabulary": vocab_size,
        **({} if src_vocab_size is None else {"source vocabulary": src_vocab_size}),
        "shapes": {name: value for name, value in arch.model_dump().items() if value is not None},
        "parameters": parts | {"total": sum(parts.values())},
        **{name: content for name, content in rest.items() if content},
    }


def _model_in(folder: Path) -> Path:
    """The folder itself if it is a model; of a run folder its model, or else its last checkpoint."""
    if (folder / "config.json").exists():
        return folder
    if (folder / "model").is_dir():
        return folder / "model"
    from heed.training.checkpoint import checkpoint_steps  # of who trains, and has PyTorch

    steps = checkpoint_steps(folder / "checkpoints")
    return folder / "checkpoints" / str(steps[-1]) if steps else folder
