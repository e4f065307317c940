"""Teachers of a run: models that are trained before it and translate its text, for it to learn from their translations.

Sequence-level knowledge distillation (Kim and Rush 2016) by an ensemble of models of the run's own recipe, whose
translations the run learns from besides the references, as in Data Diversification (Nguyen et al. 2020).
"""

from collections.abc import Callable
from pathlib import Path

from heed.data.lines import FilePair, read_lines
from heed.data.sources import DownloadProgress, Report
from heed.decoding.translator import Translator
from heed.recipe import Recipe
from heed.runtime.files import whole_file
from heed.tasks.translation import TranslationTask
from heed.training.distributed import Workers

SEEDS_APART = 1000  # of a run and its first teacher, so that runs of seeds 1, 2, 3 share none
MAX_SEED = 2**31


def teach(
    recipe: Recipe,
    run: Path,
    train: Callable[..., object],
    workers: Workers,
    *,
    directory: Path,
    mirror: str | None,
    report: Report,
    progress: DownloadProgress | None,
) -> None:
    """Trains the recipe's teachers in RUN/teachers and writes their ensemble's translations; skips what is complete.

    train: `train_recipe`, which every one of the workers calls. directory, mirror, progress: as it takes them.
    """
    missing: list[FilePair] = []
    if workers.first:
        task = TranslationTask(recipe)
        given = task.given_files(directory=directory, mirror=mirror, report=report, progress=progress)
        missing = [pair for pair in task.taught_pairs(given, run) if not pair[1].exists()]
    if not workers.broadcast(bool(missing)):
        return
    n_teachers = recipe.training.teachers
    folders = [run / "teachers" / str(number) for number in range(1, n_teachers + 1)]
    for number, folder in enumerate(folders, start=1):
        if not workers.broadcast((folder / "model").exists()):
            report(f"Teacher {number} of {n_teachers}, in {folder}:")
            teacher = _teacher(recipe, number)
            train(teacher, folder, directory=directory, mirror=mirror, report=report, progress=progress)
    if workers.first:
        translator = Translator.load(*(folder / "model" for folder in folders))
        for src, translations in missing:
            report(f"Translating {src} with the {n_teachers} teacher(s) in {translator.precision}.")
            with whole_file(translations) as temporary, temporary.open("w", encoding="utf-8") as file:
                for translation in translator.stream(read_lines(src)):
                    file.write(translation.text.replace("\n", " ") + "\n")
    workers.broadcast(None)


def _teacher(recipe: Recipe, number: int) -> Recipe:
    """The recipe of teacher `number`, counted from 1: the run's own with another seed."""
    settings = recipe.training
    seed = (settings.seed + SEEDS_APART * number) % MAX_SEED
    return recipe.model_copy(update={"training": settings.model_copy(update={"seed": seed, "teachers": 0})})
