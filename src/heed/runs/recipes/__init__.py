"""The recipes that come with Heed, found by name."""

import glob
import os
import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from heed.config import cut, shown
from heed.errors import HeedError
from heed.suggestions import did_you_mean, names_meant


def recipe_names() -> list[str]:
    """Names of the recipes that come with Heed, in order."""
    return sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml"))


def recipe_file(name: str) -> Traversable:
    """The TOML file of a recipe. HeedError suggests files and runs of this name, and recipes like it."""
    known = recipe_names()
    if name in known:
        return _folder() / f"{name}.toml"
    if name == "demo":
        raise HeedError("'demo' is no recipe: it makes its own text; run heed demo.")
    word = name.lower().replace("_", "-")
    near = [each for each in known if word and each.startswith(word)]
    presets = [file.name for file in (resources.files("heed") / "runs" / "presets").iterdir()]
    if f"{name}.toml" in presets and not near:
        raise HeedError(f"{name} is a preset, not a recipe: heed train --src SRC --tgt TGT --set preset={name}.")
    pair = re.search(r"\b([a-z]{2})-([a-z]{2})\b", word)
    if pair and (other := word.replace(pair[0], f"{pair[2]}-{pair[1]}")) in known:
        raise HeedError(
            f"no recipe {shown(name)} comes with Heed; {other} trains the other direction with --set "
            f"data.src={pair[1]} --set data.tgt={pair[2]}."
        )
    here = [path for path in (f"{name}.toml", f"runs/{name}") if name and os.path.exists(path)]
    near = here or near or [each for each in known if len(word) > 2 and word in each]
    hint = did_you_mean(map(cut, near or names_meant(name, known, cutoff=0.75)))
    if Path(name).suffix in (".yaml", ".yml", ".json"):
        hint = "a recipe is a TOML file; to begin one: heed recipe show multi30k-en-de > my.toml."
    texts = sorted(filter(os.path.isfile, glob.glob(f"{glob.escape(name)}.*")))
    src, tgt = texts if len(texts) == 2 else ("corpus.en", "corpus.de")
    hint = hint or f"known: {', '.join(known)}; for text of your own: heed train --src {cut(src)} --tgt {cut(tgt)}."
    file = f" To read the file {shown(name)}, write ./{cut(name)}." if Path(name).is_file() else ""
    raise HeedError(f"no recipe {shown(name)} comes with Heed; {hint}{file}")


def recipe_text(name: str) -> str:
    """The TOML of a recipe, with its comments."""
    return recipe_file(name).read_text(encoding="utf-8")


def recipe_title(name: str) -> str:
    """A recipe's description: the first of its comments."""
    return recipe_text(name).partition("\n")[0].removeprefix("# ")


def _folder() -> Traversable:
    return resources.files("heed.runs.recipes")
