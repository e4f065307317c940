"""Translating and scoring in parts, from the command to its end: the plan, the job, its reports, and _SUCCESS."""

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from heed.apps.cluster.plan import (
    ERRORS,
    SUCCESS,
    Model,
    Task,
    Work,
    WorkPlan,
    agreed_plan,
    columns_of,
    inputs_of,
    make_plan,
    manifest_hash,
    read_plan,
    sidecar,
    write_plan,
)
from heed.apps.cluster.worker import Worker
from heed.apps.documents.text.sentences import splitter
from heed.data.reading.rows import Columns, Format
from heed.decoding.direction import Direction
from heed.decoding.loading import folder_precision, load_models, recipe_settings
from heed.decoding.settings import DecodingOptions, SamplingSettings
from heed.errors import HeedError
from heed.leases.job import Job, Outcome
from heed.leases.plan import InputWatch
from heed.leases.storage import is_passing, is_url, joined, read_whole, write_whole
from heed.leases.workforce import Workforce
from heed.runtime.device import DecodingPrecisionChoice, search_device
from heed.runtime.files import remove_unfinished
from heed.runtime.locks import LOCK
from heed.runtime.progress import counted

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """The options of a command.

    columns: those that are read, None for the default. price: of a core-hour, or of a GPU-hour where workers have GPUs.
    """

    task: Task
    model: Path
    inputs: Sequence[str]
    out: str
    columns: Sequence[str | None]
    output: str | None
    part_lines: int
    prefix: str
    workforce: Workforce
    precision: DecodingPrecisionChoice
    decoding: DecodingOptions
    max_errors: int
    price: float | None
    sampling: SamplingSettings | None = None  # draws instead of searching
    languages: tuple[str | None, str | None] = (None, None)  # of a model of several


def make_shards(options: ShardOptions, report: Report) -> bool:
    """Makes the parts of a share; whether all parts of all shares are there.

    HeedError at the end names the parts that were given up, or says what does not answer.
    """
    try:
        return _make(options, report)
    except HeedError:
        raise
    except Exception as error:
        if not is_passing(error):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise HeedError(f"{options.out}: {reason}. Run the same command again to go on.") from error


def _make(options: ShardOptions, report: Report) -> bool:
    workforce = options.workforce
    workforce.check()
    names, work = _work(options, report)
    plan = agreed_plan(options.out, names, work, report)
    inputs = InputWatch()
    inputs.check(plan.files)
    started = time.monotonic()
    job = Job(
        plan=plan,
        worker=_worker(options, options.out if is_url(options.out) else os.path.abspath(options.out)),
        doing="Translating" if options.task == "translate" else "Scoring",
        noun="part",
        sidecar=partial(sidecar, options.out, plan),
        report=report,
        progress=partial(_progress, plan, started=started, workforce=workforce),
        check=partial(_check_bad_rows, max_errors=options.max_errors),
    )
    outcome = job.run(range(len(plan.parts)), workforce)
    _say_end(options, outcome, time.monotonic() - started, report)
    job.refuse_given_up(outcome)
    inputs.check(plan.files)
    return _finish(options.out, plan, outcome, report)


def _check_bad_rows(outcome: Outcome, *, max_errors: int) -> None:
    """HeedError if the parts have more bad rows."""
    n_bad = sum(record["bad_rows"] for record in outcome.records.values())
    if n_bad > max_errors:
        raise HeedError(
            f"{n_bad:,} rows are bad, more than --max-errors {max_errors:,}; the folder {ERRORS} lists them. Mend them "
            "and choose another folder, or run this again with a larger number."
        )


def estimate(options: ShardOptions, report: Report) -> None:
    """Times the part in the middle in this process, writes nothing, and says what the whole will take."""
    options.workforce.check()
    names, work = _work(options, report)
    plan = make_plan(names, work)
    part = len(plan.parts) // 2
    with tempfile.TemporaryDirectory(prefix="heed-") as folder:
        write_plan(folder, plan)
        worker = _worker(options, folder)
        worker.open()
        answer = worker.attempt(part)
    if "done" not in answer:
        raise HeedError(answer.get("failed") or answer["stop"])
    sidecar, n_workers = answer["done"], options.workforce.n_local()
    rows = plan.rows_of(part)
    measured = max(sidecar["seconds"], 1e-3)  # of blank rows it may be nothing
    seconds = measured * plan.rows / rows
    report(
        f"{plan.rows:,} rows in {counted(len(plan.parts), 'part')}. {plan.name_of(part)}, {rows:,} rows, took "
        f"{sidecar['seconds']:,.1f} s in this process: {rows / measured:,.0f} rows/s."
    )
    size = sidecar["bytes"] * plan.rows / rows
    report(
        f"The whole: {_duration(seconds / n_workers)} with {counted(n_workers, 'worker')}, "
        f"{_cost(options, seconds * _threads(options))}, {size / 1e6:,.1f} MB of output. Nothing was written."
    )


def read_inputs(options: ShardOptions) -> tuple[list[str], Columns, Format]:
    """The names of the inputs, the columns to read, and the format to write. HeedError for what is not there."""
    names = inputs_of(options.inputs)
    read, task = options.columns, options.task
    return names, *columns_of(names, read, output=options.output, task=task, prefix=options.prefix)


