"""The last checkpoints of a run → one model folder, with what its training cost."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from heed.data.sources import Report
from heed.errors import HeedError
from heed.model.cost import training_flops
from heed.model.transformer import Transformer
from heed.model_folder import MODEL_FILES, ModelCard, load_weights, read_config, save_model
from heed.run.folder import check_output_folder
from heed.runtime.files import check
from heed.text.loading import load_tokenizer
from heed.training.checkpoint import averaged_weights, checkpoint_steps, read_progress
from heed.training.logbook import duration

SUSTAINED = "sustained FLOP/s"  # on the card: of a large matrix product on the machine that trained, of all workers


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
    steps = [int(folder.name) for folder in folders]
    newest = read_config(folders[-1])
    card = card or newest.card
    model = Transformer(newest.arch, newest.vocab_size, newest.src_vocab_size)
    load_weights(model, averaged_weights(folders), where=folders[-1])
    average = {"average of steps": ", ".join(map(str, steps))}
    card = replace(card, trained_on={**card.trained_on, **_costs(folders[-1], card), **average})
    save_model(out, model, load_tokenizer(folders[-1] / "tokenizer.json"), card)
    report(f"Averaged {len(steps)} checkpoints (steps {steps[0]:,} to {steps[-1]:,}) into {out}.")
    return out


def _good_checkpoints(run: Path, last: int, report: Report) -> list[Path]:
    """Those of the last checkpoints whose files are what their manifests say, oldest first."""
    steps = checkpoint_steps(run / "checkpoints")
    if not steps:
        raise HeedError(f"{run}: no checkpoints; expected a run folder with checkpoints/STEP in it.")
    steps = steps[-last:]
    if len(steps) < last:
        report(f"Only {len(steps)} of {last} checkpoints exist; averaging those.")
    folders = []
    for folder in (run / "checkpoints" / str(step) for step in steps):
        try:
            check(folder, MODEL_FILES)
            folders.append(folder)
        except HeedError as error:
            report(f"{error} Left out of the average.")
    if not folders:
        raise HeedError(f"{run}: no good checkpoint is left to average.")
    return folders


def _costs(checkpoint: Path, card: ModelCard) -> dict[str, Any]:
    """What training took up to a checkpoint, for the card: steps, time, FLOPs by formula and as the paper counts."""
    progress = read_progress(checkpoint)
    config = read_config(checkpoint)
    flops = training_flops(
        config.arch,
        config.vocab_size,
        progress.work,
        n_steps=progress.step,
        src_vocab_size=config.src_vocab_size,
    )
    costs = {"steps": progress.step, "time": duration(progress.seconds), "FLOPs": f"{flops:.2e}"}
    if sustained := card.trained_on.get(SUSTAINED):
        costs["FLOPs as the paper counts"] = f"{progress.seconds * float(sustained):.2e} (time × what is sustained)"
    return costs
