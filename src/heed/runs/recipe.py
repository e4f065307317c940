"""Recipe = the settings of a run: a preset, a TOML file, dotted overrides."""

import glob
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from heed.config import Settings, current_names, cut, merged, parse_override, read_toml, shown, toml_tables, validated
from heed.data.settings import DataSettings
from heed.decoding.settings import DecodingSettings
from heed.errors import HeedError, check_texts, check_type
from heed.evaluation.tokenization import TokenizationChoice
from heed.model.architecture import DROPOUTS, Architecture
from heed.model_folder import read_config
from heed.parsing.treebank import ParsingSettings
from heed.runs.recipes import recipe_file, recipe_names
from heed.suggestions import did_you_mean
from heed.text.tokenizer import MAX_VOCAB_SIZE, MIN_VOCAB_SIZE, TokenizerSettings
from heed.training.settings import TrainingSettings

RUN_CONFIG = "config.toml"  # a run folder's recipe


class EvaluationSettings(Settings):
    """How translations are scored."""

    tokenize: TokenizationChoice = Field(
        default="auto",
        description='sacrebleu: 13a for raw text, "none" for tokenised corpora; "auto" is 13a, or another for a target '
        "without spaces",
    )


class Recipe(Settings):
    """All settings of a run, each in the table of the part that it configures."""

    data: DataSettings
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: Architecture = Architecture()
    training: TrainingSettings = TrainingSettings()
    decoding: DecodingSettings = DecodingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    parsing: ParsingSettings | None = None

    @model_validator(mode="after")
    def _one_source_of_pairs(self) -> Self:
        own_files = self.data.train and self.data.dev
        names = ("corpus", "train", "dev", "added", "mix", "tests")
        if self.parsing and (given := [f"data.{name}" for name in names if getattr(self.data, name)]):
            raise ValueError(f"parsing gives the pairs, so {' and '.join(given)} must go")
        if self.parsing and not self.data.tgt_symbols:
            raise ValueError("trees are learned as symbols: data.tgt_symbols must be true")
        if not self.parsing and not self.data.corpus and not own_files:
            raise ValueError(
                "name a corpus (data.corpus), or give the files of data.train and data.dev; data.dev = 500 splits dev "
                "off the training text"
            )
        return self

    @model_validator(mode="after")
    def _teachers_translate_one_text(self) -> Self:
        if self.training.n_teachers and self.parsing:
            raise ValueError(
                "training.n_teachers is for translation: leave it out; a parser can learn from trees that another one "
                "wrote (parsing.parsed)"
            )
        if self.training.n_teachers and self.data.mix:
            raise ValueError(
                "training.n_teachers has no part in data.mix: leave one of them out; a part of the mix can be "
                "translations that a model wrote before"
            )
        return self

    @model_validator(mode="after")
    def _settings_that_a_parser_heeds(self) -> Self:
        given = {  # 13a: 0.1's default, which its run folders hold
            "evaluation.tokenize": self.evaluation.tokenize not in ("auto", "13a"),
            "decoding.min_tokens": bool(self.decoding.min_tokens),
        }
        if self.parsing and (names := [name for name, is_given in given.items() if is_given]):
            raise ValueError(f"{' and '.join(names)} would have no effect on a parser; leave it out")
        return self

    @model_validator(mode="after")
    def _a_score_of_the_task(self) -> Self:
        known = ("loss", "f1") if self.parsing else ("loss", "bleu", "chrf")
        if self.training.best_by not in known:
            kind = "a parser" if self.parsing else "a translator"
            raise ValueError(
                f'training.best_by="{self.training.best_by}": {kind} is validated by {", ".join(known)}; choose one of '
                "these"
            )
        return self

    @model_validator(mode="after")
    def _two_passes_that_differ(self) -> Self:
        if self.training.consistency and not (self.training.cutoff or self.model.has_dropout):
            raise ValueError(
                "training.consistency has no effect where both passes are the same; set model.dropout or "
                "training.cutoff, or leave it out"
            )
        return self


def preset_names() -> list[str]:
    """Names of the presets that come with Heed."""
    folder = resources.files("heed") / "runs" / "presets"
    return sorted(path.name.removesuffix(".toml") for path in folder.iterdir() if path.name.endswith(".toml"))


