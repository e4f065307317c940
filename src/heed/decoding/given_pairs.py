"""Given pairs of source and target, in batches of similar length: their log-probabilities, and their alignment."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from heed.backends.choice import search_backend, searchable
from heed.backends.protocol import SearchModel
from heed.data.batches.batch import Batch, make_batch
from heed.decoding.source_queue import MAX_SENTENCES
from heed.runtime.progress import progress
from heed.text.tokenizer import SpecialIds

Pair = tuple[list[int], list[int]]  # ids of source and target, without bos and eos
MAX_TOKENS = 4096  # ids of a batch, padding included


def pair_log_probs(models: Sequence[SearchModel], pairs: Sequence[Pair], special: SpecialIds) -> list[list[float]]:
    """For each pair the log-probability of each target id and of eos, by the mean of the models' probabilities.

    -∞ where a probability is 0. HeedError if one is NaN.
    """
    models = [searchable(model) for model in models]
    results: list[list[float]] = [[] for _ in pairs]
    with progress("Scoring", total=len(pairs), unit="pairs") as task:
        for places, some in _batches(pairs, special):
            of_models = [search_backend(model).target_log_probs(model, some) for model in models]
            log_probs = of_models[0]
            if len(models) > 1:
                log_probs = np.logaddexp.reduce(of_models, axis=0) - math.log(len(models))
            begin = 0
            for i, n in zip(places, some.tgt_lengths.tolist(), strict=True):
                results[i] = log_probs[begin : begin + n].tolist()
                begin += n
            task.advance(len(places))
    return results


def attended_places(
    model: SearchModel,
    pairs: Sequence[Pair],
    told: Sequence[tuple[Sequence[int], Sequence[int]]],
    special: SpecialIds,
    *,
    layer: int | None,
) -> list[list[int]]:
    """For each pair the place of the source id that each target id attends to most: see `Translator.alignments`.

    told: the ids that stand in front of each side's, which count as no place.
    """
    model = searchable(model)
    backend = search_backend(model)
    results: list[list[int]] = [[] for _ in pairs]
    whole = [([*before, *src], [*first, *tgt]) for (src, tgt), (before, first) in zip(pairs, told, strict=True)]
    for places, some in _batches(whole, special):
        weights = backend.cross_attention(model, some)  # (layer, row, src)
        begin = 0
        for i in places:
            (src, tgt), (before, first) = pairs[i], told[i]
            begin += len(first)
            # Without eos, where attention rests that has nothing to look for.
            shown = weights[:, begin : begin + len(tgt), len(before) : len(before) + len(src)]
            by_layer = shown.argmax(axis=2).tolist()
            results[i] = (
                max(reversed(by_layer), key=lambda row: len(set(row))) if layer is None else by_layer[layer - 1]
            )
            begin += len(tgt) + 1
    return results


def _batches(pairs: Sequence[Pair], special: SpecialIds) -> Iterator[tuple[list[int], Batch]]:
    """(places of its pairs, batch) of all pairs, the shortest first."""
    for places in _groups([max(len(src), len(tgt)) + 1 for src, tgt in pairs]):
        yield places, make_batch([pairs[i] for i in places], special)


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
