"""Given pairs of source and target, in batches of similar length: their log-probabilities, and their alignment."""

from collections.abc import Iterator, Sequence

import torch

from heed.data.batches.batch import Batch, make_batch
from heed.decoding.scoring import token_log_probs
from heed.decoding.stream import MAX_SENTENCES
from heed.model.attention_weights import mean_cross_attention
from heed.model.transformer import Transformer
from heed.runtime.progress import progress
from heed.text.tokenizer import SpecialIds

Pair = tuple[list[int], list[int]]  # ids of source and target, without bos and eos
MAX_TOKENS = 4096  # ids of a batch, padding included


def pair_log_probs(models: Sequence[Transformer], pairs: Sequence[Pair], special: SpecialIds) -> list[list[float]]:
    """For each pair the log-probability of each target id and of eos, by the mean of the models' probabilities."""
    results: list[list[float]] = [[] for _ in pairs]
    with progress("Scoring", total=len(pairs), unit="pairs") as task:
        for places, batch in _batches(pairs, special, models[0]):
            for i, values in zip(places, token_log_probs(models, batch).tolist(), strict=True):
                results[i] = values[: len(pairs[i][1]) + 1]
            task.advance(len(places))
    return results


def attended_places(
    model: Transformer, pairs: Sequence[Pair], special: SpecialIds, *, layer: int | None
) -> list[list[int]]:
    """For each pair the place of the source id that each target id attends to most: see `Translator.alignments`."""
    results: list[list[int]] = [[] for _ in pairs]
    for places, batch in _batches(pairs, special, model):
        weights = mean_cross_attention(model, batch.src, batch.src_mask, batch.tgt_in)
        for i, layers in zip(places, weights.cpu(), strict=True):
            src, tgt = pairs[i]
            # Without eos, where attention rests that has nothing to look for.
            found = layers[:, : len(tgt), : len(src)].argmax(dim=2).tolist()
            results[i] = max(reversed(found), key=lambda row: len(set(row))) if layer is None else found[layer - 1]
    return results


def _batches(pairs: Sequence[Pair], special: SpecialIds, model: Transformer) -> Iterator[tuple[list[int], Batch]]:
    """(places of its pairs, batch on the model's device) of all pairs, the shortest first."""
    device = model.src_embedding.weight.device
    for places in _groups([max(len(src), len(tgt)) + 1 for src, tgt in pairs]):
        rows = torch.tensor(places).numpy()
        yield places, make_batch([pairs[i] for i in places], special, rows=rows).to(device)


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
