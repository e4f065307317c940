"""Text → sentences, and what of a text needs no translation."""

import re
from collections.abc import Callable

from heed.errors import HeedError

Span = tuple[int, int]
Splitter = Callable[[str], list[Span]]

WHITE_SPACE = " \t\r\n\f\v"  # no-break spaces belong to the text
# Addresses, which no model copies reliably. A sign at the end belongs to the sentence. Bounded, so that each begin of a
# match costs little.
ADDRESS = re.compile(
    r"(?:https?://|ftp://|mailto:|www\.)[^\s<>\"]{1,2000}(?<![.,;:!?)\]'])"
    r"|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",
    re.IGNORECASE,
)
# The splitter sees so much at a time: its time must not grow with the square of a stranger's line.
MAX_SPLIT = 10_000


def splitter(language: str) -> Splitter:
    """A function from a text to the spans of its sentences, without the white space around them.

    language: a code such as "en" or "en-GB". HeedError if sentencex is not installed.
    """
    try:
        import sentencex
    except ImportError:
        raise HeedError(
            "sentences are found by sentencex, which is not installed: pip install 'heed-mt[serve]'."
        ) from None
    code = re.split("[-_]", language.lower(), maxsplit=1)[0]

    def split(text: str) -> list[Span]:
        spans = []
        for first, last in _windows(text):
            start = first
            for sentence in sentencex.segment(code, text[first:last]):
                if sentence.strip(WHITE_SPACE):
                    spans.append(stripped(text, start, start + len(sentence)))
                start += len(sentence)
        return spans

    return split


def stripped(text: str, start: int, end: int) -> Span:
    """The span without white space at its ends."""
    part = text[start:end]
    start += len(part) - len(part.lstrip(WHITE_SPACE))
    return start, start + len(part.strip(WHITE_SPACE))


def _windows(text: str) -> list[Span]:
    """Spans of at most MAX_SPLIT characters that end behind a space where there is one."""
    windows, start = [], 0
    while len(text) - start > MAX_SPLIT:
        end = text.rfind(" ", start, start + MAX_SPLIT) + 1 or start + MAX_SPLIT
        windows.append((start, end))
        start = end
    return [*windows, (start, len(text))]


def needs_translation(text: str) -> bool:
    """Whether there is a letter in it outside addresses: numbers, signs and emoji are the same in any language."""
    return any(c.isalpha() for c in ADDRESS.sub("", text))
