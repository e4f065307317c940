"""Documents through the engines: their sentences share the search with all others, their alignments take turns."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from heed.documents.formats import Format, translating_document, translating_text
from heed.documents.translation import Asking, Sentence
from heed.serving.faults import Fault
from heed.serving.requests import check_pair
from heed.serving.service import Service
from heed.text.alignment import Link, Translated

ALIGNED_AT_ONCE = 64  # sentences, after which others have their turn
DETECTED_CHARS = 2_000  # of a document, from which its language is told

T = TypeVar("T")
R = TypeVar("R")
Pair = tuple[str, str]


async def translate_documents(
    service: Service, documents: Sequence[Asking[T]], pairs: Sequence[Pair], *, max_chars: int, deadline: float
) -> list[T]:
    """What the documents become, each from and into its languages. All are translated together.

    deadline: by the event loop's clock. Fault for more than max_chars characters to translate; else raises what
    `Engine.translate` raises, and HeedError for a document that cannot be read.
    """
    service.check_room(pairs)
    results: dict[int, T] = {}
    answers: dict[int, Sequence[Translated] | None] = dict.fromkeys(range(len(documents)))
    while answers:
        async with service.in_time(deadline):
            asked = await _in_thread(service, partial(_go_on, documents, answers, results))
        n_chars = sum(len(sentence.text) for sentences in asked.values() for sentence in sentences)
        if n_chars > max_chars:
            raise Fault(400, f"Invalid request: request ({n_chars}) exceeds text limit ({max_chars})")
        chosen = [pairs[i] for i in asked]
        answers = dict(zip(asked, await _answers(service, list(asked.values()), chosen, deadline), strict=True))
    return [results[i] for i in range(len(documents))]


async def translate_html(
    service: Service, pages: Sequence[str], pairs: Sequence[Pair], *, deadline: float
) -> list[str]:
    """The pages, or parts of pages, each from and into its languages; tags go where their words go."""
    documents = [
        translating_text(page, format="html", language=src) for page, (src, _) in zip(pages, pairs, strict=True)
    ]
    return await translate_documents(service, documents, pairs, max_chars=service.limits.max_chars, deadline=deadline)


async def translate_file(service: Service, content: bytes, kind: Format, source: str, target: str) -> bytes:
    """A file's content in the other language; source may be "auto". Few are worked on at once, the others wait.

    Raises what `translate_documents` raises.
    """

    def document(language: str) -> Asking[bytes]:
        most = service.limits.max_file_text
        return translating_document(content, format=kind, language=language, name="the file", max_text=most)

    deadline = service.deadline()
    async with service.in_time(deadline):
        await service.file_turns.acquire()
    try:
        if source == "auto":
            source, _ = await _detect_document(service, document, target, deadline)
        check_pair(service, source, target)
        most = service.limits.max_file_chars
        [found] = await translate_documents(
            service, [document(source)], [(source, target)], max_chars=most, deadline=deadline
        )
    finally:
        service.file_turns.release()
    return found


async def detect_html(service: Service, page: str, target: str, *, deadline: float) -> tuple[str, float]:
    """As `Service.detect_source`, of the words that are shown."""

    def document(language: str) -> Asking[str]:
        return translating_text(page, format="html", language=language)

    return await _detect_document(service, document, target, deadline)


async def _detect_document(
    service: Service, document: Callable[[str], Asking[T]], target: str, deadline: float
) -> tuple[str, float]:
    """As `Service.detect_source`, of a document's words. document: what reads it, given a language."""

    def words() -> str:
        any_language = next(src for src, _ in service.engines)
        asked = _go_on([document(any_language)], {0: None}, {})
        return "\n".join(sentence.text for sentence in asked.get(0, ()))[:DETECTED_CHARS]

    async with service.in_time(deadline):
        return await service.detect_source(await _in_thread(service, words), target)


async def _in_thread(service: Service, work: Callable[[], R]) -> R:
    """What reads and writes documents has threads of its own: it may take longer than its request waits."""
    return await asyncio.get_running_loop().run_in_executor(service.document_threads, work)


def _go_on(
    documents: Sequence[Asking[T]], answers: dict[int, Sequence[Translated] | None], results: dict[int, T]
) -> dict[int, list[Sentence]]:
    """What each document asks for next, by its number; those that are finished are put into `results`."""
    asked: dict[int, list[Sentence]] = {}
    for number, answer in answers.items():
        try:
            asked[number] = next(documents[number]) if answer is None else documents[number].send(answer)
        except StopIteration as stop:
            results[number] = stop.value
    return asked


async def _answers(
    service: Service, asked: list[list[Sentence]], pairs: Sequence[Pair], deadline: float
) -> list[list[Translated]]:
    texts = [[sentence.text for sentence in sentences] for sentences in asked]
    found: list[list[Translated]] = [[Translated("")] * len(sentences) for sentences in asked]
    async with aclosing(service.translations(texts, pairs, deadline=deadline)) as translations:
        async for i, j, translation in translations:
            found[i][j] = Translated(translation.text)
    for pair in set(pairs) & set(service.engines):
        tagged = [
            (i, j)
            for i, sentences in enumerate(asked)
            if pairs[i] == pair
            for j, sentence in enumerate(sentences)
            if sentence.has_tags
        ]
        sources, targets = [texts[i][j] for i, j in tagged], [found[i][j].text for i, j in tagged]
        async with service.in_time(deadline):
            links = await _alignments(service, pair, sources, targets)
        for (i, j), target, link in zip(tagged, targets, links, strict=True):
            found[i][j] = Translated(target, link)
    return found


async def _alignments(
    service: Service, pair: Pair, sources: list[str], targets: list[str]
) -> list[tuple[Link, ...] | None]:
    translator = service.engines[pair].translator
    links: list[tuple[Link, ...] | None] = []
    for first in range(0, len(sources), ALIGNED_AT_ONCE):
        group = slice(first, first + ALIGNED_AT_ONCE)
        links += await service.attention.run(partial(translator.alignments, sources[group], targets[group]))
    return links
