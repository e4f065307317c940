"""A comparison of translations as one page: tables and pictures, without scripts or anything from a network."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from heed.apps.comparison.statistics import (
    LOWER_IS_BETTER,
    SIGNIFICANT,
    ComparedScore,
    Comparison,
    SentenceDifference,
    statements,
)
from heed.runtime.files import whole_file
from heed.text.printable import KEPT_IN_TEXT, printable

N_COLOURS = 6  # in page.html
WIDTH, HEIGHT, MARGIN = 640, 180, 40  # of a chart of bars, in pixels
ROW = 26  # of a chart of intervals


def write_comparison(path: Path, comparison: Comparison, *, reference: str) -> None:
    """Writes the page. reference: the name of the reference."""
    template = (resources.files("heed") / "apps" / "comparison" / "page.html").read_text(encoding="utf-8")
    parts = [
        "<h1>Comparison of translations</h1>",
        f'<p class="quiet">{comparison.n_sentences:,} sentences of {_text(reference)}; systems are compared with the '
        "first.</p>",
        _section("Systems", _systems(comparison)),
        _section("Scores", *_scores(comparison)),
        _section("By length", *_lengths(comparison)),
        _section("By word frequency", *_frequencies(comparison)),
        *(_section(*part) for part in _sentences(comparison)),
        _section("How this was computed", *_method(comparison)),
    ]
    with whole_file(path) as temporary:
        temporary.write_text(template.replace("{{ body }}", "\n".join(parts)), encoding="utf-8")


def _text(value: object) -> str:
    """A stranger's text, made unable to become markup or to reorder the page."""
    return f"<bdi>{escape(printable(str(value), kept=KEPT_IN_TEXT))}</bdi>"


def _section(title: str, *parts: str) -> str:
    return "\n".join([f"<section>\n<h2>{title}</h2>", *parts, "</section>"])


def _key(place: int) -> str:
    """A system's colour and number, counted from 1."""
    return f'<span class="key s{place % N_COLOURS}"></span>{place + 1}'


def _name(comparison: Comparison, place: int) -> str:
    return f"{_key(place)} {_text(comparison.systems[place].name)}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "") -> str:
    """Cells are HTML."""
    head = "".join(f"<th>{cell}</th>" for cell in header)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    title = f"<caption>{caption}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _systems(comparison: Comparison) -> str:
    first, *others = range(len(comparison.systems))
    rows = [(_name(comparison, first), "", "", "")]
    for place in others:
        system = comparison.systems[place]
        equal = comparison.n_sentences - system.n_better - system.n_worse
        rows.append((_name(comparison, place), f"{system.n_better:,}", f"{system.n_worse:,}", f"{equal:,}"))
    verdicts = "".join(f"<p>{_text(line)}</p>" for line in statements(comparison))
    return verdicts + _table(("", "sentences better by chrF2", "worse", "equal"), rows)


def _scores(comparison: Comparison) -> Iterable[str]:
    for metric in comparison.signatures:
        scores = [system.scores[metric] for system in comparison.systems]
        caption = f"{escape(metric)} (lower is better)" if metric in LOWER_IS_BETTER else escape(metric)
        header = ("", "score", "95 % interval", "difference", "p bootstrap", "p randomisation", "")
        yield _table(header, ([_name(comparison, i), *_score_cells(s)] for i, s in enumerate(scores)), caption=caption)
        yield _intervals(scores)


def _score_cells(score: ComparedScore) -> list[str]:
    cells = [f"{score.score:.2f}", f"{score.mean:.2f} ± {score.half_width:.2f}"]
    if score.difference is None:
        return [*cells, "", "", "", ""]
    kind = score.verdict if score.verdict in ("better", "worse") else "quiet"
    numbers = [f"{score.difference:+.2f}", f"{score.p_bootstrap:.4f}", f"{score.p_randomisation:.4f}"]
    return [*cells, *numbers, f'<span class="{kind}">{score.verdict}</span>']


def _intervals(scores: Sequence[ComparedScore]) -> str:
    """A row for each system: its score as a dot on its 95 % interval."""
    low = min(min(s.score, s.mean - s.half_width) for s in scores)
    high = max(max(s.score, s.mean + s.half_width) for s in scores)
    scale = (WIDTH - 2 * MARGIN) / ((high - low) or 1.0)
    height = ROW * (len(scores) + 1)

    def x(value: float) -> float:
        return MARGIN + (value - low) * scale

    parts = [f'<line class="axis" x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{height - ROW}" y2="{height - ROW}"/>']
    for value, anchor in ((low, "start"), (high, "end")):
        parts.append(f'<text x="{x(value):.1f}" y="{height - 8}" text-anchor="{anchor}">{value:.1f}</text>')
    for place, score in enumerate(scores):
        y = ROW * (place + 0.5)
        ends = (x(score.mean - score.half_width), x(score.mean + score.half_width))
        parts.append(
            f'<g class="s{place % N_COLOURS}"><text x="0" y="{y + 4}">{place + 1}</text>'
            f'<line class="mark" stroke-width="2" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y}" y2="{y}"/>'
            f'<circle class="mark" cx="{x(score.score):.1f}" cy="{y}" r="5"/></g>'
        )
    return _svg(height, "Scores with their 95 % intervals", parts)


