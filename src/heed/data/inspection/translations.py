"""Whether the sides of a file are each other's translations, told by their lengths, numbers and names.

Lengths of translations correlate: by 0.8 to 0.95 in prose. Of lines that were paired by mistake they hardly do, and no
more numbers and names stand on both sides than chance would have it. Parts of a file are judged one by one, so that
lines are also found that are shifted from somewhere on.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from heed.data.reading.pairs import Pair

FEWEST = 30  # pairs that are judged together
PART = 500
SHARED = re.compile(r"\d+|\b[A-Z]\w{2,}")  # what translations of many languages leave as it is
MIN_WITH_SHARED = 10  # pairs by whose numbers and names a part is judged


def unrelated_parts(pairs: Sequence[Pair]) -> list[range]:
    """The places of consecutive pairs whose sides do not seem to be translations of each other."""
    ends = np.linspace(0, len(pairs), max(1, len(pairs) // PART) + 1).astype(int).tolist()
    parts: list[range] = []
    for begin, end in pairwise(ends):
        if end - begin >= FEWEST and _are_unrelated(pairs[begin:end]):
            if parts and parts[-1].stop == begin:
                parts[-1] = range(parts[-1].start, end)
            else:
                parts.append(range(begin, end))
    return parts


def _are_unrelated(pairs: Sequence[Pair]) -> bool:
    lengths = np.log1p(np.array([[len(src), len(tgt)] for src, tgt in pairs]))
    if lengths.std(axis=0).min() < 0.1:  # of lines that are all as long, lengths tell nothing
        return False
    # By chance, of n pairs, the correlation stays below 2 / sqrt(n) in 98 of 100 cases.
    if np.corrcoef(lengths.T)[0, 1] > 2 / np.sqrt(len(pairs)) + 0.05:
        return False
    shared = [tuple(set(SHARED.findall(side)) for side in pair) for pair in pairs]
    n_right, n_all = _n_agreeing(shared)
    n_by_chance, _ = _n_agreeing(
        [(src, tgt) for (src, _), (_, tgt) in zip(shared, [*shared[1:], shared[0]], strict=True)]
    )
    return n_all < MIN_WITH_SHARED or n_right <= 2 * n_by_chance + 0.05 * n_all


def _n_agreeing(shared: Sequence[tuple[set[str], ...]]) -> tuple[int, int]:
    """How many pairs have a number or a name on both sides, of how many that have one."""
    return sum(bool(src & tgt) for src, tgt in shared), sum(bool(src or tgt) for src, tgt in shared)
