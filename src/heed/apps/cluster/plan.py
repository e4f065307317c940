"""The plan of a folder of parts: inputs, model, settings, and which rows each part has. It is made once."""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from heed.config import shown
from heed.data.reading.columns import examine, format_of, has_lines, line_reader
from heed.data.reading.json_lines import infer_schema, text_schema
from heed.data.reading.parquet import common_schema
from heed.data.reading.rows import FORMATS, Columns, Format
from heed.errors import HeedError
from heed.leases.plan import (
    PLAN,
    Count,
    Examined,
    Input,
    Plan,
    PlanFile,
    Range,
    Seconds,
    check_parts,
    differences,
    make_parts,
    planning,
    read_plan_file,
    read_sidecar,
    write_plan_file,
)
from heed.leases.storage import facts, is_url, joined, matching
from heed.runtime.device import DecodingPrecision
from heed.runtime.manifest import MANIFEST, sha256_of
from heed.runtime.progress import counted

SUCCESS, ERRORS = "_SUCCESS", "errors"
Task = Literal["translate", "score"]
Split = Literal["lines", "items"]  # a plan that says nothing has lines
ADDED: dict[Task, tuple[str, ...]] = {"translate": ("translation", "score", "ended"), "score": ("log_prob", "score")}


@dataclass(frozen=True)
class Model:
    """A model folder: where it lies, which may change, and the SHA-256 of its manifest."""

    folder: str
    manifest_sha256: str


class Work(BaseModel, frozen=True):
    """The work to do on the inputs.

    settings: of the search. sampling: of draws in place of a search. split: how texts become sentences, as documents do
    or line by line. languages: from and into which, of a model of several.
    """

    task: Task
    model: Model
    settings: dict[str, Any]
    sampling: dict[str, Any] | None = None
    split: Split = "items"
    languages: tuple[str, str] | None = None
    precision: DecodingPrecision
    columns: Columns
    output: Format
    part_lines: int

    @property
    def added(self) -> tuple[str, ...]:
        """The names of the columns that are added."""
        return tuple(self.columns.prefix + name for name in ADDED[self.task])


@dataclass(frozen=True)
class WorkPlan(Plan):
    """A plan whose sources are one file each, and what is done with them."""

    work: Work

    def name_of(self, part: int) -> str:
        """The file name of a part."""
        return f"part-{part:05d}.{'txt' if self.work.output == 'text' else self.work.output}"

    def errors_of(self, part: int) -> str:
        """The name of the list of a part's bad rows."""
        return f"{ERRORS}/part-{part:05d}.jsonl"

    def identity(self) -> dict[str, Any]:
        """The facts that parts of one plan share."""
        work = self.work
        return {
            "task": work.task,
            "inputs": {one.name: {"bytes": one.n_bytes, "hash": one.digest, "rows": one.rows} for one in self.files},
            "model": work.model.manifest_sha256,
            "settings": work.settings,
            **({} if work.sampling is None else {"sampling": work.sampling}),
            **({"split": work.split} if (work.task, work.split) == ("translate", "items") else {}),
            **({} if work.languages is None else {"languages": list(work.languages)}),
            "precision": work.precision,
            "columns": {"read": list(work.columns.read), "schema": work.columns.schema, "added": list(work.added)},
            "output": work.output,
            "part_lines": work.part_lines,
        }

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the plan's identity, which every part's sidecar names."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()


class _PlanFile(PlanFile, Work, frozen=True):
    inputs: tuple[Input, ...]
    split: Split = "lines"
    parts: tuple[tuple[tuple[int, int, int, int], ...], ...]  # input, first row, rows, offset


class Sidecar(BaseModel):
    """What the sidecar of a part says. plan: the plan's digest."""

    plan: str
    rows: Count
    bad_rows: Count
    blank_rows: Count = 0
    bytes: Count
    hash: str
    seconds: Seconds
    cpu_seconds: Seconds
    threads: Annotated[int, Field(ge=1)]
    tokens: Count
    instruction_set: str
    precision: str


def manifest_hash(model: str | Path) -> str:
    """The SHA-256 of a model folder's manifest. HeedError if there is none."""
    path = Path(model, MANIFEST)
    try:
        return sha256_of(path)
    except OSError as error:
        raise HeedError(f"{path}: cannot be read ({error.strerror}).") from None


def inputs_of(patterns: Sequence[str]) -> list[str]:
    """The names that the patterns stand for, each once. HeedError if there is none, or if their formats differ."""
    names = list(dict.fromkeys(name for pattern in patterns for name in matching(pattern)))
    for name in names:
        if format_of(name) != format_of(names[0]):
            raise HeedError(
                f"{names[0]} is {format_of(names[0])}, {name} {format_of(name)}: give the files of one format at a "
                "time, each with a folder of its own."
            )
    return names


