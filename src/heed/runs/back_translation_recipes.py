"""The recipes of back-translation (Sennrich et al. 2016): of the reverse model, and of a run with its translations.

A model of the reverse direction translates text of the target language; its translations are sources for the model that
is wanted. A tag before each of them tells the two kinds of sources apart (Caswell et al. 2019).
"""

from pathlib import Path
from typing import Any

from heed.config import merged, toml_text, validated
from heed.data.mix import MixPart
from heed.data.reading.files import training_files
from heed.errors import HeedError
from heed.leases.storage import unpacked_name
from heed.model.architecture import DROPOUTS
from heed.runs.recipe import Recipe, read_preset

OWN_PART, BACK_TRANSLATED = "pairs", "back-translated"
OF_ANY_LANGUAGE = ("auto", "none", "13a")  # of evaluation.tokenize


def check_recipe(recipe: Recipe, *, where: str) -> None:
    """HeedError unless back-translated text can be added to the recipe's."""
    if recipe.parsing is not None:
        raise HeedError(f"{where}: a parser's recipe; back-translation is for translators.")
    if recipe.data.tgt_symbols:
        raise HeedError(f"{where}: data.tgt_symbols is true; back-translation is for text.")
    if recipe.data.mix:
        raise HeedError(
            f"{where}: has a mix already (data.mix); give the recipe without it; for another round, a better --model."
        )
    if recipe.training.n_teachers:
        raise HeedError(f"{where}: training.n_teachers cannot be combined with a mix; leave it out.")


def reverse_recipe(recipe: Recipe, *, where: str) -> Recipe:
    """The recipe of the model that translates the other way, on the same text.

    HeedError if it starts from a given model, which has one direction.
    """
    if recipe.training.start_from is not None:
        raise HeedError(
            f"{where}: training.start_from is a model of one direction; name a model of the other direction (--model)."
        )
    given = recipe.data
    for src, _ in training_files(given.train, src=given.src, tgt=given.tgt) if given.train else ():
        if unpacked_name(src.name).endswith(".tsv"):
            raise HeedError(
                f"{src}: a .tsv has its sources first, so no model of the other direction can be trained on it; write "
                "two files, JSON Lines or Parquet, or name such a model (--model)."
            )
    values = recipe.model_dump()
    data = values["data"]
    data["src"], data["tgt"] = data["tgt"], data["src"]
    for name in ("train", "dev", "added", "columns"):
        if isinstance(data[name], list):
            data[name] = data[name][::-1]
    data["tests"] = {name: files[::-1] for name, files in data["tests"].items()}
    if values["evaluation"]["tokenize"] not in OF_ANY_LANGUAGE:
        values["evaluation"]["tokenize"] = "auto"
    return validated(Recipe, values, where=where)


def mixed_recipe(recipe: Recipe, pairs: tuple[Path, Path], *, tag: str | None, where: str) -> Recipe:
    """The recipe with these files of pairs as a tagged part that has half of the training pairs."""
    files = [str(side.resolve()) for side in pairs]
    mix = [MixPart(name=OWN_PART, weight=1.0), MixPart(name=BACK_TRANSLATED, train=files, weight=1.0, tag=tag)]
    values = recipe.model_dump()
    values["data"]["mix"] = [part.model_dump() for part in mix]
    return validated(Recipe, values, where=where)


def recipe_text(recipe: Recipe) -> str:
    """TOML of a recipe: what differs from the preset base."""
    data = {"src": recipe.data.src, "tgt": recipe.data.tgt, "corpus": "any"}
    base = validated(Recipe, merged(read_preset("base", where="base"), {"data": data}), where="base").model_dump()
    tables: dict[str, Any] = {"preset": "base"}
    for name, table in recipe.model_dump().items():
        if isinstance(table, dict):
            others = base[name] or {}
            tables[name] = {
                key: value for key, value in table.items() if value is not None and value != others.get(key)
            }
    tables["data"] |= {"src": recipe.data.src, "tgt": recipe.data.tgt}
    tables["data"]["mix"] = [part.model_dump(exclude_defaults=True) for part in recipe.data.mix]
    if recipe.training.start_from is not None:  # which brings its own
        del tables["tokenizer"]
        tables["model"] |= {name: getattr(recipe.model, name) for name in DROPOUTS}  # or they would be its own, too
    return toml_text({name: table for name, table in tables.items() if table})
