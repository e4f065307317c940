"""Back-translation as one command: a reverse model, translations of text in the target language, a recipe with both."""

import json
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path

from heed.apps.cluster.job import ShardOptions, make_shards, read_inputs
from heed.apps.cluster.plan import read_plan
from heed.config import validated
from heed.data.corpora.download import Corpora, Report
from heed.data.inspection.repetitions import normal_form
from heed.data.mix import MixPart
from heed.data.reading.json_lines import value_of
from heed.data.reading.pairs import Pair, read_pairs, write_pairs
from heed.errors import HeedError
from heed.model_folder import read_config
from heed.runs.back_translation_recipes import check_recipe, mixed_recipe, recipe_text, reverse_recipe
from heed.runs.recipe import Recipe, recipe_of_text
from heed.runs.tasks.task import task_of
from heed.runs.teach import is_complete
from heed.runs.train import train_recipe
from heed.runtime.files import remove_unfinished, whole_file
from heed.runtime.locks import locked
from heed.text.line_rules import is_blank

REVERSE, PARTS, RECIPE = "reverse", "parts", "recipe.toml"  # in the folder
PAIRS = ("back-translated.src", "back-translated.tgt")
IN_EVALUATION = "in dev or a test set"
PREFIX = "back_"  # of the columns that translating adds


def back_translate(
    recipe: Recipe, options: ShardOptions, corpora: Corpora, *, name: str, folder: Path, model: Path | None, tag: str
) -> Path | None:
    """The recipe in the folder, once everything that it names is there; what is there already is not made again.

    None while shares of other processes are missing. recipe: of the model that is wanted, called `name` in messages.
    options: how to translate; their model is not set yet. model: of the reverse direction; None trains one. HeedError
    before anything is written if the recipe or the model does not fit.
    """
    report, workforce = corpora.report, options.workforce
    check_recipe(recipe, where=name)
    validated(MixPart, {"name": "translated", "tag": tag}, where="--tag")
    workforce.check()
    read_inputs(options)  # before a reverse model is trained for them
    reverse = None if model else reverse_recipe(recipe, where=name)
    if model:
        _check_direction(model, recipe)
    wait = workforce.wait or 0.0
    with locked(folder, wait=wait):
        remove_unfinished(folder)
        # The reverse model, given or trained on the recipe's own pairs.
        model = model or folder / REVERSE / "model"
        if reverse is not None and not is_complete(folder / REVERSE):
            report(f"The reverse model, {recipe.data.tgt} → {recipe.data.src}, in {folder / REVERSE}:")
            train_recipe(reverse, folder / REVERSE, corpora)

    # Its translations, by parts, each of which is whole or not there.
    options = replace(options, model=model, out=str(folder / PARTS))
    with locked(folder) if workforce.wait is None else nullcontext():
        if not make_shards(options, report):
            return None
    with locked(folder, wait=wait):
        return _write_recipe(recipe, folder, corpora, tag=tag, name=name)


def _write_recipe(recipe: Recipe, folder: Path, corpora: Corpora, *, tag: str, name: str) -> Path:
    """Writes the pairs and the recipe, which comes last, so that where it is the pairs are whole."""
    path, report = folder / RECIPE, corpora.report
    if path.exists():
        report(f"{path} is there already and stays as it is.")
        return path
    pairs = folder / PAIRS[0], folder / PAIRS[1]
    _write_pairs(folder, pairs, _evaluation_targets(recipe, corpora), report)
    mixed = mixed_recipe(recipe, pairs, tag=tag, where=name)
    text = recipe_text(mixed)
    assert recipe_of_text(text, path=path.absolute()) == mixed
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    report(f"Wrote {path}: {'; '.join(mixed.data.mixture.lines()) if mixed.data.mixture else ''}.")
    return path


def _check_direction(model: Path, recipe: Recipe) -> None:
    card = read_config(model).card
    if (card.src, card.tgt) != (recipe.data.tgt, recipe.data.src):
        raise HeedError(
            f"{model}: translates {card.src} → {card.tgt}; back-translation for {recipe.data.src} → {recipe.data.tgt} "
            f"needs a model of {recipe.data.tgt} → {recipe.data.src}."
        )


def _evaluation_targets(recipe: Recipe, corpora: Corpora) -> set[str]:
    """The targets of the recipe's dev and test sets. Of a dev set that is split off, training leaves out both sides."""
    files = task_of(recipe).text_files(Path(), corpora)
    sets = [files.tests.values(), () if files.dev_split else (files.dev,)]
    return {normal_form(tgt) for pair in chain(*sets) for _, tgt in read_pairs(pair, recipe.data.column_names)}


def _write_pairs(folder: Path, pairs: tuple[Path, Path], evaluated: Set[str], report: Report) -> None:
    """Writes sources and targets, a line a pair, without the targets `evaluated`; reports what is left out."""
    left_out: Counter[str] = Counter()

    def good() -> Iterator[Pair]:
        is_any = False
        for text, translation, ended in _translations(str(folder / PARTS)):
            reason = _fault(text, translation, ended) or (IN_EVALUATION if normal_form(text) in evaluated else "")
            if reason:
                left_out[reason] += 1
            else:
                is_any = True
                yield translation, text
        if not is_any:
            raise HeedError(
                f"{folder / PARTS}: no translation can be learned from, all are {', '.join(left_out)}; take a better "
                "--model, or train the reverse model for longer, with another --out."
            )

    n_pairs = write_pairs(pairs, good())
    reasons = "; ".join(f"{n:,} {reason}" for reason, n in left_out.items())
    report(f"{n_pairs:,} pairs in {pairs[0]} and {pairs[1]}{f'; left out: {reasons}' if reasons else ''}.")


def _translations(parts: str) -> Iterator[tuple[str, str, bool]]:
    """(text, its translation, whether that ended) of all rows, in their order."""
    plan = read_plan(parts)
    assert plan is not None  # the job has ended
    (column,) = plan.work.columns.read
    for part in range(len(plan.parts)):
        with open(Path(parts, plan.name_of(part)), encoding="utf-8", newline="\n") as file:
            for line in file:
                row = json.loads(line)
                yield value_of(row, column), row[f"{PREFIX}translation"], row[f"{PREFIX}ended"]


def _fault(text: str, translation: str, ended: bool) -> str:
    """Why a pair is no text to learn from; empty if it is."""
    if is_blank(text) or is_blank(translation):
        return "with a blank side"
    if not ended:
        return "cut off"
    if text == translation:  # an address, or a text whose translation was empty
        return "untranslated"
    if any(end in side for end in "\n\r" for side in (text, translation)):
        return "of several lines"
    return ""
