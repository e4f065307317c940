"""A parser's words: those that it has met often enough, classes for all others, tags of punctuation."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from pydantic import Field

from heed.config import Settings, validated
from heed.parsing.trees import Leaves, Tree, leaf_symbol, plain
from heed.runtime.files import whole_file
from heed.runtime.json_files import read_json, write_json

MIN_SHARE = 0.01  # of a punctuation mark with a tag, or of a tag with words; what is rarer is an annotation error
# The first that fits; those of Petrov et al. 2006.
ENDINGS = ("ing", "ion", "ity", "est", "ed", "ly", "er", "al", "s", "y")


class Lexicon(Settings):
    """Made from the trees that a parser learns from, and part of its model. An empty one changes nothing."""

    words: str | None = Field(
        default=None, description="known words, spaces between; None: all words are given as they are"
    )
    word_tags: str = Field(default="", description="leaves' symbols seen over words with a letter or a digit")
    sign_tags: dict[str, str] = Field(default={}, description="of words without: leaves' symbols that each had")

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset((self.words or "").split(" ")) - {""}

    @cached_property
    def _word_tags(self) -> frozenset[str]:
        return frozenset(self.word_tags.split(" ")) - {""}

    def form(self, word: str) -> str:
        """The form in which the model reads and copies a treebank's word: the plain word, or its class if it is rare.

        A rare word with capitals that is known without them loses them.
        """
        word = plain(word)
        if self.words is None or word in self._known:
            return word
        return lower if (lower := word.lower()) in self._known else word_class(word)

    def tags(self, word: str) -> frozenset[str]:
        """The leaves' symbols that a word may have; none: any.

        EVALB leaves out punctuation by its tag, so one comma with a word's tag makes a sentence's length wrong.
        """
        word = plain(word)
        if has_letters(word):
            return self._word_tags
        return frozenset(self.sign_tags.get(word, "").split(" ")) - {""}

    @classmethod
    def of(cls, trees: Iterable[Tree], *, leaves: Leaves, min_count: int) -> "Lexicon":
        """Returns the lexicon of the trees to learn from.

        min_count: occurrences of a known word; 0 and 1: every word is given as it is.
        """
        counts: Counter[str] = Counter()
        tags: dict[str, Counter[str]] = defaultdict(Counter)
        for tree in trees:
            for leaf in tree.leaves():
                assert leaf.word is not None
                word = plain(leaf.word)
                counts[word] += 1
                tags["" if has_letters(word) else word][leaf_symbol(leaf.label, leaves)] += 1
        known = " ".join(sorted(word for word, count in counts.items() if count >= min_count))
        total = sum(tags.values(), Counter[str]())
        word_tags = [tag for tag, count in tags.pop("", Counter()).items() if count >= MIN_SHARE * total[tag]]
        sign_tags = {
            sign: " ".join(
                sorted(tag for tag in counts_of_sign if counts_of_sign[tag] >= MIN_SHARE * counts_of_sign.total())
            )
            for sign, counts_of_sign in sorted(tags.items())
        }
        return cls(words=known if min_count > 1 else None, word_tags=" ".join(sorted(word_tags)), sign_tags=sign_tags)

    def save(self, path: Path) -> None:
        with whole_file(path) as temporary:
            write_json(temporary, self.model_dump())

    @classmethod
    def load(cls, path: Path) -> "Lexicon":
        """The lexicon that `save` wrote; empty if there is no file, as in runs of Heed 0.1. HeedError if damaged."""
        return validated(cls, read_json(path), where=str(path)) if path.exists() else NO_LEXICON


NO_LEXICON = Lexicon()


def has_letters(word: str) -> bool:
    """Whether a word is more than punctuation: it has a letter or a digit."""
    return any(character.isalnum() for character in word)


def word_class(word: str) -> str:
    """One of 38 classes of words, by what is in it, its capitals and its ending (after Petrov et al. 2006).

    It consists of letters, so that a tokenizer can make one piece of it.
    """
    if not has_letters(word):
        return "UnknownSigns"
    if "@" in word or re.search(r"://|www\.|\.(?:com|org|net)\b", word):
        return "UnknownAddress"
    if any(character.isnumeric() for character in word):
        return "UnknownMixed" if any(character.isalpha() for character in word) else "UnknownNumber"
    if len(word) > 1 and word.isupper():
        return "UnknownCapitals"
    kind = "Capital" if word[0].isupper() else "Compound" if "-" in word else "Lower"
    ending = next((ending for ending in ENDINGS if len(word) > len(ending) + 2 and word.endswith(ending)), "")
    return f"Unknown{kind}{ending.title()}"
