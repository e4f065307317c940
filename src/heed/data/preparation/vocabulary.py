"""The vocabulary of a corpus: a tokenizer learned from a sample of its pairs."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from heed.data.reading.pairs import Pair
from heed.errors import HeedError
from heed.runtime.progress import progress
from heed.text.segmentation import TEXT
from heed.text.tokenizer import Tokenizer, TokenizerSettings, train_tokenizer
from heed.text.tokenizer_kinds import AnyTokenizer, load_tokenizer

TOKENIZER = "tokenizer.json"  # in RUN/data


def agreed_tokenizer(folder: Path, given: AnyTokenizer | None, learn: Callable[[], AnyTokenizer]) -> AnyTokenizer:
    """The tokenizer in a folder of prepared text, where there is one; else the given one, or one that is learned.

    HeedError if the folder has another one than is given.
    """
    path = folder / TOKENIZER
    if not path.exists():
        (given or learn()).save(path)
    tokenizer = load_tokenizer(path)
    if given is not None and tokenizer != given:
        raise HeedError(f"{folder}: prepared with another vocabulary than training.start_from; choose another --run.")
    return tokenizer


def learn_tokenizer(
    pairs: Callable[[], Iterator[Pair]],
    settings: TokenizerSettings,
    *,
    n_pairs: int,
    tgt_symbols: bool,
    report: Callable[[str], None],
    tags: Sequence[str] = (),
) -> Tokenizer:
    """A tokenizer learned from one in N pairs, N such that they are settings.sample_pairs at most.

    pairs: gives those to learn from. n_pairs: how many they are about, from which N is guessed, so that they are read
    once; if the guess was wrong, they are read again.
    """
    symbols = set[str]()
    if tgt_symbols:
        n_pairs = 0
        for _, tgt in pairs():
            n_pairs += 1
            symbols.update(name for name in tgt.split(" ") if name and not name.startswith(TEXT))
    vocabulary = f"a {settings.kind} source vocabulary" if tgt_symbols else f"a joint {settings.kind} vocabulary"
    with_symbols = f", with {len(symbols):,} target symbols" if tgt_symbols else ""
    every = _every(n_pairs, settings)
    while True:
        sample = f" from one in {every:,} of {n_pairs:,} pairs" if every > 1 else ""
        report(f"Learning {vocabulary} of {settings.vocab_size:,}{sample}{with_symbols}.")
        tokenizer, n_pairs = _learn(pairs(), every, settings, sorted(symbols), tags=tags, sources_alone=tgt_symbols)
        if every == _every(n_pairs, settings):
            break
        every = _every(n_pairs, settings)
    if len(tokenizer) != settings.vocab_size:
        report(
            f"The corpus yields {len(tokenizer):,} ids, not tokenizer.vocab_size={settings.vocab_size:,}; continuing."
        )
    return tokenizer


def _every(n_pairs: int, settings: TokenizerSettings) -> int:
    return max(1, -(-n_pairs // settings.sample_pairs))


def _learn(
    pairs: Iterator[Pair],
    every: int,
    settings: TokenizerSettings,
    symbols: list[str],
    *,
    tags: Sequence[str],
    sources_alone: bool,
) -> tuple[Tokenizer, int]:
    """The tokenizer of one in `every` of the pairs, and the number of all."""
    n_pairs = 0

    def counted() -> Iterator[Pair]:
        nonlocal n_pairs
        for pair in pairs:
            n_pairs += 1
            yield pair

    lines = (line for pair in islice(counted(), 0, None, every) for line in (pair[:1] if sources_alone else pair))
    with progress("Learning the vocabulary"):
        return train_tokenizer(lines, settings, symbols, tags=tags), n_pairs


def vocab_sizes(tokenizer: AnyTokenizer) -> dict[str, Any]:
    """What a corpus is opened and written with."""
    return {"vocab_size": len(tokenizer), "src_vocab_size": tokenizer.src_vocab_size}
