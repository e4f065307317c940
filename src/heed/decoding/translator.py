"""Texts → translations: batches a stream by length, keeps its order."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from heed.config import HeedError, validated
from heed.data.batching import SpecialIds, make_batch, padded_sources
from heed.decoding.scoring import token_log_probs
from heed.decoding.search import DecodingSettings, Hypothesis, beam_search
from heed.model.transformer import Transformer
from heed.model_folder import load_model
from heed.runtime import choose_machine
from heed.text.tokenizer import Tokenizer

# A batch holds at most so many sources and so many of their ids, padding counted.
MAX_SENTENCES, MAX_SRC_TOKENS = 64, 4096
# A longer source is translated in pieces: attention's memory grows with the square of the length.
PIECE_TOKENS = 512
# Lines read ahead: few at first, so that output starts at once, then more, so that like lengths meet.
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


class Translator:
    """A model with its tokenizer and search settings. The same for every batching of the same lines."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        settings: DecodingSettings | None = None,
        *,
        report: Callable[[str], None] = lambda line: None,
    ):
        self.model, self.tokenizer, self.report = model, tokenizer, report
        self.settings = settings or DecodingSettings()
        self.special = SpecialIds(tokenizer.pad, tokenizer.bos, tokenizer.eos)
        self._device = next(model.parameters()).device
        self._piece_tokens = PIECE_TOKENS
        if model.arch.positions == "learned":
            longest = model.arch.max_positions - self.settings.max_extra_tokens - 2
            if longest < 1:
                raise HeedError(
                    f"max_positions={model.arch.max_positions} leaves no room for a source and "
                    f"max_extra_tokens={self.settings.max_extra_tokens}; lower the latter."
                )
            self._piece_tokens = min(PIECE_TOKENS, longest)

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        device: str | None = None,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> "Translator":
        """The translator of a model folder, in fp32; it searches as its recipe said where nothing else is given."""
        loaded = load_model(Path(folder))
        given = {"beam_size": beam_size, "length_penalty": length_penalty}
        values = loaded.card.decoding | {name: value for name, value in given.items() if value is not None}
        settings = validated(DecodingSettings, values, where=str(folder))
        machine = choose_machine("fp32", device=device)
        return cls(loaded.model.to(machine.device), loaded.tokenizer, settings, report=report)

    def translate(self, texts: Iterable[str], *, n_best: int = 1) -> list[Translation]:
        """One translation a text, in order. An empty or blank text stays empty."""
        return list(self.stream(texts, n_best=n_best))

    def stream(self, texts: Iterable[str], *, n_best: int = 1) -> Iterator[Translation]:
        """As `translate`, while the texts come in; memory does not grow with their number."""
        numbered = enumerate(texts, start=1)
        window_size = FIRST_WINDOW
        while window := list(itertools.islice(numbered, window_size)):
            yield from self._window(window, n_best)
            window_size = min(2 * window_size, LAST_WINDOW)

    def log_probs(self, sources: list[str], targets: list[str]) -> list[list[float]]:
        """For each given target, the log-probability of each of its ids and of eos, given its source."""
        pairs = list(zip(self.tokenizer.encode_lines(sources), self.tokenizer.encode_lines(targets), strict=True))
        results: list[list[float]] = [[] for _ in pairs]
        for group in _groups([max(len(src), len(tgt)) + 1 for src, tgt in pairs]):
            rows = torch.tensor(group).numpy()
            batch = make_batch([pairs[i] for i in group], self.special, rows=rows).to(self._device)
            for i, values in zip(group, token_log_probs(self.model, batch).tolist(), strict=True):
                results[i] = values[: len(pairs[i][1]) + 1]
        return results

    def _window(self, lines: list[tuple[int, str]], n_best: int) -> list[Translation]:
        """Translations of some lines: cut into pieces, sorted by length, searched in batches, put together again."""
        encoded = self.tokenizer.encode_lines([text for _, text in lines])
        pieces: list[list[int]] = []
        places: list[range] = []  # of each line's pieces
        for (number, text), ids in zip(lines, encoded, strict=True):
            if not text.strip():
                ids = []
            if len(ids) > self._piece_tokens:
                n_pieces = -(-len(ids) // self._piece_tokens)
                self.report(f"line {number}: {len(ids):,} tokens, translated in {n_pieces} pieces.")
            cut = [ids[i : i + self._piece_tokens] for i in range(0, len(ids), self._piece_tokens)]
            places.append(range(len(pieces), len(pieces) + len(cut)))
            pieces += cut
        found: list[list[Hypothesis]] = [[] for _ in pieces]
        for group in _groups([len(ids) + 1 for ids in pieces]):
            src, src_mask = padded_sources([pieces[i] for i in group], self.special)
            hypotheses = beam_search(
                self.model, src.to(self._device), src_mask.to(self._device), self.special, self.settings, n_best=n_best
            )
            for i, best in zip(group, hypotheses, strict=True):
                found[i] = best
        return [
            self._translation(text, [found[i] for i in place]) for (_, text), place in zip(lines, places, strict=True)
        ]

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
        if group and (len(group) == MAX_SENTENCES or (len(group) + 1) * lengths[i] > MAX_SRC_TOKENS):
            yield group
            group = []
        group.append(i)
    if group:
        yield group
