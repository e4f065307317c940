"""Text files → a tokenizer and ids on disk, with a report of what was left out and why."""

import os
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.data.corpus.shard import (
    SIDES,
    ParallelCorpus,
    Texts,
    TrainingCorpus,
    file_of_line,
    place_of_line,
    write_corpus,
)
from heed.data.inspection.repetitions import Repetitions
from heed.data.preparation.rules import COPY, PairFilter, hashes_of, later_copies
from heed.data.reading.dev_split import HeldOut, Read, pair_hash
from heed.data.reading.pairs import FilePair, count_pairs, read_pairs
from heed.data.reading.stream import windows
from heed.data.reading.text_files import TextFiles
from heed.data.settings import DataSettings
from heed.errors import HeedError
from heed.runtime.files import remove_unfinished, whole_file
from heed.runtime.json_files import MAX_LIST_BYTES, read_json, write_json
from heed.runtime.manifest import sha256_of
from heed.runtime.progress import counted, progress
from heed.text.line_rules import reason_against_loss
from heed.text.segmentation import TEXT
from heed.text.tokenizer import TokenizerSettings, train_tokenizer
from heed.text.tokenizer_kinds import AnyTokenizer, load_tokenizer

CHUNK_LINES = 4096  # lines read, encoded and written at a time; fewer if they are long
SOURCES = "sources.json"  # in the folder: sizes, dates and hashes of the text files
SHARE_TO_WARN_OF = 0.001  # of tokens that the vocabulary lacks
MENTIONED_LINES = 5
SIDE_NAMES = {"src": "sources", "tgt": "targets"}

NumberedPair = tuple[int, tuple[str, str]]
NumberedPairs = list[NumberedPair]
Encoded = Future[list[list[int]]]  # lines of one side


@dataclass(frozen=True)
class Prepared:
    """The prepared text: a tokenizer, and the ids of train and dev."""

    tokenizer: AnyTokenizer
    train: TrainingCorpus
    dev: ParallelCorpus


def prepare(
    files: TextFiles,
    data: DataSettings,
    tokenizer_settings: TokenizerSettings,
    *,
    folder: Path,
    report: Callable[[str], None],
    given: AnyTokenizer | None = None,
) -> Prepared:
    """Learns the vocabulary and encodes train and dev into `folder`; files that are there already are kept.

    Before that, dev is written if it is split off the training text. Remarks on the text are reported, three at most.
    given: a tokenizer to use instead of learning one. HeedError if the folder was prepared with another. Memory does
    not grow with the corpus.
    """
    remove_unfinished(folder)
    # Without a tokenizer nothing has been made of the text yet, so it may still be corrected.
    compare_sources(files, folder / SOURCES, binding=(folder / "tokenizer.json").exists())
    tokenizer_path = folder / "tokenizer.json"
    write_dev(files, report=report, anew=not tokenizer_path.exists())
    held_out = HeldOut(read_pairs(files.dev)) if files.dev_split else None
    if not tokenizer_path.exists():
        for pair in files.evaluation_sets.values():  # small: their faults show before the long work
            count_pairs(pair)
        if given is None:
            training_pairs = partial(_training_pairs, files, held_out)
            learn_tokenizer(training_pairs, tokenizer_settings, tokenizer_path, data.tgt_symbols, report)
        else:
            given.save(tokenizer_path)
    tokenizer = given_or_kept_tokenizer(folder, given)
    if data.tgt_symbols and not tokenizer.symbols:
        raise HeedError("data.tgt_symbols is true, but the vocabulary of training.start_from has no target symbols.")
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "src_vocab_size": tokenizer.src_vocab_size}
    for name, pairs in (("dev", (files.dev,)), ("train", files.train)):
        written = (folder / f"{name}.report.json").exists()  # last
        if not (written and (folder / name).is_dir()):  # which an error may have advised to delete
            sets = {set_name: read_pairs(pair) for set_name, pair in files.evaluation_sets.items()}
            repetitions = None if name == "dev" or data.tgt_symbols else Repetitions(sets)
            held = held_out if name == "train" else None
            copies = None
            if name == "train" and data.drop_duplicates:
                copies = later_copies(
                    hashes_of(pair_hash(*pair) for side_by_side in pairs for pair in read_pairs(side_by_side))
                )
            write_split(
                *(folder, name, pairs, tokenizer, data, report),
                held_out=held,
                repetitions=repetitions,
                copies=copies,
                tags=files.tags if name == "train" else (),
            )
    train, dev = (ParallelCorpus(folder / name, **sizes) for name in ("train", "dev"))
    refuse_empty(train, dev, folder)
    return Prepared(tokenizer, train, dev)


