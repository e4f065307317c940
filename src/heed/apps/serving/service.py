"""The service behind all interfaces: models by language pair, limits, keys, and texts through the engines."""

import asyncio
import hashlib
import hmac
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from heed.apps.documents.formats.plain_text import TextDraft
from heed.apps.documents.text.items import Item
from heed.apps.documents.text.sentences import splitter
from heed.apps.documents.text.tagged_text import has_words
from heed.apps.documents.text.terms import Terms
from heed.apps.documents.text.translation import DocumentOptions, Question, expanded
from heed.apps.serving.document_workers import FILES_AT_ONCE, DocumentWorkers
from heed.apps.serving.doors import AccessPolicy
from heed.apps.serving.engine import Engine, off_event_loop
from heed.apps.serving.files import FileStore
from heed.apps.serving.glossaries import GlossaryStore
from heed.apps.serving.metrics import Metrics
from heed.apps.serving.request_queue import QueueFull, TooLate
from heed.decoding.translation import Translation, without_blank
from heed.errors import HeedError
from heed.text.alignment import Link
from heed.text.alignment import Translated as Aligned
from heed.text.language_detection import LanguageDetector
from heed.text.languages import language_name
from heed.text.line_rules import is_blank

WARM_UP = "Hello."
MAX_KEY_FILE_BYTES = 2**24
MAX_BEAM = 1_000  # hypotheses of a sentence: as many as a beam has
MAX_PICTURE_BYTES = 2**23  # of a file beside its text

T = TypeVar("T")
Pair = tuple[str, str]  # a source and a target language


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of requests, and of the queue."""

    max_chars: int = 10_000  # of all texts of a request together
    max_texts: int = 128
    max_alternatives: int = 4
    queue: int = 256  # sentences of a model that may wait
    timeout_seconds: float = 60.0
    grace_seconds: float = 30.0  # for what was accepted when the server is asked to end

    @property
    def max_body_bytes(self) -> int:
        """Bytes of a request's body: a character may take 12 of them, in JSON (two escapes) as in a form."""
        return 12 * self.max_chars + 64 * self.max_texts + 2**16

    @property
    def max_deepl_bytes(self) -> int:
        """Bytes of the texts of a request of DeepL's interface, which documents 128 KiB; more with `max_chars`."""
        return 2**17 * self.max_chars // 10_000

    @property
    def max_deepl_texts(self) -> int:
        """Texts of such a request: clients send up to 1,000."""
        return 8 * self.max_texts

    @property
    def max_file_chars(self) -> int:
        """Characters of all sentences of a file; files are long."""
        return 20 * self.max_chars

    @property
    def max_file_text(self) -> int:
        """Bytes of a file's text and markup, or of the XML in a .docx, which take a core's time and much memory."""
        return 5 * self.max_file_chars

    @property
    def max_file_bytes(self) -> int:
        """Bytes of a file as it is sent; a .docx may hold pictures."""
        return self.max_file_text + MAX_PICTURE_BYTES


# Of an empty key and of a line end alone, as commands write it that were given no key.
OF_NO_KEY = [hashlib.sha256(key).hexdigest() for key in (b"", b"\n", b"\r\n", b" ")]


class ApiKeys:
    """The keys that clients must have: only their digests are known."""

    def __init__(self, digests: Sequence[str]):
        self._digests = [digest.lower() for digest in digests]

    @classmethod
    def read(cls, path: Path) -> "ApiKeys":
        """The keys of a file: the SHA-256 of a key in hexadecimal digits, one a line. HeedError names a line that is
        none."""
        try:
            with path.open("rb") as file:
                lines = file.read(MAX_KEY_FILE_BYTES).decode("ascii", errors="replace").splitlines()
        except OSError as error:
            raise HeedError(f"{path}: cannot be read ({error.strerror}).") from None
        digests = []
        for number, line in enumerate(lines, start=1):
            digest = line.partition("#")[0].strip().removesuffix(" -").strip()  # sha256sum's name of standard input
            if digest and not re.fullmatch("[0-9a-fA-F]{64}", digest):
                raise HeedError(
                    f"{path}, line {number}: not the SHA-256 of a key; make one with: printf %s KEY | sha256sum"
                )
            if digest.lower() in OF_NO_KEY:
                raise HeedError(
                    f"{path}, line {number}: the SHA-256 of an empty key, with which everybody would be let in; make "
                    "one with: printf %s KEY | sha256sum"
                )
            digests += [digest] if digest else []
        if not digests:
            raise HeedError(f"{path}: holds no key; leave --api-keys out to serve everybody.")
        return cls(digests)

    def holds(self, key: str) -> bool:
        """Whether this is one of the keys, which an empty one never is; takes as long for every key."""
        digest = hashlib.sha256(key.encode("utf-8", errors="surrogatepass")).hexdigest()
        return bool(key) and sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


