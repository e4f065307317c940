"""Which side of a corpus a line belongs to, told by its letters.

A naive Bayes classifier on trigrams of characters (Cavnar and Trenkle 1994 tell languages by their n-grams), learned
from the corpus itself, so it needs no names of languages and no download. It finds pairs, or a whole dev set, with
their sides exchanged. Where both sides are in one language, or in two that it cannot separate, it says nothing.
"""

import math
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import Self

from heed.data.reading.pairs import Pair

MAX_CHARACTERS = 200  # of a line
MIN_COUNT = 5  # a rarer trigram says more about its own line than about the side
MAX_LOG_ODDS = 3.0  # of one trigram
EVIDENCE = 10.0  # log-odds, in nats, from which a line is told to belong to a side; trigrams overlap, so it is generous
MIN_PAIRS = 50
MIN_TOLD, MIN_RIGHT = 0.7, 0.55  # shares of the pairs from which the sides are taken to be separable
MIN_DECISIVE = 10  # pairs of another set by which the whole set is judged


class Order(Enum):
    """How a pair's sides look."""

    RIGHT = "right"
    EXCHANGED = "exchanged"
    BOTH_SRC = "both sides look like sources"
    BOTH_TGT = "both sides look like targets"
    UNKNOWN = "unknown"


class Sides:
    """Tells sources from targets of one corpus."""

    def __init__(self, log_odds: dict[str, float]):
        self._log_odds = log_odds

    @classmethod
    def learn(cls, pairs: Sequence[Pair]) -> Self | None:
        """From a sample of the corpus; None if its letters do not distinguish the sides."""
        counts = Counter[str](), Counter[str]()
        for pair in pairs:
            for side, line in enumerate(pair):
                counts[side].update(_trigrams(line))
        known = [trigram for trigram in counts[0] | counts[1] if counts[0][trigram] + counts[1][trigram] >= MIN_COUNT]
        totals = [sum(count[trigram] + 0.5 for trigram in known) for count in counts]

        def log_odds(trigram: str) -> float:
            src, tgt = (math.log((count[trigram] + 0.5) / total) for count, total in zip(counts, totals, strict=True))
            return max(-MAX_LOG_ODDS, min(MAX_LOG_ODDS, src - tgt))

        sides = cls({trigram: log_odds(trigram) for trigram in known})
        orders = Counter(sides.order(pair) for pair in pairs if pair[0] != pair[1])
        n_told = orders.total() - orders[Order.UNKNOWN]
        n_ordered = orders[Order.RIGHT] + orders[Order.EXCHANGED]
        separable = (
            len(pairs) >= MIN_PAIRS
            and n_told >= MIN_TOLD * orders.total()
            and n_ordered >= MIN_TOLD * orders.total()
            and orders[Order.RIGHT] >= MIN_RIGHT * orders.total()
        )
        return sides if separable else None

    def order(self, pair: Pair) -> Order:
        """How a pair's sides look; UNKNOWN if one of them gives little evidence, as short lines and numbers do."""
        src, tgt = (sum(self._log_odds.get(trigram, 0.0) for trigram in _trigrams(line)) for line in pair)
        if min(abs(src), abs(tgt)) < EVIDENCE:
            return Order.UNKNOWN
        if src > 0:
            return Order.RIGHT if tgt < 0 else Order.BOTH_SRC
        return Order.EXCHANGED if tgt > 0 else Order.BOTH_TGT

    def seem_exchanged(self, pairs: Sequence[Pair]) -> bool:
        """Whether most pairs of another set have their sides exchanged."""
        orders = Counter(map(self.order, pairs))
        exchanged, right = orders[Order.EXCHANGED], orders[Order.RIGHT]
        return exchanged >= MIN_DECISIVE and exchanged > 4 * right


def _trigrams(line: str) -> list[str]:
    text = f"  {line[:MAX_CHARACTERS].lower()} "
    return [text[i : i + 3] for i in range(len(text) - 2)]
