"""A job from its command to its end: plan, crew, driver, what is said to people, and _SUCCESS."""

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from heed.apps.cluster.plan import (
    ADDED,
    ERRORS,
    SUCCESS,
    Plan,
    Task,
    Work,
    agreed_plan,
    columns_of,
    inputs_of,
    make_plan,
    manifest_hash,
    read_plan,
    sidecar,
    write_plan,
)
from heed.apps.cluster.worker import Loading, Worker
from heed.apps.documents.sentences import splitter
from heed.data.reading.rows import Columns, Format
from heed.decoding.loading import choose_precision, load_models, recipe_settings
from heed.decoding.settings import DecodingOptions, SamplingSettings
from heed.errors import HeedError
from heed.leases.job import Driver, Outcome
from heed.leases.packages import needed
from heed.leases.plan import InputWatch, counted
from heed.leases.storage import is_passing, is_url, joined, read_whole, write_whole
from heed.leases.workforce import Crew, Processes, RayActors, ThisProcess, check_address
from heed.runtime.cores import n_cores
from heed.runtime.device import DecodingPrecisionChoice
from heed.runtime.files import remove_unfinished
from heed.runtime.locks import LOCK

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The options of a command.

    columns: those that are read, None for the default. share: the i-th of n parts of the plan, counted from 1.
    price: of a core-hour, or of a GPU-hour where workers have GPUs.
    """

    task: Task
    model: Path
    inputs: Sequence[str]
    out: str
    columns: Sequence[str | None]
    output: str | None
    part_lines: int
    prefix: str
    cluster: str
    n_workers: int | None
    threads: int
    gpus: float
    share: tuple[int, int]
    precision: DecodingPrecisionChoice
    decoding: DecodingOptions
    max_errors: int
    price: float | None
    sampling: SamplingSettings | None = None  # draws instead of searching


def run_job(job: Job, report: Report) -> None:
    """Works off a job. HeedError at the end names the parts that were given up, or says what does not answer."""
    try:
        _run(job, report)
    except HeedError:
        raise
    except Exception as error:
        if not is_passing(error):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise HeedError(f"{job.out}: {reason}. Run the same command again to go on.") from error


def _run(job: Job, report: Report) -> None:
    check_cluster(job)
    names, work = _work(job, report)
    plan = agreed_plan(job.out, names, work, report)
    inputs = InputWatch()
    inputs.check(plan.inputs)
    mine = [part for part in range(len(plan.parts)) if part % job.share[1] == job.share[0] - 1]
    outcome = Outcome()
    for part in mine:
        if said := sidecar(job.out, plan, part):
            outcome.said[part] = said
    before = set(outcome.said)
    if before:
        report(f"{len(before):,} of {len(mine):,} parts are already there.")
    started = time.monotonic()
    todo = [part for part in mine if part not in before]
    if todo:
        crew, n_workers = _crew(job, report, len(todo))
        progress = _Progress(plan, before, started, n_rows=sum(map(plan.rows_of, mine)))
        check = partial(_check_bad_rows, max_errors=job.max_errors)
        driver = Driver(plan, crew, n_workers=n_workers, report=report, progress=progress.line, check=check)
        try:
            driver.run(todo, outcome)
        finally:
            crew.close()
    _say_end(job, plan, outcome, before, time.monotonic() - started, report)
    if outcome.given_up:
        shown = ", ".join(plan.name_of(part) for part in sorted(outcome.given_up)[:10])
        first = outcome.given_up[min(outcome.given_up)]
        raise HeedError(
            f"{len(outcome.given_up):,} of {len(mine):,} parts were given up ({shown}): {first} Run the same command "
            "again for them."
        )
    inputs.check(plan.inputs)
    _finish(job, plan, outcome, report)


def _check_bad_rows(outcome: Outcome, *, max_errors: int) -> None:
    """HeedError if the parts have more bad rows."""
    n_bad = sum(said["bad_rows"] for said in outcome.said.values())
    if n_bad > max_errors:
        raise HeedError(
            f"{n_bad:,} rows are bad, more than --max-errors {max_errors:,}; the folder {ERRORS} lists them. Mend them "
            "and choose another folder, or run this again with a larger number."
        )


def estimate(job: Job, report: Report) -> None:
    """Times the part in the middle in this process, writes nothing, and says what the whole will take."""
    check_cluster(job)
    names, work = _work(job, report)
    plan = make_plan(names, work)
    part = len(plan.parts) // 2
    with tempfile.TemporaryDirectory(prefix="heed-") as folder:
        write_plan(folder, plan)
        found = Worker(_loading(replace(job, out=folder))).attempt(part)
    if "done" not in found:
        raise HeedError(found.get("failed") or found["stop"])
    said, n_workers = found["done"], job.n_workers or _usual_workers(job)
    rows = plan.rows_of(part)
    measured = max(said["seconds"], 1e-3)  # of blank rows it may be nothing
    seconds = measured * plan.rows / rows
    report(
        f"{plan.rows:,} rows in {counted(len(plan.parts), 'part')}. {plan.name_of(part)}, {rows:,} rows, took "
        f"{said['seconds']:,.1f} s in this process: {rows / measured:,.0f} rows/s."
    )
    size = said["bytes"] * plan.rows / rows
    report(
        f"The whole: {_duration(seconds / n_workers)} with {counted(n_workers, 'worker')}, {_cost(job, seconds)}, "
        f"{size / 1e6:,.1f} MB of output. Nothing was written."
    )


def check_cluster(job: Job) -> None:
    """HeedError for what cannot work, before hours of reading."""
    check_address(job.cluster)
    if job.cluster not in ("none", "local"):
        needed("ray", "--cluster works with")
    if job.cluster == "none" and job.n_workers not in (None, 1):
        raise HeedError("--workers is for --cluster local or Ray; this process is one worker.")
    if job.cluster in ("none", "local") and job.gpus not in (0, 1):
        raise HeedError(f"--gpus-per-worker {job.gpus:g}: expected 0 or 1, or a Ray cluster that shares GPUs.")


def read_inputs(job: Job) -> tuple[list[str], Columns, Format]:
    """The names of the inputs, the columns to read, and the format to write. HeedError for what is not there."""
    names = inputs_of(job.inputs)
    added = [job.prefix + name for name in ADDED[job.task]]
    return names, *columns_of(names, job.columns, output=job.output, added=added)


def _work(job: Job, report: Report) -> tuple[list[str], Work]:
    """The names of the inputs, and what is done with them. HeedError before anything is written."""
    names, columns, output = read_inputs(job)
    folder = load_models([job.model], device="cuda" if job.gpus else "cpu")[0]
    if folder.tokenizer.symbols:
        raise HeedError(f"{job.model}: a parser; {job.task}-shards takes models that translate.")
    if job.task == "translate":
        splitter(folder.card.src)  # says if its package is missing
    settings = recipe_settings(folder, job.decoding, where=str(job.model)).model_dump()
    # Nodes of several kinds work in the precision that the first one chose.
    if job.precision == "auto" and (planned := read_plan(job.out)) is not None:
        precision = planned.work.precision
    else:
        precision = choose_precision(folder.model, job.precision, report=report)
    work = Work(
        job.task,
        str(job.model.resolve()),
        manifest_hash(job.model),
        settings,
        precision,
        columns,
        output,
        job.part_lines,
        job.prefix,
        None if job.sampling is None else job.sampling.model_dump(),
    )
    return names, work


def _loading(job: Job) -> Loading:
    device = "cuda" if job.gpus else "cpu"
    return Loading(job.out, str(job.model.resolve()), job.threads, device, job.max_errors)


def _usual_workers(job: Job) -> int:
    """As many as this machine has room for."""
    if job.cluster == "none":
        return 1
    if job.gpus:
        import torch

        return max(1, int(torch.cuda.device_count() / job.gpus))
    return max(1, n_cores() // job.threads)


def _crew(job: Job, report: Report, n_parts: int) -> tuple[Crew, int]:
    """The workers, and how many: no more than there are parts."""
    loading = _loading(job if is_url(job.out) else replace(job, out=os.path.abspath(job.out)))
    if job.cluster == "none":
        return ThisProcess(loading), 1
    if job.cluster == "local":
        n_workers = min(n_parts, job.n_workers or _usual_workers(job))
        report(f"{counted(n_workers, 'worker')} of {counted(job.threads, 'thread')} on this machine.")
        return Processes(loading, n_gpus=_n_gpus() if job.gpus else 0), n_workers
    crew = RayActors(loading, address=job.cluster, n_workers=job.n_workers, gpus=job.gpus)
    room = int(crew.gpus() / job.gpus) if job.gpus else crew.cpus() // job.threads
    n_workers = min(n_parts, job.n_workers or max(1, room))
    report(
        f"{counted(n_workers, 'worker')} of {counted(job.threads, 'thread')} on a Ray cluster with {crew.cpus()} CPUs."
    )
    if crew.is_open():
        report(
            "The ports of this Ray cluster are open: without RAY_AUTH_MODE=token, whoever reaches one can run code "
            "there; keep them in a private network."
        )
    return crew, n_workers


def _n_gpus() -> int:
    import torch

    return torch.cuda.device_count()


@dataclass(frozen=True)
class _Progress:
    plan: Plan
    before: set[int]
    started: float
    n_rows: int

    def line(self, outcome: Outcome, n_parts: int) -> str:
        new = [part for part in outcome.said if part not in self.before]
        done, rows = sum(map(self.plan.rows_of, outcome.said)), sum(map(self.plan.rows_of, new))
        seconds = time.monotonic() - self.started
        text = f"{len(outcome.said):,} of {n_parts:,} parts, {done:,} of {self.n_rows:,} rows"
        if rows:
            tokens = sum(outcome.said[part]["tokens"] for part in new)
            left = (self.n_rows - done) * seconds / rows
            text += f", {rows / seconds:,.0f} rows/s, {tokens / seconds:,.0f} tokens/s, {_duration(left)} left"
        return text + "."


def _say_end(job: Job, plan: Plan, outcome: Outcome, before: set[int], seconds: float, report: Report) -> None:
    new = [said for part, said in outcome.said.items() if part not in before]
    if new:
        rows, tokens = (sum(said[key] for said in new) for key in ("rows", "tokens"))
        report(
            f"{counted(len(new), 'part')}, {rows:,} rows, {tokens:,} tokens in {_duration(seconds)}: "
            f"{rows / seconds:,.0f} rows/s, {_cost(job, sum(said['seconds'] for said in new))}."
        )
    bad = sum(said["bad_rows"] for said in outcome.said.values())
    if bad:
        report(f"{bad:,} bad rows are listed in {joined(job.out, 'errors')}.")


def _cost(job: Job, seconds: float) -> str:
    """The cost of this many seconds of workers: core-hours or GPU-hours, and money."""
    hours, unit = (seconds * job.gpus / 3600, "GPU") if job.gpus else (seconds * job.threads / 3600, "core")
    money = "" if job.price is None else f", {hours * job.price:,.2f} at {job.price:g} per {unit}-hour"
    return f"{hours:,.3f} {unit}-hours{money}" if hours < 10 else f"{hours:,.0f} {unit}-hours{money}"


def _finish(job: Job, plan: Plan, outcome: Outcome, report: Report) -> None:
    """Writes _SUCCESS if the parts of all shares are there, and removes what killed workers left half-written."""
    everything = dict(outcome.said)
    for part in range(len(plan.parts)):
        said = everything.get(part) or sidecar(job.out, plan, part, thorough=False)
        if said is None:
            report(f"{plan.name_of(part)} and others of other shares are still missing; {SUCCESS} follows with them.")
            return
        everything[part] = said
    kinds = Counter(said["instruction_set"] for said in everything.values())
    if len(kinds) > 1:
        of = ", ".join(f"{kind}: {n:,} parts" for kind, n in kinds.most_common())
        report(
            f"Machines of several kinds worked ({of}): done again on another kind, a part may differ in its last bits."
        )
    sums = {key: sum(said[key] for said in everything.values()) for key in ("rows", "bad_rows", "tokens")}
    seconds = sum(said["seconds"] * said["threads"] for said in everything.values())
    content = {"parts": len(plan.parts), **sums, "core_seconds": round(seconds, 1), "plan": plan.digest}
    text = json.dumps(content, indent=1) + "\n"
    if read_whole(joined(job.out, SUCCESS)) != text.encode():  # a complete folder may lie on a disk that is read only
        if not is_url(job.out):
            remove_unfinished(Path(job.out))
            remove_unfinished(Path(job.out, ERRORS))
        write_whole(joined(job.out, SUCCESS), text)
    if not is_url(job.out):
        with suppress(OSError):
            Path(job.out, LOCK).unlink()  # of an earlier version
    report(f"{job.out}: {counted(len(plan.parts), 'part')}, complete.")


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:,.1f} h"