def _work(options: ShardOptions, report: Report) -> tuple[list[str], Work]:
    """The names of the inputs, and what is done with them. HeedError before anything is written."""
    names, columns, output = read_inputs(options)
    folder = load_models([options.model])[0]
    if folder.tokenizer.symbols:
        raise HeedError(f"{options.model}: a parser; {options.task}-shards takes models that translate.")
    direction = Direction.of(folder.card, folder.tokenizer).between(*options.languages)
    direction.check()
    if options.task == "translate":
        splitter(direction.languages[0])  # says if its package is missing
    settings = recipe_settings(folder, options.decoding, where=str(options.model)).model_dump()
    # Nodes of several kinds work in the precision that the first one chose.
    if options.precision == "auto" and (planned := read_plan(options.out)) is not None:
        precision = planned.work.precision
    else:
        device_name = search_device("cuda" if options.workforce.gpus else "cpu")
        precision = folder_precision(folder, options.precision, device_name=device_name, report=report)
    work = Work(
        task=options.task,
        model=Model(str(options.model.resolve()), manifest_hash(options.model)),
        settings=settings,
        sampling=None if options.sampling is None else options.sampling.model_dump(),
        languages=None if direction.of_several is None or direction.is_open else direction.languages,
        precision=precision,
        columns=columns,
        output=output,
        part_lines=options.part_lines,
    )
    return names, work


def _threads(options: ShardOptions) -> int:
    return options.workforce.threads or 1


def _worker(options: ShardOptions, folder: str) -> Worker:
    device, model = "cuda" if options.workforce.gpus else "cpu", str(options.model.resolve())
    return Worker(folder, _threads(options), device, model=model, max_errors=options.max_errors)


def _progress(plan: WorkPlan, outcome: Outcome, n_parts: int, *, started: float, workforce: Workforce) -> str:
    done, rows = sum(map(plan.rows_of, outcome.records)), sum(map(plan.rows_of, outcome.new))
    n_rows = sum(map(plan.rows_of, workforce.part_of_work(range(len(plan.parts)))))
    seconds = time.monotonic() - started
    text = f"{len(outcome.records):,} of {n_parts:,} parts, {done:,} of {n_rows:,} rows"
    if rows:
        tokens = sum(record["tokens"] for record in outcome.new.values())
        left = (n_rows - done) * seconds / rows
        text += f", {rows / seconds:,.0f} rows/s, {tokens / seconds:,.0f} tokens/s, {_duration(left)} left"
    return text + "."


def _say_end(options: ShardOptions, outcome: Outcome, seconds: float, report: Report) -> None:
    if outcome.new:
        rows, tokens = (sum(record[key] for record in outcome.new.values()) for key in ("rows", "tokens"))
        report(
            f"{counted(len(outcome.new), 'part')}, {rows:,} rows, {tokens:,} tokens in {_duration(seconds)}: "
            f"{rows / seconds:,.0f} rows/s, "
            f"{_cost(options, sum(record['seconds'] * record['threads'] for record in outcome.new.values()))}."
        )
    bad = sum(record["bad_rows"] for record in outcome.records.values())
    if bad:
        report(f"{bad:,} bad rows are listed in {joined(options.out, 'errors')}.")


def _cost(options: ShardOptions, thread_seconds: float) -> str:
    """The cost of workers whose threads have worked this long: core-hours or GPU-hours, and money."""
    gpus = options.workforce.gpus
    hours, unit = (thread_seconds / _threads(options) * gpus, "GPU") if gpus else (thread_seconds, "core")
    hours /= 3600
    money = "" if options.price is None else f", {hours * options.price:,.2f} at {options.price:g} per {unit}-hour"
    return f"{hours:,.3f} {unit}-hours{money}" if hours < 10 else f"{hours:,.0f} {unit}-hours{money}"


def _finish(out: str, plan: WorkPlan, outcome: Outcome, report: Report) -> bool:
    """Writes _SUCCESS if the parts of all shares are there, which is returned.

    What killed workers left half-written is removed.
    """
    everything = dict(outcome.records)
    for part in range(len(plan.parts)):
        record = everything.get(part) or sidecar(out, plan, part, thorough=False)
        if record is None:
            report(f"Parts of other shares are still missing, {plan.name_of(part)} first; {SUCCESS} follows with them.")
            return False
        everything[part] = record
    kinds = Counter(record["instruction_set"] for record in everything.values())
    if len(kinds) > 1:
        of = ", ".join(f"{kind}: {n:,} parts" for kind, n in kinds.most_common())
        report(
            f"Machines of several kinds worked ({of}): done again on another kind, a part may differ in its last bits."
        )
    sums = {key: sum(record[key] for record in everything.values()) for key in ("rows", "bad_rows", "tokens")}
    seconds = sum(record["seconds"] * record["threads"] for record in everything.values())
    content = {"parts": len(plan.parts), **sums, "core_seconds": round(seconds, 1), "plan": plan.digest}
    text = json.dumps(content, indent=1) + "\n"
    if read_whole(joined(out, SUCCESS)) != text.encode():  # a complete folder may lie on a disk that is read only
        if not is_url(out):
            remove_unfinished(Path(out))
            remove_unfinished(Path(out, ERRORS))
        write_whole(joined(out, SUCCESS), text)
    if not is_url(out):
        with suppress(OSError):
            Path(out, LOCK).unlink()  # of an earlier version
    report(f"{out}: {counted(len(plan.parts), 'part')}, complete.")
    return True


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:,.1f} h"
