"""Texts → translations: batches a stream by length, keeps its order."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from heed.backends.protocol import SearchModel
from heed.config import shown
from heed.data.reading.stream import wait_for_more
from heed.decoding.beam import Hypothesis
from heed.decoding.distinct import distinct_search
from heed.decoding.loading import (
    PickledByValue,
    choose_precision,
    description,
    list_of,
    load_models,
    no_report,
    prepack_models,
    ready_models,
    recipe_settings,
)
from heed.decoding.pairs import attended_places, pair_log_probs
from heed.decoding.parallel import parallel_search
from heed.decoding.prefixes import LinePrefixes
from heed.decoding.settings import DecodingOptions, DecodingSettings, SamplingSettings, check_n_best, limits_to_raise
from heed.decoding.stream import Source, longest_source, search_in_order
from heed.errors import HeedError, check_texts, refuse_text
from heed.evaluation.utility import Utility, check_utility, mean_utilities
from heed.runtime.device import DecodingPrecisionChoice
from heed.runtime.progress import Task, progress
from heed.text.alignment import Link, Translated
from heed.text.line_rules import Mentions, Part, Spans, cut_line, is_blank, is_repetition, is_strange
from heed.text.prefix import NO_PREFIX, Prefix
from heed.text.printable import printable
from heed.text.tokenizer_kinds import AnyTokenizer

if TYPE_CHECKING:
    from heed.model.attention_weights import AttentionWeights
    from heed.model.transformer import Transformer

MAX_CANDIDATES = 100  # of minimum Bayes risk: each is compared with each


@dataclass(frozen=True)
class Translation:
    """A translated line; `alternatives` are the n best, this one first. log_prob is natural, score length-penalised.

    n_pieces: into how many pieces the source was cut because it has too many tokens for one search.
    tokens: the target's, as `tokenizer.tokens` names them; of a source in pieces, those of all pieces.
    utility: its expected score, 0 to 100, if minimum Bayes risk chose it; None for a source of no piece or several.
    is_best: false where the best one is blank, so that another, or the source, stands here.
    """

    source: str
    text: str
    score: float
    log_prob: float
    ended: bool
    alternatives: tuple["Translation", ...] = field(default=(), repr=False)
    n_pieces: int = 1
    utility: float | None = None
    tokens: tuple[str, ...] = ()
    is_best: bool = True


class Translator(PickledByValue):
    """A model with its tokenizer and search settings, or several models of one vocabulary, which decide together.

    On a CPU with the kernels, in fp32 and int8, a line's translation and score are the same bits for every batching,
    unless the model's attention has a radius.

    Thread safety: `translate`, `stream`, `log_probs` and `attention` change nothing in the translator, so several
    threads may call them at once and get the results that they would get one after the other; one stream belongs to one
    thread at a time, and `report` is called from the thread whose line it is about. A translator can be pickled, also
    into another process of the same machine, if its `report` can.
    """

    def __init__(
        self,
        models: SearchModel | Sequence[SearchModel],
        tokenizer: AnyTokenizer,
        settings: DecodingSettings | None = None,
        *,
        precision: DecodingPrecisionChoice = "auto",
        report: Callable[[str], None] = no_report,
        copy: bool = True,
        languages: tuple[str, str] = ("", ""),
    ):
        """precision: in which it computes; "auto" takes the fastest that this machine is good at.

        languages: the codes of source and target; the target's says how the utility "bleu" tokenises.

        copy: whether the models stay as they are; else they become the translator's, which halves the memory.
        """
        self._given = [*list_of(models)] if copy else []  # whose attention can be looked at
        first = list_of(models)[0]
        self.precision = choose_precision(first, precision, device_name=first.device_name, report=report)
        self.models = prepack_models(models, self.precision, copy=copy)
        self.tokenizer, self.report = tokenizer, report
        self.settings = settings or DecodingSettings()
        self.languages = languages
        self.folders: tuple[str | Path, ...] = ()  # of the models, if they were loaded
        self.examples: Sequence[str] = ()  # text that the model knows, by its card
        self._piece_tokens = min(longest_source(model.arch, self.settings) for model in self.models)

    @classmethod
    def load(
        cls,
        *folders: str | Path,
        device: str | None = None,
        precision: DecodingPrecisionChoice = "auto",
        report: Callable[[str], None] = no_report,
        **decoding: Unpack[DecodingOptions],
    ) -> "Translator":
        """The translator of a model folder, or of several, which decide together.

        It searches as the first model's recipe says; DecodingSettings given as keywords replace the recipe's. HeedError
        if a setting is unknown, out of range or without effect, a folder is damaged, or the folders' tokenizers differ.
        """
        loaded = load_models(folders)
        settings = recipe_settings(loaded[0], decoding, where=str(folders[0]))
        models, chosen = ready_models(loaded, precision, device=device, report=report)
        translator = cls(
            models,
            loaded[0].tokenizer,
            settings,
            precision=chosen,
            report=report,
            copy=False,
            languages=(loaded[0].card.src, loaded[0].card.tgt),
        )
        translator.folders, translator.examples = folders, loaded[0].card.examples
        return translator

    def __repr__(self) -> str:
        task = " → ".join(printable(language) if language else "?" for language in self.languages)
        beam_size = self.settings.beam_size
        about = description(self.models, self.folders, task=task, precision=self.precision, beam_size=beam_size)
        return f"<Translator {about}>"

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is an Iterable[str] of its characters
        self,
        texts: str,
        *,
        n_best: int = ...,
        prefix: str = ...,
        sampling: SamplingSettings | None = ...,
        utility: Utility | None = ...,
    ) -> Translation: ...

    @overload
    def translate(
        self,
        texts: Iterable[str],
        *,
        n_best: int = ...,
        prefix: str | Iterable[str] = ...,
        sampling: SamplingSettings | None = ...,
        utility: Utility | None = ...,
    ) -> list[Translation]: ...

    def translate(
        self,
        texts: str | Iterable[str],
        *,
        n_best: int = 1,
        prefix: str | Iterable[str] = "",
        sampling: SamplingSettings | None = None,
        utility: Utility | None = None,
    ) -> Translation | list[Translation]:
        """The translation of a text, or a list with one of each text, in order. A blank text becomes an empty one.

        n_best: how many alternatives each has, at most beam_size; their texts differ. The first is what a search for
        one finds; a text has fewer alternatives where a beam of 4 · beam_size finds no more. sampling: draws beam_size
        translations and gives the n_best of them, instead of searching; draws are independent, so texts may be equal.

        prefix: the text that every translation begins with, or a text for each; of a text in pieces, the first one's.
        A model may write a prefix, and what follows it, in whichever tokens it finds best, so a prefix may end within a
        word. HeedError for characters that the vocabulary lacks, for more tokens than max_tokens or learned positions
        leave room for, and unless there are as many as texts.

        utility: minimum Bayes risk decoding. Of beam_size translations, drawn or else found, gives the n_best of the
        highest expected score ("chrf" or "bleu"), all of them being references: those drawn with equal weight (Eikema &
        Aziz 2020), those found by their probability (Kumar & Byrne 2004). Equal texts count as one. A text in pieces is
        chosen piece by piece. HeedError for a beam_size above 100.
        """
        refuse_text(texts=[texts] if isinstance(texts, str) else texts)
        several = [texts] if isinstance(texts, str) else list(texts)
        check_texts(texts=several)
        with progress("Translating", total=len(several), unit="lines") as task:
            found = list(
                self.stream(several, n_best=n_best, prefix=prefix, sampling=sampling, utility=utility, task=task)
            )
        return found[0] if isinstance(texts, str) else found

    def stream(
        self,
        texts: Iterable[str | None],
        *,
        n_best: int = 1,
        prefix: str | Iterable[str] = "",
        sampling: SamplingSettings | None = None,
        utility: Utility | None = None,
        name: Callable[[int, str], str] = lambda number, text: f"line {number}",
        prefixes_name: str = "prefix",
        keep_words: bool = False,
        task: Task | None = None,
    ) -> Iterator[Translation]:
        """Translates while the texts come in; memory does not grow with their number. Options as for `translate`.

        None in place of a text means that the next one has not arrived yet: earlier texts are translated without
        waiting for it. `texts` may have a method `wait`, which blocks until it arrives.

        name: what reports call a text, given its number from 1 and the text. prefixes_name: what errors call the
        prefixes, such as their file. keep_words: a text whose best translation is blank gets the next one that is not;
        such texts are reported. task: counts the texts that are translated.
        """
        # Faults that show before any text is read.
        refuse_text(texts=texts)
        check_n_best(n_best)
        n_candidates = self.settings.beam_size
        if n_best > n_candidates:
            raise HeedError(f"n_best is {n_best:,}, more than beam_size, {n_candidates:,}; raise that.")
        if utility is not None and check_utility(utility) and n_candidates > MAX_CANDIDATES:
            raise HeedError(
                f"a choice by utility takes a beam_size of at most {MAX_CANDIDATES}, found {n_candidates:,}."
            )
        # Texts that reports at the end will mention; numbers are counted twice, as results come later.
        prefixes = LinePrefixes(prefix, texts, self.prefix, name=prefixes_name)
        line_numbers, results_numbers = itertools.count(1), itertools.count(1)
        unread, cut_off, blank = Mentions(), Mentions(), Mentions()
        is_told, n_repeating = False, 0  # of strange text, once; those that are cut off

        def sources_of(lines: list[str]) -> Iterator[list[Source]]:
            nonlocal is_told
            for line, pieces in zip(lines, self.pieces(lines), strict=True):
                line_number = next(line_numbers)
                begins_with = prefixes.next()
                if any(self.tokenizer.special.unk in piece for piece in pieces):
                    unread.add(f"{name(line_number, line)} ({shown(self._unknown_text(line))})")
                # Spans cost a second encoding: of few tokens for its letters, no line is strange. The parts of a
                # document come in several streams, each of which would tell it.
                few = 2 * sum(map(len, pieces)) < len(line) - line.count(" ")
                if not (is_told or few or keep_words) and is_strange(line, self.tokenizer.src_spans([line])[0]):
                    is_told = True
                    known = f"; it knows text such as {', '.join(map(shown, self.examples))}" if self.examples else ""
                    self.report(
                        f"{name(line_number, line)} ({shown(line)}) is unlike the text that the model was trained on: "
                        f"to its vocabulary it is mostly single letters{known}."
                    )
                if len(pieces) > 1:
                    n_tokens = sum(map(len, pieces))
                    self.report(f"{name(line_number, line)}: {n_tokens:,} tokens, translated in {len(pieces)} pieces.")
                yield [
                    # Numbered by line, so that no other line changes what is drawn; 2²¹ is more pieces than any has.
                    Source(line_number << 21 | place, piece, begins_with if place == 0 else NO_PREFIX)
                    for place, piece in enumerate(pieces)
                ]

        def find(
            sources: Iterator[Source | None], n_found: int = n_best if utility is None else n_candidates
        ) -> Iterator[tuple[int, list[Hypothesis]] | None]:
            # In bf16 a result may depend on what is searched beside it.
            searching = distinct_search if self.precision == "bf16" else parallel_search
            return searching(
                self.models, sources, self.tokenizer.special, self.settings,
                n_best=n_found, text_of=self.text_of if utility is None else None, sampling=sampling,
                wait=wait_for_more(texts),
            )  # fmt: skip

        # Translations leave in the order of their texts.
        n_short = 0  # texts with fewer alternatives; one in pieces never has more than one
        for text, results in search_in_order(texts, sources_of, find, size=_n_characters, task=task):
            if utility is None:
                translation = self.joined(text, results)
            else:
                ranked = [self._rank(found, utility, drawn=sampling is not None)[:n_best] for found in results]
                translation = self._join_by_utility(text, ranked)
            number = next(results_numbers)
            if keep_words and is_blank(translation.text) and not is_blank(text):
                blank.add(name(number, text))
                pieces = enumerate(self.pieces([text])[0])
                others = filter(None, find((Source(number << 21 | i, piece) for i, piece in pieces), n_candidates))
                translation = without_blank(self.joined(text, [ranked for _, ranked in sorted(others)])) or translation
            if not translation.ended:
                cut_off.add(name(number, text))
                n_repeating += is_repetition(translation.tokens) and not is_repetition(text.split())
            n_short += len(results) == 1 and len(translation.alternatives) < n_best
            yield translation
        # What the user should know of all texts together.
        prefixes.end()
        if n_short:
            lines = "1 line has" if n_short == 1 else f"{n_short:,} lines have"
            self.report(f"{lines} fewer than {n_best:,} different translations.")
        if unread:
            self.report(f"The model's vocabulary lacks a part of {unread}; it was not translated.")
        if blank:
            self.report(f"The best translation of {blank} is empty: the next best one, or the text itself, was taken.")
        if cut_off:
            advice = limits_to_raise(self.settings)
            if n_repeating:  # a higher limit would only give more of it
                advice = "They repeat themselves: the model has learned too little, or knows no such text."
            self.report(f"Cut off, as they reached the longest length that is allowed: {cut_off}. {advice}")

    def _unknown_text(self, text: str) -> str:
        """The parts of a source that the vocabulary lacks."""
        ids, spans = self.tokenizer.encode(text), self.tokenizer.src_spans([text])[0]
        found = zip(ids, spans, strict=False)  # an id at the end may have no span
        return " ".join(text[start:end] for i, (start, end) in found if i == self.tokenizer.special.unk)

    def _rank(self, hypotheses: list[Hypothesis], utility: Utility, *, drawn: bool) -> list[tuple[float, Hypothesis]]:
        """(expected utility, hypothesis) of each different text, best first; ties stay in the order found."""
        weights: dict[str, float] = {}
        first: list[Hypothesis] = []
        most = max(hypothesis.log_prob for hypothesis in hypotheses)
        for hypothesis in hypotheses:
            text = self.text_of(hypothesis)
            if text not in weights:
                weights[text] = 0.0
                first.append(hypothesis)
            weights[text] += 1.0 if drawn else math.exp(hypothesis.log_prob - most)
        utilities = mean_utilities(list(weights), list(weights.values()), utility, language=self.languages[1])
        return sorted(zip(utilities, first, strict=True), key=lambda found: -found[0])

    def _join_by_utility(self, source: str, pieces: list[list[tuple[float, Hypothesis]]]) -> Translation:
        """The translation that hypotheses with utilities make; see `joined`."""
        translation = self.joined(source, [[hypothesis for _, hypothesis in piece] for piece in pieces])
        if len(pieces) != 1:
            return translation
        alternatives = tuple(
            replace(one, utility=value) for one, (value, _) in zip(translation.alternatives, pieces[0], strict=True)
        )
        return replace(translation, alternatives=alternatives, utility=alternatives[0].utility)

    def prefix(self, text: str) -> Prefix:
        """The prefix that all translations with this beginning share, as a search takes it.

        HeedError for text that the vocabulary lacks, and if no translation has room for it.
        """
        prefix = self.tokenizer.prefix(text)
        archs = [model.arch for model in self.models]
        limits = [("max_positions", arch.max_positions) for arch in archs if arch.positions == "learned"]
        if self.settings.max_tokens is not None:
            limits.append(("max_tokens", self.settings.max_tokens))
        for name, limit in limits:
            if prefix.end and prefix.n_tokens >= limit:
                raise HeedError(
                    f"the prefix has at least {prefix.n_tokens:,} tokens, {name}={limit}: shorten it, so that an end "
                    "of sentence fits too."
                )
        return prefix

    def pieces(self, texts: list[str]) -> list[list[list[int]]]:
        """The ids of each text, in pieces where they are too many for one search; no piece for a blank text.

        A text is cut at the end of a sentence, else at a space, else between graphemes.
        """
        return [
            [] if is_blank(text) or not ids
            else [ids] if len(ids) <= self._piece_tokens
            else [ids for _, ids in self._parts(text)]
            for text, ids in zip(texts, self.tokenizer.encode_lines(texts), strict=True)
        ]  # fmt: skip

    def _parts(self, text: str) -> list[tuple[Part, list[int]]]:
        """The parts, with their ids, of a text that is too long for one search."""

        def spans_of(part: str) -> Spans:
            return self.tokenizer.src_spans([part])[0]

        parts = cut_line(text, self._piece_tokens, spans_of=spans_of, encode=self.tokenizer.encode_lines)
        return [(part, ids) for part, ids in parts if ids]

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
        pairs = list(zip(self.tokenizer.encode_lines(sources), self._target_ids(targets), strict=True))
        learned = [model.arch.max_positions for model in self.models if model.arch.positions == "learned"]
        for number, longest in enumerate((1 + max(map(len, pair)) for pair in pairs), start=1):
            if learned and longest > min(learned):
                raise HeedError(
                    f"line {number:,}: {longest:,} positions to score, but the model has "
                    f"max_positions={min(learned):,}; leave the line out."
                )
        return pair_log_probs(self.models, pairs, self.tokenizer.special)

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
        src = [*self.tokenizer.encode(source), self.tokenizer.special.eos]
        tgt_in = [self.tokenizer.special.bos, *self.tokenizer.encode_targets([target])[0]]
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
        pairs = list(zip(tokenizer.encode_lines(sources), tokenizer.encode_targets(targets), strict=True))
        spans = list(zip(tokenizer.src_spans(sources), tokenizer.tgt_spans(targets), strict=True))
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
        attended = attended_places(self.models[0], [pairs[i] for i in known], tokenizer.special, layer=layer)
        results: list[tuple[Link, ...] | None] = [None] * len(pairs)
        for i, places in zip(known, attended, strict=True):
            src_spans, tgt_spans = spans[i]
            results[i] = tuple(Link(*span, *src_spans[j]) for span, j in zip(tgt_spans, places, strict=True))
        return results

    def alignment(self, source: str, target: str, *, layer: int | None = None) -> tuple[Link, ...] | None:
        """The alignment of one pair; see `alignments`."""
        return self.alignments([source], [target], layer=layer)[0]

    def translate_aligned(self, texts: Sequence[str]) -> list[Translated]:
        """The best translation of each text that is not blank, with its alignment: for documents."""

        def name(number: int, text: str) -> str:
            return f"the sentence {shown(text[:40] + ' …')}"  # a document has no such line

        translations = [translation.text for translation in self.stream(texts, name=name, keep_words=True)]
        links = self.alignments(list(texts), translations)
        return [Translated(text, link) for text, link in zip(translations, links, strict=True)]

    def joined(self, source: str, pieces: list[list[Hypothesis]]) -> Translation:
        """The translation that the hypotheses of a text's `pieces` make.

        Of one piece, its n best; of several, the best of each, joined with what stands between the pieces in the text;
        of no piece, the empty text with probability 1.
        """
        if len(pieces) == 1:
            texts = [self._text(source, [hypothesis]) for hypothesis in pieces[0]]
        else:
            parts = [part for part, _ in self._parts(source)] if pieces else []
            texts = [self._text(source, [hypotheses[0] for hypotheses in pieces], parts)]
        best = texts[0]
        return Translation(
            source,
            best.text,
            best.score,
            best.log_prob,
            best.ended,
            tuple(texts),
            n_pieces=max(1, len(pieces)),
            tokens=best.tokens,
        )

    def text_of(self, hypothesis: Hypothesis) -> str:
        """The text of a hypothesis, as one line, whatever the model writes."""
        return _one_line(self.tokenizer.decode(hypothesis.ids))

    def _text(self, source: str, hypotheses: list[Hypothesis], parts: Sequence[Part] = (Part(""),)) -> Translation:
        text = ""
        for hypothesis, part in zip(hypotheses, parts, strict=True):
            translation, between = self.text_of(hypothesis), part.before
            if part.after_sentence and text.endswith((".", "!", "?")) and translation[:1].isalnum():
                between = between or " "  # from a language that needs no space there to one that does
            text += _one_line(between) + translation
        return Translation(
            source,
            text,
            math.fsum(hypothesis.score for hypothesis in hypotheses),
            math.fsum(hypothesis.log_prob for hypothesis in hypotheses),
            all(hypothesis.ended for hypothesis in hypotheses),
            tokens=tuple(token for one in hypotheses for token in self.tokenizer.tokens(one.ids)),
        )


def without_blank(translation: Translation) -> Translation | None:
    """The best of its alternatives that is not blank, with the others that are not; None if there is none."""
    found = tuple(one for one in translation.alternatives or (translation,) if not is_blank(one.text))
    return replace(found[0], alternatives=found, n_pieces=translation.n_pieces, is_best=False) if found else None


def _n_characters(text: str) -> int:
    if not isinstance(text, str):
        raise HeedError(f"a text is of type {type(text).__name__}; every one must be a text (str).")
    return len(text)


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