def given_or_kept_tokenizer(folder: Path, given: AnyTokenizer | None) -> AnyTokenizer:
    """The tokenizer in a folder of prepared text. HeedError if another one is given."""
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    if given is not None and tokenizer != given:
        raise HeedError(f"{folder}: prepared with another vocabulary than training.start_from; choose another --run.")
    return tokenizer


def refuse_empty(train: TrainingCorpus, dev: ParallelCorpus, folder: Path) -> None:
    """HeedError if no pair is left to learn from, or to validate by; it names the reasons."""
    for corpus, name, kind in ((train, "train", "training"), (dev, "dev", "dev")):
        if not len(corpus):
            dropped = read_json(folder / f"{name}.report.json").get("dropped")
            reasons = "; ".join(dropped) if isinstance(dropped, dict) else ""
            raise HeedError(
                f"no {kind} pair is left, all are {reasons or 'left out'}: change the text or the setting, and delete "
                f"{folder.parent}."
            )


def write_dev(files: TextFiles, *, report: Callable[[str], None], anew: bool = False, read: Read = read_pairs) -> None:
    """Writes dev if it is split off the training text; `anew` if it is there, since the text may have been corrected.

    read: gives the pairs of the training text. HeedError if the text is too small.
    """
    if files.dev_split is not None and (anew or not all(side.exists() for side in files.dev)):
        files.dev_split.write(files.train[0], files.dev, report=report, read=read)


def compare_sources(files: TextFiles, path: Path, *, binding: bool) -> None:
    """Writes size, date and hash of the text files to `path`: what a run is trained on must not change.

    binding: whether they are first compared with those that are written there. HeedError names a file that differs.
    """
    for file in (side for pair in files.pairs for side in pair):
        if not file.is_file():
            raise HeedError(f"{file}: no such file.")
    recorded = read_json(path, MAX_LIST_BYTES) if binding and path.exists() else {}
    current: dict[str, Any] = {}
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


def _training_pairs(files: TextFiles, held_out: HeldOut | None) -> Iterator[tuple[str, str]]:
    """The pairs of all training files that are not held out, their sources with the tags of a mix."""
    for number, (pair, tag) in enumerate(zip(files.train, files.tags, strict=True)):
        for src, tgt in read_pairs(pair):
            if held_out is None or not held_out.has(src, tgt, either_side=number > 0):
                yield f"{tag} {src}" if tag else src, tgt


