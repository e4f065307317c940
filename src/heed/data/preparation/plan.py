"""The plan of a corpus: its files as they were, the settings that shape the ids, the pairs of each shard.

The work on it is numbered. First come the hashes of each shard's pairs, then the copies among all pairs of each range
of hashes, where copies are to be left out; then the shards themselves. Those of a corpus that is one shard are joined
once they are there.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from heed.data.reading.columns import has_lines
from heed.data.reading.pairs import examine_source
from heed.data.reading.text_files import TextFiles
from heed.errors import HeedError
from heed.leases.plan import (
    PLAN,
    Count,
    Examined,
    Input,
    Plan,
    PlanFile,
    Range,
    check_parts,
    make_parts,
    read_plan_file,
    write_plan_file,
)
from heed.runtime.files import whole_file
from heed.runtime.json_files import MAX_LIST_BYTES, read_json, write_json
from heed.runtime.manifest import sha256_of

SOURCES = "sources.json"  # in RUN/data: sizes, dates and hashes of the text files
MOST_JOINED = 10_000_000  # pairs of a corpus that becomes one shard
SHARD_PAIRS = 1_000_000
HASHES_AT_A_TIME = 2**22  # compared in one piece of work: 16 bytes each, and as much again to sort them
COPIES = "copies"  # the folder of hashes and copies, which goes when the shards are there
Kind = Literal["hashes", "copies", "shard"]


@dataclass(frozen=True, kw_only=True)
class ShardSettings:
    """The settings that shape a shard.

    columns: of files that hold both sides. holds_out_dev: whether dev was split off the training text, so that its
    pairs are left out; either_side: and those that share one side with it, or only those among the added sources. sets:
    the files of dev and of the tests, by name. tags: the word put before each text of a source. parts: the number of
    sources of each part of a mix, between which shards end.
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
    either_side: bool = False
    tgt_symbols: bool = False
    tags: tuple[str | None, ...] = ()
    parts: tuple[int, ...] = ()

    @property
    def first_of_parts(self) -> set[int]:
        """The sources that a shard begins with."""
        return {0, *np.cumsum(self.parts, dtype=np.int64).tolist()}


class Job(NamedTuple):
    """A piece of work: of which kind, and its number among those of its kind."""

    kind: Kind
    number: int


