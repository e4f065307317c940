"""One worker of the preparation: it hashes pairs, finds copies, and encodes shards, each whole with its sidecar.

The bytes that it writes depend on the plan and the tokenizer alone, so it does not matter who makes which part.
"""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from heed.data.corpus.shard import write_corpus
from heed.data.corpus.sharded import is_whole
from heed.data.inspection.repetitions import EvaluationSets, Repetitions
from heed.data.preparation.encoding import Encoder, Numbered, Tally
from heed.data.preparation.plan import COPIES, MOST_JOINED, Kind, ShardPlan, read_plan
from heed.data.preparation.rules import COPY, HELD_OUT, PairFilter, later_copies
from heed.data.preparation.vocabulary import TOKENIZER, vocab_sizes
from heed.data.reading.dev_split import HeldOut, pair_hash
from heed.data.reading.lines import LineFault
from heed.data.reading.pairs import UNREADABLE, Pair, Place, Sources, read_pairs
from heed.data.reading.rows import Columns
from heed.errors import HeedError
from heed.leases.plan import Count, read_sidecar
from heed.leases.storage import facts
from heed.leases.worker import LeaseWorker
from heed.runtime.files import whole_file
from heed.runtime.json_files import read_json
from heed.runtime.manifest import MANIFEST, sha256_of
from heed.text.tokenizer_kinds import load_tokenizer

SIDECAR = "4"  # the form of a shard's sidecar; those of another form are made again
ESTIMATED_SHARE = 16  # of more than MOST_JOINED pairs, one in 16 hashes, the lowest, tells how many are copies


