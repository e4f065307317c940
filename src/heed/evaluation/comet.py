"""COMET (Rei et al. 2020), computed by its own program.

COMET's package cannot share an environment with Heed: it demands older releases of numpy and transformers. Its
checkpoints are pickles besides, which only its own process should open.
"""

import json
import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from heed.errors import HeedError

PROGRAM = "comet-score"


class CometFailed(HeedError):
    """COMET's program gave no scores."""


def check_comet(model: str) -> str:
    """The program's path. HeedError if it is not in PATH, or if the checkpoint that `model` names does not exist."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise HeedError(
            f"COMET's program {PROGRAM} is not in PATH. Install unbabel-comet into an environment of its own "
            "and put that environment's bin folder into PATH."
        )
    if model.endswith(".ckpt") and not Path(model).is_file():
        raise HeedError(f"{model}: there is no such COMET checkpoint.")
    return str(Path(program).absolute())  # PATH may name folders relative to this one, and COMET runs in another


def comet_scores(
    model: str,
    systems: Sequence[Sequence[str]],
    *,
    sources: Sequence[str],
    references: Sequence[str],
    gpu: int | None = None,
) -> list[list[float]]:
    """COMET's score of each sentence of each system; most models give 0 to 1.

    model: a name that COMET knows, which it downloads if it has to, or a checkpoint (model.ckpt). gpu: the GPU to use,
    by PyTorch's number; None for the CPU. HeedError if COMET is not installed; CometFailed if it fails or leaves out a
    score.
    """
    program = check_comet(model)
    with TemporaryDirectory(prefix="heed-comet-") as folder:
        # Names of our own: COMET reports by name, and takes one that begins with a dash for an option.
        names = [str(place) for place in range(len(systems))]
        for name, lines in (("src", sources), ("ref", references), *zip(names, systems, strict=True)):
            kept = (line.replace("\r", " ") for line in lines)  # COMET also ends lines at carriage returns
            (Path(folder) / name).write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        n_gpus = 0 if gpu is None else 1
        arguments = ["-s", "src", "-r", "ref", "-t", *names, f"--gpus={n_gpus}", "--quiet", "--only_system"]
        if Path(model).is_file():
            model = str(Path(model).resolve())
        try:
            ended = subprocess.run(
                [program, *arguments, f"--model={model}", "--to_json=scores.json"],
                cwd=folder,
                env=os.environ | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": _visible(gpu)}),
                stdin=subprocess.DEVNULL,
                capture_output=True,
            )
        except OSError as error:
            raise CometFailed(f"{program} cannot be run: {error.strerror}.") from error
        if ended.returncode:
            messages = ended.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
            raise CometFailed(f"{PROGRAM} failed (exit status {ended.returncode}): {messages[-1]}")
        return _read(Path(folder) / "scores.json", names, len(references))


def _visible(gpu: int) -> str:
    """The value of CUDA_VISIBLE_DEVICES by which this GPU is the only one."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return visible[gpu] if gpu < len(visible) else str(gpu)


def _read(path: Path, names: Sequence[str], n_sentences: int) -> list[list[float]]:
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        scores = [[float(sentence["COMET"]) for sentence in results[name]] for name in names]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CometFailed(f"{PROGRAM} wrote no scores that Heed can read: {error!r}.") from error
    if not all(len(own) == n_sentences and all(map(math.isfinite, own)) for own in scores):
        raise CometFailed(f"{PROGRAM} did not give every sentence a finite score.")
    return scores
