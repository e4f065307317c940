"""Documents through the engines: their sentences share the search with all others, their alignments take turns."""

from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from dataclasses import replace
from functools import partial

from heed.apps.documents.formats import Format
from heed.apps.documents.text.terms import terms_in
from heed.apps.documents.text.translation import DocumentOptions, Sentence
from heed.apps.documents.worker import n_chars_of
from heed.apps.serving.document_workers import Document
from heed.apps.serving.engine import off_event_loop
from heed.apps.serving.fields import GLOSSARY_ID, Attributes, Fields, Keep, Text
from heed.apps.serving.http_error import HTTPError
from heed.apps.serving.requests import check_pair
from heed.apps.serving.service import Pair, Service
from heed.apps.serving.service import Translated as TextTranslations
from heed.errors import HeedError
from heed.text.alignment import Link, Translated

ALIGNED_AT_ONCE = 64  # sentences, after which others have their turn
DETECTED_CHARS = 2_000  # of a document, from which its language is told


class DocumentFields(Fields):
    """Fields of an uploaded document."""

    glossary_id: Text = GLOSSARY_ID
    keep: Keep = ()
    attributes: Attributes = "all"

    def options(self, service: Service, source: str, target: str) -> DocumentOptions:
        """What the fields ask for. HTTPError for a glossary that is not there, or of other languages."""
        return DocumentOptions(
            language=source,
            target=target,
            keep=self.keep,
            terms=service.glossaries.terms(self.glossary_id, source, target) or {},
            attributes=self.attributes == "all",
        )


async def translate_documents(
    service: Service, documents: Sequence[Document], *, deadline: float, faults: dict[int, HeedError] | None = None
) -> list[tuple[bytes, int]]:
    """The translations of documents, with the number of characters translated.

    All are translated together. deadline: by the event loop's clock. faults: gets the errors of documents that cannot
    be read, which stay as they are, unless there are no others; without it, the first of them is raised.
    HTTPError for more characters together than one may have; else raises what `Engine.translate` and
    `DocumentSession.go_on` raise.
    """
    pairs = [(document.options.language, document.options.target) for document in documents]
    service.check_room(pairs)
    results: dict[int, bytes] = {}
    counts = [0] * len(documents)
    with ExitStack() as opened:
        readings = [opened.enter_context(service.document_workers.open(document)) for document in documents]
        answers: dict[int, Sequence[Translated] | None] = dict.fromkeys(range(len(documents)))
        while answers:
            asked: dict[int, list[Sentence]] = {}
            for i, answer in answers.items():
                step: bytes | list[Sentence] = documents[i].content
                try:
                    async with service.in_time(deadline):
                        if i not in (faults or ()):
                            step = await readings[i].go_on(answer)
                except HeedError as error:
                    if faults is None or len(faults) + 1 == len(documents):
                        raise
                    faults[i] = error
                if isinstance(step, bytes):
                    results[i] = step
                else:
                    asked[i] = step
                    # What is asked again costs no more.
                    counts[i] = counts[i] or sum(len(sentence.text) for sentence in step)
            n_chars, most = sum(map(n_chars_of, asked.values())), max(document.max_chars for document in documents)
            if n_chars > most:
                raise HTTPError(400, f"Invalid request: request ({n_chars}) exceeds text limit ({most})")
            chosen = [pairs[i] for i in asked]
            answers = dict(zip(asked, await _answers(service, list(asked.values()), chosen, deadline), strict=True))
    return [(results[i], n_characters) for i, n_characters in enumerate(counts)]


async def translate_texts(
    service: Service,
    texts: Sequence[str],
    options: DocumentOptions,
    *,
    markup: bytes | None = None,
    n_best: int = 1,
    by_line: bool = False,
    faults: dict[int, HeedError] | None = None,
) -> tuple[list[tuple[str, float]], list[TextTranslations]]:
    """The language of each text of a request, with its probability, and its translations; theirs may be "auto".

    markup: how texts with tags are read, as for `marked_up_job`, or b"" for HTML; tags go where their words go, and
    there are no alternatives. faults: as for `translate_documents`, then.
    """
    deadline, source, target, terms = service.deadline(), options.language, options.target, options.terms
    languages = [(source, 1.0)] * len(texts)
    if source == "auto" and markup is None:
        languages = [await service.detect_source(text, target) for text in texts]
    elif source == "auto":
        languages = await _detect_pages(service, texts, target, deadline=deadline, markup=markup or b"", faults=faults)
    pairs = [(language, target) for language, _ in languages]
    for src, tgt in set(pairs):
        check_pair(service, src, tgt)
    if markup is None:
        service.check_room(pairs)
        drafts = await service.drafts(texts, pairs, options, by_line=by_line)
        return languages, await service.translate(drafts, pairs, n_best=n_best)
    n_chars = sum(map(len, (*texts, *terms))) if terms else 0
    of_pages = await off_event_loop(n_chars, lambda: [terms_in(page, terms) for page in texts])
    documents = [
        _page(service, page, markup, place, options=replace(options, language=src, terms=of_page))
        for place, (page, (src, _), of_page) in enumerate(zip(texts, pairs, of_pages, strict=True), 1)
    ]
    pages = await translate_documents(service, documents, deadline=deadline, faults=faults)
    return languages, [TextTranslations(page.decode(), ()) for page, _ in pages]


