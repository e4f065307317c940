"""Pairs of lines → ids, with an account of what is left out and of what the vocabulary lacks."""

import gzip
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

import numpy as np

from heed.data.corpus.shard import SIDES, Texts, place_of_line
from heed.data.preparation.rules import length_ratio_reason
from heed.data.reading.columns import row_of
from heed.data.reading.pairs import Pair
from heed.data.reading.stream import windows
from heed.errors import HeedError
from heed.runtime.files import whole_file
from heed.runtime.progress import track
from heed.text.line_rules import reason_against_loss
from heed.text.tokenizer_kinds import AnyTokenizer

CHUNK_LINES = 4096  # lines read, encoded and written at a time; fewer if they are long
SHARE_TO_WARN_OF = 0.001  # of tokens that the vocabulary lacks
MENTIONED_LINES = 5
SIDE_NAMES = {"src": "sources", "tgt": "targets"}

Numbered = tuple[int, int, Pair]  # the line through all sources, the source, the pair
Chunk = tuple[list[Numbered], list[list[int]], list[list[int]]]
Unknown = dict[str, Any]  # of each side: tokens that the vocabulary lacks, all tokens, and the first lines with one


class Tally:
    """What is left out of a set, and the lines of what stays."""

    def __init__(self, texts: Texts, unk: int | None):
        """texts: the set's files with their numbers of lines, through which a line is counted."""
        self._texts, self._unk = texts, unk
        self._starts = np.cumsum([0, *(rows for _, rows in texts)])
        self._left_out: list[tuple[int, str, str]] = []
        self._n_unknown, self._n_tokens = Counter[str](), Counter[str]()
        self._unknown_lines: dict[str, list[int]] = {side: [] for side in SIDES}
        self.dropped = Counter[str]()
        self.lines = array("Q")

    def drop(self, line: int, reason: str, detail: str = "") -> None:
        """Leaves a line out. detail: more than its reason says."""
        self.dropped[reason] += 1
        self._left_out.append((line, reason, detail))

    def write_left_out(self, path: Path) -> None:
        """Writes the list of the lines that are left out, in their order: number, reason, file."""
        with whole_file(path) as temporary, temporary.open("wb") as file, _packed(file, path) as packed:
            text = TextIOWrapper(packed, encoding="utf-8", newline="")
            for line, reason, detail in sorted(self._left_out):
                source, number = self._place(line)
                text.write(f"{number}\t{reason}{': ' * bool(detail)}{detail}\t{self._texts[source][0]}\n")
            text.flush()
            text.detach()

    def faults(self, reason: str) -> dict[str, list[Any]]:
        """For each source, how many lines are left out for this reason, and the first one with its detail."""
        faults: dict[str, list[Any]] = {}
        for line, _, detail in (one for one in self._left_out if one[1] == reason):
            source, number = self._place(line)
            faults.setdefault(str(source), [0, f"{row_of(self._texts[source][0], number)}: {detail}"])[0] += 1
        return faults

    def _place(self, line: int) -> tuple[int, int]:
        """The source of a line, and its number there."""
        source = int(np.searchsorted(self._starts, line, side="left")) - 1
        return source, line - int(self._starts[source])

    def count_tokens(self, line: int, ids: Sequence[list[int]]) -> None:
        """Counts a pair's tokens, and those that stand for text which the vocabulary lacks."""
        if self._unk is None:
            return
        for side, of_side in zip(SIDES, ids, strict=True):
            self._n_tokens[side] += len(of_side)
            if n := of_side.count(self._unk):
                self._n_unknown[side] += n
                self._unknown_lines[side] += [line] * (len(self._unknown_lines[side]) < MENTIONED_LINES)

    def unknown(self) -> Unknown:
        """The tokens that the vocabulary lacks."""
        return {side: [self._n_unknown[side], self._n_tokens[side], self._unknown_lines[side]] for side in SIDES}


def _packed(file: IO[bytes], path: Path) -> Any:
    # Neither a name nor a time in the header of a .gz, so that the same list gives the same bytes.
    return gzip.GzipFile("", "wb", 6, file, mtime=0) if path.suffix == ".gz" else nullcontext(file)


