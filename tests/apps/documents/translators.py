"""Translators whose results are known, and a bound of what a stranger's text may cost."""

import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from heed.apps.documents.formats import Format
from heed.apps.documents.formats.jobs import document_job, text_job
from heed.apps.documents.text.translation import DocumentOptions, Translate, run_job
from heed.text.alignment import Link, Translated


def unchanged(texts: Sequence[str]) -> list[Translated]:
    return [Translated(text) for text in texts]


def swapped_case(texts: Sequence[str]) -> list[Translated]:
    """Another text, of which every word translates the one at its place."""
    return [Translated(text.swapcase()) for text in texts]


def linked(texts: Sequence[str]) -> list[Translated]:
    """As `swapped_case`, with links that say so."""
    return [
        Translated(t.swapcase(), [Link(*m.span(), *m.span()) for m in re.finditer(r"\w+|[^\w\s]", t)]) for t in texts
    ]


def shuffled(texts: Sequence[str]) -> list[Translated]:
    """The words of each text in another order, in capitals, with links that say where they come from."""
    return [_shuffled(text) for text in texts]


def _shuffled(text: str) -> Translated:
    spans, place = [], 0
    for word in text.split(" "):
        spans.append((place, place + len(word)))
        place += len(word) + 1
    random.Random(text).shuffle(spans)
    words, links, length = [], [], 0
    for start, end in spans:
        word = text[start:end].upper()
        words.append(word)
        if end > start:
            links.append(Link(length, length + len(word), start, end))
        length += len(word) + 1
    return Translated(" ".join(words), links)


@contextmanager
def within_seconds(limit: float) -> Iterator[None]:
    """Asserts that what is done takes no more of a processor: many times what it needs, a fraction of its square."""
    started = time.process_time()
    yield
    assert time.process_time() - started < limit


def translated(text: str, translate: Translate, format: Format) -> str:
    return run_job(text_job(text, format, DocumentOptions(language="en")), translate)


def translate_document(content: bytes, translate: Translate, *, format: Format, name: str, **options: Any) -> bytes:
    """A file's content as `translate` makes it; options: those of `DocumentOptions`."""
    return run_job(document_job(content, format, DocumentOptions(**options), name=name), translate)


class Asked:
    """A translator, and what it has been asked for."""

    def __init__(self, translate: Translate = unchanged):
        self._translate, self.texts = translate, []

    def __call__(self, texts: Sequence[str]) -> Sequence[Translated]:
        self.texts.extend(texts)
        return self._translate(texts)


def asked(text: str, format: Format) -> list[str]:
    """The sentences of a document, as a translator reads them."""
    translate = Asked()
    translated(text, translate, format)
    return translate.texts
