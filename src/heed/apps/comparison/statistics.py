"""Translations by several systems, held against one reference: which differences are significant, and where they lie.

The tests use the same sentences for both systems: paired bootstrap resampling (Koehn 2004), which is sacrebleu's, and
approximate randomisation (Riezler and Maxwell 2005). Each system is compared with the first.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sacrebleu.metrics.base import Score, Signature
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from heed.errors import HeedError
from heed.evaluation.comet import comet_scores
from heed.evaluation.edit_rate import translation_edit_rate
from heed.evaluation.tokenization import (
    TokenizationChoice,
    Writing,
    bleu_metric,
    choose_tokenization,
    split_characters,
    target_writing,
)
from heed.runtime.progress import progress, track

SIGNIFICANT = 0.05
N_TRIALS = 10_000  # of approximate randomisation: sacrebleu's number
MAX_SENTENCES = 20_000  # the tests hold about 130 kB per sentence
MAX_TER_WORDS = 300  # of a line, or characters: two or three seconds of TER's search for shifts, and growing fast
N_SHOWN = 10  # sentences a system that gain most, and as many that lose most
N_LENGTH_GROUPS = 5
# From this many occurrences on, as compare-mt groups words but in fewer classes.
FREQUENCIES = (0, 1, 2, 5, 10, 100, 1000)
LOWER_IS_BETTER = ("TER",)

Verdict = Literal["better", "worse", "not significant", "the tests disagree"]


@dataclass(frozen=True)
class ComparedScore:
    """One system's score by one metric, and how it differs from the first system's.

    mean, half_width: of the 95 % confidence interval by bootstrap resampling. difference, the p values and the verdict
    are None for the first system.
    """

    score: float
    mean: float
    half_width: float
    difference: float | None = None
    p_bootstrap: float | None = None
    p_randomisation: float | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class ComparedSystem:
    """scores: by metric. n_better, n_worse: sentences with a higher or lower chrF2 than the first system's."""

    name: str
    scores: dict[str, ComparedScore]
    n_better: int
    n_worse: int


@dataclass(frozen=True)
class LengthGroup:
    """Sentences whose references have `shortest` to `longest` words; bleu: of each system on them."""

    shortest: int
    longest: int
    n_sentences: int
    bleu: list[float]


@dataclass(frozen=True)
class FrequencyGroup:
    """Reference words that occur `fewest` to `most` times (None: no limit) in the text that was counted.

    recall: share of them, 0 to 1, that each system's translation of the same sentence has. f1: with its precision.
    """

    fewest: int
    most: int | None
    n_words: int
    recall: list[float]
    f1: list[float]

    @property
    def span(self) -> str:
        if self.most is None:
            return f"{self.fewest:,}+"
        return str(self.fewest) if self.fewest == self.most else f"{self.fewest:,}–{self.most:,}"


@dataclass(frozen=True)
class SentenceDifference:
    """A sentence that a system translated much better or worse than the first. line: counted from 1; chrf: of both."""

    line: int
    difference: float
    chrf: tuple[float, float]
    source: str | None
    reference: str
    translations: tuple[str, str]


@dataclass(frozen=True)
class Comparison:
    """All that `heed compare` shows. sentences: for each system but the first, its largest gains, then its losses."""

    n_sentences: int
    seed: str
    n_resamples: int
    n_trials: int
    signatures: dict[str, str]
    systems: list[ComparedSystem]
    lengths: list[LengthGroup]
    counted: Literal["training text", "reference"]
    frequencies: list[FrequencyGroup]
    sentences: list[list[SentenceDifference]]


