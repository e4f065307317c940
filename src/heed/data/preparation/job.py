"""The preparation of a corpus: its plan, dev, vocabulary, the workers' shards, and the report at the end."""

import gzip
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from heed.data.corpus.shard import ParallelCorpus, join_shards, write_corpus
from heed.data.corpus.sharded import INDEX, ShardedCorpus, TrainingCorpus, write_index
from heed.data.inspection.repetitions import all_repetitions
from heed.data.preparation.encoding import Encoder, Tally, check_unknown, merged_unknown
from heed.data.preparation.plan import (
    COPIES,
    SHARD_PAIRS,
    SOURCES,
    ShardPlan,
    ShardSettings,
    compare_sources,
    make_plan,
    read_plan,
    write_plan,
)
from heed.data.preparation.rules import PairFilter
from heed.data.preparation.shard import ShardWorker, finished, shard_key, share_of_hashes
from heed.data.preparation.tags import check_tags, in_shares
from heed.data.preparation.vocabulary import TOKENIZER, agreed_tokenizer, learn_tokenizer, vocab_sizes
from heed.data.reading.dev_split import HeldOut
from heed.data.reading.lines import refuse_faulty
from heed.data.reading.pairs import Pair, TrainingText, count_pairs, read_pairs, source_of, write_pairs
from heed.data.reading.text_files import TextFiles
from heed.data.settings import DataSettings
from heed.errors import HeedError
from heed.leases.job import Job
from heed.leases.plan import PLAN, PLANNED_SECONDS
from heed.leases.workforce import Workforce
from heed.runtime.cores import n_cores
from heed.runtime.files import remove_unfinished, whole_file
from heed.runtime.json_files import read_json, write_json
from heed.runtime.locks import locked
from heed.runtime.progress import counted
from heed.text.tokenizer import TokenizerSettings
from heed.text.tokenizer_kinds import AnyTokenizer, load_tokenizer

SHARDS, TRAIN, DEV = "shards", "train", "dev"  # folders in RUN/data

Report = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """The prepared text: a tokenizer, and the ids of train and dev."""

    tokenizer: AnyTokenizer
    train: TrainingCorpus
    dev: ParallelCorpus


def prepare(
    files: TextFiles,
    data: DataSettings,
    tokenizer: TokenizerSettings,
    *,
    folder: Path,
    report: Report,
    given: AnyTokenizer | None = None,
) -> Prepared:
    """Learns the vocabulary and encodes train and dev into `folder`, RUN/data; what is there already is kept.

    Before that, dev is written if it is split off the training text. Remarks on the text are reported. given: a
    tokenizer to use instead of learning one. HeedError if the folder was prepared with another. Memory does not grow
    with the corpus.
    """
    preparation = Preparation(files, data, tokenizer, folder=folder, report=report, given=given)
    preparation.begin()
    preparation.work(Workforce())
    return preparation.finish()


def write_dev(files: TextFiles, columns: tuple[str, str], *, report: Report) -> None:
    """Writes dev again if it is split off the training text and not there. HeedError if the text is too small."""
    if files.dev_split is not None and not all(side.exists() for side in files.dev):
        _split_off(files, TrainingText(files.train[: files.n_given], columns), report)


def _split_off(files: TextFiles, text: TrainingText, report: Report) -> None:
    assert files.dev_split is not None
    given = files.dev_split.pairs(partial(text.pairs, files.n_given), name=files.name_of_given)
    n_dev = write_pairs(files.dev, (pair for _, pair in given))
    report(f"Splitting {n_dev:,} pairs off {files.name_of_given} for dev: {files.dev[0]}, {files.dev[1]}.")


