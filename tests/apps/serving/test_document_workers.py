"""Documents are read in processes of their own, which are bounded and may die."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from heed.apps.documents.formats.jobs import document_job, text_job
from heed.apps.documents.text.translation import DocumentOptions, run_job
from heed.apps.serving.document_workers import Document, DocumentBug, DocumentSession, DocumentWorkers, _Worker
from heed.apps.serving.http_error import HTTPError
from heed.errors import HeedError
from heed.text.alignment import Link, Translated

PAGE = "<p>The <b>dog</b> sees.</p><p>A <i>cat</i> ü sleeps.</p>" * 3
ENGLISH = DocumentOptions(language="en")
FILE = Document(PAGE.encode(), "html", ENGLISH, 10_000, is_file=True, max_text=10_000)
TEXT = Document(PAGE.encode(), "html", ENGLISH, 10_000)


def upper(sentences):
    return [Translated(text.upper(), [Link(0, 1, 0, 1), Link(4, 7, 4, 7)]) for text in sentences]


async def translated(session, meanwhile=lambda: None):
    step = await session.go_on()
    while not isinstance(step, bytes):
        meanwhile()
        step = await session.go_on(upper([sentence.text for sentence in step]))
    return step


def run(work):
    """The result of the coroutine that `work` makes of DocumentWorkers, which are closed after it."""

    async def main():
        workers = DocumentWorkers(10_000)
        try:
            return await work(workers)
        finally:
            await workers.close()

    return asyncio.run(main())


def test_a_worker_makes_what_the_process_itself_makes():
    async def work(workers):
        with workers.open(FILE) as file, workers.open(TEXT) as text:
            return await asyncio.gather(translated(file), translated(text))

    file = run_job(document_job(FILE.content, "html", ENGLISH, name="x", max_text=10_000), upper)
    text = run_job(text_job(PAGE, "html", ENGLISH), upper)
    assert run(work) == [file, text.encode()]


def test_a_worker_that_is_killed_is_replaced_and_nobody_notices():
    async def work(workers):
        def kill():
            os.kill(session.process.pid, signal.SIGKILL)

        with workers.open(TEXT) as session, workers.open(TEXT) as other:
            begun = await other.go_on()
            assert isinstance(begun, list)
            first = await translated(session, kill)
            return first, await other.go_on(upper([sentence.text for sentence in begun]))

    killed, other = run(work)
    expected = run_job(text_job(PAGE, "html", ENGLISH), upper)
    assert killed == other == expected.encode()


def test_what_cannot_be_read_is_the_error_of_its_document_alone():
    async def work(workers):
        with workers.open(Document(b"\xff", "md", ENGLISH, 9, is_file=True)) as session:
            with pytest.raises(HeedError, match=r"^the file: byte 1 \(0xff\) is not UTF-8"):
                await session.go_on()
            process = session.process
        a_bug = pytest.raises(DocumentBug, match=r"^KeyError at jobs.py:\d+$")
        with workers.open(Document(b"x", "no format", ENGLISH, 9)) as session, a_bug:
            await session.go_on()
        too_many = pytest.raises(HeedError, match=r"request \(32\) exceeds text limit \(31\)")
        with workers.open(Document(b"a.\n\n" * 4, "md", ENGLISH, 31)) as session, too_many:
            await session.go_on()
        with workers.open(FILE) as session:
            await translated(session)
            assert session.process is process

    run(work)


# Seconds of computing, bytes of memory, and what is run_job for four megabytes.
LIMITS = {
    "time": (0, 2**30, 422, "takes more than 0 s of computing; split it"),
    "memory": (60, 120 * 2**20, 413, "takes more than 120 MiB of memory; split it"),
}


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
def test_a_document_over_its_limits_is_refused_and_the_next_one_read(limit):
    async def main():
        seconds, memory, status, said = LIMITS[limit]
        worker = _Worker(seconds, memory)
        large = Document(b"<p>a <b>b</b>.</p>" * 250_000, "html", ENGLISH, 10**9)
        with pytest.raises(HTTPError, match=said) as caught, DocumentSession(large, worker) as session:
            await session.go_on()
        assert caught.value.status == status
        with DocumentSession(TEXT, worker) as session:
            found = await translated(session)
        await worker.close()
        return found

    assert asyncio.run(main()).count(b"<b>") == 3


def test_a_step_that_nobody_waits_for_is_ended():
    async def main():
        worker = _Worker(600, 2**31)
        with DocumentSession(Document(b"<p>a <b>b</b>.</p>" * 1_000_000, "html", ENGLISH, 10**9), worker) as session:
            step = asyncio.ensure_future(session.go_on())
            while session.process is None:
                await asyncio.sleep(0.01)
            step.cancel()
            await asyncio.wait([step])
        assert await asyncio.wait_for(session.process.wait(), 5) == -signal.SIGKILL
        with DocumentSession(TEXT, worker) as session:
            await translated(session)
        await worker.close()

    asyncio.run(main())


def test_a_worker_ends_with_its_server_and_imports_no_torch():
    code = """if True:
        import asyncio, sys
        from heed.apps.serving.document_workers import Document, DocumentWorkers
        from heed.apps.documents.text.translation import DocumentOptions
        async def main():
            document = Document(b"<p>one.</p>", "html", DocumentOptions(language="en"), 99)
            with DocumentWorkers(10_000).open(document) as session:
                await session.go_on()
                print(session.process.pid, flush=True)
                await asyncio.sleep(60)
        asyncio.run(main())
    """
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        worker = int(server.stdout.readline())
        with open(f"/proc/{worker}/maps") as maps:
            assert "torch" not in maps.read()
        descriptor = os.pidfd_open(worker)
    finally:
        server.kill()
        server.communicate()
    ended = asyncio.run(_readable(descriptor))
    os.close(descriptor)
    assert ended


async def _readable(descriptor):
    seen = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, seen.set)
    await asyncio.wait_for(seen.wait(), 10)
    return True