class AttentionThread:
    """Computes attention weights, which take a core and much memory, for one request at a time.

    It always uses the same thread, since each thread that computes keeps buffers and a team of threads.
    """

    def __init__(self, metrics: Metrics, *, max_waiting: int):
        self._metrics, self._max_waiting = metrics, max_waiting
        self._n_waiting = 0  # requests, the one whose turn it is among them
        self._n_held = 0  # weights
        self._executor = ThreadPoolExecutor(1, "heed-attention")

    def check_room(self) -> None:
        """Raises QueueFull if too many requests wait."""
        if self._n_waiting > self._max_waiting:
            self._metrics.rejected.labels(QueueFull.reason).inc()
            raise QueueFull("too many requests for attention; try again in 1 s")

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, once it is its turn.

        If the request is cancelled before its turn, the work is dropped; once begun, it runs to its end and the result
        is discarded.
        """
        self._n_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._n_waiting -= 1

    @contextmanager
    def holding(self, n_weights: int, *, most: int) -> Iterator[None]:
        """Counts weights that are in memory. Raises QueueFull if they are more than `most`."""
        self._n_held += n_weights
        try:
            if self._n_held > most:
                self._metrics.rejected.labels(QueueFull.reason).inc()
                raise QueueFull("too many answers of attention are not yet read; try again in 1 s")
            yield
        finally:
            self._n_held -= n_weights

    def close(self) -> None:
        """Ends the thread; queued work is dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class Translated:
    """A text's translation, and others of it: the best in which every sentence has its second best, and so on."""

    text: str
    alternatives: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """A sentence as the model translates it, and with its tags: the best hypothesis, then others."""

    translation: Translation
    items: tuple[list[Item], ...]


