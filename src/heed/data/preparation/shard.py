"""One worker of the preparation: it hashes pairs, finds copies, and encodes shards, each whole with its sidecar.

The bytes that it writes depend on the plan and the tokenizer alone, so it does not matter who makes which part.
"""

import gzip
import hashlib
import json
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from heed.data.corpus.shard import SIDES, write_corpus
from heed.data.preparation.plan import ShardPlan, read_plan
from heed.data.preparation.rules import COPY, PairFilter, hashes_of, later_copies
from heed.data.preparation.whole import CHUNK_LINES, encode_chunks, length_ratio_reason
from heed.data.reading.dev_split import HeldOut, pair_hash
from heed.data.reading.lines import LineFault
from heed.data.reading.pairs import UNREADABLE, PairReader, read_pairs
from heed.data.reading.stream import windows
from heed.errors import HeedError
from heed.leases.worker import attempted, serve
from heed.runtime.files import whole_file
from heed.runtime.json_files import read_json, write_json
from heed.runtime.manifest import MANIFEST, sha256_of
from heed.text.line_rules import reason_against_loss
from heed.text.tokenizer_kinds import AnyTokenizer, load_tokenizer

COPIES = "copies"  # the folder of hashes and copies, which goes when the shards are there
TOKENIZER = "tokenizer.json"  # beside the folder of shards
HELD_OUT = "held out for dev (data.dev)"
Texts = tuple[str, str]
Numbered = tuple[int, Texts]


@dataclass(frozen=True)
class ShardLoading:
    """The settings of a worker. folder: that of the shards, on its machine."""

    folder: str
    threads: int
    device: str = "cpu"
    module: ClassVar[str] = "heed.data.preparation.shard"

    def make(self) -> "ShardWorker":
        """The worker of these settings."""
        return ShardWorker(self)


