"""Texts → translations: batches a stream by length, keeps its order."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from heed.config import validated
from heed.data.batching import make_batch
from heed.data.lines import wait_for_more, windows
from heed.decoding.scoring import token_log_probs
from heed.decoding.search import DecodingSettings, Hypothesis, SamplingSettings, Source, search
from heed.errors import HeedError
from heed.model.inference import prepack
from heed.model.trace import AttentionWeights, attention_weights
from heed.model.transformer import Transformer
from heed.model_folder import load_model
from heed.runtime.device import DecodingPrecision, choose_machine
from heed.runtime.memory import keep_freed_memory, release_library_pages
from heed.text.tokenizer import Tokenizer

# Sentences that are searched at a time, and pairs that are scored at a time: so many, and so many ids.
MAX_SENTENCES, MAX_TOKENS = 64, 4096
# A longer source is translated in pieces: attention's memory grows with the square of the length.
PIECE_TOKENS = 512
# Lines that are sorted by length together, so that like lengths meet: few at first, so that output starts at once.
FIRST_WINDOW, LAST_WINDOW = 16, 2048


@dataclass(frozen=True)
class Translation:
    """A translated line; `alternatives` are the n best, this one first. log_prob is natural, score length-penalised."""

    source: str
    text: str
    score: float
    log_prob: float
    ended: bool
    alternatives: tuple["Translation", ...] = ()


@dataclass
class _Line:
    """A line that was read, and what has been found for each of its pieces."""

    text: str
    found: list[list[Hypothesis]]

    @property
    def complete(self) -> bool:
        return all(self.found)


class Translator:
    """A model with its tokenizer and search settings, or several models of one vocabulary, which decide together.

    On a CPU with the kernels, in fp32 and int8, a line's translation and score are the same bits for every batching.
    """

    def __init__(
        self,
        models: Transformer | Sequence[Transformer],
        tokenizer: Tokenizer,
        settings: DecodingSettings | None = None,
        *,
        precision: DecodingPrecision = "fp32",
        report: Callable[[str], None] = lambda line: None,
        copy: bool = True,
    ):
        """copy: whether the models stay as they are; else they become the translator's, which halves the memory."""
        given = [models] if isinstance(models, Transformer) else models
        self.models = [prepack(model, precision, copy=copy) for model in given]
        self.tokenizer, self.precision, self.report = tokenizer, precision, report
        self.settings = settings or DecodingSettings()
        self._piece_tokens = PIECE_TOKENS
        for arch in (model.arch for model in self.models):
            if arch.positions == "learned":
                longest = arch.max_positions - self.settings.max_extra_tokens - 2
                if longest < 1:
                    raise HeedError(
                        f"max_positions={arch.max_positions} leaves no room for a source and "
                        f"max_extra_tokens={self.settings.max_extra_tokens}; lower the latter."
                    )
                self._piece_tokens = min(self._piece_tokens, longest)

    @classmethod
    def load(
        cls,
        *folders: Path | str,
        device: str | None = None,
        precision: DecodingPrecision = "fp32",
        report: Callable[[str], None] = lambda line: None,
        **changes: Any,
    ) -> "Translator":
        """The translator of a model folder, or of several; it searches as the first's recipe said but for `changes`.

        `changes`: DecodingSettings by name; None changes nothing. HeedError if the folders' tokenizers differ.
        """
        keep_freed_memory()
        release_library_pages()
        loaded = [load_model(Path(folder)) for folder in folders]
        tokenizer = loaded[0].tokenizer
        for folder, other in zip(folders[1:], loaded[1:], strict=True):
            if other.tokenizer != tokenizer:
                raise HeedError(f"{folder}: another vocabulary than {folders[0]}; only models of one can be joined.")
        values = loaded[0].card.decoding | {name: value for name, value in changes.items() if value is not None}
        settings = validated(DecodingSettings, values, where=str(folders[0]))
        machine = choose_machine("fp32", device=device)
        models = [one.model.to(machine.device) for one in loaded]
        return cls(models, tokenizer, settings, precision=precision, report=report, copy=False)

    def translate(self, texts: Iterable[str], *, n_best: int = 1, **options: Any) -> list[Translation]:
        """One translation a text, in order. An empty or blank text stays empty. `options`: those of `stream`."""
        return list(self.stream(texts, n_best=n_best, **options))

    def stream(
        self,
        texts: Iterable[str | None],
        *,
        n_best: int = 1,
        prefix: str = "",
        sampling: SamplingSettings | None = None,
    ) -> Iterator[Translation]:
        """As `translate`, while the texts come in; memory does not grow with their number.

        A None among the texts says that no other is at hand yet, so that those before it need not wait for it; `texts`
        may have a method `wait`, which blocks until another is. Every translation begins with `prefix`. With
        `sampling` the n best are beam_size draws.
        """
        lines: deque[_Line] = deque()  # read, not given out yet
        pieces: dict[int, tuple[_Line, int]] = {}
        prefix_ids = self.tokenizer.encode_targets([prefix])[0] if prefix else []
        sources = self._sources(texts, lines, pieces, prefix_ids)
        found = search(
            self.models, sources, self.tokenizer.special, self.settings, n_best=n_best, n_sentences=MAX_SENTENCES,
            sampling=sampling, wait=wait_for_more(texts),
        )  # fmt: skip
        for result in found:
            if result is not None:
                line, place = pieces.pop(result[0])
                line.found[place] = result[1]
            while lines and lines[0].complete:
                done = lines.popleft()
                yield self._translation(done.text, done.found)
        for line in lines:  # blank ones at the end
            yield self._translation(line.text, line.found)

    def _sources(
        self,
        texts: Iterable[str | None],
        lines: "deque[_Line]",
        pieces: "dict[int, tuple[_Line, int]]",
        prefix: Sequence[int],
    ) -> Iterator[Source | None]:
        """Window by window: lines as they come, cut into pieces where they are long, sorted by length."""
        n_lines, n_pieces = 0, 0
        for window in windows(texts, first=FIRST_WINDOW, last=LAST_WINDOW, size=len):
            if window is None:
                yield None
                continue
            arriving: list[Source] = []
            for text, ids in zip(window, self.tokenizer.encode_lines(window), strict=True):
                n_lines += 1
                cut: list[list[int]] = []
                if text.strip():
                    cut = [ids[i : i + self._piece_tokens] for i in range(0, len(ids), self._piece_tokens)]
                if len(cut) > 1:
                    self.report(f"line {n_lines}: {len(ids):,} tokens, translated in {len(cut)} pieces.")
                line = _Line(text, [[] for _ in cut])
                lines.append(line)
                for place, piece in enumerate(cut):
                    pieces[n_pieces] = (line, place)
                    arriving.append(Source(n_pieces, piece, prefix if place == 0 else ()))
                    n_pieces += 1
            yield from sorted(arriving, key=lambda source: len(source.ids))

    def log_probs(self, sources: list[str], targets: list[str]) -> list[list[float]]:
        """For each given target, the log-probability of each of its ids and of eos, given its source."""
        pairs = list(zip(self.tokenizer.encode_lines(sources), self.tokenizer.encode_targets(targets), strict=True))
        results: list[list[float]] = [[] for _ in pairs]
        device = self.models[0].src_embedding.weight.device
        for group in _groups([max(len(src), len(tgt)) + 1 for src, tgt in pairs]):
            rows = torch.tensor(group).numpy()
            batch = make_batch([pairs[i] for i in group], self.tokenizer.special, rows=rows).to(device)
            for i, values in zip(group, token_log_probs(self.models, batch).tolist(), strict=True):
                results[i] = values[: len(pairs[i][1]) + 1]
        return results

    def attention(self, source: str, target: str) -> AttentionWeights:
        """Every head's weights while the model writes this target, such as a translation's text, for this source.

        Rows and columns are the ids of `tokenizer.encode`: a source with eos behind, a target with bos before.
        """
        device = self.models[0].src_embedding.weight.device
        src = torch.tensor([*self.tokenizer.encode(source), self.tokenizer.special.eos], device=device)
        tgt_in = torch.tensor([self.tokenizer.special.bos, *self.tokenizer.encode_targets([target])[0]], device=device)
        return attention_weights(self.models[0], src, tgt_in)

    def _translation(self, source: str, found: list[list[Hypothesis]]) -> Translation:
        """One piece: its n best. Several: the best of each, joined. None: the empty translation, which is certain."""
        if len(found) == 1:
            texts = [self._text(source, [hypothesis]) for hypothesis in found[0]]
        else:
            texts = [self._text(source, [hypotheses[0] for hypotheses in found])]
        best = texts[0]
        return Translation(source, best.text, best.score, best.log_prob, best.ended, tuple(texts))

    def _text(self, source: str, hypotheses: list[Hypothesis]) -> Translation:
        # A line stays a line, whatever the model writes.
        text = " ".join(self.tokenizer.decode(hypothesis.ids) for hypothesis in hypotheses)
        text = text.replace("\r", " ").replace("\n", " ")
        return Translation(
            source,
            text,
            math.fsum(hypothesis.score for hypothesis in hypotheses),
            math.fsum(hypothesis.log_prob for hypothesis in hypotheses),
            all(hypothesis.ended for hypothesis in hypotheses),
        )


def _groups(lengths: list[int]) -> Iterator[list[int]]:
    """Places of like lengths, shortest first, each group within the limits of a batch."""
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if group and (len(group) == MAX_SENTENCES or (len(group) + 1) * lengths[i] > MAX_TOKENS):
            yield group
            group = []
        group.append(i)
    if group:
        yield group
