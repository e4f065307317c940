"""The run folder: which one a run may use, the recipe that is kept in it, where a model may be written.

A run writes config.toml first: it tells the folder of a run that was interrupted from a user's own.
"""

import glob
import os
import platform
import re
import secrets
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heed.config import read_toml, shown, toml_text, validated
from heed.data.corpora.download import Report
from heed.data.preparation.plan import SOURCES
from heed.data.reading.columns import holds_both_sides
from heed.errors import HeedError
from heed.model_folder import MODEL_FOLDER_NAMES
from heed.runs.recipe import Recipe, anchor_recipe
from heed.runtime.files import UNFINISHED, check_replaceable, whole_file
from heed.runtime.json_files import read_json
from heed.runtime.locks import locked
from heed.runtime.manifest import sha256_of
from heed.training.distributed import ANOTHER_ENDED, OtherWorkerEnded, Workers

# What a run writes next to config.toml.
RUN_NAMES = ("corpus", "teachers", "lines", "data", "checkpoints", "metrics.jsonl", "tensorboard", "model")
BEGUN = (".lock", "metrics.jsonl", "checkpoints")  # one of these tells a run's config.toml from a user's recipe
# What a run makes of its text first. Until then, a mistake in the recipe may be corrected.
MADE_OF_TEXT = (
    *("lines/*", "data/tokenizer.json", "teachers/*/data/tokenizer.json", "teachers/translations-*"),
    *("checkpoints/*", "model"),
)
# Settings that shape ids and weights. parsing.treebank may change, since the run keeps the treebank's lines.
FIXED_TABLES = ("data", "tokenizer", "model", "parsing")
FREE_SETTINGS = (("parsing", "treebank"), ("data", "tests"))  # of these tables
TEXTS = (("data", "train"), ("data", "dev"), ("data", "added"), ("data", "mix"))  # which may have moved
FIXED_SETTINGS = (("training", "start_from"), ("training", "n_teachers"))  # of other tables


@contextmanager
def open_run_folder(recipe: Recipe, run: Path, *, report: Report, wait: float = 0.0) -> Iterator[None]:
    """Locks a new or existing run folder for this process and writes its config.toml.

    HeedError if the folder is not a run's, or if the run began with other settings that must not change. Busy if
    another process has locked it for longer than `wait` seconds.
    """
    try:
        os.path.abspath(run).encode()
    except UnicodeEncodeError:
        raise HeedError(
            f"{shown(os.path.abspath(run))}: this path is not UTF-8, so files of the run could not name it; choose "
            "another --run."
        ) from None
    _check_run_folder(run)
    with locked(run, wait=wait):
        _write_config(recipe, run, report)
        check_replaceable(run / "model", MODEL_FOLDER_NAMES)
        yield


def recipe_of_run(recipe: Recipe, run: Path, *, report: Report) -> Recipe:
    """The recipe with absolute file names; workers, and later calls, read it from the run folder.

    A run of an earlier version keeps the learning_rate_factor that it began with, unless the recipe sets one: then a
    preset's multiplied learning_rate too.
    """
    anchored = anchor_recipe(recipe, Path.cwd())
    path = run / "config.toml"
    if "learning_rate_factor" in recipe.training.model_fields_set or not _has_begun(run):
        return anchored
    try:
        began = validated(Recipe, read_toml(path), where=str(path)).training
    except HeedError:  # not a run's: `open_run_folder` says so
        return anchored
    ours, factor = anchored.training, began.learning_rate_factor
    if ours.learning_rate is None or ours.learning_rate != began.learning_rate or factor == ours.learning_rate_factor:
        return anchored
    report(f"The run began with training.learning_rate_factor={factor:g} and keeps it, as the recipe sets none.")
    return anchored.model_copy(update={"training": ours.model_copy(update={"learning_rate_factor": factor})})


def _has_begun(run: Path) -> bool:
    """Whether the run has made something of its text, so that its recipe is fixed."""
    return (run / "config.toml").exists() and any(next(run.glob(made), None) for made in MADE_OF_TEXT)


def check_all_see(run: Path, workers: Workers) -> None:
    """HeedError on a machine that does not see what the first worker writes to the run folder, and on all others."""
    name = f".shared.{secrets.token_hex(4)}{UNFINISHED}"
    if workers.first:
        (run / name).touch()
    name = workers.broadcast(name)
    seen = _appears(run / name)
    all_see = not workers.any(not seen)
    if workers.first:
        (run / name).unlink()
    if not seen:
        raise HeedError(
            f"{run.absolute()}: on this machine ({platform.node()}) the run folder is not the one that the first "
            "worker writes to; put it where all machines see it, and name it by the same path."
        )
    if not all_see:
        raise OtherWorkerEnded(f"{ANOTHER_ENDED}: it does not see the run folder; its own message says why.")