class ShardWorker:
    """Does the jobs of a plan."""

    def __init__(self, loading: ShardLoading):
        """HeedError if the folder has no plan."""
        self._folder, self._threads = Path(loading.folder), loading.threads
        plan = read_plan(self._folder)
        if plan is None:
            raise HeedError(f"{self._folder}: has no plan.json.")
        self._plan = plan
        self._reader = PairReader(plan.names, plan.settings.columns)
        self._encoder: _Encoder | None = None
        self._checked: set[str] = set()

    def attempt(self, part: int) -> dict[str, Any]:
        """As `attempted`: "done" is what the job's sidecar says, with "seconds"."""
        return attempted(self._make, part, clean_up=self._reader.close)

    def close(self) -> None:
        """Closes the file that is open."""
        self._reader.close()

    def _make(self, part: int) -> dict[str, Any]:
        started = time.monotonic()
        found = finished(self._folder, self._plan, part)
        made = found or self._result(part)
        return {**made, "made": found is None, "seconds": time.monotonic() - started}

    def _result(self, part: int) -> dict[str, Any]:
        """Does the job; its sidecar, written last."""
        job = self._plan.job(part)
        if job.kind != "copies":
            self._check_inputs(job.number)
        match job.kind:
            case "hashes":
                said = self._hash(job.number)
            case "copies":
                said = self._find_copies(job.number)
            case "shard":
                if self._encoder is None:
                    self._encoder = _Encoder(self._plan, self._folder, self._threads)
                said = self._encoder.encode(job.number, self._pairs(job.number))
        with whole_file(sidecar_path(self._folder, self._plan, part)) as temporary:
            write_json(temporary, said)
        return said

    def _check_inputs(self, shard: int) -> None:
        """HeedError if one of the shard's files is not what was planned. Once for each: hashing takes time."""
        for rows in self._plan.shards[shard]:
            for file in self._plan.sources[rows.source]:
                if file.name not in self._checked and not file.is_unchanged():
                    raise HeedError(f"{file.name}: is not what it was when it was planned.")
                self._checked.add(file.name)

    def _pairs(self, shard: int) -> Iterator[tuple[int, int, Texts | LineFault]]:
        return self._reader.read(self._plan.shards[shard])

    def _hash(self, shard: int) -> dict[str, Any]:
        """Writes the hashes of a shard's pairs in order, then the place in the shard that each belongs to."""
        places = array("I")

        def hashes() -> Iterator[int]:
            for place, (_, _, pair) in enumerate(self._pairs(shard)):
                if not isinstance(pair, LineFault):
                    places.append(place)
                    yield pair_hash(*pair)

        found = hashes_of(hashes())
        order = np.argsort(found, kind="stable")
        found = found[order]
        with whole_file(_hashes_path(self._folder, shard)) as temporary, temporary.open("wb") as file:
            found.tofile(file)
            np.frombuffer(places, np.uint32)[order].tofile(file)
        n_ranges = self._plan.n_ranges
        bounds = (np.arange(1, n_ranges, dtype=np.uint64) * np.uint64(2**64 // n_ranges)) if n_ranges > 1 else found[:0]
        starts = [0, *np.searchsorted(found, bounds).tolist(), len(found)]
        return {"plan": self._plan.digest, "n": len(found), "starts": starts}

    def _find_copies(self, number: int) -> dict[str, Any]:
        """Writes the places of all pairs of a range of hashes that have occurred in the corpus before, by shard."""
        hashes, places, sizes = [], [], []
        for shard in range(len(self._plan.shards)):
            said = read_json(_hashes_path(self._folder, shard).with_suffix(".json"))
            begin, end = said["starts"][number], said["starts"][number + 1]
            path = _hashes_path(self._folder, shard)
            hashes.append(np.fromfile(path, np.uint64, end - begin, offset=8 * begin))
            places.append(np.fromfile(path, np.uint32, end - begin, offset=8 * said["n"] + 4 * begin))
            sizes.append(end - begin)
            if len(hashes[-1]) != end - begin or len(places[-1]) != end - begin:
                raise HeedError(f"{path}: damaged; delete the folder {COPIES} and run this again.")
        copies = later_copies(np.concatenate(hashes))
        ends = np.cumsum([0, *sizes])
        by_shard = [of[copies[ends[i] : ends[i + 1]]] for i, of in enumerate(places)]
        with whole_file(_copies_path(self._folder, number)) as temporary, temporary.open("wb") as file:
            for of in by_shard:
                of.tofile(file)
        return {"plan": self._plan.digest, "starts": np.cumsum([0, *map(len, by_shard)]).tolist()}


class _Encoder:
    """Encodes shards."""

    def __init__(self, plan: ShardPlan, folder: Path, threads: int):
        self._plan, self._folder, self._threads = plan, folder, threads
        settings = plan.settings
        self._tokenizer: AnyTokenizer = load_tokenizer(folder.parent / TOKENIZER)
        self._key = shard_key(plan, folder)
        self._filter = PairFilter(settings)
        sets = {name: (Path(src), Path(tgt)) for name, (src, tgt) in settings.sets.items()}
        self._held_out = HeldOut(read_pairs(sets["dev"])) if settings.holds_out_dev else None
        self._places: dict[int, list[tuple[str, int]]] = {}  # of the pairs of dev and tests, by their hashes
        for name, files in sets.items():
            for place, pair in enumerate(read_pairs(files)):
                self._places.setdefault(hash(pair), []).append((name, place))

    def encode(self, shard: int, pairs: Iterable[tuple[int, int, Texts | LineFault]]) -> dict[str, Any]:
        """Writes a shard with its list of what is left out; what its sidecar says."""
        made = _Shard(self._plan, self._tokenizer)
        path = self._folder / self._plan.name_of(self._plan.stages[-1][shard])
        corpus = write_corpus(
            path,
            self._encoded(self._readable(shard, pairs, made), made),
            vocab_size=len(self._tokenizer),
            src_vocab_size=self._tokenizer.src_vocab_size,
            lines=made.lines,
        )
        made.write_left_out(path.with_suffix(".dropped.tsv.gz"))
        lengths, counts = corpus.length_counts(), corpus.counts("tgt", vocab_size=len(self._tokenizer))
        for name, numbers in (("lengths", lengths), ("counts", counts)):
            with whole_file(path.with_suffix(f".{name}.npy")) as temporary, temporary.open("wb") as file:
                np.save(file, numbers, allow_pickle=False)
        return {"key": self._key, "manifest": sha256_of(path / MANIFEST), "kept": len(corpus), **made.facts(lengths)}

    def _readable(
        self, shard: int, pairs: Iterable[tuple[int, int, Texts | LineFault]], made: "_Shard"
    ) -> Iterator[Numbered]:
        """The pairs that no rule leaves out before they are encoded, with their numbers through all sources."""
        plan, copies = self._plan, self._copies(shard)
        first_lines = [plan.first_line(source) for source in range(len(plan.sources))]
        for place, (source, row, pair) in enumerate(pairs):
            line = first_lines[source] + row
            if isinstance(pair, LineFault):
                made.drop(line, UNREADABLE, str(pair))
                continue
            either_side = source >= plan.n_given
            if self._held_out is not None and self._held_out.has(*pair, either_side=either_side):
                made.drop(line, HELD_OUT)
            elif (reason := self._filter.reason(*pair)) is not None:
                made.drop(line, reason)
            elif copies is not None and copies[place]:
                made.drop(line, COPY)
            else:
                for name, of_set in self._places.get(hash(pair), ()):
                    made.overlaps.setdefault(name, set()).add(of_set)
                made.n_untranslated += pair[0] == pair[1]
                yield line, pair

    def _copies(self, shard: int) -> NDArray[np.bool_] | None:
        """Whether the pair at each place of a shard is a copy of an earlier one."""
        if not self._plan.settings.drop_duplicates:
            return None
        copies = np.zeros(self._plan.rows_of(shard), bool)
        for number in range(self._plan.n_ranges):
            path = _copies_path(self._folder, number)
            begin, end = read_json(path.with_suffix(".json"))["starts"][shard : shard + 2]
            copies[np.fromfile(path, np.uint32, end - begin, offset=4 * begin)] = True
        return copies

    def _encoded(self, numbered: Iterator[Numbered], made: "_Shard") -> Iterator[tuple[list[int], list[int]]]:
        """Ids of the pairs that are short enough, and of like lengths."""
        settings, tokenizer = self._plan.settings, self._tokenizer
        chunks = encode_chunks(numbered, tokenizer) if self._threads > 1 else _encode_here(numbered, tokenizer)
        for chunk, *both_sides in chunks:
            for (line, pair), *ids in zip(chunk, *both_sides, strict=True):
                made.count_unknown(ids)
                reason = reason_against_loss(pair, ids, tokenizer, max_tokens=settings.max_tokens, training=True)
                reason = reason or length_ratio_reason(ids, settings.max_ratio)
                if reason is None:
                    made.lines.append(line)
                    yield ids[0], ids[1]
                else:
                    made.drop(line, reason)


class _Shard:
    """What is counted while a shard is made."""

    def __init__(self, plan: ShardPlan, tokenizer: AnyTokenizer):
        self._texts, self._unk = plan.texts, tokenizer.special.unk
        self._starts = np.cumsum([0, *(rows for _, rows in plan.texts)])
        self._left_out: list[tuple[int, str, str]] = []
        self.dropped = Counter[str]()
        self.lines = array("Q")
        self.overlaps: dict[str, set[int]] = {}
        self.n_untranslated = 0
        self._n_unknown, self._n_tokens = Counter[str](), Counter[str]()

    def drop(self, line: int, reason: str, detail: str = "") -> None:
        """Leaves a line out. detail: more than its reason says."""
        self.dropped[reason] += 1
        self._left_out.append((line, reason, detail))

    def write_left_out(self, path: Path) -> None:
        """Writes the list of the lines that are left out, in their order: number, reason, file."""
        # The list has neither a name nor a time in its header, so that the same list gives the same bytes.
        with (
            whole_file(path) as temporary,
            temporary.open("wb") as file,
            gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
            TextIOWrapper(packed, encoding="utf-8", newline="") as text,
        ):
            for line, reason, detail in sorted(self._left_out):
                source = int(np.searchsorted(self._starts, line - 1, side="right")) - 1
                number = line - int(self._starts[source])
                text.write(f"{number}\t{reason}{': ' * bool(detail)}{detail}\t{self._texts[source][0]}\n")

    def count_unknown(self, ids: Sequence[list[int]]) -> None:
        """Counts a pair's tokens that stand for text which the vocabulary lacks."""
        if self._unk is not None:
            for side, of_side in zip(SIDES, ids, strict=True):
                self._n_tokens[side] += len(of_side)
                self._n_unknown[side] += of_side.count(self._unk)

    def facts(self, lengths: NDArray[np.int64]) -> dict[str, Any]:
        """What the sidecar says besides the key. lengths: of `ParallelCorpus.length_counts`."""
        src, tgt, n, line = lengths.T
        longest = int(np.maximum(src, tgt).argmax()) if len(lengths) else None
        return {
            "src_tokens": int(src @ n),
            "tgt_tokens": int(tgt @ n),
            "longest": [0, 0] if longest is None else [int(max(src[longest], tgt[longest])), int(line[longest])],
            "dropped": dict(sorted(self.dropped.items())),
            "untranslated": self.n_untranslated,
            "overlaps": {name: sorted(places) for name, places in sorted(self.overlaps.items())},
            "unknown": {side: [self._n_unknown[side], self._n_tokens[side]] for side in SIDES},
        }


def _encode_here(
    numbered: Iterator[Numbered], tokenizer: AnyTokenizer
) -> Iterator[tuple[list[Numbered], list[list[int]], list[list[int]]]]:
    """As `encode_chunks`, in this thread."""

    def characters(one: Numbered) -> int:
        return len(one[1][0]) + len(one[1][1])

    for chunk in windows(numbered, first=CHUNK_LINES, last=CHUNK_LINES, size=characters):
        assert chunk is not None
        src, tgt = ([pair[side] for _, pair in chunk] for side in (0, 1))
        yield chunk, tokenizer.encode_lines(src), tokenizer.encode_targets(tgt)


def shard_key(plan: ShardPlan, folder: Path) -> str:
    """A hash of all that decides a shard's bytes: the plan, the tokenizer, and dev if it is held out."""
    parts = [plan.digest, sha256_of(folder.parent / TOKENIZER)]
    if plan.settings.holds_out_dev:
        parts += [sha256_of(Path(side)) for side in plan.settings.sets["dev"]]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def sidecar_path(folder: Path, plan: ShardPlan, part: int) -> Path:
    """The sidecar of a job."""
    name = f"{plan.name_of(part)}.json"
    return folder / name if plan.job(part).kind == "shard" else folder / COPIES / name


def finished(folder: Path, plan: ShardPlan, part: int, *, key: str | None = None) -> dict[str, Any] | None:
    """What the sidecar of a job says; None unless the job is done. key: of `shard_key`, if it is known."""
    path = sidecar_path(folder, plan, part)
    try:
        said = read_json(path) if path.exists() else None
    except HeedError:
        return None
    job = plan.job(part)
    if said is None or (job.kind != "shard" and said.get("plan") != plan.digest):
        return None
    if job.kind == "shard":
        manifest = path.with_suffix("") / MANIFEST
        same = said.get("key") == (key or shard_key(plan, folder)) and manifest.exists()
        return said if same and sha256_of(manifest) == said["manifest"] else None
    return said if path.with_suffix(".bin").exists() else None


def _hashes_path(folder: Path, shard: int) -> Path:
    return folder / COPIES / f"hashes-{shard:05d}.bin"


def _copies_path(folder: Path, number: int) -> Path:
    return folder / COPIES / f"copies-{number:05d}.bin"


def main() -> None:
    """Serves as a process of its own."""
    loading = ShardLoading(**json.loads(sys.argv[1]))
    serve(loading.make)


if __name__ == "__main__":
    main()
