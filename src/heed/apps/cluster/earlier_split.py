"""How folders begun by an earlier version split their texts: line by line, with nothing that stays."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from heed.apps.documents.text.sentences import needs_translation, splitter

if TYPE_CHECKING:
    from heed.decoding.translation import Translation

LINES = re.compile(r"[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")


class SplitText:
    """A text's sentences, and what stands before, between and behind them."""

    def __init__(self, sentences: Sequence[str], between: Sequence[str]):
        self.sentences, self._between = sentences, between

    def with_translations(self, translations: Iterable[str]) -> str:
        """The text with these in the place of its sentences."""
        pairs = zip(translations, self._between[1:], strict=True)
        return self._between[0] + "".join(translation + after for translation, after in pairs)

    def written(self, translations: "list[Translation]", *_: object) -> "tuple[str, list[Translation]]":
        """The text of these translations, and those that it is of."""
        return self.with_translations(one.text for one in translations), translations


def split_text(language: str, text: str) -> SplitText:
    """The sentences of a text in this language, without the white space around them.

    White space, and sentences that are nothing but an address, an emoji or punctuation, are no sentences to translate.
    """
    split = splitter(language)
    sentences, between, end = [], [], 0
    for line in LINES.finditer(text):
        content = line.group()
        for first, last in split(content):
            part = content[first:last]
            sentence, start = part.strip(), line.start() + last - len(part.lstrip())
            if needs_translation(sentence):
                between.append(text[end:start])
                sentences.append(sentence)
                end = start + len(sentence)
    return SplitText(sentences, [*between, text[end:]])
