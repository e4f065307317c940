"""Terms of a glossary: words of a text for which given words stand in its translation."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from heed.apps.documents.atoms import KEPT
from heed.apps.documents.items import Item, LiteralMarkup, Tag

MAX_WORDS = 20  # of a term, which is searched at every word
# Scripts without spaces between words, in which each character counts as a word.
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_LETTER = rf"(?:[^\W{_NO_SPACES}]|[\u0300-\u036f\u0900-\u0903\u093a-\u0dff])"
_WORD = re.compile(rf"{_LETTER}++(?:[-'’]{_LETTER}++)*+|[^\s]")


class Terms:
    """Terms with their translations. A term is found as a whole word, as it is written or with a first capital.

    The longest terms are found first; of two of one length that overlap, the first.
    """

    def __init__(self, entries: Mapping[str, str]):
        # A tree of words, so that a text is searched in one pass, whatever the number of terms.
        self._tree: dict[str, Any] = {}
        with_capital = {_capital(term): _capital(translation) for term, translation in entries.items()}
        for term, translation in {**with_capital, **entries}.items():
            node = self._tree
            for word in _WORD.findall(term):
                node = node.setdefault(word, {})
            node[""] = translation

    def mark(self, items: Sequence[Item]) -> list[Item]:
        """The items, in whose texts terms are atoms that stand for their translations."""
        return [part for item in items for part in (self._parts(item) if isinstance(item, str) else (item,))]

    def _parts(self, text: str) -> Iterator[Item]:
        last = 0
        for start, end, translation in sorted(self._found(text)):
            if last < start:
                yield text[last:start]
            yield Tag("atom", LiteralMarkup(translation), text=translation)
            last = end
        if last < len(text):
            yield text[last:]

    def _found(self, text: str) -> list[tuple[int, int, str]]:
        """Where terms begin and end, with their translations; none overlaps another, or what stays anyway."""
        words = list(_WORD.finditer(text))
        found: list[tuple[int, int, str]] = []  # the first word of a term, the one behind it, the translation
        for first, word in enumerate(words):
            node = self._tree.get(word[0])
            place = first
            while node is not None:
                place += 1
                if (translation := node.get("")) is not None:
                    found.append((first, place, translation))
                node = node.get(words[place][0]) if place < len(words) else None
        if not found:
            return []
        is_taken = [False] * len(words)
        kept = [match.span() for match in KEPT.finditer(text)]
        number = 0
        for i, word in enumerate(words):
            while number < len(kept) and kept[number][1] <= word.start():
                number += 1
            is_taken[i] = number < len(kept) and kept[number][0] < word.end()
        chosen: list[tuple[int, int, str]] = []
        for first, end, translation in sorted(found, key=lambda one: (one[0] - one[1], one[0])):
            if not any(is_taken[first:end]):
                is_taken[first:end] = [True] * (end - first)
                chosen.append((words[first].start(), words[end - 1].end(), translation))
        return chosen


def n_words(term: str) -> int:
    """The number of words of a term, punctuation included."""
    return len(_WORD.findall(term))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
