"""The plan of a corpus in shards: its files as they were, the settings that shape the ids, the pairs of each shard.

The work on it is numbered. First come the hashes of each shard's pairs, then the copies among all pairs of each range
of hashes, where copies are to be left out; then the shards themselves.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from heed.config import shown
from heed.data.reading.pairs import ExaminedSource, PairRange, examine_source
from heed.errors import HeedError
from heed.leases.inputs import PLAN, Input
from heed.leases.storage import read_whole, write_whole

FORMAT = 1
MAX_SHARDS = 100_000  # a plan of more would be read for seconds by every worker
HASHES_AT_A_TIME = 2**22  # compared in one piece of work: 16 bytes each, and as much again to sort them
Kind = Literal["hashes", "copies", "shard"]


@dataclass(frozen=True, kw_only=True)
class ShardSettings:
    """The settings that shape a shard.

    columns: of files that hold both sides. holds_out_dev: whether dev was split off the training text, so that its
    pairs are left out. sets: the files of dev and of the tests, by name.
    """

    src: str
    tgt: str
    columns: tuple[str, ...]
    shard_pairs: int
    max_tokens: int
    max_ratio: float
    drop_duplicates: bool
    drop_identical: bool
    check_languages: bool
    holds_out_dev: bool
    sets: dict[str, tuple[str, str]]


class Job(NamedTuple):
    """A piece of work: of which kind, and its number among those of its kind."""

    kind: Kind
    number: int


@dataclass(frozen=True)
class ShardPlan:
    """Sources of pairs, settings, and the ranges of each shard.

    n_given: the number of sources of the corpus itself; those after them were added, data.added.
    """

    sources: tuple[tuple[Input, ...], ...]
    n_given: int
    settings: ShardSettings
    shards: tuple[tuple[PairRange, ...], ...]

    @property
    def n_pairs(self) -> int:
        """Pairs of lines, before anything is left out."""
        return sum(files[0].rows for files in self.sources)

    @property
    def names(self) -> list[list[str]]:
        """The files of each source."""
        return [[file.name for file in files] for files in self.sources]

    @property
    def texts(self) -> list[tuple[str, int]]:
        """The first file of each source and its number of lines, through which a pair's line is counted."""
        return [(files[0].name, files[0].rows) for files in self.sources]

    def first_line(self, source: int) -> int:
        """The number of its first line, counted from 1 through all sources."""
        return 1 + sum(rows for _, rows in self.texts[:source])

    def rows_of(self, shard: int) -> int:
        """Pairs of lines of a shard, before anything is left out."""
        return sum(rows.rows for rows in self.shards[shard])

    @property
    def n_ranges(self) -> int:
        """Ranges of hashes, a power of two, each of which is compared at once."""
        return 1 << max(0, (-(-self.n_pairs // HASHES_AT_A_TIME) - 1).bit_length())

    @property
    def stages(self) -> list[range]:
        """The numbers of the jobs, those of each kind after all of the kind before."""
        n = len(self.shards)
        if not self.settings.drop_duplicates:
            return [range(n)]
        ends = [0, n, n + self.n_ranges, 2 * n + self.n_ranges]
        return [range(begin, end) for begin, end in pairwise(ends)]

    def job(self, number: int) -> Job:
        """The job of this number."""
        kinds: list[Kind] = ["hashes", "copies", "shard"] if self.settings.drop_duplicates else ["shard"]
        for kind, numbers in zip(kinds, self.stages, strict=True):
            if number in numbers:
                return Job(kind, number - numbers.start)
        raise ValueError(number)

    def name_of(self, part: int) -> str:
        """The name of a job's result."""
        job = self.job(part)
        return {"hashes": "hashes", "copies": "copies", "shard": "shard"}[job.kind] + f"-{job.number:05d}"

    def identity(self) -> dict[str, Any]:
        """The facts that shards of one plan share."""
        files = [file for files in self.sources for file in files]
        settings = json.loads(json.dumps(asdict(self.settings)))
        return {
            "inputs": {file.name: {"bytes": file.n_bytes, "hash": file.digest, "rows": file.rows} for file in files},
            "given": self.n_given,
            "settings": settings,
        }

    @cached_property
    def digest(self) -> str:
        """Of contents and settings, not of the files' names: text that has been moved is the same."""
        contents = [[(file.digest, file.rows) for file in files] for files in self.sources]
        settings = {name: value for name, value in asdict(self.settings).items() if name != "sets"}
        return hashlib.sha256(json.dumps([contents, self.n_given, settings], sort_keys=True).encode()).hexdigest()

    def check_inputs(self) -> None:
        """HeedError names a file that has changed since it was planned."""
        for file in (file for files in self.sources for file in files):
            if not file.is_unchanged():
                raise HeedError(
                    f"{file.name}: changed since this run prepared it; restore the old text, or use another --run."
                )


def make_plan(
    sources: Sequence[Sequence[str]], n_given: int, settings: ShardSettings, *, examined: Sequence[ExaminedSource] = ()
) -> ShardPlan:
    """The plan of these sources, which are read to their ends unless they are `examined`.

    HeedError if one is damaged, or if there is no pair.
    """
    found = list(examined) or examine_sources(sources, settings.columns, every=settings.shard_pairs)
    n_pairs = sum(source.rows for source in found)
    if n_pairs == 0:
        raise HeedError(f"{sources[0][0]}: a corpus needs at least one pair of lines.")
    n_shards = -(-n_pairs // settings.shard_pairs)
    if n_shards > MAX_SHARDS:
        raise HeedError(
            f"{n_pairs:,} pairs make {n_shards:,} shards, more than {MAX_SHARDS:,}; set data.shard_pairs to "
            f"{-(-n_pairs // MAX_SHARDS):,} or more."
        )
    shards = tuple(_shards(found, settings.shard_pairs))
    return ShardPlan(tuple(source.files for source in found), n_given, settings, shards)


def examine_sources(sources: Sequence[Sequence[str]], columns: Sequence[str], *, every: int) -> list[ExaminedSource]:
    """All sources, read to their ends."""
    found, before = list[ExaminedSource](), 0
    for names in sources:
        found.append(examine_source(names, columns, every=every, before=before))
        before += found[-1].rows
    return found


def _shards(sources: Sequence[ExaminedSource], shard_pairs: int) -> Iterator[tuple[PairRange, ...]]:
    """All pairs in order; a shard may begin in one source and end in another."""
    ranges, left = list[PairRange](), shard_pairs
    for number, source in enumerate(sources):
        first = 0
        while first < source.rows:
            rows = min(left, source.rows - first)
            nowhere = (0,) * len(source.files)
            ranges.append(PairRange(number, first, rows, source.starts.get(first, nowhere)))
            first, left = first + rows, left - rows
            if left == 0:
                yield tuple(ranges)
                ranges, left = [], shard_pairs
    if ranges:
        yield tuple(ranges)


def write_plan(folder: Path, plan: ShardPlan) -> None:
    """Writes plan.json, whole."""
    content = {
        "format": FORMAT,
        "sources": [[vars(file) for file in files] for files in plan.sources],
        "given": plan.n_given,
        "settings": asdict(plan.settings),
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}," for key, value in content.items()]
    shards = ",\n".join(f"  {json.dumps(shard)}" for shard in plan.shards)
    write_whole(str(folder / PLAN), "\n".join(["{", *lines, f' "shards": [\n{shards}\n ]', "}"]) + "\n")


def read_plan(folder: Path) -> ShardPlan | None:
    """The plan in a folder, None if there is none. HeedError if it is damaged."""
    path = folder / PLAN
    content = read_whole(str(path))
    if content is None:
        return None
    try:
        found = json.loads(content)
        if found["format"] != FORMAT:
            raise HeedError(f"{path}: format {shown(found['format'])}; this Heed reads format {FORMAT}.")
        settings: Mapping[str, Any] = found["settings"]
        sets = {name: (src, tgt) for name, (src, tgt) in settings["sets"].items()}
        return ShardPlan(
            tuple(tuple(Input(**file) for file in files) for files in found["sources"]),
            int(found["given"]),
            ShardSettings(**{**settings, "columns": tuple(settings["columns"]), "sets": sets}),
            tuple(
                tuple(PairRange(source, first, rows, tuple(offsets)) for source, first, rows, offsets in shard)
                for shard in found["shards"]
            ),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise HeedError(f"{path}: damaged ({error}); restore it from a backup, or choose another --run.") from None
