"""The rules by which training pairs are left out, and the names under which they are counted.

In this order: a line that cannot be read, a pair held out for dev, a blank side, identical sides, another language, a
copy; then, since they need a vocabulary, the lengths. `preparation/shard.py` and `preparation/encoding.py` apply them.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from heed.data.preparation.plan import ShardSettings
from heed.data.settings import DataSettings
from heed.errors import HeedError
from heed.text.line_rules import is_blank

if TYPE_CHECKING:
    from heed.text.language_detection import LanguageDetector

HELD_OUT = "held out for dev (data.dev)"
BLANK = "with a blank side"  # as reason_against_loss says it
COPY = "repeating an earlier pair (data.drop_duplicates)"
IDENTICAL = "with identical sides (data.drop_identical)"
CERTAIN = 0.9  # probability from which a line is taken to be in another language than its side
FEWEST_LETTERS = 20  # of a line whose language is judged: shorter ones are names, numbers and guesses
# Scripts of which two letters may be a word: from Thai to Tibetan, Burmese, Khmer, Korean, Japanese, Chinese.
DENSE = re.compile(
    "[\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff]"
)
FEWEST_DENSE, CERTAIN_OF_FEW = 2, 0.99
NO_LANGUAGE = "zxx"  # the detector's code of numbers, addresses and the like


class PairFilter:
    """Says why a pair is left out, before it is encoded."""

    def __init__(self, settings: DataSettings | ShardSettings):
        """HeedError if languages are to be checked and the detector is not installed, or does not know one of them."""
        self._drop_identical = settings.drop_identical
        self._detector = _detector(settings.src, settings.tgt) if settings.check_languages else None
        self._languages = (settings.src, settings.tgt)

    def reason(self, src: str, tgt: str) -> str | None:
        """Why the pair is left out, None if it stays."""
        if is_blank(src) or is_blank(tgt):
            return BLANK
        if self._drop_identical and src.strip() == tgt.strip():
            return IDENTICAL
        if self._detector is not None:
            for side, text, language in zip(("source", "target"), (src, tgt), self._languages, strict=True):
                if _is_in_another(text, language, self._detector):
                    return f"with a {side} in another language (data.check_languages)"
        return None


def _is_in_another(text: str, language: str, detector: "LanguageDetector") -> bool:
    """Whether a text is certainly not in a language. What the detector takes for no language at all is not judged."""
    n_letters = sum(map(str.isalpha, text))
    n_dense = sum(map(str.isalpha, DENSE.findall(text)))
    if n_letters < FEWEST_LETTERS and not (n_dense >= FEWEST_DENSE and 3 * n_dense >= n_letters):
        return False
    probabilities, wanted = detector.probabilities(text), detector.family(language)
    assert wanted is not None  # _detector has refused it
    if n_letters < FEWEST_LETTERS:
        return probabilities[wanted] <= 1 - CERTAIN_OF_FEW
    best = max(probabilities, key=lambda one: probabilities[one])
    return best not in (wanted, NO_LANGUAGE) and probabilities[best] >= CERTAIN


def _detector(*languages: str) -> "LanguageDetector":
    try:
        from heed.text.language_detection import LanguageDetector
    except ImportError:
        raise HeedError("data.check_languages needs py3langid, which is not installed: pip install heed-mt.") from None
    detector = LanguageDetector(languages)
    if unknown := detector.unknown():
        raise HeedError(f"data.check_languages: the detector does not know {unknown[0]}; leave the setting out.")
    return detector


def length_ratio_reason(ids: Sequence[Sequence[int]], max_ratio: float) -> str | None:
    """Why a pair is left out whose sides differ too much in length, None if they do not. ids: of both sides."""
    shorter, longer = sorted(map(len, ids))
    return f"with a length ratio above {max_ratio:g} (data.max_ratio)" if longer > max_ratio * shorter else None


def later_copies(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether a number has occurred before, for each."""
    order = np.argsort(hashes, kind="stable")
    copies = np.zeros(len(hashes), bool)
    copies[order[1:]] = hashes[order[1:]] == hashes[order[:-1]]
    return copies
