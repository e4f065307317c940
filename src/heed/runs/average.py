"""The last checkpoints of a run → one model folder, with what its training cost."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from heed.backends.protocol import NotFiniteError
from heed.data.corpora.download import Report
from heed.data.reading.pairs import FilePair
from heed.errors import HeedError
from heed.model.cost import training_flops
from heed.model.networks import network_of
from heed.model.transformer import Transformer
from heed.model_folder import MODEL_FILES, ModelCard, load_model, load_weights, read_config, save_model
from heed.runs.recipe import RUN_CONFIG, read_recipe, run_meant
from heed.runs.run_folder import check_output_folder
from heed.runs.tasks.evaluation import Evaluation, score_table
from heed.runs.tasks.task import Task
from heed.runtime.files import UNFINISHED
from heed.runtime.manifest import check
from heed.runtime.progress import duration, progress, track
from heed.runtime.reading import NotNow
from heed.text.tokenizer_kinds import load_tokenizer
from heed.training.checkpoint import BEST, average_weights, checkpoint_steps, read_train_state
from heed.training.logbook import Logbook, read_entries, short
from heed.training.settings import TrainingSettings

SUSTAINED = "sustained FLOP/s"  # on the card: of a large matrix product on the machine that trained, of all workers
KEPT = "kept"  # on the card: what became the model, and why
START = "model that training started from"
SIZES = (1, 2, 5, 10, 20)  # of the averages that `average_best` compares


def average_run(
    run: Path, *, last: int, report: Report, out: Path | None = None, card: ModelCard | None = None
) -> Path:
    """Averages the last checkpoints of a run into a model folder, `out` or else RUN/model, and returns its path.

    Damaged checkpoints are reported and left out. card: by default that of the newest checkpoint. HeedError if no good
    checkpoint is left, or if the folder holds anything but a model.
    """
    out = out or run / "model"
    check_output_folder(out, run)
    folders = _good_checkpoints(run, last, report)
    _save_average(folders, out, _with_costs(card or _newest_card(run, folders), folders[-1]))
    _report_average(folders, out, report)
    return out


@dataclass(frozen=True)
class _Candidate:
    """Checkpoints whose average may be the run's model, oldest first."""

    title: str
    folders: Sequence[Path]

    @property
    def steps(self) -> str:
        return _steps(self.folders)


def average_better(
    run: Path,
    settings: TrainingSettings,
    measure: Callable[[Transformer], Mapping[str, float]],
    *,
    report: Report,
    card: ModelCard,
    logbook: Logbook,
) -> str:
    """Makes RUN/model the average of the last checkpoints, or the best one if it is better on dev; returns which.

    measure: the numbers of dev, of a model, among them the one that tells the best checkpoint in training
    (`settings.best_by`). Both are measured anew, are reported, entered into the logbook and put on the card.
    """
    # The folder is checked first: reading and averaging checkpoints of a large model takes a while.
    assert isinstance(settings.average_last, int)
    out = run / "model"
    check_output_folder(out, run)
    folders = _good_checkpoints(run, settings.average_last, report)
    average, newest = _last_of(folders, len(folders)), folders[-1]
    best = _best_checkpoint(run, settings, report)

    # The average stands unless the best checkpoint is another model with better numbers; a tie keeps it.
    chosen, title = average, "average"
    card.trained_on[KEPT] = average.title
    if average.folders == [best]:
        card.trained_on[KEPT] += ", which is also the best on dev"
    elif best is not None:
        rival = _Candidate(f"best checkpoint (step {_step(best):,})" if _step(best) else START, [best])
        name = settings.best_number
        numbers = [_numbers_on_dev(candidate, measure, settings) for candidate in (average, rival)]
        ours, theirs = (short(of_one[name]) for of_one in numbers)
        report(f"On dev, the {average.title} has a {name} of {ours}, the {rival.title} of {theirs}.")
        if settings.rank(numbers[1]) < settings.rank(numbers[0]):
            report(f"The {average.title} is worse, so the {rival.title} is kept (training.keep_better).")
            chosen, title, ours, theirs = rival, "best checkpoint" if _step(best) else START, theirs, ours

        # Both numbers stay on the card and in the log, so that the choice can be followed later.
        other = average if chosen is rival else rival
        card.trained_on[KEPT] = f"{chosen.title}: {name} {ours} on dev; the {other.title} has {theirs}"
        for candidate, of_one in zip((average, rival), numbers, strict=True):
            kept = "yes" if candidate is chosen else "no"
            entry = {"name": candidate.title, "steps": candidate.steps, "kept": kept}
            logbook.record("average", int(newest.name), **entry, **{name: of_one[name]})

    # RUN/model changes only now.
    _save_average(chosen.folders, out, _with_costs(card, newest))
    _report_average(chosen.folders, out, report)
    return title


