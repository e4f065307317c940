"""Inputs of the benchmarks: the shape of a preset, and random sentences."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from heed.config import validated
from heed.data.corpus.shard import ParallelCorpus, write_corpus
from heed.model.architecture import Architecture
from heed.text.tokenizer import SpecialIds

MEAN_LENGTH, LENGTH_DEVIATION, MAX_LENGTH = 25, 9, 60  # tokens of a sentence, eos included
SPECIAL = SpecialIds()
FIRST_WORD = 3  # ids below are special
DEFAULT_VOCAB_SIZE = 37_000  # of presets that leave it to the recipe: section 5.1, English-German


def shape_of(tables: dict[str, Any], *, preset: str, vocab_size: int | None) -> tuple[Architecture, int]:
    """Returns the architecture and the vocabulary size of a preset's tables; `vocab_size` overrides theirs."""
    arch = validated(Architecture, tables.get("model", {}), where=f"preset {preset}")
    return arch, vocab_size or int(tables.get("tokenizer", {}).get("vocab_size", DEFAULT_VOCAB_SIZE))


def random_corpus(folder: Path, vocab_size: int, *, n_tokens: int, longest: int = MAX_LENGTH) -> ParallelCorpus:
    """Writes pairs of random sentences, about `n_tokens` a side: 5 to 60 tokens each, normally distributed.

    longest: the most tokens of a sentence, eos included, if fewer than MAX_LENGTH.
    """
    most = max(1, min(MAX_LENGTH, longest) - 1)
    draw = np.random.default_rng(1)
    n_pairs = max(100, n_tokens // MEAN_LENGTH)
    src_lengths = np.clip(draw.normal(MEAN_LENGTH - 1, LENGTH_DEVIATION, n_pairs), min(4, most), most).astype(int)
    tgt_lengths = np.clip(src_lengths + draw.normal(0, 2, n_pairs), min(4, most), most).astype(int)

    def pairs() -> Iterator[tuple[list[int], list[int]]]:
        for lengths in zip(src_lengths, tgt_lengths, strict=True):
            src, tgt = (draw.integers(FIRST_WORD, vocab_size, length).tolist() for length in lengths)
            yield src, tgt

    return write_corpus(folder, pairs(), vocab_size=vocab_size)