def compare(
    systems: Sequence[tuple[str, Sequence[str]]] | Mapping[str, Sequence[str]],
    references: Sequence[str],
    *,
    tokenize: TokenizationChoice = "auto",
    language: str = "",
    sources: Sequence[str] | None = None,
    training_text: Iterable[str] | None = None,
    comet: str | None = None,
    gpu: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Each system's name and translations, compared with the first's.

    language: the references' code, by which BLEU ("auto") and TER separate words; without one, their text decides. Of
    tokenised text ("none") TER counts the words. training_text: target lines whose words are counted for the breakdown
    by frequency; without it, the reference's are.
    Words are BLEU's tokens. comet: a COMET model to score with as well, which needs the sources; gpu: on this one.
    TER is left out, which `report` is told, where a line has more than MAX_TER_WORDS.
    HeedError for fewer than two systems, too many sentences, or numbers of lines that differ; CometFailed.
    """
    # Metrics: their signatures name the tokenisation, and the seed of the resampling.
    systems = list(systems.items()) if isinstance(systems, Mapping) else systems
    _check(systems, references, sources)
    seed = check_seed()
    bleu, chrf = bleu_metric(choose_tokenization(tokenize, references, language=language)), CHRF()
    metrics: list[Any] = [bleu, chrf]
    ter = _Ter("spaced" if tokenize == "none" else target_writing(references, language))
    if too_long := _too_long_for_ter(ter, [("the references", references), *systems]):
        report(f"TER is left out: {too_long}, more than {MAX_TER_WORDS}, for which it takes too long; split it.")
    else:
        metrics.append(ter)
    # COMET may fail, so it comes before the training text is read: the caller then does without it.
    if comet is not None:
        if sources is None:
            raise HeedError("COMET needs the source lines.")
        texts = [lines for _, lines in systems]
        scored = comet_scores(comet, texts, sources=sources, references=references, gpu=gpu)
        metrics.append(_Comet(comet, texts, scored))
    # The breakdown by word frequency.
    words = [_words(bleu, lines) for lines in (references, *(lines for _, lines in systems))]
    frequencies = _frequencies(
        words[0], words[1:], text=words[0] if training_text is None else _stream(bleu, training_text)
    )
    # Whole systems: scores, intervals and significance.
    scores, signatures, n_resamples = _test_systems(systems, references, metrics, seed)
    # Single sentences by chrF: BLEU of one sentence says little.
    by_sentence = [[_sentence(chrf, h, r) for h, r in zip(lines, references, strict=True)] for _, lines in systems]
    differences = [[b - a for a, b in zip(by_sentence[0], values, strict=True)] for values in by_sentence]
    compared = [
        ComparedSystem(name, scores[i], sum(d > 0 for d in differences[i]), sum(d < 0 for d in differences[i]))
        for i, (name, _) in enumerate(systems)
    ]

    # For display only: the sentences that gained or lost most.
    def shown(i: int) -> list[SentenceDifference]:
        return [
            SentenceDifference(
                line=line + 1,
                difference=differences[i][line],
                chrf=(by_sentence[0][line], by_sentence[i][line]),
                source=None if sources is None else sources[line],
                reference=references[line],
                translations=(systems[0][1][line], systems[i][1][line]),
            )
            for line in _largest(differences[i])
        ]

    return Comparison(
        n_sentences=len(references),
        seed=seed,
        n_resamples=n_resamples,
        n_trials=N_TRIALS,
        signatures=signatures,
        systems=compared,
        lengths=_by_length(bleu, systems, references, [len(line) for line in words[0]]),
        counted="reference" if training_text is None else "training text",
        frequencies=frequencies,
        sentences=[shown(i) for i in range(1, len(systems))],
    )


def statements(comparison: Comparison) -> list[str]:
    """The tests' results in words, a sentence per system and verdict."""
    first, *others = comparison.systems
    lines = []
    for system in others:
        verdicts: dict[Verdict, list[str]] = {}
        for metric, score in system.scores.items():
            assert score.verdict is not None
            verdicts.setdefault(score.verdict, []).append(metric)
        for verdict, metrics in verdicts.items():
            names = " and ".join(filter(None, [", ".join(metrics[:-1]), metrics[-1]]))
            lines.append(
                {
                    "better": f"{system.name} is significantly better than {first.name} by {names}: p < {SIGNIFICANT}.",
                    "worse": f"{system.name} is significantly worse than {first.name} by {names}: p < {SIGNIFICANT}.",
                    "not significant": f"{system.name} does not differ significantly from {first.name} by {names}.",
                    "the tests disagree": f"{system.name} may differ from {first.name} by {names}: only one of the "
                    f"two tests has p < {SIGNIFICANT}.",
                }[verdict]
            )
    return lines


def _check(
    systems: Sequence[tuple[str, Sequence[str]]], references: Sequence[str], sources: Sequence[str] | None
) -> None:
    if len(systems) < 2:
        raise HeedError(f"{len(systems)} system: a comparison needs at least two.")
    if not references:
        raise HeedError("there is no line to score.")
    for name, lines in (*systems, ("the source", references if sources is None else sources)):
        if len(lines) != len(references):
            raise HeedError(
                f"{name}: {len(lines):,} lines, {len(references):,} references: both must have the same number."
            )
    check_number(len(references))


def check_number(n_sentences: int) -> None:
    """HeedError for more sentences than the tests have memory for."""
    if n_sentences > MAX_SENTENCES:
        raise HeedError(
            f"{n_sentences:,} sentences: the tests would need too much memory; compare at most {MAX_SENTENCES:,}."
        )


def check_seed() -> str:
    """sacrebleu's seed, which the environment may set. HeedError for one that sacrebleu cannot use as it is.

    It would take 0 for no seed.
    """
    seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
    if seed != "none" and not (seed.isascii() and seed.isdecimal() and len(seed) < 20 and int(seed) > 0):
        raise HeedError(f"SACREBLEU_SEED={seed}: expected an integer of 1 or more, or none.")
    return seed


def _test_systems(
    systems: Sequence[tuple[str, Sequence[str]]], references: Sequence[str], metrics: Sequence[Any], seed: str
) -> tuple[list[dict[str, ComparedScore]], dict[str, str], int]:
    """Each system's scores by metric, the metrics' signatures, and the number of bootstrap's resamples."""
    # sacrebleu resamples all metrics at once.
    test = PairedTest(list(systems), {type(metric).__name__: metric for metric in metrics}, [list(references)], "bs")
    with progress("Bootstrap resampling"):
        results: Any = test()
    signatures, bootstrap = results
    scores: list[dict[str, ComparedScore]] = [{} for _ in systems]
    for metric, (name, signature) in zip(metrics, signatures.items(), strict=True):
        # Approximate randomisation, from the statistics of each sentence; the first system is the baseline.
        signature.update("ar", N_TRIALS)
        statistics = [
            np.array(metric._extract_corpus_statistics(list(lines), [list(references)])) for _, lines in systems
        ]
        first = bootstrap[name][0]
        scores[0][name] = ComparedScore(first.score, float(first.mean), float(first.ci))
        others = range(1, len(systems))
        for i in track(others, f"Randomisation of {name}", total=len(others), unit="systems"):
            result = bootstrap[name][i]
            difference = result.score - first.score
            # sacrebleu counts only what is larger than the observed difference, so that equal scores would be the
            # surest difference of all.
            p_bootstrap = result.p_value if difference else 1.0
            p_randomisation = _randomisation(metric, statistics[0], statistics[i], seed)
            scores[i][name] = ComparedScore(
                result.score,
                float(result.mean),
                float(result.ci),
                difference,
                p_bootstrap,
                p_randomisation,
                _verdict(-difference if name in LOWER_IS_BETTER else difference, p_bootstrap, p_randomisation),
            )
    return scores, {name: str(signature) for name, signature in signatures.items()}, test.n_samples


def _randomisation(metric: Any, first: np.ndarray, second: np.ndarray, seed: str) -> float:
    """The two-sided p by approximate randomisation; first, second: [sentences, statistics] of the metric.

    The trials are sacrebleu's, but those that equal the observed difference count here. Where few sentences differ in
    their statistics, as by TER, many trials do, and without them p is far too small.
    """

    def difference(sums: np.ndarray) -> float:
        scores = [metric._compute_score_from_stats(list(part)).score for part in (sums, total - sums)]
        return abs(float(scores[0] - scores[1]))

    generator = np.random.default_rng(None if seed == "none" else int(seed))
    kept = generator.integers(2, size=(N_TRIALS, len(first)), dtype=bool)
    total = first.sum(0) + second.sum(0)
    observed = difference(first.sum(0)) - 1e-9  # sums of COMET's scores are rounded
    n_as_large = sum(difference(sums) >= observed for sums in kept @ (first - second) + second.sum(0))
    return (n_as_large + 1) / (N_TRIALS + 1)


def _verdict(gain: float, *p_values: float) -> Verdict:
    significant = [p < SIGNIFICANT for p in p_values]
    if all(significant):
        return "better" if gain > 0 else "worse"
    return "the tests disagree" if any(significant) else "not significant"


def _too_long_for_ter(ter: "_Ter", texts: Iterable[tuple[str, Sequence[str]]]) -> str:
    """The first line that has too many words or characters, and how many; empty if there is none."""
    for name, lines in texts:
        for number, line in enumerate(lines, start=1):
            if (n := len(ter.tokenize(line).split())) > MAX_TER_WORDS:
                return f"{name}, line {number:,}, has {n:,} {ter.unit}"
    return ""


class _Ter(TER):
    """sacrebleu's, which counts a system's edits once for all tests.

    Of text without spaces it counts characters. sacrebleu splits Chinese characters, but not kana or the scripts of
    South-East Asia: these are split here, which the signature tells (tok:tercom-char).
    """

    def __init__(self, writing: Writing):
        by_characters = writing in ("zh", "ja", "unspaced")
        super().__init__(normalized=by_characters, asian_support=by_characters)
        self.unit = "characters" if by_characters else "words"
        self._splitting = writing in ("ja", "unspaced")
        if self._splitting:
            self.tokenizer_signature = "tercom-char"
        self._counted: dict[tuple[str, ...], list[Any]] = {}

    def tokenize(self, line: str) -> str:
        """The line with a space between words, or characters."""
        return str(self.tokenizer((split_characters(line) if self._splitting else line).rstrip()))

    def _preprocess_segment(self, sent: str) -> str:
        return self.tokenize(sent)

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[float]:
        (words,) = ref_kwargs["ref_words"]
        return list(translation_edit_rate(hypothesis.split(), words))

    def _extract_corpus_statistics(self, hypotheses: Sequence[str], references: Any) -> list[Any]:
        if (key := tuple(hypotheses)) not in self._counted:
            self._counted[key] = statistics = []
            numbered = track(enumerate(hypotheses), "Computing TER", total=len(hypotheses), unit="sentences")
            for i, hypothesis in numbered:
                of_sentence = [[lines[i]] for lines in references]
                statistics += super()._extract_corpus_statistics([hypothesis], of_sentence)
        return self._counted[key]


class _Comet:
    """The mean of COMET's scores, times 100, with those methods of sacrebleu's metrics that its tests call."""

    def __init__(self, model: str, systems: Sequence[Sequence[str]], scores: Sequence[Sequence[float]]):
        self.model = model
        self.statistics = {
            tuple(lines): [[100 * score, 1.0] for score in own] for lines, own in zip(systems, scores, strict=True)
        }

    def _extract_corpus_statistics(self, hypotheses: Sequence[str], references: Any) -> list[list[float]]:
        return self.statistics[tuple(hypotheses)]

    def _aggregate_and_compute(self, stats: Any) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _compute_score_from_stats(self, stats: Any) -> Score:
        total, n_sentences = stats
        return Score("COMET", float(total / n_sentences))

    def get_signature(self) -> Signature:
        signature = Signature({"num_refs": 1})
        signature.update("model", self.model)
        return signature


def _sentence(metric: CHRF, hypothesis: str, reference: str) -> float:
    return float(metric.sentence_score(hypothesis, [reference]).score)


def _largest(differences: Sequence[float]) -> list[int]:
    """Places of the largest gains, largest first, then of the largest losses."""
    places = sorted(range(len(differences)), key=lambda place: differences[place])
    gains = [place for place in reversed(places) if differences[place] > 0]
    losses = [place for place in places if differences[place] < 0]
    return gains[:N_SHOWN] + losses[:N_SHOWN]


def _words(metric: BLEU, lines: Iterable[str]) -> list[list[str]]:
    return list(_stream(metric, lines))


def _stream(metric: BLEU, lines: Iterable[str]) -> Iterable[list[str]]:
    """BLEU's tokens of each line."""
    return (metric.tokenizer(line.rstrip()).split() for line in lines)


def _by_length(
    metric: BLEU, systems: Sequence[tuple[str, Sequence[str]]], references: Sequence[str], lengths: Sequence[int]
) -> list[LengthGroup]:
    """Groups of about as many sentences each, from short references to long ones."""
    ordered = sorted(lengths)
    starts = sorted({ordered[len(ordered) * i // N_LENGTH_GROUPS] for i in range(N_LENGTH_GROUPS)})
    groups = []
    for shortest, after in zip(starts, [*starts[1:], ordered[-1] + 1], strict=True):
        places = [place for place, length in enumerate(lengths) if shortest <= length < after]
        chosen = [references[place] for place in places]
        bleu = [metric.corpus_score([lines[place] for place in places], [chosen]).score for _, lines in systems]
        groups.append(LengthGroup(shortest, after - 1, len(places), bleu))
    return groups


def _frequencies(
    references: Sequence[Sequence[str]],
    systems: Sequence[Sequence[Sequence[str]]],
    *,
    text: Iterable[Sequence[str]],
) -> list[FrequencyGroup]:
    """Word recall and F1 by how often a word occurs in `text`; groups without a reference word are left out.

    A word is found as often as its sentence's translation and reference both have it.
    """
    # Only words that occur in a translation or reference are counted, so that memory does not grow with the corpus.
    wanted = {word for lines in (references, *systems) for line in lines for word in line}
    counts: Counter[str] = Counter()
    n_lines = 0
    for line in text:
        n_lines += 1
        counts.update(word for word in line if word in wanted)
    if not n_lines:
        raise HeedError("the training text is empty.")
    # Each word belongs to the group of the largest number that its count reaches.
    group = {word: sum(counts[word] >= least for least in FREQUENCIES) - 1 for word in wanted}
    in_references = Counter(group[word] for line in references for word in line)
    in_systems = [Counter(group[word] for line in lines for word in line) for lines in systems]
    # Matches are clipped by sentence, as in BLEU.
    matches: list[Counter[int]] = [Counter() for _ in systems]
    for i, lines in enumerate(systems):
        for hypothesis, reference in zip(lines, references, strict=True):
            for word, n in (Counter(hypothesis) & Counter(reference)).items():
                matches[i][group[word]] += n
    limits: list[int | None] = [*(least - 1 for least in FREQUENCIES[1:]), None]
    return [
        FrequencyGroup(
            least,
            limits[g],
            in_references[g],
            recall=[n[g] / in_references[g] for n in matches],
            f1=[2 * n[g] / (in_references[g] + own[g]) for n, own in zip(matches, in_systems, strict=True)],
        )
        for g, least in enumerate(FREQUENCIES)
        if in_references[g]
    ]
