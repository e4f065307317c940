"""The plan of numbered parts: inputs as they were, the rows of each part, and the file that holds it.

A plan is made once, though many processes ask for it.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field, ValidationError

from heed.config import shown
from heed.errors import HeedError
from heed.leases.storage import Facts, facts, is_url, joined, read_whole, write_whole
from heed.runtime.locks import locked
from heed.runtime.manifest import sha256_of

PLAN = "plan.json"
FORMAT = 1
CHECKSUM = "checksum"
MAX_PARTS = 100_000  # a plan of more would be read for seconds by every worker
PLANNED_SECONDS = 3600.0  # how long the plan of another process is awaited

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PlanFile(BaseModel):
    """The content of a plan.json. checksum: of all else; the first plans have none."""

    format: int
    checksum: str | None = None


class StopAll(HeedError):
    """A fault of a part for which no other part is worth making."""


M = TypeVar("M", bound=BaseModel)
P = TypeVar("P", bound=PlanFile)


@dataclass(frozen=True)
class Input:
    """A file, as it was when the plan was made. digest: SHA-256 of a file, etag of an object.

    version: as long as it and the size stay, a file is not hashed again.
    """

    name: str
    n_bytes: Count
    digest: str
    version: str
    rows: Count

    def is_unchanged(self) -> bool:
        """Whether it has the content that was planned; reads it only if it was written since."""
        return self._is(facts(self.name), by_date=True)

    def _is(self, now: Facts | None, *, by_date: bool) -> bool:
        """by_date: whether the same size and date are enough."""
        if now is None or now.n_bytes != self.n_bytes:
            return False
        if is_url(self.name) or (by_date and now.version == self.version):
            return now.version == self.version
        return sha256_of(Path(self.name)) == self.digest


class InputWatch:
    """Checks again and again that inputs are what was planned; reads one only if it was written or replaced since."""

    def __init__(self) -> None:
        self._known: dict[str, Facts] = {}

    def check(self, inputs: Iterable[Input]) -> None:
        """StopAll names an input that is not what was planned."""
        for one in inputs:
            now, known = facts(one.name), self._known.get(one.name)
            if now is None or now != known:
                if now is None or not one._is(now, by_date=known is None):
                    raise StopAll(
                        f"{one.name}: is not what it was when it was planned; restore it, or begin again in another "
                        "folder."
                    )
                self._known[one.name] = now


class Range(NamedTuple):
    """Rows of one source. offsets: the byte that the first of them begins at, in each file's unpacked content."""

    source: int
    first: int
    rows: int
    offsets: tuple[int, ...] = (0, 0)


class Examined(NamedTuple):
    """A source, read to its end: its files, side by side. starts: the offsets of the rows at which parts begin."""

    files: tuple[Input, ...]
    starts: dict[int, tuple[int, ...]]

    @property
    def rows(self) -> int:
        """The number of rows of each of its files."""
        return self.files[0].rows

    def offsets(self, row: int) -> tuple[int, ...]:
        """The bytes that it begins at, in each file; of Parquet, which needs none, 0."""
        return self.starts.get(row, (0,) * len(self.files))


@dataclass(frozen=True)
class Plan(ABC):
    """Sources, each of files side by side, and the ranges of rows of each part."""

    sources: tuple[tuple[Input, ...], ...]
    parts: tuple[tuple[Range, ...], ...]

    @property
    def rows(self) -> int:
        """The number of rows of all sources."""
        return sum(files[0].rows for files in self.sources)

    def rows_of(self, part: int) -> int:
        """The number of rows of a part."""
        return sum(rows.rows for rows in self.parts[part])

    @property
    def names(self) -> list[list[str]]:
        """The files of each source."""
        return [[file.name for file in files] for files in self.sources]

    @property
    def files(self) -> list[Input]:
        """The files of all sources."""
        return list(chain(*self.sources))

    @abstractmethod
    def name_of(self, part: int) -> str:
        """The name of a part, of its file or folder."""

    def sidecar_of(self, folder: str, part: int) -> str:
        """The sidecar of a part, in the folder of the parts."""
        return f"{joined(folder, self.name_of(part))}.json"

    def files_of(self, part: int) -> list[Input]:
        """The files that a part is made of."""
        return [file for rows in self.parts[part] for file in self.sources[rows.source]]


def row_ranges(
    sizes: Sequence[int], part_rows: int, *, apart: Collection[int] = ()
) -> Iterator[list[tuple[int, int, int]]]:
    """(input, first row, rows) of each part: all rows of inputs of these sizes in order, `part_rows` a part.

    A part may begin in one input and end in another, unless that one's number is in `apart`.
    """
    ranges, left = list[tuple[int, int, int]](), part_rows
    for number, size in enumerate(sizes):
        if ranges and number in apart:
            yield ranges
            ranges, left = [], part_rows
        first = 0
        while first < size:
            rows = min(left, size - first)
            ranges.append((number, first, rows))
            first, left = first + rows, left - rows
            if left == 0:
                yield ranges
                ranges, left = [], part_rows
    if ranges:
        yield ranges


