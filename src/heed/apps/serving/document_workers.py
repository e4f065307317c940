"""Processes that read and write documents, so that no document can bring the server down."""

import asyncio
import json
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

from heed.apps.documents.formats import Format
from heed.apps.documents.text.translation import DocumentOptions, Sentence
from heed.apps.documents.worker import HEAD, OUT_OF_MEMORY, frame
from heed.apps.serving.http_error import HTTPError
from heed.errors import HeedError
from heed.runtime.python_process import python_command, python_environment
from heed.text.alignment import Translated

FILES_AT_ONCE = 2  # each in a process of its own, which takes a core's time
# A megabyte of short marked-up sentences takes three seconds and 150 MB on a slow core.
CPU_SECONDS, CPU_SECONDS_PER_BYTE = 5.0, 15e-6
MEMORY_BYTES, MEMORY_PER_BYTE = 2**28, 400


@dataclass(frozen=True)
class Document:
    """A document to translate: a file's content, or a text in UTF-8 from a request.

    max_chars: to translate; max_text: as for `document_job`; markup: how a text of HTML or XML is read, from
    `markup_options`, and place: which text of the request it is.
    """

    content: bytes
    format: Format
    options: DocumentOptions
    max_chars: int
    is_file: bool = False
    max_text: int | None = None
    markup: bytes = b""
    place: int = 1


class DocumentBug(Exception):
    """A reader or writer has a bug. `what`: its name and place, without any text."""

    def __init__(self, what: str):
        super().__init__(what)
        self.what = what


class _Died(Exception):
    """The process ended in the middle of a step, with this status."""

    def __init__(self, status: int):
        super().__init__(status)
        self.status = status


class DocumentWorkers:
    """Worker processes, started when they are needed and again when they die: for files, and one for all texts."""

    def __init__(self, max_text: int):
        """max_text: bytes of the longest document, by which time and memory are bounded."""
        limits = int(CPU_SECONDS + CPU_SECONDS_PER_BYTE * max_text), MEMORY_BYTES + MEMORY_PER_BYTE * max_text
        self._for_files = [_Worker(*limits) for _ in range(FILES_AT_ONCE)]
        self._for_texts = _Worker(*limits)

    def open(self, document: Document) -> "DocumentSession":
        """A document to translate. The first step begins it; it must be closed."""
        if not document.is_file:
            return DocumentSession(document, self._for_texts)
        return DocumentSession(document, min(self._for_files, key=lambda worker: worker.n_sessions))

    async def close(self) -> None:
        """Ends the processes."""
        for worker in [*self._for_files, self._for_texts]:
            await worker.close()


_numbers = count()


@dataclass(eq=False)
class DocumentSession:
    """A document in a worker. A context manager: at its end the worker forgets it."""

    document: Document
    worker: "_Worker"
    number: int = field(default_factory=lambda: next(_numbers))
    # What the worker has answered, which another one is told if it dies; and the process that knows all of it.
    answered: list[bytes] = field(default_factory=list)
    process: Process | None = None
    is_closed: bool = False

    def __enter__(self) -> "DocumentSession":
        self.worker.n_sessions += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True
        self.worker.n_sessions -= 1
        self.worker.forget(self)

    async def go_on(self, translations: Sequence[Translated] | None = None) -> list[Sentence] | bytes:
        """Sentences to translate, or the translated document. translations: of the sentences of the step before.

        HTTPError for a document that takes too much time or memory, HeedError for one that cannot be read. If it is
        cancelled, the step still ends.
        """
        asked: dict[str, Any] = {"id": self.number}
        if translations is None:
            of, markup = self.document, self.document.markup
            asked |= {"do": "open", "format": of.format, "options": asdict(of.options), "place": of.place}
            asked |= {"name": "the file" if of.is_file else None, "max_text": of.max_text, "max_chars": of.max_chars}
            step = frame(asked | {"n_markup": len(markup)}, markup + of.content)
        else:
            step = frame(asked | {"do": "answer", "translations": [[t.text, t.alignment] for t in translations]})
        task = asyncio.ensure_future(self.worker.step(self, step))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # which may come when nobody waits
        header, content = await asyncio.shield(task)
        if "error" in header:
            raise HeedError(header["error"])
        if "bug" in header:
            raise DocumentBug(header["bug"])
        return content if "done" in header else [Sentence(*sentence) for sentence in header["asks"]]


class _Worker:
    """A process that takes one step at a time."""

    def __init__(self, cpu_seconds: int, memory_bytes: int):
        self.n_sessions = 0
        self._cpu_seconds, self._memory_bytes = cpu_seconds, memory_bytes
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    async def step(self, session: DocumentSession, step: bytes) -> tuple[dict[str, Any], bytes]:
        """Its answer, header and content. A process that dies of another document's memory is replaced once."""
        async with self._turn:
            for is_last in (False, True):
                if session.is_closed:
                    break
                try:
                    answer = await self._take(session, step)
                except _Died as died:
                    if is_last or died.status == -signal.SIGXCPU:
                        raise self._fault(died.status) from None
                else:
                    session.answered.append(step)
                    return answer
            return {"asks": []}, b""  # to nobody

    def _fault(self, status: int) -> HTTPError:
        if status == -signal.SIGXCPU:
            return HTTPError(422, f"the document takes more than {self._cpu_seconds} s of computing; split it")
        if status == OUT_OF_MEMORY:
            most = self._memory_bytes // 2**20
            return HTTPError(413, f"the document takes more than {most} MiB of memory; split it")
        return HTTPError(422, "the document cannot be read: its reader was ended")

    async def _take(self, session: DocumentSession, step: bytes) -> tuple[dict[str, Any], bytes]:
        if self._process is None or self._process.returncode is not None:
            self._process = await self._started()
        process = self._process
        steps = [step] if session.process is process else [*session.answered, step]
        session.process = process
        for each in steps:
            answer = await _exchange(process, each)
        return answer

    async def _started(self) -> Process:
        try:
            return await asyncio.create_subprocess_exec(
                *python_command("-m", "heed.apps.documents.worker", str(self._cpu_seconds), str(self._memory_bytes)),
                env=python_environment(),
                stdin=PIPE,
                stdout=PIPE,
                process_group=0,  # Ctrl-C in a terminal is meant for the server, which still needs it
            )
        except OSError as error:
            reason = f"no process for documents can be started ({error.strerror})"
            raise HTTPError(503, reason, {"retry-after": "5"}) from None

    def forget(self, session: DocumentSession) -> None:
        """Drops the process's state of a document; ends the process if it is busy, and only with that."""
        process = self._process
        if process is None or process is not session.process or process.returncode is not None:
            return
        if self._turn.locked() and self.n_sessions == 0:
            process.kill()
        elif process.stdin is not None:
            process.stdin.write(frame({"do": "forget", "id": session.number}))

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


async def _exchange(process: Process, step: bytes) -> tuple[dict[str, Any], bytes]:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(step)
        await process.stdin.drain()
        n_header, n_content = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
        header = json.loads(await process.stdout.readexactly(n_header))
        return header, await process.stdout.readexactly(n_content)
    except (asyncio.IncompleteReadError, ConnectionError):
        raise _Died(await process.wait()) from None