def _appears(path: Path) -> bool:
    """Whether a file is there, or comes within some seconds: a network's file system may list an older state."""
    for _ in range(50):
        with suppress(OSError):
            if path.name in os.listdir(path.parent):
                return True
        time.sleep(0.2)
    return False


def check_output_folder(out: Path, run: Path) -> None:
    """HeedError if a model written to `out` would replace files of the user's, or of the run itself."""
    target = Path(os.path.realpath(out))
    for name in RUN_NAMES:
        own = Path(os.path.realpath(run / name))
        if own in target.parents or (own == target and name != "model"):
            raise HeedError(f"--out {out}: in {run / name}, which training writes to; choose another folder.")
    check_replaceable(out, MODEL_FOLDER_NAMES)


def _check_run_folder(run: Path) -> None:
    """HeedError if a run in this folder would overwrite what no run has written."""
    config = run / "config.toml"
    if os.path.lexists(config):
        try:
            validated(Recipe, read_toml(config), where=str(config))
        except HeedError as error:
            raise HeedError(f"{error} {run} is not a run folder of this Heed; choose another --run.") from None
        is_run = any(os.path.lexists(run / name) for name in BEGUN)
        if not is_run and re.search("^ *#", config.read_text(encoding="utf-8"), re.MULTILINE):
            raise HeedError(f"{config}: has comments, which a run here would delete; choose another --run.")
    else:
        for name in RUN_NAMES:
            if os.path.lexists(run / name):
                raise HeedError(f"{run}: holds {name}, but no config.toml of a run; choose another --run.")


def _write_config(recipe: Recipe, run: Path, report: Report) -> None:
    """Writes RUN/config.toml. Once work has begun, reports what has changed, or refuses it."""
    path = run / "config.toml"
    new = _as_toml(recipe)
    if _has_begun(run):
        # Settings that an older Heed did not write have their defaults; file names, it left relative.
        old = _as_toml(anchor_recipe(validated(Recipe, read_toml(path), where=str(path)), Path.cwd()))
        for table, name, change in _changes(old, new):
            is_fixed = table in FIXED_TABLES and (table, name) not in FREE_SETTINGS
            if (is_fixed or (table, name) in FIXED_SETTINGS) and not (
                (table, name) in TEXTS and _same_texts(old[table].get(name, []), new[table].get(name, []), run)
            ):
                raise HeedError(f"{run}: this run began with other settings: {change}; choose another --run.")
            report(f"Changed since the run began: {change}.")
    with whole_file(path) as temporary:
        temporary.write_text(toml_text(new), encoding="utf-8")


def _same_texts(old: Any, new: Any, run: Path) -> bool:
    """Whether files under new names have the content that the run recorded of the old ones."""
    old_parts, new_parts = (_without_files(side) for side in (old, new))
    if old_parts or new_parts:
        old_files, new_files = ([file for part in side for file in part.get("train", ())] for side in (old, new))
        return old_parts == new_parts and _same_texts(old_files, new_files, run)
    if not (isinstance(old, list) and isinstance(new, list) and len(old) == len(new)):  # a dev set may be a number
        return False
    # Each file of a folder or of a pattern is compared with the plan of the prepared text.
    if any(map(glob.has_magic, old)) or (len(old) == 1 and not holds_both_sides(old[0])):
        return True
    path = run / "data" / SOURCES
    recorded = read_json(path) if path.exists() else {}

    def is_same(before: str, now: str) -> bool:
        record = recorded.get(before)
        with suppress(OSError):  # a file that is missing or may not be read is said later
            return before == now or (isinstance(record, dict) and record.get("sha256") == sha256_of(Path(now)))
        return False

    return all(map(is_same, old, new))


def _without_files(parts: Any) -> list[dict[str, Any]]:
    """The parts of a mix without their files, of which only the number counts; empty if it is none."""
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return []
    return [part | {"train": len(part.get("train", ()))} for part in parts]


def _as_toml(recipe: Recipe) -> dict[str, Any]:
    """The recipe as config.toml holds it, where settings that are None are left out."""
    return tomllib.loads(toml_text(recipe.model_dump()))


def _changes(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(table, setting, "table.setting was …, is …") of each setting that differs, sorted."""
    for table in sorted(old.keys() | new.keys()):
        before, now = old.get(table, {}), new.get(table, {})
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                yield table, name, f"{table}.{name} was {before.get(name)!r}, is {now.get(name)!r}"