@dataclass(frozen=True)
class ShardPlan(Plan):
    """Sources of pairs, settings, and as parts the shards. `rows` are pairs of lines, before anything is left out.

    n_given: the number of sources of the corpus itself; those after them were added, data.added. joined: whether the
    shards become one, RUN/data/train.
    """

    n_given: int
    settings: ShardSettings
    joined: bool = False

    @property
    def texts(self) -> list[tuple[str, int]]:
        """The first file of each source and its number of lines, through which a pair's line is counted."""
        return [(files[0].name, files[0].rows) for files in self.sources]

    @property
    def sides_held_out_from(self) -> int:
        """The first source in which a pair is held out that shares one side with dev."""
        return 0 if self.settings.either_side else self.n_given

    @property
    def shards_of_parts(self) -> list[int]:
        """The number of shards of each part of a mix; of all if there is none."""
        ends = np.cumsum(self.settings.parts or [len(self.sources)])
        parts = Counter(int(np.searchsorted(ends, shard[0].source, side="right")) for shard in self.parts)
        return [parts[number] for number in range(len(ends))]

    @property
    def n_ranges(self) -> int:
        """Ranges of hashes, a power of two, each of which is compared at once."""
        return 1 << max(0, (-(-self.rows // HASHES_AT_A_TIME) - 1).bit_length())

    @property
    def stages(self) -> list[range]:
        """The numbers of the jobs, those of each kind after all of the kind before."""
        n = len(self.parts)
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
        return f"{'' if job.kind == 'shard' else f'{COPIES}/'}{job.kind}-{job.number:05d}"

    def files_of(self, part: int) -> list[Input]:
        """The files that a job reads; those of copies are hashes."""
        job = self.job(part)
        return [] if job.kind == "copies" else super().files_of(job.number)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of contents and settings, without the files' names: text that has been moved is the same."""
        contents = [[(file.digest, file.rows) for file in files] for files in self.sources]
        settings = {name: value for name, value in asdict(self.settings).items() if name != "sets"}
        return hashlib.sha256(
            json.dumps([contents, self.n_given, settings, self.joined], sort_keys=True).encode()
        ).hexdigest()

    def changed_file(self) -> str | None:
        """The first of its files that has changed since it was planned."""
        return next((file.name for file in self.files if not file.is_unchanged()), None)


def make_plan(
    sources: Sequence[Sequence[str]], n_given: int, settings: ShardSettings, *, joined: bool | None = None
) -> ShardPlan:
    """The plan of these sources, which are read to their ends.

    joined: None joins the shards unless they have more than MOST_JOINED pairs. HeedError if a source is damaged, or if
    there is no pair.
    """
    first_of_parts = settings.first_of_parts
    examined, before = list[Examined](), 0
    for number, names in enumerate(sources):
        before = 0 if number in first_of_parts else before
        examined.append(examine_source(names, settings.columns, every=settings.shard_pairs, before=before))
        before += examined[-1].rows
    if not any(source.rows for source in examined):
        raise HeedError(f"{sources[0][0]}: a corpus needs at least one pair of lines.")
    words = ("pairs", "shards")
    shards = make_parts(examined, settings.shard_pairs, words=words, setting="data.shard_pairs", apart=first_of_parts)
    joined = sum(source.rows for source in examined) <= MOST_JOINED if joined is None else joined
    return ShardPlan(tuple(source.files for source in examined), shards, n_given, settings, joined)


def write_plan(folder: Path, plan: ShardPlan) -> None:
    """Writes plan.json, whole."""
    content = {
        "sources": [[vars(file) for file in files] for files in plan.sources],
        "given": plan.n_given,
        "settings": asdict(plan.settings),
        "joined": plan.joined,
    }
    write_plan_file(str(folder / PLAN), content, shards=plan.parts)


class _PlanFile(PlanFile):
    sources: tuple[Annotated[tuple[Input, ...], Field(min_length=1, max_length=2)], ...]
    given: Count
    settings: ShardSettings
    joined: bool = False
    shards: tuple[tuple[Range, ...], ...]


def read_plan(folder: Path) -> ShardPlan | None:
    """The plan in a folder, None if there is none. HeedError if it is damaged."""
    path = folder / PLAN
    try:
        content = read_plan_file(str(path), _PlanFile)
        if content is None:
            return None
        settings = content.settings
        plan = ShardPlan(content.sources, content.shards, content.given, settings, content.joined)
        check_parts(plan, settings.shard_pairs, has_lines=has_lines, apart=settings.first_of_parts)
        return plan
    except (ValueError, RecursionError) as error:
        raise HeedError(f"{path}: damaged ({error}); restore it from a backup, or choose another --run.") from None


def compare_sources(files: TextFiles, path: Path, *, binding: bool, planned: Sequence[Input] = ()) -> None:
    """Writes size, date and hash of the text files to `path`: what a run is trained on must not change.

    binding: whether they are first compared with those that are written there. planned: those of a plan, which are
    added as they were: from the list a run knows text that has been moved. HeedError names a file that differs.
    """
    for file in (side for pair in files.pairs for side in pair):
        if not file.is_file():
            raise HeedError(f"{file}: no such file.")
    recorded = read_json(path, MAX_LIST_BYTES) if binding and path.exists() else {}
    current: dict[str, Any] = {
        file.name: {"bytes": file.n_bytes, "modified": int(file.version), "sha256": file.digest} for file in planned
    }
    for file in dict.fromkeys(side for pair in files.learned_and_chosen_by for side in pair):
        name = os.path.abspath(file)  # not what a link leads to: it may be led elsewhere
        before = recorded.get(name) or recorded.get(str(file))  # as older runs have it
        try:
            state = file.stat()
            current[name] = {"bytes": state.st_size, "modified": state.st_mtime_ns}
            if before and {**current[name], "sha256": before["sha256"]} == before:
                current[name] = before  # same size and date: not read again
            else:
                current[name]["sha256"] = sha256_of(file)
        except OSError as error:
            raise HeedError(f"{file}: cannot be read ({error.strerror}).") from None
        if before and current[name]["sha256"] != before["sha256"]:
            raise HeedError(f"{file}: changed since this run prepared it; restore the old text, or use another --run.")
    if recorded | current != recorded:
        with whole_file(path) as temporary:
            write_json(temporary, recorded | current)
