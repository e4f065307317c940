"""A recipe's text → ids in RUN/data, by any number of workers."""

from pathlib import Path

from heed.data.corpora.download import Corpora
from heed.data.preparation.job import Preparation
from heed.errors import HeedError
from heed.leases.workforce import Workforce
from heed.runs.recipe import Recipe
from heed.runs.run_folder import open_run_folder, recipe_of_run
from heed.runs.tasks.translation_task import TranslationTask
from heed.runtime.locks import locked
from heed.text.tokenizer_kinds import AnyTokenizer, load_tokenizer
from heed.training.checkpoint import state_names


def prepare_run(recipe: Recipe, run: Path, corpora: Corpora, workforce: Workforce) -> bool:
    """Prepares the text of a run, which then begins with it; whether all of it is there.

    It is not while shares of other processes are missing. Called again, it resumes.
    """
    if recipe.parsing is not None:
        raise HeedError("heed prepare is for translation; heed train prepares trees.")
    if recipe.training.n_teachers:
        raise HeedError("training.n_teachers: the teachers come first, so heed train prepares the text.")
    report = corpora.report
    recipe = recipe_of_run(recipe, run, report=report)
    wait = workforce.wait or 0.0
    with open_run_folder(recipe, run, report=report, wait=wait):
        files = TranslationTask(recipe).text_files(run, corpora)
        folder = run / "data"
        given = _given_tokenizer(recipe.training.start_from, run)
        preparation = Preparation(files, recipe.data, recipe.tokenizer, folder=folder, report=report, given=given)
        preparation.begin()
        if workforce.wait is None:  # nobody works side by side with this process
            preparation.work(workforce)
            preparation.finish()
            return True

    if not preparation.work(workforce):
        return False
    with locked(run, wait=wait):
        preparation.finish()
    return True


def _given_tokenizer(folder: str | None, run: Path) -> AnyTokenizer | None:
    """The tokenizer of the model which a new run starts from, if it starts from one."""
    if folder is None or state_names(run / "checkpoints"):
        return lost_tokenizer(run)
    return load_tokenizer(Path(folder) / "tokenizer.json")


def lost_tokenizer(run: Path) -> AnyTokenizer | None:
    """The tokenizer of a run's newest checkpoint, if RUN/data was deleted: the text might give another one now."""
    names = state_names(run / "checkpoints")
    if not names or (run / "data" / "tokenizer.json").exists():
        return None
    return load_tokenizer(run / "checkpoints" / names[-1] / "tokenizer.json")