async def translate_file(service: Service, content: bytes, kind: Format, options: DocumentOptions) -> tuple[bytes, int]:
    """A file's content in the other language, and the number of characters translated; its language may be "auto".

    Few are worked on at once, the others wait. Raises what `translate_documents` raises.
    """
    limits = service.limits
    document = Document(content, kind, options, limits.max_file_chars, is_file=True, max_text=limits.max_file_text)
    deadline = service.deadline()
    async with service.in_time(deadline):
        await service.file_turns.acquire()
    try:
        if options.language == "auto":
            source, _ = await _detect_document(service, document, options.target, deadline)
            document = replace(document, options=replace(options, language=source))
        check_pair(service, document.options.language, options.target)
        [page] = await translate_documents(service, [document], deadline=deadline)
    finally:
        service.file_turns.release()
    return page


async def _detect_pages(
    service: Service,
    pages: Sequence[str],
    target: str,
    *,
    deadline: float,
    markup: bytes,
    faults: dict[int, HeedError] | None,
) -> list[tuple[str, float]]:
    """Calls `Service.detect_source` for the words that are shown; an unreadable page is in the target language."""
    sources: list[tuple[str, float]] = []
    for place, page in enumerate(pages, 1):
        try:
            document = _page(service, page, markup, place, options=DocumentOptions(language="auto"))
            sources.append(await _detect_document(service, document, target, deadline))
        except HeedError as error:
            if faults is None or len(faults) + 1 == len(pages):
                raise
            faults[place - 1] = error
            sources.append((target, 0.0))
    return sources


def _page(service: Service, page: str, markup: bytes, place: int, *, options: DocumentOptions) -> Document:
    most = service.limits.max_deepl_bytes if markup else service.limits.max_chars
    return Document(page.encode(), "html", options, most, markup=markup, place=place)


async def _detect_document(service: Service, document: Document, target: str, deadline: float) -> tuple[str, float]:
    """Calls `Service.detect_source` for a document's words."""
    any_language = next(src for src, _ in service.engines)
    document = replace(document, options=DocumentOptions(language=any_language))
    async with service.in_time(deadline):
        with service.document_workers.open(document) as reading:
            asked = await reading.go_on()
        sentences = [] if isinstance(asked, bytes) else asked
        words = "\n".join(sentence.text for sentence in sentences)[:DETECTED_CHARS]
        return await service.detect_source(words, target)


async def _answers(
    service: Service, asked: list[list[Sentence]], pairs: Sequence[Pair], deadline: float
) -> list[list[Translated]]:
    places = [(i, j) for i, sentences in enumerate(asked) for j in range(len(sentences))]
    texts, of_texts = [asked[i][j].text for i, j in places], [pairs[i] for i, _ in places]
    answers: list[list[Translated]] = [[Translated("")] * len(sentences) for sentences in asked]
    async with aclosing(service.translations(texts, of_texts, deadline=deadline)) as translations:
        async for number, translation in translations:
            i, j = places[number]
            answers[i][j] = Translated(translation.text)
    for pair in set(pairs) & set(service.engines):
        tagged = [(i, j) for i, j in places if pairs[i] == pair and asked[i][j].has_tags]
        sources, targets = [asked[i][j].text for i, j in tagged], [answers[i][j].text for i, j in tagged]
        async with service.in_time(deadline):
            links = await _alignments(service, pair, sources, targets)
        for (i, j), target, link in zip(tagged, targets, links, strict=True):
            answers[i][j] = Translated(target, link)
    return answers


async def _alignments(
    service: Service, pair: Pair, sources: list[str], targets: list[str]
) -> list[tuple[Link, ...] | None]:
    translator = service.engines[pair].between(pair)
    links: list[tuple[Link, ...] | None] = []
    for first in range(0, len(sources), ALIGNED_AT_ONCE):
        group = slice(first, first + ALIGNED_AT_ONCE)
        links += await service.attention.run(partial(translator.alignments, sources[group], targets[group]))
    return links
