"""n-best lists without doubles: hypotheses whose ids differ may spell the same text, which a list holds once.

A search for n texts keeps KEPT · n hypotheses. Sentences for which they spell fewer than n texts are searched again
with wider beams. What a plain search finds stays first: a wider search only adds texts that score no higher.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from heed.backends.choice import searchable
from heed.decoding.beam import Hypothesis, SearchPlan, search
from heed.decoding.settings import MAX_BEAM_SIZE
from heed.decoding.source_queue import SearchMemory, Source, maximum_length

# Of the demo's model, a third of the lists of 4 hypotheses hold a text twice, and none of 8 spells fewer than 4 texts;
# with early stopping 1 in 100 does. The eight cost a third more time than the four, and leave the first as it is.
KEPT = 2
WIDER = (2, 4)  # times beam_size
# Sentences that are searched again together, and results for which the first of them waits at most.
MANY_SHORT, MAX_DELAY = 16, 64


def distinct_search(
    plan: SearchPlan, sources: Iterable[Source | None], *, text_of: Callable[[Hypothesis], str] | None
) -> Iterator[tuple[int, list[Hypothesis]] | None]:
    """Searches for hypotheses that spell different texts, each the best of those that spell its text.

    Fewer than n_best where the widest beam, 4 · beam_size, finds no more, or where memory holds no wider one.

    Samples are independent draws, so they stay as they are, as do all hypotheses without `text_of`.
    """
    plan = replace(plan, models=[searchable(model) for model in plan.models])
    n_best = plan.n_best
    # A plain search suffices where texts cannot be equal, or may be.
    if n_best == 1 or text_of is None or plan.sampling is not None:
        yield from search(plan, sources)
        return
    # Sources are kept while they are searched, in case their lists come out too short.
    in_search: dict[int, Source] = {}

    def remember() -> Iterator[Source | None]:
        for source in sources:
            if source is not None:
                in_search[source.number] = source
            yield source

    def is_cancelled(number: int) -> bool:
        assert plan.cancelled is not None
        if gone := plan.cancelled(number):
            in_search.pop(number, None)
        return gone

    # The searches keep more hypotheses than texts are asked for.
    keeping = replace(plan, n_best=KEPT * n_best, cancelled=None if plan.cancelled is None else is_cancelled)

    # Short lists are searched again with wider beams, some sentences together.
    def again(short: list["_Short"]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Searches with wider and wider beams; the lists that are long enough, in the end all others too."""
        beam_size = plan.settings.beam_size
        for wider_beam in dict.fromkeys(min(factor * beam_size, MAX_BEAM_SIZE) for factor in WIDER):
            # A source that memory holds no wider beam for stays as it is.
            wider = replace(keeping, settings=plan.settings.model_copy(update={"beam_size": wider_beam}))
            memory = SearchMemory(plan.models, wider.settings, None, n_searches=plan.n_searches)
            limits = [maximum_length(one.source, wider.settings) for one in short]
            here = {one.source.number: one for one, most in zip(short, limits, strict=True) if memory.holds(most)}
            short = [one for one in short if one.source.number not in here]
            for number, more in filter(None, search(wider, [one.source for one in here.values()])):
                texts = _merge(here[number].texts, _by_text(more, text_of, at_most=len(more)))
                if len(texts) >= n_best:
                    yield number, list(texts.values())[:n_best]
                else:
                    short.append(_Short(here[number].source, texts))
        for one in short:
            yield one.source.number, list(one.texts.values())

    # Lists that are long enough leave at once; the others wait for company, but not too long.
    short: list[_Short] = []
    n_since = 0  # results since the first of them
    for result in search(keeping, remember()):
        if result is not None:
            number, hypotheses = result
            source = in_search.pop(number)
            texts = _by_text(hypotheses, text_of, at_most=n_best)
            if len(texts) == n_best:
                yield number, list(texts.values())
            else:
                short.append(_Short(source, texts))
            n_since += len(short) > 0
        if short and (result is None or len(short) == MANY_SHORT or n_since >= MAX_DELAY):
            yield from again(short)
            short, n_since = [], 0
        if result is None:
            yield None
    if short:
        yield from again(short)


@dataclass(frozen=True)
class _Short:
    """A sentence with too few texts."""

    source: Source
    texts: dict[str, Hypothesis]


def _by_text(
    hypotheses: Sequence[Hypothesis], text_of: Callable[[Hypothesis], str], *, at_most: int
) -> dict[str, Hypothesis]:
    """The first of each text, in order; no more than at_most."""
    texts: dict[str, Hypothesis] = {}
    for hypothesis in hypotheses:
        texts.setdefault(text_of(hypothesis), hypothesis)
        if len(texts) == at_most:
            break
    return texts


def _merge(texts: dict[str, Hypothesis], more: dict[str, Hypothesis]) -> dict[str, Hypothesis]:
    """All of `texts` and, of `more`, those that score no higher than the first of `texts`; best first."""
    most = next(iter(texts.values())).score
    added = {text: one for text, one in more.items() if text not in texts and one.score <= most}
    return dict(sorted((texts | added).items(), key=lambda item: -item[1].score))
