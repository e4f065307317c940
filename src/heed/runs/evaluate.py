"""Scores of a trained run: its model next to its last checkpoint."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path

from heed.data.reading.text_files import TextFiles
from heed.model_folder import read_config, replace_card
from heed.runs.context import RunContext
from heed.runs.tasks.evaluation import Evaluation
from heed.runtime.manifest import manifest
from heed.training.checkpoint import checkpoint_steps
from heed.training.logbook import Logbook


def evaluate_run(
    context: RunContext, files: TextFiles, *, title: str, known: Mapping[Path, Evaluation]
) -> list[Evaluation]:
    """Scores of RUN/model and of the last checkpoint on dev and every test set, in this order.

    They are logged in metrics.jsonl, those of RUN/model on its card as well. title: what RUN/model is. known: scores on
    dev that need not be computed again, by the model's folder.
    """
    run, report = context.run, context.report
    model_folder = run / "model"
    card = read_config(model_folder).card
    last_step = checkpoint_steps(run / "checkpoints")[-1]
    checkpoint = run / "checkpoints" / str(last_step)
    results, of_model = [], list[Evaluation]()
    is_last = manifest(model_folder)["model.safetensors"] == manifest(checkpoint)["model.safetensors"]
    with closing(Logbook(run, resumed_step=last_step, repeated="test", report=report)) as logbook:
        for name, folder in ((title, model_folder), ("last checkpoint", checkpoint)):
            on_dev = [replace(known[folder], name="dev")] if folder in known else []
            sets = files.tests if on_dev else files.evaluation_sets
            if is_last and of_model:
                sets, on_dev = {}, list(of_model)  # the same weights
            rest = context.task.evaluate(folder, sets, title=name, report=report) if sets else ()
            for evaluation in chain(on_dev, rest):
                if folder == model_folder:
                    card.scores[evaluation.name] = str(evaluation)
                    of_model.append(evaluation)
                result = replace(evaluation, name=f"{evaluation.name} ({name})")
                logbook.record("test", last_step, **result.numbers())
                results.append(result)
    replace_card(model_folder, card)
    return results