class Preparation:
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
        """Takes what `prepare` takes."""
        self._files, self._data, self._settings = files, data, tokenizer
        self._folder, self._report, self._given = folder, report, given
        self._shards = folder / SHARDS
        self._plan: ShardPlan | None = None  # none for what an earlier version has prepared as one shard

    @property
    def plan(self) -> ShardPlan:
        """The plan, once the preparation has begun."""
        assert self._plan is not None
        return self._plan

    @property
    def is_done(self) -> bool:
        """Whether all shards are there, and joined if they are to be one."""
        if self._plan is not None and not self._plan.joined:
            return (self._shards / INDEX).exists()
        return (self._folder / TRAIN).is_dir() and (self._folder / f"{TRAIN}.report.json").exists()

    def begin(self) -> None:
        """Plans the shards, splits off dev and learns the vocabulary; what is there already is kept.

        HeedError if the text has changed since, or if a setting or a file does not fit.
        """
        files, data, folder = self._files, self._data, self._folder
        remove_unfinished(folder)
        PairFilter(data)  # languages that cannot be told show now, not in every worker
        begun = (folder / TOKENIZER).exists()
        earlier = begun and not (self._shards / PLAN).exists()  # by a version that made one shard, without a plan
        # The training files are compared with the plan, if there is one; the others as those of any run.
        if not (earlier and self.is_done):
            self._plan = self._agreed_plan(joined=True if earlier else None)
        others = files if earlier else replace(files, train=())
        planned = () if self._plan is None else self._plan.files
        compare_sources(others, folder / SOURCES, binding=begun, planned=planned)

        # Dev first, since the vocabulary must not be learned from it.
        if files.dev_split is not None and not (begun and all(side.exists() for side in files.dev)):
            _split_off(files, self._text, self._report)
        if not begun:
            for pair in files.evaluation_sets.values():  # small: their faults show before the long work
                count_pairs(pair, data.column_names)
        tokenizer = agreed_tokenizer(folder, self._given, self._learned_tokenizer)
        if data.tgt_symbols and not tokenizer.symbols:
            raise HeedError(
                "data.tgt_symbols is true, but the vocabulary of training.start_from has no target symbols."
            )
        check_tags(tokenizer, files.tags, report=self._report)  # a tag that it lacks shows before the work
        if not ((folder / f"{DEV}.report.json").exists() and (folder / DEV).is_dir()):
            self._encode_dev(tokenizer)

        # What is lost is made again; an index without it would call the corpus complete.
        is_whole = (self._shards / INDEX).exists()
        if is_whole and (lost := ShardedCorpus(self._shards, **vocab_sizes(tokenizer)).lost()):
            more = f", with {len(lost) - 1:,} others" if len(lost) > 1 else ""
            self._report(f"{self._shards / lost[0]}: missing or damaged{more}; it is made again.")
            shutil.rmtree(self._shards / INDEX)

    def _agreed_plan(self, *, joined: bool | None) -> ShardPlan:
        """The plan of before, or a new one."""
        names = [list(map(os.path.abspath, source_of(pair))) for pair in self._files.train]
        earlier, settings = read_plan(self._shards), self._shard_settings()
        begun = (self._folder / TOKENIZER).exists()
        is_another = earlier is not None and (earlier.names != names or earlier.settings != settings)
        if earlier is None or (not begun and (is_another or earlier.changed_file())):
            if self._data.shard_pairs is not None and not joined:
                joined = False
            plan = make_plan(names, self._files.n_given, settings, joined=joined)
            write_plan(self._shards, plan)
            if not plan.joined:
                n_sources, n_shards = counted(len(names), "source"), counted(len(plan.parts), "shard")
                self._report(f"{plan.rows:,} pairs of {n_sources} in {n_shards}.")
            return plan
        if list(map(len, names)) != list(map(len, earlier.names)):
            raise HeedError(
                f"data.train: stands for {counted(len(names), 'source')} now; it was {len(earlier.names):,} when this "
                "run began. Restore the old files, or use another --run."
            )
        # Text that was moved is the same text.
        sources = tuple(
            tuple(replace(file, name=name) for file, name in zip(of, now, strict=True))
            for of, now in zip(earlier.sources, names, strict=True)
        )
        plan = replace(earlier, sources=sources, settings=settings)
        if changed := plan.changed_file():
            raise HeedError(
                f"{changed}: changed since this run prepared it; restore the old text, or use another --run."
            )
        if plan != earlier:
            write_plan(self._shards, plan)
        return plan

    def _shard_settings(self) -> ShardSettings:
        data, files = self._data, self._files
        names = ("src", "tgt", "max_tokens", "max_ratio", "drop_duplicates", "drop_identical", "check_languages")
        return ShardSettings(
            **{name: getattr(data, name) for name in (*names, "tgt_symbols")},
            columns=data.column_names,
            shard_pairs=data.shard_pairs or SHARD_PAIRS,
            holds_out_dev=files.dev_split is not None,
            sets={
                name: (os.path.abspath(src), os.path.abspath(tgt)) for name, (src, tgt) in files.evaluation_sets.items()
            },
            either_side=files.holds_out_sides,
            tags=tuple(files.tags) if any(files.tags) else (),
            parts=tuple(part.n_files for part in files.parts),
        )

    @property
    def _rows(self) -> list[int]:
        return [files[0].rows for files in self.plan.sources]

    @property
    def _text(self) -> TrainingText:
        rows = None if self._plan is None else self._rows
        return TrainingText(self._files.train, self._data.column_names, rows=rows)

    def _learned_tokenizer(self) -> AnyTokenizer:
        tags = [tag for tag in dict.fromkeys(self._files.tags) if tag]
        return learn_tokenizer(
            self._pairs_to_learn,
            self._settings,
            n_pairs=self.plan.rows,
            tgt_symbols=self._data.tgt_symbols,
            report=self._report,
            tags=tags,
        )

    def _pairs_to_learn(self) -> Iterator[Pair]:
        """The pairs that are not held out, by their shares in a mix."""
        mix = self._data.mixture
        return (pair for _, pair in self._pairs_of_parts()) if mix is None else in_shares(self._pairs_of_parts, mix)

    def _pairs_of_parts(self) -> Iterator[tuple[int, Pair]]:
        """The pairs that are not held out, with the number of their part of a mix."""
        files = self._files
        parts = [part for part, of_part in enumerate(files.parts) for _ in range(of_part.n_files)]
        dev = read_pairs(files.dev) if files.dev_split else ()
        held_out = HeldOut(dev, sides_from=self.plan.sides_held_out_from)
        for (source, _), (src, tgt) in self._text.pairs():
            if not held_out.has(source, src, tgt):
                yield (parts[source] if parts else 0), (src, tgt)

    def _encode_dev(self, tokenizer: AnyTokenizer) -> None:
        """Encodes dev; what is left out is listed, counted and reported."""
        files, data, folder = self._files, self._data, self._folder
        texts = [(str(files.dev[0]), count_pairs(files.dev, data.column_names))]
        tally = Tally(texts, tokenizer.special.unk)
        tags = files.tags[:1] if files.directions else []  # dev is in the own text's languages
        encoder = Encoder(tokenizer, max_tokens=data.max_tokens, max_ratio=data.max_ratio, tags=tags, training=False)
        numbered = ((line, 0, pair) for line, pair in enumerate(read_pairs(files.dev, data.column_names), start=1))

        def checked() -> Iterator[tuple[list[int], list[int]]]:
            yield from encoder.encode(numbered, tally)
            warnings.extend(check_unknown(tally.unknown(), texts, name=DEV, most=data.max_unknown))

        warnings: list[str] = []
        corpus = write_corpus(folder / DEV, checked(), **vocab_sizes(tokenizer), lines=tally.lines, texts=texts)
        listed = folder / f"{DEV}.dropped.tsv"
        tally.write_left_out(listed)
        src_tokens, tgt_tokens = (int(lengths.sum()) for lengths in corpus.lengths)
        summary = {"kept": len(corpus), "src_tokens": src_tokens, "tgt_tokens": tgt_tokens, "dropped": tally.dropped}
        self._summarise(DEV, summary, listed=str(listed))
        for line in warnings:
            self._report(line)

    def _summarise(self, name: str, summary: dict[str, Any], *, listed: str) -> None:
        """Writes the report of a set, and says it. listed: where the lines are named that are left out."""
        with whole_file(self._folder / f"{name}.report.json") as temporary:
            write_json(temporary, summary)
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in summary["dropped"].items())
        left_out = f"; left out: {reasons} (listed in {listed})" if reasons else ""
        n_tokens = f"{summary['src_tokens']:,} + {summary['tgt_tokens']:,} tokens"
        self._report(f"{name}: {summary['kept']:,} pairs, {n_tokens}{left_out}.")

    def work(self, workforce: Workforce) -> bool:
        """Does the jobs of a share that are not done yet; whether those of all shares are done now.

        HeedError names jobs that failed.
        """
        if self.is_done:
            return True
        workforce.check()
        # Nobody puts the shards together, or trains on them, while another share might still replace one.
        are_shares = workforce.wait is not None
        with locked(self._shards, shared=are_shares, wait=workforce.wait or 0.0, stays=are_shares):
            return all(self._do(stage, workforce) for stage in self.plan.stages)

    def _do(self, stage: range, workforce: Workforce) -> bool:
        """Does the jobs of a stage; whether those of all shares are done."""
        plan, shards = self.plan, self._shards
        sidecar = partial(finished, shards, plan, key=shard_key(plan, shards))
        worker = ShardWorker(os.path.abspath(shards), workforce.threads or n_cores())
        if plan.joined and workforce.is_this_process:  # without a word, and errors are not tried again
            worker.open()
            with closing(worker):
                for part in workforce.part_of_work(stage):
                    worker.sidecar(part)
        else:
            kind = plan.job(stage[0]).kind
            doing = {"hashes": "Hashing", "copies": "Comparing hashes of", "shard": "Encoding"}[kind]
            noun = "range" if kind == "copies" else "shard"
            job = Job(plan=plan, worker=worker, doing=doing, noun=noun, sidecar=sidecar, report=self._report)
            job.refuse_given_up(job.run(stage, workforce))
        missing = [part for part in stage if sidecar(part) is None]
        if missing:
            self._report(
                f"Parts of other shares are still missing, {plan.name_of(missing[0])} first. Once they are there, "
                "run the same command again."
            )
        return not missing

    def finish(self) -> Prepared:
        """Joins the shards or writes their index, reports what was left out, and opens the corpus."""
        tokenizer = load_tokenizer(self._folder / TOKENIZER)
        sizes = vocab_sizes(tokenizer)
        if not self.is_done:
            with locked(self._shards, wait=PLANNED_SECONDS, stays=False):
                self._put_together(sizes)
        if self._plan is not None:
            self._clean_up(self._plan)
        is_one = self._plan is None or self._plan.joined
        train: TrainingCorpus = (
            ParallelCorpus(self._folder / TRAIN, **sizes) if is_one else ShardedCorpus(self._shards, **sizes)
        )
        dev = ParallelCorpus(self._folder / DEV, **sizes)
        refuse_empty(train, dev, self._folder)
        return Prepared(tokenizer, train, dev)

    def _put_together(self, sizes: dict[str, Any]) -> None:
        """Makes one corpus of the shards; the report on it comes from their sidecars."""
        plan, key, folder, shards = self.plan, shard_key(self.plan, self._shards), self._folder, self._shards
        sidecars = [finished(shards, plan, part, key=key) for part in plan.stages[-1]]
        records = [one for one in sidecars if one is not None]
        assert len(records) == len(sidecars), "work() has returned True"
        names = [plan.name_of(part) for part in plan.stages[-1]]

        # What ends the work comes before anything is written.
        texts = [(str(pair[0]), rows) for pair, rows in zip(self._files.train, self._rows, strict=True)]
        self._refuse_faulty(records)
        warnings = check_unknown(
            merged_unknown([one["unknown"] for one in records]), texts, name=TRAIN, most=self._data.max_unknown
        )
        sums: dict[str, Any] = {
            name: sum(one[name] for one in records) for name in ("kept", "src_tokens", "tgt_tokens")
        }
        dropped = Counter[str]()
        for one in records:
            dropped.update(one["dropped"])
        hashes = [np.load(shards / f"{name}.repeats.npy", mmap_mode="r", allow_pickle=False) for name in names]
        sets = self._files.evaluation_sets.items()
        sizes_of_sets = {name: count_pairs(pair, self._data.column_names) for name, pair in sets}
        repetitions = all_repetitions(hashes, records, sizes_of_sets, share=share_of_hashes(plan))

        listed = str(folder / f"{TRAIN}.dropped.tsv" if plan.joined else shards / "shard-*.dropped.tsv.gz")
        if plan.joined:
            join_shards(folder / TRAIN, [shards / name for name in names], texts, **sizes)
            _join_lists(folder / f"{TRAIN}.dropped.tsv", [shards / f"{name}.dropped.tsv.gz" for name in names])
        self._summarise(TRAIN, {**sums, "dropped": dict(dropped)}, listed=listed)
        for line in warnings:
            self._report(line)
        languages = {"src": self._data.src, "tgt": self._data.tgt}
        # Trees are copied to give them more weight, which is nothing to remark on.
        for remark in repetitions.leaks() if self._data.tgt_symbols else repetitions.remarks(**languages):
            self._report(f"Remark: {remark}")

        if not plan.joined:
            write_index(shards, names, records, texts=plan.texts, parts=plan.shards_of_parts)  # last

    def _clean_up(self, plan: ShardPlan) -> None:
        """Deletes what is of no use once the corpus is there; of shards that were joined, all but the plan."""
        shutil.rmtree(self._shards / COPIES, ignore_errors=True)
        remove_unfinished(self._shards)
        for path in self._shards.glob("shard-*") if plan.joined else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _refuse_faulty(self, records: list[dict[str, Any]]) -> None:
        """HeedError if too many lines of a file cannot be read."""
        for source, files in enumerate(self.plan.sources):
            faults = [one["faults"][str(source)] for one in records if str(source) in one.get("faults", {})]
            if faults:
                refuse_faulty([file.name for file in files], sum(n for n, _ in faults), files[0].rows, faults[0][1])


def refuse_empty(train: TrainingCorpus, dev: ParallelCorpus, folder: Path) -> None:
    """HeedError if no pair is left to learn from, or to validate by; it names the reasons."""
    for corpus, name, kind in ((train, TRAIN, "training"), (dev, DEV, "dev")):
        if not len(corpus):
            dropped = read_json(folder / f"{name}.report.json").get("dropped")
            reasons = "; ".join(dropped) if isinstance(dropped, dict) else ""
            raise HeedError(
                f"no {kind} pair is left, all are {reasons or 'left out'}: change the text or the setting, and delete "
                f"{folder.parent}."
            )


def _join_lists(path: Path, lists: list[Path]) -> None:
    with whole_file(path) as temporary, temporary.open("wb") as out:
        for one in lists:
            with gzip.open(one, "rb") as file:
                shutil.copyfileobj(file, out)
