"""A corpus in shards, from its text to its index: plan, dev, tokenizer, the workers' jobs, what is said at the end."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heed.data.corpus.shard import SIDES, ParallelCorpus
from heed.data.corpus.sharded import INDEX, ShardedCorpus, write_index
from heed.data.inspection.repetitions import IN_TRAINING_SHARE, UNTRANSLATED_SHARE
from heed.data.preparation.plan import ShardPlan, ShardSettings, make_plan, read_plan, write_plan
from heed.data.preparation.rules import PairFilter
from heed.data.preparation.shard import COPIES, TOKENIZER, ShardLoading, finished, shard_key
from heed.data.preparation.whole import (
    SHARE_TO_WARN_OF,
    SIDE_NAMES,
    SOURCES,
    Prepared,
    compare_sources,
    given_or_kept_tokenizer,
    learn_tokenizer,
    prepare,
    refuse_empty,
    write_dev,
    write_split,
)
from heed.data.reading.dev_split import HeldOut
from heed.data.reading.files import needs_shards
from heed.data.reading.pairs import PairReader, count_pairs, read_pairs, source_of
from heed.data.reading.text_files import TextFiles
from heed.data.settings import DataSettings
from heed.errors import HeedError
from heed.leases.crews import Crew, Processes, RayActors, ThisProcess, check_address
from heed.leases.driver import Driver, Outcome
from heed.leases.inputs import PLAN, counted
from heed.leases.storage import open_file, unpacked
from heed.runtime.cores import n_cores
from heed.runtime.files import remove_unfinished, whole_file
from heed.runtime.json_files import MAX_LIST_BYTES, read_json, write_json
from heed.text.tokenizer import TokenizerSettings
from heed.text.tokenizer_kinds import AnyTokenizer, load_tokenizer

SHARDS = "shards"  # the folder of shards, in RUN/data
MOST_WHOLE = 10_000_000  # pairs of a corpus that is prepared whole
SHARD_PAIRS = 1_000_000

Report = Callable[[str], None]
Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Workforce:
    """Who works. cluster: none (this process), local (processes of this machine), or a Ray cluster.

    n_workers: None for as many as there is room for. threads: of each. share: the i-th of n parts of the work.
    """

    cluster: str = "none"
    n_workers: int | None = None
    threads: int | None = None
    share: tuple[int, int] = (1, 1)


def is_in_shards(files: TextFiles, data: DataSettings, *, folder: Path) -> bool:
    """Whether a run's text is prepared in shards, as it was begun; else by its number of pairs, formats and settings.

    HeedError if it must be and a setting does not allow it.
    """
    begun = (folder / SHARDS / PLAN).exists()
    if not begun and (folder / TOKENIZER).exists():
        return False
    unread = next((pair[0] for pair in files.train if needs_shards(pair)), None)
    obstacle = "data.tgt_symbols is true: a corpus in shards has no target symbols" if data.tgt_symbols else ""
    if data.mix:
        obstacle = "data.mix is given: a corpus in shards has no parts"
    if begun and obstacle:
        raise HeedError(f"{folder}: was begun in shards, but {obstacle}; leave that out, or use another --run.")
    if begun:
        return True
    if (data.shard_pairs or unread) and obstacle:
        why = "data.shard_pairs is set" if data.shard_pairs else f"{unread} is read in shards only"
        raise HeedError(f"{why}, but {obstacle}; leave one of them out.")
    if obstacle:
        return False
    return bool(data.shard_pairs or unread) or _n_pairs_exceed(files, MOST_WHOLE)


def _n_pairs_exceed(files: TextFiles, most: int) -> bool:
    """Whether there are more pairs; text that is too short for that is not read."""
    packed = any(pair[0].suffix == ".gz" for pair in files.train)
    if not packed and sum(pair[0].stat().st_size for pair in files.train if pair[0].is_file()) <= most:
        return False
    n_lines = 0
    for src, _ in files.train:
        if not src.is_file():
            raise HeedError(f"{src}: no such file.")
        with open_file(str(src)) as file:
            for piece in unpacked(file, str(src)):
                n_lines += piece.count(b"\n")
                if n_lines > most:
                    return True
    return False


def prepare_corpus(
    files: TextFiles,
    data: DataSettings,
    tokenizer: TokenizerSettings,
    *,
    folder: Path,
    report: Report,
    given: AnyTokenizer | None = None,
) -> Prepared:
    """As `prepare`, whole or in shards; in this process, with all threads."""
    if not is_in_shards(files, data, folder=folder):
        return prepare(files, data, tokenizer, folder=folder, report=report, given=given)
    preparation = ShardPreparation(files, data, tokenizer, folder=folder, report=report, given=given)
    preparation.begin()
    if not (folder / SHARDS / INDEX).exists():
        report("Preparing in shards in this process; heed prepare RECIPE --workers N shares the work.")
    preparation.work(Workforce())
    return preparation.finish()


class ShardPreparation:
    """The preparation of a run's text in RUN/data. Begin and finish it alone in the folder; many may work between."""

    def __init__(
        self,
        files: TextFiles,
        data: DataSettings,
        tokenizer: TokenizerSettings,
        *,
        folder: Path,
        report: Report,
        given: AnyTokenizer | None = None,
    ):
        """As `prepare` is called."""
        self._files, self._data, self._settings = files, data, tokenizer
        self._folder, self._report, self._given = folder, report, given
        self._shards = folder / SHARDS
        self._plan: ShardPlan | None = None

    @property
    def plan(self) -> ShardPlan:
        """The plan, once the preparation has begun."""
        assert self._plan is not None
        return self._plan

    def begin(self) -> None:
        """Plans the shards, splits off dev and learns the vocabulary; what is there already is kept.

        HeedError if the text has changed since, or if a setting or a file does not fit.
        """
        files, folder = self._files, self._folder
        remove_unfinished(folder)
        for pair in self._files.evaluation_sets.values():
            for side in () if files.dev_split and pair == files.dev else pair:
                if not side.is_file():
                    raise HeedError(f"{side}: no such file.")
        # The training files are compared with the plan; the others as those of any run.
        others = replace(files, train=())
        compare_sources(others, folder / SOURCES, binding=(folder / TOKENIZER).exists())
        PairFilter(self._data)  # languages that cannot be told show now, not in every worker
        self._plan = self._agreed_plan()
        _record_sources(self._plan, folder / SOURCES)

        # Dev first, since the vocabulary must not be learned from it.
        read = self._given_pairs
        write_dev(files, report=self._report, anew=not (folder / TOKENIZER).exists(), read=lambda _: read())
        if not (folder / TOKENIZER).exists():
            for pair in files.evaluation_sets.values():  # small: their faults show before the long work
                count_pairs(pair)
            if self._given is None:
                learn_tokenizer(self._sample, self._settings, folder / TOKENIZER, False, self._report)
            else:
                self._given.save(folder / TOKENIZER)
        tokenizer = given_or_kept_tokenizer(folder, self._given)
        if not ((folder / "dev.report.json").exists() and (folder / "dev").is_dir()):
            write_split(folder, "dev", (files.dev,), tokenizer, self._data, self._report)

    def _agreed_plan(self) -> ShardPlan:
        """The plan of before, or a new one."""
        names = [[os.path.abspath(name) for name in source_of(pair)] for pair in self._files.train]
        found, settings = read_plan(self._shards), self._shard_settings()
        begun = (self._folder / TOKENIZER).exists()
        if found is None or (not begun and (found.names != names or found.settings != settings)):
            plan = make_plan(names, self._files.n_given, settings)
            write_plan(self._shards, plan)
            self._report(
                f"{plan.n_pairs:,} pairs of {counted(len(names), 'source')} in {counted(len(plan.shards), 'shard')}."
            )
            return plan
        if list(map(len, names)) != list(map(len, found.names)):
            raise HeedError(
                f"data.train: stands for {counted(len(names), 'source')} now; it was {len(found.names):,} when this "
                "run began. Restore the old files, or use another --run."
            )
        # Text that was moved is the same text.
        sources = tuple(
            tuple(replace(file, name=name) for file, name in zip(of, now, strict=True))
            for of, now in zip(found.sources, names, strict=True)
        )
        plan = replace(found, sources=sources, settings=settings)
        plan.check_inputs()
        if plan != found:
            write_plan(self._shards, plan)
        return plan

    def _shard_settings(self) -> ShardSettings:
        data, files = self._data, self._files
        return ShardSettings(
            src=data.src,
            tgt=data.tgt,
            columns=data.column_names,
            shard_pairs=data.shard_pairs or SHARD_PAIRS,
            max_tokens=data.max_tokens,
            max_ratio=data.max_ratio,
            drop_duplicates=data.drop_duplicates,
            drop_identical=data.drop_identical,
            check_languages=data.check_languages,
            holds_out_dev=files.dev_split is not None,
            sets={
                name: (os.path.abspath(src), os.path.abspath(tgt)) for name, (src, tgt) in files.evaluation_sets.items()
            },
        )

    def _given_pairs(self, most: int | None = None) -> Iterator[Pair]:
        """The pairs of the corpus that can be read, those added left out; of each shard the first `most`, or all."""
        plan = self.plan
        reader = PairReader(plan.names, plan.settings.columns)
        for shard in plan.shards:
            left = most if most is not None else plan.n_pairs
            for rows in shard:
                if rows.source < plan.n_given or most is not None:
                    rows = rows._replace(rows=min(rows.rows, left))
                    left -= rows.rows
                    yield from (pair for _, _, pair in reader.read_good([rows]))
        reader.close()

    def _sample(self) -> Iterator[Pair]:
        """Pairs to learn the vocabulary from: the first of each shard, equally many, those of dev left out."""
        held_out = HeldOut(read_pairs(self._files.dev)) if self._files.dev_split else None
        for src, tgt in self._given_pairs(max(1, self._settings.sample_pairs // len(self.plan.shards))):
            if held_out is None or not held_out.has(src, tgt, either_side=False):
                yield src, tgt

    def work(self, workforce: Workforce) -> bool:
        """Does the jobs of a share that are not done yet; whether those of all shares are done now.

        HeedError names jobs that failed.
        """
        if (self._shards / INDEX).exists():
            return True
        if workforce.cluster != "none":
            check_address(workforce.cluster)
        plan, key = self.plan, shard_key(self.plan, self._shards)
        for stage in plan.stages:
            todo = [
                part
                for part in stage
                if part % workforce.share[1] == workforce.share[0] - 1
                and finished(self._shards, plan, part, key=key) is None
            ]
            if todo:
                self._drive(todo, len(stage), workforce)
            missing = [part for part in stage if finished(self._shards, plan, part, key=key) is None]
            if missing:
                self._report(
                    f"{plan.name_of(missing[0])} and others of other shares are still missing. Once they are there, "
                    "run the same command again."
                )
                return False
        return True

    def _drive(self, todo: list[int], n_jobs: int, workforce: Workforce) -> None:
        plan, report = self.plan, self._report
        kind = plan.job(todo[0]).kind
        doing = {"hashes": "Hashing", "copies": "Comparing hashes of", "shard": "Encoding"}[kind]
        there = f", {n_jobs - len(todo):,} are there" if n_jobs > len(todo) and workforce.share[1] == 1 else ""
        what = "range" if kind == "copies" else "shard"
        crew, n_workers, who = _crew(workforce, self._shards, len(todo))
        report(f"{doing} {counted(len(todo), what)}{there}, {who}.")

        def line(outcome: Outcome, n_parts: int) -> str:
            return f"{doing}: {len(outcome.said):,} of {n_parts:,} done."

        outcome = Outcome()
        try:
            Driver(plan, crew, n_workers=n_workers, report=report, progress=line).run(todo, outcome)
        finally:
            crew.close()
        if outcome.given_up:
            first = min(outcome.given_up)
            raise HeedError(
                f"{plan.name_of(first)}: {outcome.given_up[first]} {len(outcome.given_up):,} of {len(todo):,} were "
                "given up; run the same command again for them."
            )

    def finish(self) -> Prepared:
        """Writes the index of all shards, reports what was left out, and opens the corpus."""
        tokenizer = load_tokenizer(self._folder / TOKENIZER)
        sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "src_vocab_size": tokenizer.src_vocab_size}
        if not (self._shards / INDEX).exists():
            self._write_index()
            shutil.rmtree(self._shards / COPIES, ignore_errors=True)
            remove_unfinished(self._shards)
        train = ShardedCorpus(self._shards, **sizes)
        dev = ParallelCorpus(self._folder / "dev", **sizes)
        refuse_empty(train, dev, self._folder)
        return Prepared(tokenizer, train, dev)

    def _write_index(self) -> None:
        """Puts together what the shards' sidecars say; the index comes last."""
        plan, key = self.plan, shard_key(self.plan, self._shards)
        found = [finished(self._shards, plan, part, key=key) for part in plan.stages[-1]]
        said = [one for one in found if one is not None]
        assert len(said) == len(found), "work() has returned True"
        sums = {name: sum(one[name] for one in said) for name in ("kept", "src_tokens", "tgt_tokens", "untranslated")}
        dropped = Counter[str]()
        for one in said:
            dropped.update(one["dropped"])
        unknown = {side: [sum(one["unknown"][side][i] for one in said) for i in (0, 1)] for side in SIDES}
        self._check_unknown(unknown)

        # As a corpus that is prepared whole: its report in a file, and lines to read.
        summary = {name: sums[name] for name in ("kept", "src_tokens", "tgt_tokens")} | {"dropped": dict(dropped)}
        with whole_file(self._folder / "train.report.json") as temporary:
            write_json(temporary, summary)
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in dropped.items())
        listed = self._shards / "shard-*.dropped.tsv.gz"
        left_out = f"; left out: {reasons} (listed in {listed})" if reasons else ""
        self._report(
            f"train: {sums['kept']:,} pairs, {sums['src_tokens']:,} + {sums['tgt_tokens']:,} tokens{left_out}."
        )
        self._remark(said, sums, dropped)
        write_index(self._shards, [plan.name_of(part) for part in plan.stages[-1]], said, plan.texts)

    def _check_unknown(self, unknown: dict[str, list[int]]) -> None:
        """HeedError if the vocabulary lacks too large a share of a side's tokens; a warning if it lacks some."""
        for side, (n_unknown, n_tokens) in unknown.items():
            share = n_unknown / max(1, n_tokens)
            text = f"train: the vocabulary lacks {share:.2%} of the {SIDE_NAMES[side]}' tokens"
            if share > self._data.max_unknown:
                raise HeedError(
                    f"{text}: start from a model of this language, leave out training.start_from, or begin a run with "
                    f"a higher data.max_unknown (now {self._data.max_unknown:g})."
                )
            if share > SHARE_TO_WARN_OF:
                self._report(f"Warning: {text}; the model can neither read nor write it.")

    def _remark(self, said: list[dict[str, Any]], sums: dict[str, int], dropped: Counter[str]) -> None:
        """What may harm the model or flatter its scores."""
        for name, pair in self._files.evaluation_sets.items():
            places = {place for one in said for place in one["overlaps"].get(name, ())}
            n_lines = count_pairs(pair)
            if places and len(places) >= IN_TRAINING_SHARE * n_lines:
                self._report(
                    f"Remark: {name}: {len(places):,} of its {n_lines:,} pairs are training pairs too; scores on them "
                    "will be too high."
                )
        share = sums["untranslated"] / max(1, sums["kept"])
        if self._data.src != self._data.tgt and share > UNTRANSLATED_SHARE:
            self._report(
                f"Remark: in {sums['untranslated']:,} training pairs ({share:.1%}) the target is a copy of the source; "
                "the model may learn to copy (data.drop_identical)."
            )


