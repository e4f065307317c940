"""Terms of a glossary: words of a text for which given words stand in its translation."""

import csv
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from heed.apps.documents.text.atoms import LETTER, find_kept, kept_patterns
from heed.apps.documents.text.items import Item, LiteralMarkup, Tag
from heed.errors import HeedError
from heed.text.character_references import resolved

MAX_WORDS = 20  # of a term, which is searched at every word
MAX_TERM_BYTES = 1_024
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_WORD = re.compile(rf"{LETTER}++(?:[-'’]{LETTER}++)*+|[^\s]")


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
        """The items, in whose texts terms are atoms that stand for their translations, however a term is spelled."""
        marked: list[Item] = []
        for is_text, group in groupby(items, key=lambda item: isinstance(item, str) or item.kind == "spelling"):
            run = list(group)
            marked += self._marked(run) if is_text else run
        return [item for item in marked if item != ""]

    def _marked(self, run: list[Item]) -> Iterator[Item]:
        texts = [item if isinstance(item, str) else item.text for item in run]
        terms = deque(sorted(self._found("".join(texts))))
        start = 0
        for item, text in zip(run, texts, strict=True):
            last, end = start, start + len(text)
            while terms and terms[0][0] < end:
                first, stop, translation = terms[0]
                if first >= start:
                    yield text[last - start : first - start]
                    yield Tag("atom", LiteralMarkup(translation), text=translation)
                last = min(stop, end)
                if stop > end:
                    break
                terms.popleft()
            yield text[last - start :] if isinstance(item, str) or last > start else item
            start = end

    def _found(self, text: str) -> list[tuple[int, int, str]]:
        """Where terms begin and end, with their translations; none overlaps another, or what stays anyway."""
        words = list(_WORD.finditer(text))
        matches: list[tuple[int, int, str]] = []  # the first word of a term, the one behind it, the translation
        for first, word in enumerate(words):
            node = self._tree.get(word[0])
            place = first
            while node is not None:
                place += 1
                if (translation := node.get("")) is not None:
                    matches.append((first, place, translation))
                node = node.get(words[place][0]) if place < len(words) else None
        if not matches:
            return []
        is_taken = [False] * len(words)
        kept = [match.span() for match in find_kept(text, kept_patterns())]
        number = 0
        for i, word in enumerate(words):
            while number < len(kept) and kept[number][1] <= word.start():
                number += 1
            is_taken[i] = number < len(kept) and kept[number][0] < word.end()
        chosen: list[tuple[int, int, str]] = []
        for first, end, translation in sorted(matches, key=lambda one: (one[0] - one[1], one[0])):
            if not any(is_taken[first:end]):
                is_taken[first:end] = [True] * (end - first)
                chosen.append((words[first].start(), words[end - 1].end(), translation))
        return chosen


def terms_in(page: str, terms: Mapping[str, str]) -> dict[str, str]:
    """The terms whose words are all in a text of HTML or XML: few, where each text is read in its turn."""
    words = set(_WORD.findall(resolved(page))) if terms else set()
    return {
        term: translation
        for term, translation in terms.items()
        if all(word in words or _capital(word) in words for word in _WORD.findall(term))
    }


def read_terms(text: str, form: Literal["tsv", "csv"]) -> dict[str, str]:
    """The entries of a glossary as tab- or comma-separated values. HeedError, with the line, for one that is none."""
    lines = text.replace("\r\n", "\n").split("\n")
    try:
        rows = list(csv.reader(lines, strict=True)) if form == "csv" else [line.split("\t") for line in lines]
    except csv.Error as error:
        raise HeedError(f"Invalid glossary entries provided: not CSV ({error})") from None
    entries: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        terms = [term.strip() for term in (row[:2] if form == "csv" else row)]  # CSV may name the languages behind them
        if not any(terms):
            continue
        reason = ""
        if len(terms) != 2 or not all(terms):
            reason = "expected a term and its translation"
        elif any(len(term.encode()) > MAX_TERM_BYTES or _CONTROL.search(term) for term in terms):
            reason = f"a term is longer than {MAX_TERM_BYTES:,} bytes or has control characters"
        elif len(_WORD.findall(terms[0])) > MAX_WORDS:
            reason = f"its term has more than {MAX_WORDS} words"
        elif terms[0] in entries:
            reason = "its term has been given before"
        if reason:
            raise HeedError(f"Invalid glossary entries provided: entry {number}: {reason}")
        entries[terms[0]] = terms[1]
    if not entries:
        raise HeedError("Invalid glossary entries provided: there are none")
    return entries


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
