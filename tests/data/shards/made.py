"""Corpora in shards, made without text, or prepared from texts that a test has written."""

import hashlib
from pathlib import Path

import numpy as np

from heed.data.corpus.shard import write_corpus
from heed.data.corpus.sharded import VERIFIED, ShardedCorpus, write_index
from heed.data.preparation.job import Preparation
from heed.data.reading.files import training_files
from heed.data.reading.text_files import TextFiles
from heed.data.settings import DataSettings
from heed.leases.plan import PLAN
from heed.leases.workforce import Workforce
from heed.runtime.manifest import MANIFEST, sha256_of
from heed.text.tokenizer import TokenizerSettings


def sharded(folder, shards, *, vocab_size, parts=None):
    """A corpus of these shards, each a list of pairs of ids. parts: the number of shards of each part of a mix."""
    folder.mkdir(parents=True)
    names, said, line = [], [], 1
    for number, pairs in enumerate(shards):
        name = f"shard-{number:05d}"
        lines = range(line, line + len(pairs))
        corpus = write_corpus(folder / name, pairs, vocab_size=vocab_size, lines=np.array(lines, np.uint64))
        np.save(folder / f"{name}.lengths.npy", corpus.length_counts())
        np.save(folder / f"{name}.counts.npy", corpus.counts("tgt", vocab_size=vocab_size))
        longest = list(corpus.longest) if len(pairs) else [0, 0]
        longer = int(np.maximum(*corpus.lengths).sum())
        manifest = sha256_of(folder / name / MANIFEST)
        said.append({"kept": len(pairs), "longest": longest, "longer": longer, "manifest": manifest})
        names.append(name)
        line += len(pairs)
    write_index(folder, names, said, texts=[("text", line - 1)], parts=parts or [len(names)])
    return ShardedCorpus(folder, vocab_size=vocab_size)


def sentences(n, *, seed=0, words=60):
    """Pairs of made lines: the target's words are the source's, written backwards."""
    draw = np.random.default_rng(seed)
    known = ["".join(draw.choice(list("abcdefgh"), draw.integers(2, 7))) for _ in range(words)]
    sources = [" ".join(draw.choice(known, draw.integers(1, 9))) for _ in range(n)]
    return [(src, " ".join(word[::-1] for word in src.split())) for src in sources]


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def settings(names, dev, **changes):
    """Data settings of a corpus whose dev set has files."""
    return DataSettings(src="en", tgt="de", train=list(names), dev=list(dev), **({"shard_pairs": 50} | changes))


def preparation(data, run, *, given=None, lines=None):
    """The preparation of a run's text, not begun yet."""
    train = training_files(data.train, src=data.src, tgt=data.tgt)
    is_split = not isinstance(data.dev, list)
    dev = (run / "data" / "dev.src", run / "data" / "dev.tgt") if is_split else tuple(map(Path, data.dev))
    files = TextFiles(train=train, dev=dev, dev_split=data.dev_split, n_given=len(train))
    report = [].append if lines is None else lines.append
    tokenizer = TokenizerSettings(vocab_size=600)
    return Preparation(files, data, tokenizer, folder=run / "data", report=report, given=given)


def prepared(data, run, *, given=None, lines=None, workforce=None):
    """The prepared text of a run."""
    made = preparation(data, run, given=given, lines=lines)
    made.begin()
    assert made.work(workforce or Workforce(threads=1))
    return made.finish()


def digest(run):
    """SHA-256 over the names and bytes of all shards and their index; not of the plan, which says where files lie."""
    found = hashlib.sha256()
    shards = run / "data" / "shards"
    for path in sorted(path for path in shards.rglob("*") if path.is_file()):
        inside = path.relative_to(shards)
        if inside.parts[0] != VERIFIED and path.name not in (".lock", PLAN):
            found.update(str(inside).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()