@dataclass(eq=False)
class Service:
    """The engines of a server by language pair, and what is counted."""

    engines: Mapping[tuple[str, str], Engine]
    limits: Limits = field(default_factory=Limits)
    keys: ApiKeys | None = None
    metrics: Metrics = field(default_factory=Metrics)
    show_metrics: bool = True
    show_page: bool = True
    doors: AccessPolicy = field(default_factory=AccessPolicy)
    glossaries: GlossaryStore = field(default_factory=GlossaryStore)
    files: FileStore = field(default_factory=FileStore)
    ready: bool = False
    n_characters: int = 0  # translated since the start

    def __post_init__(self) -> None:
        self.attention = AttentionThread(self.metrics, max_waiting=self.limits.queue)
        self.file_turns = asyncio.Semaphore(FILES_AT_ONCE)
        self.document_workers = DocumentWorkers(self.limits.max_file_text)
        self.detector = LanguageDetector(self.codes)

    async def start(self) -> None:
        """Starts the engines; ready once each has translated a sentence. The first attention comes after that."""
        pairs = {engine: pair for pair, engine in self.engines.items()}
        for engine in pairs:
            engine.start()
        for engine, pair in pairs.items():
            async with aclosing(engine.translate([WARM_UP], [pair])) as results:
                async for _ in results:
                    pass
        self.ready = True
        for engine, pair in pairs.items():
            await self.attention.run(partial(engine.between(pair).alignment, WARM_UP, WARM_UP))

    async def close(self) -> None:
        """Finishes what was accepted and ends the engines."""
        self.ready = False
        await asyncio.gather(
            *(asyncio.to_thread(engine.close, self.limits.grace_seconds) for engine in set(self.engines.values()))
        )
        self.attention.close()
        await self.document_workers.close()
        self.files.close()

    @asynccontextmanager
    async def in_time(self, deadline: float) -> AsyncGenerator[None]:
        """Raises TooLate if the work within is not finished at the deadline, by the event loop's clock."""
        try:
            async with asyncio.timeout_at(deadline):
                yield
        except TimeoutError:
            self.metrics.rejected.labels(TooLate.reason).inc()
            raise TooLate("not finished in time") from None

    @cached_property
    def languages(self) -> dict[str, list[str]]:
        """Each source language with the languages that it can be translated into; into itself, too."""
        targets: dict[str, set[str]] = {src: {src} for src, _ in self.engines}
        for src, tgt in self.engines:
            targets[src].add(tgt)
        return {src: sorted(targets[src]) for src in sorted(targets, key=language_name)}

    @cached_property
    def codes(self) -> set[str]:
        """The codes of all languages that texts can be translated from or into."""
        return {code for pair in self.engines for code in pair}

    def has(self, src: str, tgt: str) -> bool:
        """Whether texts can be translated from one to the other; into its own language, a text stays as it is."""
        return (src, tgt) in self.engines or (src == tgt and src in self.codes)

    async def detect(self, text: str) -> list[tuple[str, float]]:
        """The languages that the server translates from or into, with their probabilities, most probable first."""
        return await asyncio.to_thread(self.detector.rank, text)

    async def detect_source(self, text: str, target: str) -> tuple[str, float]:
        """The language that a text is most probably in, with its probability.

        It may be the target, whose texts stay as they are. If none has half the probability, as short texts have it,
        it is the target if that is more probable than all that the server translates into it, else the first of these.
        """
        ranked = await self.detect(text)
        source = next((direction for direction in ranked if (direction[0], target) in self.engines), ranked[0])
        of_target = next((direction for direction in ranked if direction[0] == target), source)
        return ranked[0] if ranked[0][1] >= 0.5 else of_target if of_target[1] > source[1] else source

    def deadline(self) -> float:
        """When a request that begins now must be answered, by the event loop's clock."""
        return asyncio.get_running_loop().time() + self.limits.timeout_seconds

    def check_room(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Raises QueueFull or Closing before anything is done for the request."""
        for pair in set(pairs) & set(self.engines):
            self.engines[pair].queue.check_room()

    async def translate(self, drafts: Sequence[TextDraft], pairs: Sequence[Pair], *, n_best: int) -> list[Translated]:
        """Translates each text from and into its languages. Errors as for `Engine.translate`."""
        of_drafts: list[list[Answer | None]] = [[None] * len(draft.questions) for draft in drafts]
        async with aclosing(self.answers(drafts, pairs, n_best=n_best)) as results:
            async for text, place, answer in results:
                of_drafts[text][place] = answer
        return [_join(draft, answers, n_best) for draft, answers in zip(drafts, of_drafts, strict=True)]

    async def drafts(
        self, texts: Sequence[str], pairs: Sequence[Pair], options: DocumentOptions, *, by_line: bool = False
    ) -> list[TextDraft]:
        """The sentences of each text, or its lines. Of the options, `keep` and `terms` count."""

        def made() -> list[TextDraft]:
            given = Terms(options.terms) if options.terms else None
            return [
                TextDraft(text, splitter(src), by_line=by_line, keep=options.keep, terms=given)
                for text, (src, _) in zip(texts, pairs, strict=True)
            ]

        return await off_event_loop(sum(map(len, (*texts, *options.terms))), made)

    async def answers(
        self, drafts: Sequence[TextDraft], pairs: Sequence[tuple[str, str]], *, n_best: int = 1, prefix: str = ""
    ) -> AsyncGenerator[tuple[int, int, Answer]]:
        """Yields (text, sentence, its translations) as they are finished, whichever engine they come from.

        Sentences whose placeholders or addresses do not survive are asked for again, without these.
        """
        deadline = self.deadline()
        # First the words of messages that stand in sentences, which are few.
        nested: dict[Question, list[Item]] = {}
        for is_nested in (True, False):
            of_drafts = [draft.nested if is_nested else draft.questions for draft in drafts]
            asked = {(i, j): question for i, of_text in enumerate(of_drafts) for j, question in enumerate(of_text)}
            while asked:
                places, lost = list(asked), dict[tuple[int, int], Question]()
                texts, of_texts = [question.text for question in asked.values()], [pairs[i] for i, _ in places]
                async with aclosing(
                    self.translations(texts, of_texts, n_best=n_best, prefix=prefix, deadline=deadline)
                ) as results:
                    async for number, translation in results:
                        i, j = places[number]
                        question = asked[i, j]
                        answers = await self._answers(question, translation, pairs[i], deadline)
                        if not answers and has_words((bare := question.without_texts()).sentence):
                            lost[i, j] = bare
                            continue
                        answers = answers or [list(question.sentence.items())]
                        if is_nested:
                            nested[of_drafts[i][j]] = answers[0]
                        else:
                            yield i, j, Answer(translation, tuple(list(expanded(items, nested)) for items in answers))
                asked = lost

    async def _answers(
        self, question: Question, translation: Translation, pair: tuple[str, str], deadline: float
    ) -> list[list[Item]]:
        """What the hypotheses make of a sentence; nothing if the best has lost what must stay."""
        texts = [hypothesis.text for hypothesis in translation.alternatives or (translation,)]
        links: Sequence[Sequence[Link] | None] = [None] * len(texts)
        if question.has_tags and pair in self.engines:
            translator = self.engines[pair].between(pair)
            async with self.in_time(deadline):
                links = await self.attention.run(partial(translator.alignments, [question.text] * len(texts), texts))
        made = [question.answer(Aligned(text, link)) for text, link in zip(texts, links, strict=True)]
        return [] if made[0] is None else [items for items in made if items is not None]

    async def translations(
        self, sentences: Sequence[str], pairs: Sequence[Pair], *, deadline: float, n_best: int = 1, prefix: str = ""
    ) -> AsyncGenerator[tuple[int, Translation]]:
        """Yields each sentence's place and translation as they are finished.

        A sentence whose best translation is blank gets the next one that is not, else itself. deadline: by the event
        loop's clock.
        """
        asked: dict[Engine, list[int]] = {}
        for i, (sentence, pair) in enumerate(zip(sentences, pairs, strict=True)):
            if pair in self.engines:
                asked.setdefault(self.engines[pair], []).append(i)
            else:  # into its own language
                self.n_characters += len(sentence)
                yield i, Translation(sentence, sentence, 0.0, 0.0, True)

        # Blank ones are few, so that all their hypotheses cost little.
        for is_again in (False, True):
            blank: dict[Engine, list[int]] = {}
            for engine, places in asked.items():  # texts for several models are rare: one at a time
                of_engine, of_pairs = [sentences[i] for i in places], [pairs[i] for i in places]
                seconds = max(0.0, deadline - asyncio.get_running_loop().time())
                most = MAX_BEAM if is_again else n_best
                async with aclosing(
                    engine.translate(of_engine, of_pairs, n_best=most, prefix=prefix, timeout_seconds=seconds)
                ) as results:
                    async for number, translation in results:
                        i = places[number]
                        if is_again:
                            source = replace(translation, text=translation.source, alternatives=())
                            text = without_blank(translation) or source
                            yield i, replace(text, alternatives=text.alternatives[:n_best], is_best=False)
                            continue
                        self.n_characters += len(translation.source)
                        if is_blank(translation.text) and not is_blank(translation.source):
                            self.metrics.blank.inc()
                            blank.setdefault(engine, []).append(i)
                        else:
                            yield i, translation
            asked = blank


def _join(draft: TextDraft, answers: Sequence[Answer | None], n_best: int) -> Translated:
    present = [answer for answer in answers if answer is not None]
    best = draft.text({question: answer.items[0] for question, answer in zip(draft.questions, present, strict=True)})
    others: list[str] = []
    for rank in range(1, min(n_best, max((len(answer.items) for answer in present), default=0))):
        # A sentence that has fewer keeps its last.
        ranked = [answer.items[min(rank, len(answer.items) - 1)] for answer in present]
        text = draft.text(dict(zip(draft.questions, ranked, strict=True)))
        others += [text] if text not in (best, *others) else []
    return Translated(best, tuple(others))
