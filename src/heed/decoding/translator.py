"""Texts → translations: batches a stream by length, keeps its order."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, overload

from heed.backends.protocol import SearchModel
from heed.config import shown
from heed.data.reading.stream import wait_for_more
from heed.decoding.beam import Hypothesis, SearchPlan
from heed.decoding.direction import Direction
from heed.decoding.distinct import distinct_search
from heed.decoding.loading import (
    choose_precision,
    description,
    list_of,
    load_models,
    no_report,
    prepack_models,
    ready_models,
    recipe_settings,
)
from heed.decoding.pair_scorer import PairScorer
from heed.decoding.parallel import parallel_search
from heed.decoding.prefixes import LinePrefixes
from heed.decoding.settings import DecodingOptions, DecodingSettings, SamplingSettings, check_n_best, limits_to_raise
from heed.decoding.source_queue import Source, longest_source, search_in_order
from heed.decoding.translation import Translation, without_blank
from heed.errors import HeedError, check_texts, check_type, refuse_text
from heed.evaluation.utility import Utility, check_utility, mean_utilities
from heed.runtime.device import DecodingPrecisionChoice
from heed.runtime.progress import Task, progress
from heed.text.alignment import Translated
from heed.text.line_rules import Mentions, Spans, is_blank, is_repetition, is_strange, is_uneven
from heed.text.long_lines import Part, cut_line
from heed.text.prefix import Prefix
from heed.text.printable import printable
from heed.text.tokenizer_kinds import AnyTokenizer

MAX_CANDIDATES = 100  # of minimum Bayes risk: each is compared with each


class Translator(PairScorer):
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
        direction: Direction | None = None,
    ):
        """precision: in which it computes; "auto" takes the fastest that this machine is good at.

        languages: the codes of source and target; the target's says how the utility "bleu" tokenises. direction: these
        and more, of a model of several languages.

        copy: whether the models stay as they are; else they become the translator's, which halves the memory.
        """
        self._given = [*list_of(models)] if copy else []  # whose attention can be looked at
        first = list_of(models)[0]
        self.precision = choose_precision(first, precision, device_name=first.device_name, report=report)
        self.models = prepack_models(models, self.precision, copy=copy)
        self.tokenizer, self.report = tokenizer, report
        self.settings = settings or DecodingSettings()
        self.direction = direction or Direction(languages)
        self._text_tokenizer = tokenizer.without_codes if self.direction.of_several else tokenizer
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
        source: str | None = None,
        target: str | None = None,
        **decoding: Unpack[DecodingOptions],
    ) -> "Translator":
        """The translator of a model folder, or of several, which decide together.

        source, target: languages, of a model of several, as `between` takes them.

        It searches as the first model's recipe says; DecodingSettings given as keywords replace the recipe's. HeedError
        if a setting is unknown, out of range or without effect, a folder is damaged, or the folders' tokenizers differ.
        """
        loaded = load_models(folders)
        direction = Direction.of(loaded[0].card, loaded[0].tokenizer).between(source, target)
        settings = recipe_settings(loaded[0], decoding, where=str(folders[0]))
        models, chosen = ready_models(loaded, precision, device=device, report=report)
        translator = cls(
            models,
            loaded[0].tokenizer,
            settings,
            precision=chosen,
            report=report,
            copy=False,
            direction=direction,
        )
        translator.folders, translator.examples = folders, loaded[0].card.examples
        return translator

    @property
    def languages(self) -> tuple[str, str]:
        """The codes of source and target; "mul" where a model of several languages is not told which."""
        return self.direction.languages

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The languages that it translates between: one pair, or all those of a model of several."""
        several = self.direction.of_several
        if several is None:
            return [self.languages]
        return [(src, tgt) for src in several.all_sources for tgt in several.all_targets if src != tgt]

    def between(self, source: str | None = None, target: str | None = None) -> "Translator":
        """This translator from and into these languages, with the same models. None: as it does now.

        Any code that means a language will do: de, deu, deu_Latn, DE. HeedError if the model does not translate between
        them.
        """
        other = object.__new__(type(self))  # a copy by its pickle would have other models
        other.__dict__.update(self.__dict__)
        other.direction = self.direction.between(source, target)
        return other

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
        source: str | None = ...,
        target: str | None = ...,
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
        source: str | None = ...,
        target: str | None = ...,
    ) -> list[Translation]: ...

    def translate(
        self,
        texts: str | Iterable[str],
        *,
        n_best: int = 1,
        prefix: str | Iterable[str] = "",
        sampling: SamplingSettings | None = None,
        utility: Utility | None = None,
        source: str | None = None,
        target: str | None = None,
    ) -> Translation | list[Translation]:
        """The translation of a text, or a list with one of each text, in order. A blank text becomes an empty one.

        source, target: languages, of a model of several, as `between` takes them.

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
        if source is not None or target is not None:
            options: Any = {"n_best": n_best, "prefix": prefix, "sampling": sampling, "utility": utility}
            return self.between(source, target).translate(texts, **options)
        refuse_text(texts=[texts] if isinstance(texts, str) else texts)
        several = [texts] if isinstance(texts, str) else list(texts)
        check_texts(texts=several)
        with progress("Translating", total=len(several), unit="lines") as task:
            translations = list(
                self.stream(several, n_best=n_best, prefix=prefix, sampling=sampling, utility=utility, task=task)
            )
        return translations[0] if isinstance(texts, str) else translations

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
        _check_types(n_best, prefix, sampling)
        self.direction.check()
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
        unread, cut_off, blank, uneven = Mentions(), Mentions(), Mentions(), Mentions()
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
                if not (is_told or few or keep_words) and is_strange(*self._with_spans(line)):
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
                    self._source(line_number, place, piece, begins_with if place == 0 else None)
                    for place, piece in enumerate(pieces)
                ]

        # In bf16 a result may depend on what is searched beside it.
        searching = distinct_search if self.precision == "bf16" else parallel_search
        plan = SearchPlan(
            *(self.models, self.tokenizer.special, self.settings), sampling=sampling, wait=wait_for_more(texts)
        )

        def find(
            sources: Iterator[Source | None], n_asked: int = n_best if utility is None else n_candidates
        ) -> Iterator[tuple[int, list[Hypothesis]] | None]:
            return searching(replace(plan, n_best=n_asked), sources, text_of=self.text_of if utility is None else None)

        # Translations leave in the order of their texts.
        n_short = 0  # texts with fewer alternatives; one in pieces never has more than one
        for text, results in search_in_order(texts, sources_of, find, size=_n_characters, task=task):
            if utility is None:
                translation = self.joined(text, results)
            else:
                ranked = [self._rank(drafts, utility, drawn=sampling is not None)[:n_best] for drafts in results]
                translation = self._join_by_utility(text, ranked)
            number = next(results_numbers)
            if keep_words and is_blank(translation.text) and not is_blank(text):
                blank.add(name(number, text))
                pieces = enumerate(self.pieces([text])[0])
                others = filter(None, find((self._source(number, i, piece) for i, piece in pieces), n_candidates))
                translation = without_blank(self.joined(text, [ranked for _, ranked in sorted(others)])) or translation
            if not translation.ended:
                cut_off.add(name(number, text))
                n_repeating += is_repetition(translation.tokens) and not is_repetition(text.split())
            elif is_uneven(text, translation.text):
                uneven.add(name(number, text))
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
        if uneven:
            self.report(f"Much longer or shorter than the source, so perhaps not a translation of it: {uneven}.")
        if cut_off:
            advice = limits_to_raise(self.settings)
            if n_repeating:  # a higher limit would only give more of it
                advice = "They repeat themselves: the model has learned too little, or knows no such text."
            self.report(f"Cut off, as they reached the longest length that is allowed: {cut_off}. {advice}")

    def _unknown_text(self, text: str) -> str:
        """The parts of a source that the vocabulary lacks."""
        text, spans = self._with_spans(text)
        ids = self._text_tokenizer.encode(text)
        tokens = zip(ids, spans, strict=False)  # an id at the end may have no span
        return " ".join(text[start:end] for i, (start, end) in tokens if i == self.tokenizer.special.unk)

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
        return sorted(zip(utilities, first, strict=True), key=lambda pair: -pair[0])

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
        if self.direction.forced.end:
            prefix = prefix.behind(self.direction.forced.ids.tolist())
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
        read = [self.direction.read(text) for text in texts]
        encoded = self._text_tokenizer.encode_lines([text for _, text in read])
        return [
            [] if is_blank(text) or not ids
            else [[*before, *ids]] if len(ids) + len(before) <= self._piece_tokens
            else [[*before, *ids] for _, ids in self._parts(text, len(before))]
            for (before, text), ids in zip(read, encoded, strict=True)
        ]  # fmt: skip

    def _parts(self, text: str, n_before: int) -> list[tuple[Part, list[int]]]:
        """The parts, with their ids, of a text that is too long for one search; n_before more ids fit with each."""
        n_tokens = self._piece_tokens - n_before
        parts = cut_line(text, n_tokens, spans_of=self._spans, encode=self._text_tokenizer.encode_lines)
        return [(part, ids) for part, ids in parts if ids]

    def _with_spans(self, text: str) -> tuple[str, Spans]:
        _, plain = self.direction.read(text)
        return plain, self._spans(plain)

    def _spans(self, text: str) -> Spans:
        return self._text_tokenizer.src_spans([text])[0]

    def _source(self, number: int, place: int, ids: list[int], prefix: Prefix | None = None) -> Source:
        """A piece of the text of this number; 2²¹ is more pieces than any has.

        Numbered by line, so that no other line changes what is drawn.
        """
        return Source(number << 21 | place, ids, self.direction.forced if prefix is None else prefix)

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
            before, text = self.direction.read(source)
            parts = [part for part, _ in self._parts(text, len(before))] if pieces else []
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
        text, n_forced = "", self.direction.forced.end
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
            tokens=tuple(token for one in hypotheses for token in self.tokenizer.tokens(one.ids[n_forced:])),
        )


def _n_characters(text: str) -> int:
    if not isinstance(text, str):
        raise HeedError(f"a text is of type {type(text).__name__}; every one must be a text (str).")
    return len(text)


def _check_types(n_best: int, prefix: object, sampling: object) -> None:
    check_n_best(n_best)
    check_type(Iterable, "a text, or a list with one for each text", prefix=prefix)
    check_type(SamplingSettings | None, "SamplingSettings or None", sampling=sampling)


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