def read_preset(name: str, *, where: str) -> dict[str, Any]:
    """The tables of a preset. HeedError lists the known ones."""
    if name not in preset_names():
        raise HeedError(f"{where}: unknown preset {shown(name)}; known: {', '.join(preset_names())}.")
    with resources.as_file(resources.files("heed") / "runs" / "presets" / f"{name}.toml") as path:
        return read_toml(path)


def is_run_folder(recipe: str | Path) -> bool:
    """Whether `read_recipe` reads this folder's config.toml: a run folder goes before a recipe of the same name."""
    folder = Path(recipe)
    return (folder / RUN_CONFIG).is_file() if recipe in recipe_names() else folder.is_dir()


def run_meant(folder: str | Path) -> str:
    """ "did you mean RUN?" for RUN/model or another folder in that of a run; else empty."""
    above = Path(folder).parent if (Path(folder).parent / RUN_CONFIG).is_file() else Path(folder).parent.parent
    return did_you_mean([str(above)]) if (above / RUN_CONFIG).is_file() else ""


def read_recipe(recipe: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The settings of a run: a recipe on top of its preset, changed by `overrides` ("training.max_steps=500").

    recipe: the name of one that comes with Heed, the path of a TOML file, or a run folder, whose config.toml is read. A
        text is a path if it has a separator or the suffix .toml: "./mine" is a file, "mine" a name.

    The file names in it are taken from the recipe's folder, those of overrides from the current folder.
    """
    check_type(str | Path, "a recipe's name or path", recipe=recipe)
    if is_run_folder(recipe):
        if not (Path(recipe) / RUN_CONFIG).is_file():
            hint = run_meant(recipe) or "name a run, or the file of a recipe."
            raise HeedError(f"{recipe}: not a run folder: it has no {RUN_CONFIG}; {hint}")
        path = Path(recipe) / RUN_CONFIG
        return _recipe_of(read_toml(path), path, overrides, of_run=True)
    if isinstance(recipe, Path) or recipe.endswith(".toml") or Path(recipe).name != recipe:
        return _recipe_of(read_toml(Path(recipe)), Path(recipe), overrides)
    with resources.as_file(recipe_file(recipe)) as path:
        return _recipe_of(read_toml(path), path, overrides, name=recipe)


def recipe_of_text(text: str, overrides: Sequence[str] = (), *, path: Path) -> Recipe:
    """Returns what `read_recipe` would read from `path`, where the text may not have been written yet."""
    return _recipe_of(toml_tables(text), path, overrides)


def _recipe_of(
    values: dict[str, Any], path: Path, overrides: Sequence[str], *, of_run: bool = False, name: str = ""
) -> Recipe:
    """The recipe of a file's tables. of_run: of a run's config.toml. name: what errors call it, if not by its path."""
    # A later override wins. File names in the recipe count from its folder, those in overrides from where we are.
    where = name or str(path)
    values = _current_names(values, where=where)
    _anchor_files(values, path.parent)
    changes: dict[str, Any] = {}
    check_texts(overrides=overrides)
    for text in overrides:
        change = _current_names(parse_override(text), where=f"--set {cut(text)}")
        _anchor_files(change, Path.cwd())
        changes = merged(changes, change)
    values = _laid_over(values, changes)
    try:
        if of_run:  # its config.toml holds everything, also the given model's shape; the model may have gone
            return validated(Recipe, values, where=where)

        # From bottom to top: the preset, the shape of a model that training starts from, the recipe with its overrides.
        preset = values.pop("preset", "base")
        if not isinstance(preset, str):
            raise HeedError(f"{where}: setting preset: expected a name, found {shown(preset)}.")
        values = _with_given_shape(values, where=where)
        recipe = validated(Recipe, _laid_over(read_preset(preset, where=where), values), where=where)

        # An override that changes nothing is an error, not a surprise after training.
        names = [text.partition("=")[0].strip() for text in overrides]
        n_layers = recipe.model.n_encoder_layers, recipe.model.n_decoder_layers
        if "model.n_layers" in names and all(n_layers):
            raise HeedError(
                f"{where}: model.n_layers has no effect, since model.n_encoder_layers is {n_layers[0]} and "
                f"model.n_decoder_layers {n_layers[1]}; set those."
            )
        return recipe
    except HeedError as error:
        # The file may be right and the option wrong, so the message names the option, too.
        to_blame = [text for text in overrides if text.partition("=")[0].strip() in str(error)]
        if not to_blame:
            raise
        raise HeedError(f"{error} (--set {shown(to_blame[-1])})") from None


def _laid_over(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`merged`, where a learning rate that `changes` brings is the rate: a factor of equation 3 in `base` goes."""
    before, now = base.get("training"), changes.get("training")
    if isinstance(before, dict) and isinstance(now, dict) and "learning_rate" in now and "learning_rate" not in before:
        base = base | {"training": {name: value for name, value in before.items() if name != "learning_rate_factor"}}
    return merged(base, changes)


def _current_names(values: dict[str, Any], *, where: str) -> dict[str, Any]:
    """A recipe's tables under the settings' current names, so that what one file or option says replaces another's."""
    try:
        renamed: dict[str, Any] = current_names(Recipe, values)
    except ValueError as error:
        raise HeedError(f"{where}: {error}.") from None
    return renamed


def _with_given_shape(values: dict[str, Any], *, where: str) -> dict[str, Any]:
    """The recipe with the network's shape and the vocabulary's size of the model that it starts from, if any.

    HeedError if the recipe itself asks for others.
    """
    training = values.get("training")
    folder = training.get("start_from") if isinstance(training, dict) else None
    if not isinstance(folder, str):
        return values
    if "tokenizer" in values:
        raise HeedError(f"{where}: training.start_from brings a vocabulary of its own; leave out the table tokenizer.")
    try:
        config = read_config(Path(folder))
    except HeedError as error:
        raise HeedError(
            f"{error} (training.start_from; once begun, a run no longer needs it: heed train RUN)"
        ) from None
    given = {name: value for name, value in config.arch.model_dump().items() if value is not None}
    model = values.get("model", {})
    for name, value in model.items() if isinstance(model, dict) else ():
        if name in given and name not in DROPOUTS and value != given[name]:
            raise HeedError(f"{where}: model.{name} is {value!r}, but {folder} has {given[name]!r}; leave it out.")
    vocab_size = min(max(config.vocab_size, MIN_VOCAB_SIZE), MAX_VOCAB_SIZE)  # estimates need it, training does not
    return merged({"model": given, "tokenizer": {"vocab_size": vocab_size}}, values)


def anchor_recipe(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with absolute file names, those in it taken from `folder`; a treebank's may be below --mirror."""
    values = recipe.model_dump()
    _anchor_files(values, folder, treebank=False)
    return validated(Recipe, values, where="recipe")


def _anchor_files(values: dict[str, Any], folder: Path, *, treebank: bool = True) -> None:
    """Makes the file names of a recipe absolute; anything but a string or a list of strings is left to validation."""
    training = values.get("training")
    if isinstance(training, dict) and isinstance(training.get("start_from"), str):
        training["start_from"] = _absolute(folder, training["start_from"])
    parsing = values.get("parsing")
    if treebank and isinstance(parsing, dict) and isinstance(name := parsing.get("treebank"), str):
        path = _absolute(folder, name)
        if Path(path).is_dir():  # else a name below --mirror or --dir
            parsing["treebank"] = path
    data = values.get("data")
    if not isinstance(data, dict):
        return

    def absolute(files: Any) -> Any:
        if not isinstance(files, list):
            return files
        return [_absolute(folder, file) if isinstance(file, str) else file for file in files]

    for name in ("train", "dev", "added"):
        if name in data:
            data[name] = absolute(data[name])
    mix = data["mix"] if isinstance(data.get("mix"), list) else []
    parts = [part for part in mix if isinstance(part, dict)]
    for part in parts:
        if "train" in part:
            part["train"] = absolute(part["train"])
    for table in (data, *parts):
        if isinstance(table.get("tests"), dict):
            table["tests"] = {name: absolute(files) for name, files in table["tests"].items()}


def _absolute(folder: Path, file: str) -> str:
    try:
        if file:
            path = (folder / file).resolve()
            if glob.has_magic(file) and glob.has_magic(str(folder.resolve())) and not path.exists():
                return os.path.join(glob.escape(str(folder.resolve())), file)  # its name is no part of the pattern
            return str(path)
    except (ValueError, OSError, RuntimeError):  # a null byte, or links that run in circles
        pass
    raise HeedError(f"{shown(file)} is not a file name that can be looked up; change it.")