def _lengths(comparison: Comparison) -> Iterable[str]:
    groups = comparison.lengths
    names = [f"{group.shortest}–{group.longest}" for group in groups]
    yield "<p>BLEU of the sentences whose references have this many words.</p>"
    yield _bars(names, [group.bleu for group in groups], "BLEU by length of the reference")
    header = ["words", "sentences", *map(_key, range(len(comparison.systems)))]
    yield _table(
        header,
        (
            [name, f"{group.n_sentences:,}", *(f"{value:.2f}" for value in group.bleu)]
            for name, group in zip(names, groups, strict=True)
        ),
    )


def _frequencies(comparison: Comparison) -> Iterable[str]:
    groups = comparison.frequencies
    yield f"<p>F1 (recall) of words, %, by their occurrences in the {comparison.counted}.</p>"
    yield _bars([g.span for g in groups], [[100 * f1 for f1 in g.f1] for g in groups], "F1 of words by frequency")
    header = ["occurrences", "words", *map(_key, range(len(comparison.systems)))]
    yield _table(
        header,
        (
            [
                group.span,
                f"{group.n_words:,}",
                *(f"{100 * f1:.2f} ({100 * recall:.2f})" for f1, recall in zip(group.f1, group.recall, strict=True)),
            ]
            for group in groups
        ),
    )


def _bars(names: Sequence[str], values: Sequence[Sequence[float]], title: str) -> str:
    """For each name a bar of each system, 0 to 100; sacrebleu's rounding may leave BLEU just above."""
    if not names:
        return '<p class="quiet">There is no word to count.</p>'
    bottom = HEIGHT - 24
    slot = (WIDTH - MARGIN) / len(names)
    bar = slot * 0.8 / len(values[0])
    parts = []
    for level in (0, 25, 50, 75, 100):
        y = bottom - level / 100 * (bottom - 10)
        parts.append(f'<line class="axis" x1="{MARGIN}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{MARGIN - 8}" y="{y + 4:.1f}" text-anchor="end">{level}</text>')
    for i, (name, row) in enumerate(zip(names, values, strict=True)):
        left = MARGIN + slot * (i + 0.1)
        for place, value in enumerate(row):
            height = min(value, 100.0) / 100 * (bottom - 10)
            parts.append(
                f'<rect class="mark s{place % N_COLOURS}" x="{left + bar * place:.1f}" y="{bottom - height:.1f}" '
                f'width="{bar * 0.9:.1f}" height="{height:.1f}"><title>{place + 1}: {value:.2f}</title></rect>'
            )
        parts.append(f'<text x="{left + slot * 0.4:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{name}</text>')
    return _svg(HEIGHT, title, parts)


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{title}">\n'
        f"{inside}\n</svg>"
    )


def _sentences(comparison: Comparison) -> Iterable[tuple[str, ...]]:
    for place, sentences in enumerate(comparison.sentences, start=1):
        if sentences:
            title = f"Sentences where {_name(comparison, place)} differs most"
            yield title, *(_sentence(comparison, place, sentence) for sentence in sentences)


def _sentence(comparison: Comparison, place: int, sentence: SentenceDifference) -> str:
    kind = "better" if sentence.difference > 0 else "worse"
    rows = [] if sentence.source is None else [("source", _text(sentence.source))]
    rows.append(("reference", _text(sentence.reference)))
    for system, text, value in zip((0, place), sentence.translations, sentence.chrf, strict=True):
        rows.append((f"{_key(system)}, {value:.2f}", _text(text)))
    title = f'<dt>line {sentence.line:,}</dt><dd class="{kind}">{sentence.difference:+.2f} chrF2</dd>'
    return f"<dl>{title}{''.join(f'<dt>{key}</dt><dd>{value}</dd>' for key, value in rows)}</dl>"


def _method(comparison: Comparison) -> Iterable[str]:
    yield (
        f"<p>Significant: p &lt; {SIGNIFICANT} by paired bootstrap resampling ({comparison.n_resamples:,} resamples, "
        f"one-sided) and by approximate randomisation ({comparison.n_trials:,} trials, two-sided), seed "
        f"{_text(comparison.seed)}. The p values are not corrected for the number of systems.</p>"
    )
    for metric, signature in comparison.signatures.items():
        yield f"<p><code>{_text(f'{metric} {signature}')}</code></p>"