def columns_of(
    names: Sequence[str], read: Sequence[str | None], *, output: str | None, task: Task, prefix: str
) -> tuple[Columns, Format]:
    """The columns that are read and the format of the output.

    read: as asked for, None for "text" and "translation". output: by default the inputs' format. HeedError if a column
    is missing, would be written twice, or if the output has no place for it.
    """
    given = format_of(names[0])
    if output is not None and output not in FORMATS:
        raise HeedError(f"--format {shown(output)}: expected {', '.join(FORMATS)}.")
    chosen: Format = next((one for one in FORMATS if one == output), "text" if given == "table" else given)
    defaults = ("text", "translation")
    columns = tuple(column or default for column, default in zip(read, defaults, strict=False))
    if given == "text":
        if columns != defaults[: len(columns)]:
            raise HeedError(f"{names[0]}: is text, whose columns have no names; leave out --column.")
        there: Sequence[str] = columns
    elif given == "parquet":
        schema = common_schema(names, columns)
        there = schema.names
    else:
        there = []
        for name in names:  # by the first rows of JSON Lines, or the heads of tables
            with closing(line_reader(name)(name, columns=columns)) as reader:
                there += reader.names()
        there = list(dict.fromkeys(there))
        if given == "table" and output is None:
            chosen = "jsonl" if there else "text"
        there = there or columns
    for name in (prefix + name for name in ADDED[task]):
        if name in there:
            raise HeedError(
                f"{names[0]}: already has a column {shown(name)}; choose --prefix for those that are added."
            )
    if chosen == "text" and given != "text" and set(there) != set(columns):
        others = ", ".join(shown(name) for name in there if name not in columns)
        raise HeedError(f"--format text has no place for {others}; choose parquet or jsonl.")
    schema = None
    if chosen == "parquet" and given != "parquet":
        schema = infer_schema(names[0]) if given == "jsonl" else text_schema(there)
    return Columns(columns, schema, prefix), chosen


def make_plan(names: Sequence[str], work: Work) -> WorkPlan:
    """The plan of these inputs, all of which are read to their ends.

    HeedError if one is damaged, or if there is no row.
    """
    examined, before = list[Examined](), 0
    for name in names:
        examined.append(examine(name, work.columns.read, every=work.part_lines, before=before))
        before += examined[-1].rows
    if before == 0:
        raise HeedError(f"{names[0]}{' and the others' if len(names) > 1 else ''}: no row to {work.task}.")
    parts = make_parts(examined, work.part_lines, words=("rows", "parts"), setting="--part-lines")
    return WorkPlan(tuple(one.files for one in examined), parts, work)


def write_plan(out: str, plan: WorkPlan) -> None:
    """Writes plan.json, whole."""
    content = {
        **plan.identity(),
        "inputs": [vars(one) for one in plan.files],
        "model": vars(plan.work.model),
        "columns": vars(plan.work.columns),
    }
    parts = [[(*rows[:3], *rows.offsets) for rows in part] for part in plan.parts]
    write_plan_file(joined(out, PLAN), content, parts=parts)


def read_plan(out: str) -> WorkPlan | None:
    """The plan in a folder, None if there is none. HeedError if it is damaged."""
    name = joined(out, PLAN)
    try:
        content = read_plan_file(name, _PlanFile)
        if content is None:
            return None
        parts = tuple(tuple(Range(*rows[:3], rows[3:]) for rows in part) for part in content.parts)
        plan = WorkPlan(tuple((one,) for one in content.inputs), parts, content)
        check_parts(plan, content.part_lines, has_lines=has_lines)
        return plan
    except (ValueError, RecursionError) as error:
        raise HeedError(f"{name}: damaged ({error}); choose another folder.") from None


def agreed_plan(out: str, names: Sequence[str], work: Work, report: Callable[[str], None]) -> WorkPlan:
    """The plan in the folder, or a new one if it has none. HeedError if it is another one, and says what differs."""
    existing = read_plan(out)
    if existing is not None:
        return _same(existing, out, names, work)
    with planning(out):
        existing = read_plan(out)  # which another process has made meanwhile
        if existing is not None:
            return _same(existing, out, names, work)
        others = [] if is_url(out) else [path.name for path in Path(out).iterdir() if not path.name.startswith(".")]
        if others:
            raise HeedError(f"{out}: holds {shown(min(others))} and no {PLAN}; choose a new or an empty folder.")
        plan = make_plan(names, work)
        write_plan(out, plan)
    rows, files, parts = counted(plan.rows, "row"), counted(len(names), "file"), counted(len(plan.parts), "part")
    report(f"{out}: {rows} of {files} in {parts}.")
    return plan


def _same(plan: WorkPlan, out: str, names: Sequence[str], work: Work) -> WorkPlan:
    """The plan of before. HeedError if it has other inputs, work or settings."""
    work = work.model_copy(update={"split": plan.work.split})  # a folder keeps the split that it was begun with
    known = {one.name: one for one in plan.files}
    inputs = []
    for name in names:
        one = known.get(name)
        if one is None or not one.is_unchanged():
            now = facts(name)
            size, version = (now.n_bytes, now.version) if now else (0, "missing")
            one = Input(name, size, "another content" if not is_url(name) else version, version, one.rows if one else 0)
        inputs.append((one,))
    if differing := differences(plan.identity(), WorkPlan(tuple(inputs), plan.parts, work).identity()):
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise HeedError(
            f"{joined(out, PLAN)}: another plan; what differs: {', '.join(differing[:5])}{more}. Choose another folder."
        )
    return replace(plan, work=work)


def part_hash(name: str) -> str:
    """The hash in a part's sidecar: SHA-256 of a file, etag of an object."""
    if is_url(name):
        file = facts(name)
        return file.version if file else ""
    return sha256_of(Path(name))


def sidecar(out: str, plan: WorkPlan, part: int, *, thorough: bool = True) -> dict[str, Any] | None:
    """The content of a part's sidecar; None unless the part is there and valid.

    thorough: compares the hash of the part; else only its size.
    """
    name = joined(out, plan.name_of(part))
    record, file = read_sidecar(plan.sidecar_of(out, part), Sidecar), facts(name)
    if (
        record is not None
        and file is not None
        and record["plan"] == plan.digest
        and record["bytes"] == file.n_bytes
        and record["rows"] + record["bad_rows"] + record.get("blank_rows", 0) == plan.rows_of(part)
        and (not thorough or record["hash"] == part_hash(name))
        and (record["bad_rows"] == 0 or facts(joined(out, plan.errors_of(part))) is not None)
    ):
        return record
    return None
