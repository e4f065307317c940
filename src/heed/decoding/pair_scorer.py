"""What a translator's models say of given pairs of texts: log-probabilities, attention, alignments."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heed.backends.protocol import SearchModel
from heed.decoding.direction import Direction
from heed.decoding.given_pairs import attended_places, pair_log_probs
from heed.decoding.loading import PickledByValue, load_models
from heed.errors import HeedError, check_texts, refuse_text
from heed.text.alignment import Link
from heed.text.line_rules import is_blank
from heed.text.tokenizer_kinds import AnyTokenizer

if TYPE_CHECKING:
    from heed.model.attention_weights import AttentionWeights
    from heed.model.transformer import Transformer


class PairScorer(PickledByValue):
    """The part of a Translator that searches nothing."""

    models: list[SearchModel]
    tokenizer: AnyTokenizer
    direction: Direction
    folders: tuple[str | Path, ...]
    _text_tokenizer: AnyTokenizer
    _given: list[SearchModel]
    _piece_tokens: int

    def log_probs(self, sources: list[str], targets: Sequence[str | Sequence[str]]) -> list[list[float]]:
        """For each given target, the log-probability of each of its ids and of eos, given its source.

        A target is a text, or a list of tokens as a `Translation` has them, which is scored in this segmentation.

        A text with a symbol that is not in the vocabulary is scored as an empty one: eos alone. HeedError if there
        are not as many targets as sources, for an unknown token, or if a pair is longer than learned positions.
        """
        check_texts(sources=sources)
        refuse_text(targets=targets)
        if len(sources) != len(targets):
            raise HeedError(f"{len(sources):,} sources, {len(targets):,} targets: both must have the same number.")
        forced = self.direction.forced.ids.tolist()
        pairs = [
            (src, [*forced, *tgt]) for src, tgt in zip(self.source_ids(sources), self._target_ids(targets), strict=True)
        ]
        learned = [model.arch.max_positions for model in self.models if model.arch.positions == "learned"]
        for number, longest in enumerate((1 + max(map(len, pair)) for pair in pairs), start=1):
            if learned and longest > min(learned):
                raise HeedError(
                    f"line {number:,}: {longest:,} positions to score, but the model has "
                    f"max_positions={min(learned):,}; leave the line out."
                )
        return [log_probs[len(forced) :] for log_probs in pair_log_probs(self.models, pairs, self.tokenizer.special)]

    def source_ids(self, texts: list[str]) -> list[list[int]]:
        """The ids of whole texts, with those in front that tell the languages."""
        read = [self.direction.read(text) for text in texts]
        encoded = self._text_tokenizer.encode_lines([text for _, text in read])
        return [[*before, *ids] for (before, _), ids in zip(read, encoded, strict=True)]

    def _target_ids(self, targets: Sequence[str | Sequence[str]]) -> list[list[int]]:
        """The ids of texts and lists of tokens."""
        of_texts = iter(self.tokenizer.encode_targets([target for target in targets if isinstance(target, str)]))
        ids = []
        for number, target in enumerate(targets, start=1):
            if not isinstance(target, str):
                check_texts(**{f"targets[{number - 1}]": target})
            try:
                ids.append(next(of_texts) if isinstance(target, str) else self.tokenizer.token_ids(target))
            except HeedError as error:
                raise HeedError(f"line {number:,}: {error}") from None
        return ids

    def attention(self, source: str, target: str) -> "AttentionWeights":
        """Every head's weights while the model writes this target, such as a translation's text, for this source.

        Rows and columns are the ids of `tokenizer.encode`: the source followed by eos, the target preceded by bos. It
        is the plain network that computes them, which needs PyTorch, in fp32 on a CPU.
        """
        from heed.model.attention_weights import attention_weights

        check_texts(texts=[source, target])
        src = [*self.source_ids([source])[0], self.tokenizer.special.eos]
        forced = self.direction.forced.ids.tolist()
        tgt_in = [self.tokenizer.special.bos, *forced, *self.tokenizer.encode_targets([target])[0]]
        return attention_weights(self._module(), src, tgt_in)

    def _module(self) -> "Transformer":
        """The first model as a module."""
        model: Any = self.models[0]
        if self._given:
            model = self._given[0]
        elif self.folders and model.device_name == "cpu":
            model = load_models(self.folders[:1])[0].model
        if not hasattr(model, "modules"):
            raise HeedError("packed weights show no attention: give the Translator the model itself, or load a folder.")
        module: Transformer = model
        return module

    def alignments(
        self, sources: list[str], targets: list[str], *, layer: int | None = None
    ) -> list[tuple[Link, ...] | None]:
        """For each pair the source token that each target token attends to most, both as spans of characters.

        The weights are the mean of the heads of one decoder layer, numbered from 1. Default: for each pair the layer
        that attends to the most different tokens, the last of several such. Which layer aligns depends on the model:
        Garg et al. 2019 find the fifth of six best; of the two layers of the number-word model the last one finds the
        right word for 44 of 45 digits, the first one for 7.

        None for a pair without words, or with a side of more tokens than one search takes. Costs one forward pass.
        """
        check_texts(sources=sources, targets=targets)
        n_layers = self.models[0].arch.decoder_layers
        if layer is not None and not 1 <= layer <= n_layers:
            raise HeedError(f"layer {layer}: the model has {n_layers}.")
        tokenizer = self.tokenizer
        read, forced = [self.direction.read(text) for text in sources], self.direction.forced.ids.tolist()
        plain = [text for _, text in read]
        pairs = list(zip(self._text_tokenizer.encode_lines(plain), tokenizer.encode_targets(targets), strict=True))
        spans = list(zip(self._text_tokenizer.src_spans(plain), tokenizer.tgt_spans(targets), strict=True))
        # Symbols of trees have no spans.
        known = [
            i
            for i, (pair, sides) in enumerate(zip(pairs, spans, strict=True))
            if all(pair)  # of a text without a visible character, SentencePiece may leave nothing
            and list(map(len, pair)) == list(map(len, sides))
            and not is_blank(sources[i])
            and not is_blank(targets[i])
            and max(map(len, pair)) <= self._piece_tokens
        ]
        told = [(read[i][0], forced) for i in known]
        attended = attended_places(self.models[0], [pairs[i] for i in known], told, tokenizer.special, layer=layer)
        results: list[tuple[Link, ...] | None] = [None] * len(pairs)
        for i, places in zip(known, attended, strict=True):
            src_spans, tgt_spans = spans[i]
            shift = len(sources[i]) - len(plain[i])  # of a code before the text
            links = ((*span, *src_spans[j]) for span, j in zip(tgt_spans, places, strict=True))
            results[i] = tuple(Link(first, end, src + shift, to + shift) for first, end, src, to in links)
        return results

    def alignment(self, source: str, target: str, *, layer: int | None = None) -> tuple[Link, ...] | None:
        """The alignment of one pair; see `alignments`."""
        return self.alignments([source], [target], layer=layer)[0]