def learn_tokenizer(
    training_pairs: Callable[[], Iterator[tuple[str, str]]],
    settings: TokenizerSettings,
    path: Path,
    tgt_symbols: bool,
    report: Callable[[str], None],
) -> None:
    n_pairs, symbols = 0, set[str]()
    for _, tgt in training_pairs():
        n_pairs += 1
        if tgt_symbols:
            symbols.update(name for name in tgt.split(" ") if name and not name.startswith(TEXT))
    every = max(1, -(-n_pairs // settings.sample_pairs))
    vocabulary = f"a {settings.kind} source vocabulary" if tgt_symbols else f"a joint {settings.kind} vocabulary"
    sample = f" from one in {every:,} of {n_pairs:,} pairs" if every > 1 else ""
    with_symbols = f", with {len(symbols):,} target symbols" if tgt_symbols else ""
    report(f"Learning {vocabulary} of {settings.vocab_size:,}{sample}{with_symbols}.")
    pairs = islice(training_pairs(), 0, None, every)
    lines = (line for both in pairs for line in (both[:1] if tgt_symbols else both))
    with progress("Learning the vocabulary"):
        tokenizer = train_tokenizer(lines, settings, sorted(symbols))
    if len(tokenizer) != settings.vocab_size:
        report(
            f"The corpus yields {len(tokenizer):,} ids, not tokenizer.vocab_size={settings.vocab_size:,}; continuing."
        )
    tokenizer.save(path)


def write_split(
    folder: Path,
    name: str,
    pairs: tuple[FilePair, ...],
    tokenizer: AnyTokenizer,
    data: DataSettings,
    report: Callable[[str], None],
    *,
    held_out: HeldOut | None = None,
    repetitions: Repetitions | None = None,
    copies: NDArray[np.bool_] | None = None,
    tags: Sequence[str | None] = (),
) -> None:
    """Encodes pairs into FOLDER/NAME; what is left out is listed, counted and reported.

    held_out: dev's pairs, which are left out. repetitions: counts all pairs. copies: whether a pair is one of an
    earlier pair, and left out for that. tags: of each file's sources; none without a mix.
    """
    dropped: Counter[str] = Counter()
    lines = array("L")
    texts: list[tuple[str, int]] = []
    with whole_file(folder / f"{name}.dropped.tsv") as temporary, temporary.open("w", encoding="utf-8") as list_file:

        def drop(line: int, reason: str) -> None:
            dropped[reason] += 1
            file, number = place_of_line(texts, line)
            list_file.write(f"{number}\t{reason}\t{file}\n")

        numbered = _number_pairs(pairs, texts)
        if held_out is not None:
            numbered = _without(held_out, numbered, texts, drop)
        if repetitions is not None:
            numbered = _noted(repetitions, numbered)
        if name == "train":
            numbered = _filtered(numbered, data, copies, drop)
        unknown = _Unknown(tokenizer.special.unk, name, texts)
        # A space belongs to the word behind it, so a tag and a source have the ids of "tag source".
        tag_ids = [tokenizer.encode(tag) if tag else [] for tag in tags]

        def tag_of(line: int) -> list[int]:
            return tag_ids[file_of_line(texts, line)] if tag_ids else []

        encoded = _encoded(numbered, tokenizer, data, name == "train", lines, drop, unknown, tag_of)
        sizes = {"vocab_size": len(tokenizer), "src_vocab_size": tokenizer.src_vocab_size}
        corpus = write_corpus(folder / name, encoded, **sizes, lines=lines, texts=texts)
    n_src, n_tgt = (int(lengths.sum()) for lengths in corpus.lengths)
    summary = {"kept": len(corpus), "src_tokens": n_src, "tgt_tokens": n_tgt, "dropped": dict(dropped)}
    with whole_file(folder / f"{name}.report.json") as temporary:
        write_json(temporary, summary)
    reasons = "; ".join(f"{count:,} {reason}" for reason, count in dropped.items())
    left_out = f"; left out: {reasons} (listed in {folder / name}.dropped.tsv)" if reasons else ""
    report(f"{name}: {len(corpus):,} pairs, {n_src:,} + {n_tgt:,} tokens{left_out}.")
    for side in SIDES:
        if unknown.share(side) > SHARE_TO_WARN_OF:
            report(f"Warning: {unknown.described(side)}; the model can neither read nor write it.")
    if repetitions is not None:
        for remark in repetitions.remarks(src=data.src, tgt=data.tgt):
            report(f"Remark: {remark}")


class _Unknown:
    """Counts the tokens of each side that stand for text which the vocabulary lacks."""

    def __init__(self, unk: int | None, name: str, texts: Texts):
        """name: of the set; texts: its files, as far as they have been read."""
        self._unk, self._name, self._texts = unk, name, texts
        self._n_unknown, self._n_tokens = Counter[str](), Counter[str]()
        self._lines: dict[str, list[int]] = {side: [] for side in SIDES}  # the first that have one

    def count(self, line: int, ids: Sequence[list[int]]) -> None:
        """Adds a pair's; `line` counts through all files."""
        if self._unk is None:
            return
        for side, of_side in zip(SIDES, ids, strict=True):
            self._n_tokens[side] += len(of_side)
            if n := of_side.count(self._unk):
                self._n_unknown[side] += n
                self._lines[side] += [line] * (len(self._lines[side]) < MENTIONED_LINES)

    def share(self, side: str) -> float:
        """Of all tokens, from 0 to 1."""
        return self._n_unknown[side] / max(1, self._n_tokens[side])

    def check(self, most: float) -> None:
        """HeedError if the share of a side is larger."""
        for side in SIDES:
            if self.share(side) > most:
                raise HeedError(
                    f"{self.described(side)}: start from a model of this language, leave out training.start_from, or "
                    f"begin a run with a higher data.max_unknown (now {most:g})."
                )

    def described(self, side: str) -> str:
        """How many they are, and where the first stand."""
        places = [place_of_line(self._texts, line) for line in self._lines[side]]
        numbers = ", ".join(f"{number:,}" for file, number in places if file == places[0][0])
        return (
            f"{self._name}: the vocabulary lacks {self.share(side):.2%} of the {SIDE_NAMES[side]}' tokens "
            f"({self._n_unknown[side]:,} of {self._n_tokens[side]:,}; first in the pairs of {places[0][0]}, "
            f"line {numbers})"
        )


def _without(
    held_out: HeldOut, numbered: Iterator[NumberedPair], texts: list[tuple[str, int]], drop: Callable[[int, str], None]
) -> Iterator[NumberedPair]:
    for line, pair in numbered:
        if held_out.has(*pair, either_side=len(texts) > 1):
            drop(line, "held out for dev (data.dev)")
        else:
            yield line, pair


def _noted(repetitions: Repetitions, numbered: Iterator[NumberedPair]) -> Iterator[NumberedPair]:
    for line, pair in numbered:
        repetitions.add(*pair)
        yield line, pair


def _filtered(
    numbered: Iterator[NumberedPair],
    data: DataSettings,
    copies: NDArray[np.bool_] | None,
    drop: Callable[[int, str], None],
) -> Iterator[NumberedPair]:
    """The pairs that data's filters leave. copies: of `write_split`."""
    if copies is None and not (data.drop_identical or data.check_languages):
        yield from numbered
        return
    of_settings = PairFilter(data)
    for line, pair in numbered:
        reason = of_settings.reason(*pair) or (COPY if copies is not None and copies[line - 1] else None)
        if reason is None:
            yield line, pair
        else:
            drop(line, reason)


def _number_pairs(pairs: Iterable[FilePair], texts: list[tuple[str, int]]) -> Iterator[tuple[int, tuple[str, str]]]:
    """Pairs of lines, counted from 1 through all files; `texts` gets each file of sources with the lines read of it."""
    numbers = count(1)
    for files in pairs:
        texts.append((str(files[0]), 0))
        for n_lines, pair in enumerate(read_pairs(files), start=1):
            texts[-1] = (str(files[0]), n_lines)
            yield next(numbers), pair


def _encoded(
    numbered: Iterator[tuple[int, tuple[str, str]]],
    tokenizer: AnyTokenizer,
    data: DataSettings,
    training: bool,
    lines: "array[int]",
    drop: Callable[[int, str], None],
    unknown: "_Unknown",
    tag_of: Callable[[int], list[int]],
) -> Iterator[tuple[list[int], list[int]]]:
    """Ids of the pairs that pass the filters; appends their line numbers to `lines`.

    training: whether they are pairs to learn from, of which those of very different lengths are dropped too. tag_of:
    the ids that come before a line's source.
    """
    for chunk, *both_sides in encode_chunks(counted(numbered, "Encoding", unit="pairs"), tokenizer):
        for (line, (src, tgt)), src_ids, tgt_ids in zip(chunk, *both_sides, strict=True):
            ids = tag_of(line) + src_ids if src_ids else src_ids, tgt_ids
            unknown.count(line, ids)
            reason = reason_against_loss((src, tgt), ids, tokenizer, max_tokens=data.max_tokens, training=training)
            if training and reason is None:
                reason = length_ratio_reason(ids, data.max_ratio)
            if reason is None:
                lines.append(line)
                yield ids[0], ids[1]
            else:
                drop(line, reason)
    unknown.check(data.max_unknown)


def length_ratio_reason(ids: Sequence[Sequence[int]], max_ratio: float) -> str | None:
    """Why a pair is left out whose sides differ too much in length, None if they do not. ids: of both sides."""
    shorter, longer = sorted(map(len, ids))
    return f"with a length ratio above {max_ratio:g} (data.max_ratio)" if longer > max_ratio * shorter else None


def _characters(numbered_pair: tuple[int, tuple[str, str]]) -> int:
    _, lines = numbered_pair
    return sum(map(len, lines))


def encode_chunks(
    numbered: Iterator[tuple[int, tuple[str, str]]], tokenizer: AnyTokenizer
) -> Iterator[tuple[NumberedPairs, list[list[int]], list[list[int]]]]:
    """(numbered pairs of lines, ids of the sources, ids of the targets), a chunk at a time.

    A chunk ends after CHUNK_LINES pairs, or with the pair that brings it to MAX_CHARACTERS characters. The tokenizer
    encodes the next chunks on all cores while earlier ones are written.
    """
    chunks = windows(numbered, first=CHUNK_LINES, last=CHUNK_LINES, size=_characters)
    ahead: deque[tuple[NumberedPairs, Encoded, Encoded]] = deque()
    with ThreadPoolExecutor(2) as pool:
        while (chunk := next(chunks, None)) or ahead:
            if chunk:
                src = pool.submit(tokenizer.encode_lines, [pair[0] for _, pair in chunk])
                tgt = pool.submit(tokenizer.encode_targets, [pair[1] for _, pair in chunk])
                ahead.append((chunk, src, tgt))
            if not chunk or len(ahead) > 2:
                oldest, src, tgt = ahead.popleft()
                yield oldest, src.result(), tgt.result()
