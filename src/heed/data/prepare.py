"""Text files → a tokenizer and memory-mapped ids, with a report of what was left out and why."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from heed.config import HeedError, Settings, whole_file
from heed.data.corpus import ParallelCorpus, write_corpus
from heed.data.lines import FilePair, read_pairs
from heed.text.tokenizer import Tokenizer, TokenizerSettings, train_tokenizer

CHUNK_LINES = 4096  # lines read, encoded and written at a time


class DataSettings(Settings):
    """What to train on: a named corpus, or text files of one's own."""

    src: str = Field(min_length=1, description="source language, as in file names: en")
    tgt: str = Field(min_length=1, description="target language: de")
    corpus: str | None = Field(None, description="name of a known corpus (heed data list)")
    variant: str = Field("raw", description="form of a named corpus: raw, or lc.norm.tok where it is offered")
    train: list[str] | None = Field(None, description="own corpus: [src file, tgt file], plain or .gz")
    dev: list[str] | None = Field(None, description="own corpus: [src file, tgt file]")
    tests: dict[str, list[str]] = Field(default_factory=dict, description="own corpus: name = [src file, tgt file]")
    max_tokens: int = Field(256, ge=1, description="a training pair with a longer side is left out")
    max_ratio: float = Field(9.0, ge=1, description="nor one whose longer side has more than so many times the other's")

    @model_validator(mode="after")
    def _one_kind_of_corpus(self) -> Self:
        if self.corpus is not None and (self.train or self.dev or self.tests):
            raise ValueError("data.corpus names a corpus, so data.train, data.dev and data.tests must go")
        if self.corpus is None and not (self.train and self.dev):
            raise ValueError("name a corpus (data.corpus), or give the files of data.train and data.dev")
        for name, files in (("train", self.train), ("dev", self.dev), *self.tests.items()):
            if files is not None and len(files) != 2:
                raise ValueError(f"data.{name} needs two files, [src, tgt]; found {len(files)}")
        return self


@dataclass(frozen=True)
class TextFiles:
    """Where the lines are: train may be several pairs of files."""

    train: tuple[FilePair, ...]
    dev: FilePair
    tests: dict[str, FilePair] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """What training reads."""

    tokenizer: Tokenizer
    train: ParallelCorpus
    dev: ParallelCorpus


def prepare(
    files: TextFiles,
    data: DataSettings,
    tokenizer_settings: TokenizerSettings,
    *,
    folder: Path,
    report: Callable[[str], None],
) -> Prepared:
    """Makes what is still missing in `folder`: tokenizer.json, dev/, train/. Memory does not grow with the corpus."""
    for pair in (*files.train, files.dev, *files.tests.values()):
        for path in pair:
            if not path.is_file():
                raise HeedError(f"{path}: no such file.")
    tokenizer_path = folder / "tokenizer.json"
    if not tokenizer_path.exists():
        for pair in (files.dev, *files.tests.values()):  # small: their faults show before the long work
            for _ in read_pairs(pair):
                pass
        _train_tokenizer(files, tokenizer_settings, tokenizer_path, report)
    tokenizer = Tokenizer.load(tokenizer_path)
    for name, pairs, limits in (("dev", (files.dev,), None), ("train", files.train, data)):
        if not (folder / name).exists():
            _write_split(folder, name, pairs, tokenizer, limits, report)
    train = ParallelCorpus(folder / "train")
    if not len(train):
        raise HeedError(f"no training pair is left after filtering; see {folder / 'train.report.json'}.")
    return Prepared(tokenizer, train, ParallelCorpus(folder / "dev"))


def _train_tokenizer(files: TextFiles, settings: TokenizerSettings, path: Path, report: Callable[[str], None]) -> None:
    report(f"Learning a joint {settings.kind} vocabulary of {settings.vocab_size:,}.")
    tokenizer = train_tokenizer((line for pair in files.train for both in read_pairs(pair) for line in both), settings)
    if len(tokenizer) < settings.vocab_size:
        report(f"The corpus gives {len(tokenizer):,} ids, not tokenizer.vocab_size={settings.vocab_size:,}; going on.")
    tokenizer.save(path)


def _write_split(
    folder: Path,
    name: str,
    pairs: tuple[FilePair, ...],
    tokenizer: Tokenizer,
    limits: DataSettings | None,
    report: Callable[[str], None],
) -> None:
    dropped: Counter[str] = Counter()
    corpus = write_corpus(folder / name, _encoded(pairs, tokenizer, limits, dropped), vocab_size=len(tokenizer))
    n_src, n_tgt = (int(lengths.sum()) for lengths in corpus.lengths)
    facts = {"kept": len(corpus), "src_tokens": n_src, "tgt_tokens": n_tgt, "dropped": dict(dropped)}
    with whole_file(folder / f"{name}.report.json") as temporary:
        temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    why = "; ".join(f"{count:,} {reason}" for reason, count in dropped.items())
    report(f"{name}: {len(corpus):,} pairs, {n_src:,} + {n_tgt:,} tokens" + (f"; left out: {why}." if why else "."))


def _encoded(
    pairs: tuple[FilePair, ...], tokenizer: Tokenizer, limits: DataSettings | None, dropped: Counter[str]
) -> Iterator[tuple[list[int], list[int]]]:
    """Ids of the pairs that pass the limits; counts the others by reason. Without limits all pass."""
    lines = (pair for files in pairs for pair in read_pairs(files))
    while chunk := list(islice(lines, CHUNK_LINES)):
        src_ids = tokenizer.encode_lines([src for src, _ in chunk])
        tgt_ids = tokenizer.encode_lines([tgt for _, tgt in chunk])
        for (src, tgt), *ids in zip(chunk, src_ids, tgt_ids, strict=True):
            shorter, longer = sorted(map(len, ids))
            if limits is None:
                reason = None
            elif not src.strip() or not tgt.strip():
                reason = "with an empty side"
            elif longer > limits.max_tokens:
                reason = f"longer than {limits.max_tokens} tokens (data.max_tokens)"
            elif longer > limits.max_ratio * shorter:
                reason = f"with a length ratio above {limits.max_ratio:g} (data.max_ratio)"
            else:
                reason = None
            if reason is None:
                yield ids[0], ids[1]
            else:
                dropped[reason] += 1