def make_parts(
    sources: Sequence[Examined], part_rows: int, *, words: tuple[str, str], setting: str, apart: Collection[int] = ()
) -> tuple[tuple[Range, ...], ...]:
    """The ranges of each part, as `row_ranges` gives them.

    HeedError for more than MAX_PARTS parts. words: for rows and parts. setting: that of `part_rows`.
    """
    n_rows = sum(source.rows for source in sources)
    if (n_parts := -(-n_rows // part_rows)) > MAX_PARTS:
        raise HeedError(
            f"{n_rows:,} {words[0]} make {n_parts:,} {words[1]}, more than {MAX_PARTS:,}; set {setting} to "
            f"{-(-n_rows // MAX_PARTS):,} or more."
        )
    return tuple(
        tuple(Range(number, first, rows, sources[number].offsets(first)) for number, first, rows in ranges)
        for ranges in row_ranges([source.rows for source in sources], part_rows, apart=apart)
    )


def check_parts(plan: Plan, part_rows: int, *, has_lines: Callable[[str], bool], apart: Collection[int] = ()) -> None:
    """ValueError unless the parts of a plan are all rows of its sources once and in order, as `make_parts` makes them.

    In files with lines, the parts' offsets must increase.
    """
    expected = row_ranges([files[0].rows for files in plan.sources], max(1, part_rows), apart=apart)
    is_whole = all([tuple(rows[:3]) for rows in part] == next(expected, None) for part in plan.parts)
    if not is_whole or any(expected) or any(file.rows != files[0].rows for files in plan.sources for file in files):
        raise ValueError("its parts are not all rows of its inputs, each row once and in order")
    least: dict[tuple[int, int], int] = {}
    for source, first, rows, offsets in chain.from_iterable(plan.parts):
        for side, (file, offset) in enumerate(zip(plan.sources[source], offsets, strict=True)):
            if has_lines(file.name) and (offset < least.get((source, side), 0) or (first == 0 and offset != 0)):
                raise ValueError(f"row {first + 1:,} of {file.name} does not begin at byte {offset:,}")
            least[source, side] = offset + rows  # a line has an end, at least


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How the facts of two plans differ, such as "settings.beam_size (4, now 5)"."""
    before, now = _flat(before), _flat(now)
    return [
        f"{key} ({shown(before.get(key, 'none'))}, now {shown(now.get(key, 'none'))})"
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    ]


def _flat(values: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        full = f"{name}.{key}" if name else key
        flat |= _flat(value, full) if isinstance(value, dict) else {full: value}
    return flat


def write_plan_file(name: str, content: Mapping[str, Any], **parts: Sequence[Any]) -> None:
    """Writes plan.json, whole: a line for each fact and for each part, and a checksum of all."""
    content = {"format": FORMAT, **content}
    content = {**content, CHECKSUM: _checksum(json.loads(json.dumps({**content, **parts})))}
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}," for key, value in content.items()]
    ((key, values),) = parts.items()
    inside = ",\n".join(f"  {json.dumps(part)}" for part in values)
    write_whole(name, "\n".join(["{", *lines, f' "{key}": [\n{inside}\n ]', "}"]) + "\n")


def read_plan_file(name: str, kind: type[P]) -> P | None:
    """The content of a plan.json, None if there is none. ValueError if it is damaged."""
    content = read_whole(name)
    if content is None:
        return None
    values = json.loads(content)
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    if values.get("format") != FORMAT:
        raise HeedError(f"{name}: format {shown(values.get('format'))}; this Heed reads format {FORMAT}.")
    plan = checked_json(content, kind)
    if plan.checksum not in (None, _checksum(values)):
        raise ValueError("it was changed since it was written")
    return plan


def _checksum(content: Mapping[str, Any]) -> str:
    others = {key: value for key, value in content.items() if key != CHECKSUM}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def checked_json(content: bytes, kind: type[M]) -> M:
    """JSON as `kind`, no type of which is converted. ValueError says where it is another one."""
    try:
        return kind.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))) from None


def read_sidecar(name: str, kind: type[M]) -> dict[str, Any] | None:
    """What a sidecar says; None if it is missing or damaged, so that its part is made again."""
    content = read_whole(name)
    with suppress(ValueError):
        return None if content is None else checked_json(content, kind).model_dump()
    return None


@contextmanager
def planning(out: str) -> Iterator[None]:
    """Keeps other processes from planning at the same time; leaves no lock, and no folder if planning fails."""
    if is_url(out):
        yield  # no locks there: two plans of the same are the same
        return
    folder = Path(out)
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        with locked(folder, wait=PLANNED_SECONDS, stays=False):
            yield
    finally:
        with suppress(OSError):
            for one in made if not (folder / PLAN).exists() else ():
                one.rmdir()