def _crew(workforce: Workforce, shards: Path, n_jobs: int) -> tuple[Crew, int, str]:
    """The workers, how many, and a few words for both."""
    folder = os.path.abspath(shards)
    cores = n_cores()
    if workforce.cluster == "none":
        return ThisProcess(ShardLoading(folder, workforce.threads or cores)), 1, "in this process"
    wanted = workforce.n_workers
    if workforce.cluster == "local":
        n_workers = min(n_jobs, wanted or max(1, cores // (workforce.threads or 1)))
        threads = workforce.threads or max(1, cores // n_workers)
        who = f"by {n_workers} {'process' if n_workers == 1 else 'processes'}"
        return Processes(ShardLoading(folder, threads), n_gpus=0), n_workers, who
    threads = workforce.threads or 1
    crew = RayActors(ShardLoading(folder, threads), address=workforce.cluster, n_workers=wanted, gpus=0)
    n_workers = min(n_jobs, wanted or max(1, crew.cpus() // threads))
    return crew, n_workers, f"by {counted(n_workers, 'worker')} on a Ray cluster"


def _record_sources(plan: ShardPlan, path: Path) -> None:
    """Adds the training files to a run's list of its text files: from it a run knows text that has been moved."""
    recorded = read_json(path, MAX_LIST_BYTES) if path.exists() else {}
    current = {
        file.name: {"bytes": file.n_bytes, "modified": int(file.version), "sha256": file.digest}
        for files in plan.sources
        for file in files
    }
    if recorded | current != recorded:
        with whole_file(path) as temporary:
            write_json(temporary, recorded | current)