class Encoder:
    """Encodes pairs of lines, those to learn from by default."""

    def __init__(
        self,
        tokenizer: AnyTokenizer,
        *,
        max_tokens: int,
        max_ratio: float,
        tags: Sequence[str | None] = (),
        threads: int = 2,
        training: bool = True,
    ):
        """tags: words put before the texts of each source; no limit counts them. threads: 1 encodes in this thread."""
        self.tokenizer, self._threads, self._training = tokenizer, threads, training
        self._max_tokens, self._max_ratio = max_tokens, max_ratio
        # A space belongs to the word behind it, so a tag and a source have the ids of "tag source".
        self._tags = [tokenizer.encode(tag) if tag else [] for tag in tags]

    def encode(self, numbered: Iterator[Numbered], tally: Tally) -> Iterator[tuple[list[int], list[int]]]:
        """Ids of the pairs that are short enough and of like lengths, whose lines are noted."""
        chunks = self._chunks(track(numbered, "Encoding", unit="pairs"))
        for chunk, *both_sides in chunks:
            for (line, source, pair), src_ids, tgt_ids in zip(chunk, *both_sides, strict=True):
                ids = src_ids, tgt_ids
                tally.count_tokens(line, ids)
                reason = reason_against_loss(
                    pair, ids, self.tokenizer, max_tokens=self._max_tokens, training=self._training
                )
                if self._training and reason is None:
                    reason = length_ratio_reason(ids, self._max_ratio)
                if reason is None:
                    tally.lines.append(line)
                    yield (self._tags[source] + src_ids if self._tags else src_ids), tgt_ids
                else:
                    tally.drop(line, reason)

    def _chunks(self, numbered: Iterator[Numbered]) -> Iterator[Chunk]:
        """Pairs with the ids of their sources and of their targets, a chunk at a time.

        A chunk ends after CHUNK_LINES pairs, or with the pair that brings it to MAX_CHARACTERS characters. With several
        threads, the tokenizer encodes the next chunks on all cores while earlier ones are written.
        """
        tokenizer = self.tokenizer
        chunks = windows(numbered, first=CHUNK_LINES, last=CHUNK_LINES, size=_characters)
        encoders, most_ahead = (tokenizer.encode_lines, tokenizer.encode_targets), 0 if self._threads == 1 else 2
        ahead: deque[tuple[list[Numbered], list[Callable[[], list[list[int]]]]]] = deque()
        with ThreadPoolExecutor(2) as pool:
            while (chunk := next(chunks, None)) or ahead:
                if chunk:
                    sides = (partial(encode, [pair[i] for *_, pair in chunk]) for i, encode in enumerate(encoders))
                    ahead.append((chunk, [pool.submit(one).result if most_ahead else one for one in sides]))
                if not chunk or len(ahead) > most_ahead:
                    oldest, (src_ids, tgt_ids) = ahead.popleft()
                    yield oldest, src_ids(), tgt_ids()


def _characters(numbered: Numbered) -> int:
    return len(numbered[2][0]) + len(numbered[2][1])


def merged_unknown(of_shards: Sequence[Unknown]) -> Unknown:
    """The unknown characters of several shards, in the shards' order."""
    return {
        side: [
            sum(one[side][0] for one in of_shards),
            sum(one[side][1] for one in of_shards),
            [line for one in of_shards for line in one[side][2]][:MENTIONED_LINES],
        ]
        for side in SIDES
    }


def check_unknown(unknown: Unknown, texts: Texts, *, name: str, most: float) -> list[str]:
    """A warning for each side whose text the vocabulary lacks in part. HeedError if it lacks more than a share `most`.

    texts: the files of the set, which is called `name`.
    """
    warnings = []
    for side, (n_unknown, n_tokens, lines) in unknown.items():
        share = n_unknown / max(1, n_tokens)
        if share <= SHARE_TO_WARN_OF and share <= most:
            continue
        places = [place_of_line(texts, line) for line in lines]
        numbers = ", ".join(f"{number:,}" for file, number in places if file == places[0][0])
        text = (
            f"{name}: the vocabulary lacks {share:.2%} of the {SIDE_NAMES[side]}' tokens ({n_unknown:,} of "
            f"{n_tokens:,}; first in the pairs of {places[0][0]}, line {numbers})"
        )
        if share > most:
            raise HeedError(
                f"{text}: start from a model of this language, leave out training.start_from, or begin a run with a "
                f"higher data.max_unknown (now {most:g})."
            )
        warnings.append(f"Warning: {text}; the model can neither read nor write it.")
    return warnings