@dataclass(eq=False)
class ShardWorker(LeaseWorker):
    """Does the jobs of a plan, in the folder of the shards."""

    plan: ShardPlan = field(init=False)

    def open(self) -> None:
        """HeedError if the folder has no plan."""
        plan = read_plan(Path(self.folder))
        if plan is None:
            raise HeedError(f"{self.folder}: has no plan.json.")
        self.plan = plan
        self._sources = Sources(plan.names, Columns(plan.settings.columns))
        self._encoder: Encoder | None = None

    def close(self) -> None:
        """Closes the file that is open."""
        self._sources.close()

    def done(self, part: int) -> dict[str, Any] | None:
        """What the sidecar of a job says; None unless it is done."""
        return finished(Path(self.folder), self.plan, part)

    def make(self, part: int) -> dict[str, Any]:
        """Does a job; what its sidecar is to say."""
        job = self.plan.job(part)
        match job.kind:
            case "hashes":
                return self._hash(job.number)
            case "copies":
                return self._find_copies(job.number)
            case "shard":
                return self._encode(job.number)

    def _pairs(self, shard: int) -> Iterator[tuple[Place, Pair | LineFault]]:
        return self._sources.pairs(self.plan.parts[shard])

    def _hash(self, shard: int) -> dict[str, Any]:
        """Writes the hashes of a shard's pairs in order, then the place in the shard that each belongs to."""
        places = array("I")

        def hashes() -> Iterator[int]:
            for place, (_, pair) in enumerate(self._pairs(shard)):
                if not isinstance(pair, LineFault):
                    places.append(place)
                    yield pair_hash(*pair)

        keys = np.fromiter(hashes(), np.uint64)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        with whole_file(_path(self.folder, "hashes", shard)) as temporary, temporary.open("wb") as file:
            keys.tofile(file)
            np.frombuffer(places, np.uint32)[order].tofile(file)
        n_ranges = self.plan.n_ranges
        bounds = (np.arange(1, n_ranges, dtype=np.uint64) * np.uint64(2**64 // n_ranges)) if n_ranges > 1 else keys[:0]
        starts = [0, *np.searchsorted(keys, bounds).tolist(), len(keys)]
        return {"plan": self.plan.digest, "starts": starts}

    def _find_copies(self, number: int) -> dict[str, Any]:
        """Writes the places of all pairs of a range of hashes that have occurred in the corpus before, by shard."""
        hashes, places, sizes = [], [], []
        for shard in range(len(self.plan.parts)):
            path = _path(self.folder, "hashes", shard)
            record = read_json(path.with_suffix(".json"))
            begin, end = record["starts"][number], record["starts"][number + 1]
            hashes.append(np.fromfile(path, np.uint64, end - begin, offset=8 * begin))
            places.append(np.fromfile(path, np.uint32, end - begin, offset=8 * record["starts"][-1] + 4 * begin))
            sizes.append(end - begin)
            if len(hashes[-1]) != end - begin or len(places[-1]) != end - begin:
                raise HeedError(f"{path}: damaged; delete the folder {COPIES} and run this again.")
        copies = later_copies(np.concatenate(hashes))
        ends = np.cumsum([0, *sizes])
        by_shard = [of[copies[ends[i] : ends[i + 1]]] for i, of in enumerate(places)]
        with whole_file(_path(self.folder, "copies", number)) as temporary, temporary.open("wb") as file:
            for of in by_shard:
                of.tofile(file)
        return {"plan": self.plan.digest, "starts": np.cumsum([0, *map(len, by_shard)]).tolist()}

    def _encode(self, shard: int) -> dict[str, Any]:
        """Writes a shard with its list of what is left out; what its sidecar says."""
        if self._encoder is None:
            self._encoder = self._loaded_encoder()
        plan, tokenizer = self.plan, self._encoder.tokenizer
        tally = Tally(plan.texts, tokenizer.special.unk)
        no_copies = plan.settings.drop_duplicates or plan.settings.tgt_symbols
        repetitions = Repetitions(self._sets, share=0 if no_copies else share_of_hashes(plan))
        path = Path(self.folder, plan.name_of(plan.stages[-1][shard]))
        pairs = self._encoder.encode(self._readable(shard, tally, repetitions), tally)
        corpus = write_corpus(path, pairs, **vocab_sizes(tokenizer), lines=tally.lines)
        tally.write_left_out(path.with_suffix(".dropped.tsv.gz"))
        lengths = corpus.length_counts()
        arrays: dict[str, NDArray[Any]] = {"repeats": repetitions.hashes()}
        if not plan.joined:  # for the index
            arrays |= {"lengths": lengths, "counts": corpus.counts("tgt", vocab_size=len(tokenizer))}
        for name, numbers in arrays.items():
            with whole_file(path.with_suffix(f".{name}.npy")) as temporary, temporary.open("wb") as file:
                np.save(file, numbers, allow_pickle=False)
        src, tgt, n, _ = lengths.T
        return {
            "key": self._key,
            "manifest": sha256_of(path / MANIFEST),
            "kept": len(corpus),
            "longer": int(np.maximum(src, tgt) @ n),
            "src_tokens": int(src @ n),
            "tgt_tokens": int(tgt @ n),
            "longest": list(corpus.longest) if len(corpus) else [0, 0],
            "dropped": dict(tally.dropped),
            **repetitions.facts(),
            "unknown": tally.unknown(),
            "faults": tally.faults(UNREADABLE),
        }

    def _loaded_encoder(self) -> Encoder:
        """The encoder, and the rules by which pairs are left out before it has them; hashes and copies need neither."""
        plan, settings, folder = self.plan, self.plan.settings, Path(self.folder)
        self._key, self._filter = shard_key(plan, folder), PairFilter(settings)
        sets = {name: (Path(src), Path(tgt)) for name, (src, tgt) in settings.sets.items()}
        dev = read_pairs(sets["dev"], settings.columns) if settings.holds_out_dev else ()
        self._held_out = HeldOut(dev, sides_from=plan.sides_held_out_from)
        read_sets = {name: read_pairs(files, settings.columns) for name, files in sets.items()}
        self._sets = EvaluationSets(read_sets, symbols=settings.tgt_symbols)
        return Encoder(
            load_tokenizer(folder.parent / TOKENIZER),
            max_tokens=settings.max_tokens,
            max_ratio=settings.max_ratio,
            tags=settings.tags,
            threads=self.threads,
        )

    def _readable(self, shard: int, tally: Tally, repetitions: Repetitions) -> Iterator[Numbered]:
        """The pairs that no rule leaves out before they are encoded, with their numbers through all sources."""
        copies, first_lines = self._copies(shard), np.cumsum([1, *(rows for _, rows in self.plan.texts)]).tolist()
        for place, ((source, row), pair) in enumerate(self._pairs(shard)):
            line = first_lines[source] + row
            if isinstance(pair, LineFault):
                tally.drop(line, UNREADABLE, str(pair))
            elif self._held_out.has(source, *pair):
                tally.drop(line, HELD_OUT)
            elif (reason := self._filter.reason(*pair)) is not None:
                tally.drop(line, reason)
            elif copies is not None and copies[place]:
                tally.drop(line, COPY)
            else:
                repetitions.add(*pair)
                yield line, source, pair

    def _copies(self, shard: int) -> NDArray[np.bool_] | None:
        """Whether the pair at each place of a shard is a copy of an earlier one."""
        if not self.plan.settings.drop_duplicates:
            return None
        copies = np.zeros(self.plan.rows_of(shard), bool)
        for number in range(self.plan.n_ranges):
            path = _path(self.folder, "copies", number)
            begin, end = read_json(path.with_suffix(".json"))["starts"][shard : shard + 2]
            copies[np.fromfile(path, np.uint32, end - begin, offset=4 * begin)] = True
        return copies


def share_of_hashes(plan: ShardPlan) -> int:
    """One in how many of a shard's hashes it keeps."""
    return 1 if plan.rows <= MOST_JOINED else ESTIMATED_SHARE


class _PlacesSaid(BaseModel):
    """starts: where each range of hashes begins among those of a shard, or each shard among the copies of a range."""

    plan: str
    starts: list[Count]


class _UnknownSaid(BaseModel):
    src: tuple[Count, Count, list[Count]]
    tgt: tuple[Count, Count, list[Count]]


class _ShardSaid(BaseModel):
    key: str
    manifest: str
    kept: Count
    longer: Count
    src_tokens: Count
    tgt_tokens: Count
    longest: tuple[Count, Count]
    dropped: dict[str, Count]
    untranslated: Count
    overlaps: dict[str, list[Count]]
    counted: Count
    unknown: _UnknownSaid
    faults: dict[str, tuple[Count, str]]


def shard_key(plan: ShardPlan, folder: Path) -> str:
    """A hash of all that decides a shard's bytes: the plan, the tokenizer, and dev if it is held out."""
    parts = [SIDECAR, plan.digest, sha256_of(folder.parent / TOKENIZER)]
    if plan.settings.holds_out_dev:
        parts += [sha256_of(Path(side)) for side in plan.settings.sets["dev"]]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def finished(folder: Path, plan: ShardPlan, part: int, *, key: str | None = None) -> dict[str, Any] | None:
    """What the sidecar of a job says; None unless the job is done. key: of `shard_key`, if it is known."""
    path, job = Path(plan.sidecar_of(str(folder), part)), plan.job(part)
    record = read_sidecar(str(path), _ShardSaid if job.kind == "shard" else _PlacesSaid)
    if record is None:
        return None
    if job.kind == "shard":
        shard = path.with_suffix("")
        others = ["repeats.npy", "dropped.tsv.gz", *(() if plan.joined else ("lengths.npy", "counts.npy"))]
        is_here = record["key"] == (key or shard_key(plan, folder)) and is_whole(shard, record["manifest"])
        return record if is_here and all(shard.with_suffix(f".{ending}").exists() for ending in others) else None
    starts, n_ends = record["starts"], plan.n_ranges if job.kind == "hashes" else len(plan.parts)
    if record["plan"] != plan.digest or len(starts) != n_ends + 1 or starts != sorted(starts):
        return None
    file, of_each = facts(str(path.with_suffix(".bin"))), 12 if job.kind == "hashes" else 4  # bytes
    return record if file is not None and file.n_bytes == starts[-1] * of_each else None


def _path(folder: str | Path, kind: Kind, number: int) -> Path:
    return Path(folder, COPIES, f"{kind}-{number:05d}.bin")