def average_best(
    run: Path,
    task: Task,
    dev: FilePair,
    *,
    settings: TrainingSettings,
    report: Report,
    out: Path | None = None,
    card: ModelCard | None = None,
    logbook: Logbook | None = None,
) -> tuple[Path, dict[Path, Evaluation]]:
    """Makes RUN/model that average of the last checkpoints which scores best on dev by the recipe's own search.

    Compared are the averages of the last 1, 2, 5, 10 and 20 checkpoints in the run folder (or of all, if there are
    fewer) and the checkpoint that is best by `settings.best_by` in metrics.jsonl. A tie goes to the lower perplexity,
    then to the average of more checkpoints. All scores are reported, logged and written to the card. Returns the model
    folder, and the scores of it and of the last checkpoint.
    """
    # As in `average_better`: the folder first.
    out = out or run / "model"
    check_output_folder(out, run)
    folders = _good_checkpoints(run, None, report)
    newest = int(folders[-1].name)
    card = _with_costs(card or _newest_card(run, folders), folders[-1])
    candidates = _candidates(run, folders, settings, report)

    # Equal scores happen on small dev sets, hence the further ranks; of each, more is better.
    steps = track(candidates, "Scoring averages on dev", total=len(candidates), unit="averages")
    evaluations = [_evaluate(candidate, task, dev, out=out, card=card, report=report) for candidate in steps]
    ranks = [
        (evaluation.scores[task.ranked_by].value, -(evaluation.perplexity or 0.0), len(candidate.folders))
        for candidate, evaluation in zip(candidates, evaluations, strict=True)
    ]
    best = candidates[chosen := ranks.index(max(ranks))]

    # Every candidate is reported, logged and put on the card, the best one as kept.
    report("Scores on dev of the averages to choose from:")
    for line in score_table(evaluations):
        report(line)
    if logbook is not None:
        for candidate, evaluation in zip(candidates, evaluations, strict=True):
            kept = "yes" if candidate is best else "no"
            logbook.record("average", newest, **evaluation.numbers(), steps=candidate.steps, kept=kept)
    values = "; ".join(f"{each.name}: {each.scores[task.ranked_by].value:.2f}" for each in evaluations)
    card.trained_on[f"{evaluations[0].scores[task.ranked_by].name} on dev of the averages to choose from"] = values
    card.trained_on[KEPT] = f"{best.title}, the best on dev by {evaluations[0].scores[task.ranked_by].name}"

    # The model itself changes last.
    _save_average(best.folders, out, card)
    report(f"The best is the {best.title}.")
    _report_average(best.folders, out, report)
    return out, {out: evaluations[chosen], folders[-1]: evaluations[0]}


def _candidates(run: Path, folders: Sequence[Path], settings: TrainingSettings, report: Report) -> list[_Candidate]:
    """The candidates of `average_best`, of these checkpoints."""
    candidates = [_last_of(folders, n) for n in sorted({min(n, len(folders)) for n in SIZES})]
    best = _best_checkpoint(run, settings, report)
    if best not in (None, folders[-1]):
        what = "lowest dev loss" if settings.best_by == "loss" else f"highest {settings.best_number} on dev"
        candidates.append(_Candidate(f"checkpoint of {what}" if _step(best) else START, [best]))
    return candidates


def _last_of(folders: Sequence[Path], n: int) -> _Candidate:
    return _Candidate("last checkpoint" if n == 1 else f"average of the last {n}", folders[-n:])


def _best_checkpoint(run: Path, settings: TrainingSettings, report: Report) -> Path | None:
    """The undamaged one on disk whose validation was the best; None if the log knows none."""
    ranks = {step: settings.rank(numbers) for step, numbers in _validations(run, settings).items()}
    best = run / "checkpoints" / BEST
    steps = checkpoint_steps(run / "checkpoints")
    kept = [*_good([best] * best.is_dir(), report), *(run / "checkpoints" / str(step) for step in steps)]
    known = sorted((folder for folder in kept if _step(folder) in ranks), key=lambda folder: ranks[_step(folder)])
    return next((folder for folder in known if _good([folder], report)), None)


def _validations(run: Path, settings: TrainingSettings) -> dict[int, dict[str, float]]:
    """The numbers of the validations in the log by step, of those that tell the best checkpoint."""
    return {
        entry["step"]: {name: number for name, number in entry.items() if isinstance(number, float)}
        for entry in read_entries(run / "metrics.jsonl")
        if entry.get("kind") == "validation"
        and isinstance(entry.get(settings.best_number), float)
        and math.isfinite(entry[settings.best_number])
    }


def report_if_worse(
    run: Path, settings: TrainingSettings, measure: Callable[[Transformer], Mapping[str, float]], *, report: Report
) -> None:
    """Says if RUN/model is worse on dev than the model that training started from, whose validation is step 0's."""
    start = _validations(run, settings).get(0)
    if start is None:
        return
    numbers, name = measure(load_model(run / "model").model), settings.best_number
    if settings.rank(numbers) > settings.rank(start):
        report(
            f"Warning: on dev, {run / 'model'} has a {name} of {short(numbers[name])}, worse than the "
            f"{short(start[name])} of the {START}, {settings.start_from}."
        )


