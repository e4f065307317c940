"""Teachers of a run: models that are trained before it and translate its text, for it to learn from their translations.

Sequence-level knowledge distillation (Kim and Rush 2016) by an ensemble of models of the run's own recipe, whose
translations the run learns from in addition to the references, as in Data Diversification (Nguyen et al. 2020).
"""

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from heed.data.corpora.download import Report
from heed.data.preparation.plan import SOURCES, compare_sources
from heed.data.reading.pairs import FilePair, TrainingText, count_pairs, examine_source, readable_lines, source_of
from heed.data.reading.text_files import TextFiles
from heed.decoding.loading import load_models, no_report, ready_models
from heed.decoding.translator import Translator
from heed.errors import HeedError
from heed.model_folder import read_config
from heed.runs.context import RunContext
from heed.runs.recipe import Recipe
from heed.runs.tasks.translation_task import TranslationTask
from heed.runtime.files import own_file, remove_unfinished, whole_file
from heed.runtime.progress import counted, progress
from heed.training.settings import MAX_SEED

SEEDS_APART = 1000  # of a run and its first teacher, so that runs of seeds 1, 2, 3 share none
BEGUN = ".begun"  # how the name of a file of translations ends while some are missing


def teach(context: RunContext, train: Callable[..., object]) -> None:
    """Trains the recipe's teachers in RUN/teachers and writes their ensemble's translations; skips what is complete.

    train: `train_recipe`, which every one of the workers calls. HeedError if a text has changed since the first teacher
    began.
    """
    recipe, workers, report = context.recipe, context.workers, context.report
    place = context.run / "teachers"
    missing: list[tuple[Path, FilePair]] = []
    if workers.first:
        remove_unfinished(place)
        task = TranslationTask(recipe)
        files = task.given_files(context.run, context.corpora)
        _check_text(files, recipe, place)
        taught = task.taught_pairs(files, context.run)
        missing = [(src, pair) for src, pair in taught.items() if not pair[1].exists()]
    if not workers.broadcast(bool(missing)):
        return
    n_teachers = recipe.training.n_teachers
    folders = [place / str(number) for number in range(1, n_teachers + 1)]
    for number, folder in enumerate(folders, start=1):
        if not workers.broadcast(is_complete(folder)):
            report(f"Teacher {number} of {n_teachers}, in {folder}:")
            train(_teacher(recipe, number), folder, context.corpora)
    if workers.first:
        loaded = load_models([folder / "model" for folder in folders])
        models, precision = ready_models(loaded, "auto", device=None, report=no_report)
        translator = Translator(models, loaded[0].tokenizer, recipe.decoding, precision=precision)
        for src, (sources, translations) in missing:
            report(f"Translating {src} with {counted(n_teachers, 'teacher')} in {translator.precision}.")
            if sources != src:
                _write_sources(src, recipe.data.column_names, sources)
            _translate(translator, sources, translations, report)
    workers.broadcast(None)


def _check_text(files: TextFiles, recipe: Recipe, place: Path) -> None:
    """HeedError for a fault of the text, before the long work, or for a change of it since the work began."""
    begun = any(next(place.glob(made), None) for made in ("*/data/tokenizer.json", "translations-*"))
    if not begun:
        for pair in files.train:
            examine_source(source_of(pair), recipe.data.column_names, every=2**62)
        for pair in files.evaluation_sets.values() if files.dev_split is None else files.tests.values():
            count_pairs(pair, recipe.data.column_names)
    compare_sources(files, place / SOURCES, binding=begun)


def is_complete(run: Path) -> bool:
    """Whether a run has ended: its model's scores come last."""
    model = run / "model"
    return model.exists() and bool(read_config(model).card.scores)


def _teacher(recipe: Recipe, number: int) -> Recipe:
    """The recipe of teacher `number`, counted from 1: the run's own with another seed."""
    settings = recipe.training
    seed = (settings.seed + SEEDS_APART * number) % (MAX_SEED + 1)
    return recipe.model_copy(update={"training": settings.model_copy(update={"seed": seed, "n_teachers": 0})})


def _write_sources(src: Path, columns: tuple[str, str], sources: Path) -> None:
    """Writes the sources of a file that holds both sides, a line each; one that cannot be read is blank."""
    with whole_file(sources) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"{line}\n" for line in TrainingText([(src, src)], columns).sources())


def _translate(translator: Translator, src: Path, translations: Path, report: Report) -> None:
    """Writes a translation of each line of `src`, and reports at intervals how many there are.

    Until all are there they are in a file of their own, and a call after this one was killed goes on from there.
    """
    begun = translations.with_name(translations.name + BEGUN)
    n_lines = sum(1 for _ in readable_lines(src))
    try:
        with open(begun, "a+b", opener=own_file) as file:
            n_done = _keep_whole_lines(file)
            if n_done:
                report(f"{n_done:,} lines were translated before.")
            with progress(f"Translating {src}", total=n_lines, unit="lines", done=n_done) as task:
                for translation in translator.stream(islice(readable_lines(src), n_done, None), task=task):
                    file.write(f"{translation.text}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        begun.replace(translations)
    except OSError as error:
        raise HeedError(
            f"{begun}: cannot be written ({error.strerror}); mend that, then run the same command to resume."
        ) from None


def _keep_whole_lines(file: BinaryIO) -> int:
    """Cuts off a line without an end, goes to the end of the file, and returns the number of lines."""
    file.seek(0)
    n_lines = n_bytes = 0
    for line in file:
        if line.endswith(b"\n"):
            n_lines, n_bytes = n_lines + 1, n_bytes + len(line)
    file.truncate(n_bytes)
    file.seek(n_bytes)
    return n_lines