def _numbers_on_dev(
    candidate: _Candidate, measure: Callable[[Transformer], Mapping[str, float]], settings: TrainingSettings
) -> Mapping[str, float]:
    """Numbers of dev; ∞, which ranks last, where the model's are not finite."""
    try:
        return measure(_network(candidate.folders))
    except NotFiniteError:
        return {"loss": math.inf, settings.best_number: math.inf}


def _evaluate(
    candidate: _Candidate, task: Task, dev: FilePair, *, out: Path, card: ModelCard, report: Report
) -> Evaluation:
    """Scores of a candidate on dev. Its folder lies beside `out` meanwhile.

    If the process is killed, the folder stays there; the next `heed train` deletes it from a run's own folder.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=".average.", suffix=UNFINISHED) as temporary:
        folder = Path(temporary) / "model"
        _save_average(candidate.folders, folder, card)
        (evaluation,) = task.evaluate(folder, {"dev": dev}, title=candidate.title, report=report)
    return replace(evaluation, name=candidate.title)


def _save_average(folders: Sequence[Path], out: Path, card: ModelCard) -> None:
    """Writes the checkpoints' average into a model folder."""
    card = replace(card, trained_on=card.trained_on | {"average of steps": _steps(folders)})
    with progress(f"Averaging {len(folders)} checkpoints"):
        save_model(out, _network(folders), load_tokenizer(folders[-1] / "tokenizer.json"), card)


def _network(folders: Sequence[Path]) -> Transformer:
    """With the mean of the checkpoints' weights."""
    newest = read_config(folders[-1])
    model = network_of(newest.arch, where=str(folders[-1]))(newest.arch, newest.vocab_size, newest.src_vocab_size)
    load_weights(model, average_weights(folders), where=folders[-1])
    return model


def _step(checkpoint: Path) -> int:
    return read_train_state(checkpoint).step if checkpoint.name == BEST else int(checkpoint.name)


def _steps(checkpoints: Sequence[Path]) -> str:
    return ", ".join(str(_step(checkpoint)) for checkpoint in checkpoints)


def _report_average(folders: Sequence[Path], out: Path, report: Report) -> None:
    first, last = (_step(folder) for folder in (folders[0], folders[-1]))
    if len(folders) == 1:
        report(f"Took the checkpoint at step {last:,} for {out}.")
    else:
        report(f"Averaged {len(folders)} checkpoints (steps {first:,} to {last:,}) into {out}.")


def _good_checkpoints(run: Path, last: int | None, report: Report) -> list[Path]:
    """Returns those of the last checkpoints, or of all, whose files are what their manifests say, oldest first."""
    steps = checkpoint_steps(run / "checkpoints")
    steps = [step for step in steps if step] or steps  # what training started from is no part of an average
    if not steps:
        hint = run_meant(run) or "expected a run folder with checkpoints/STEP in it."
        raise HeedError(f"{run}: no checkpoints; {hint}")
    if last is not None:
        steps = steps[-last:]
        if len(steps) < last:
            report(f"Only {len(steps)} of {last} checkpoints exist; averaging those.")
    folders = _good([run / "checkpoints" / str(step) for step in steps], report)
    if not folders:
        raise HeedError(f"{run}: no good checkpoint is left to average.")
    return folders


def _good(checkpoints: Sequence[Path], report: Report) -> list[Path]:
    """The undamaged ones; the others are reported."""
    good = []
    for folder in checkpoints:
        try:
            check(folder, (*MODEL_FILES, "trainer.json"))
            good.append(folder)
        except NotNow:  # it may be good
            raise
        except HeedError as error:
            report(f"{error} Left out of the average.")
    return good


def _newest_card(run: Path, folders: Sequence[Path]) -> ModelCard:
    """The newest checkpoint's card, with the search settings that the run has now."""
    card = read_config(folders[-1]).card
    has_recipe = (run / RUN_CONFIG).is_file()
    return replace(card, decoding=read_recipe(run).decoding.model_dump()) if has_recipe else card


def _with_costs(card: ModelCard, checkpoint: Path) -> ModelCard:
    """The card with what training took up to a checkpoint: steps, time, FLOPs by formula and as the paper counts."""
    state = read_train_state(checkpoint)
    config = read_config(checkpoint)
    flops = training_flops(
        config.arch, config.vocab_size, state.work, n_steps=state.step, src_vocab_size=config.src_vocab_size
    )
    costs: dict[str, Any] = {"steps": state.step, "time": duration(state.seconds), "FLOPs": f"{flops:.2e}"}
    if sustained := card.trained_on.get(SUSTAINED):
        costs["FLOPs as the paper counts"] = f"{state.seconds * float(sustained):.2e} (time × what is sustained)"
    return replace(card, trained_on=card.trained_on | costs)
