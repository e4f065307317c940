"""A process that reads and writes documents for another one, so that a hostile document cannot hold that one up.

It is started as `python -m heed.apps.documents.worker CPU_SECONDS MEMORY_BYTES` and spoken to over standard input and
output, in frames: the lengths of a header and of a content, eight bytes each; the header, JSON; the content. Asked are

    {"do": "open", "id", "format", "options", "name", "max_text", "max_chars", "place", "n_markup"}, a document: a file,
        or without a name a text, before which stand n_markup bytes of `markup_options` if it has any; options: the
        fields of `DocumentOptions`
    {"do": "answer", "id", "translations": [[text, links or null], …]}
    {"do": "forget", "id"}, which is not answered

and answered is one of

    {"asks": [[text, has_tags], …]}: sentences to translate
    {"done": true}, the translated document
    {"error": a line}, for a document that cannot be read or has more than max_chars to translate
    {"bug": what and where}

A step that takes more than CPU_SECONDS of processor time ends the process with SIGXCPU; one that needs more than
MEMORY_BYTES ends it with the status OUT_OF_MEMORY. Documents are data for this process and its answers are data for the
other: nothing that is sent is code. It imports no torch.
"""

import json
import os
import resource
import signal
import struct
import sys
from contextlib import suppress
from typing import Any, BinaryIO

from heed.apps.documents.formats.jobs import document_job, text_job
from heed.apps.documents.markup import marked_up_job
from heed.apps.documents.text.translation import DocumentOptions, Sentence, TranslationJob
from heed.errors import HeedError, place_of
from heed.runtime.process_tuning import give_back_freed_memory
from heed.runtime.signals import end_signals
from heed.text.alignment import Link, Translated

HEAD = struct.Struct("!QQ")  # how many bytes the header and the content have
OUT_OF_MEMORY = 75
NICENESS = 5  # searches, which most requests wait for, go first
SHORTEST = 8  # characters that a sentence counts at least: each costs a search
LARGE = 2**20  # bytes of frames, after which freed memory is given back


def frame(header: dict[str, Any], content: bytes = b"") -> bytes:
    """The bytes that are sent for a header and its content."""
    encoded = json.dumps(header).encode()
    return HEAD.pack(len(encoded), len(content)) + encoded + content


def n_chars_of(sentences: list[Sentence]) -> int:
    """How many characters a server counts for their translation."""
    return sum(max(SHORTEST, len(sentence.text)) for sentence in sentences)


def main() -> None:
    """Answers until standard input ends."""
    cpu_seconds, memory_bytes = map(int, sys.argv[1:])
    for number in end_signals():  # it ends with the process that it works for
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that nothing a library prints is among the answers
    try:
        _serve(sys.stdin.buffer, answers, cpu_seconds)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BrokenPipeError:
        os._exit(0)


def _serve(requests: BinaryIO, answers: BinaryIO, cpu_seconds: int) -> None:
    documents: dict[int, TranslationJob[str] | TranslationJob[bytes]] = {}
    while len(head := requests.read(HEAD.size)) == HEAD.size:
        n_header, n_content = HEAD.unpack(head)
        header, content = json.loads(requests.read(n_header)), requests.read(n_content)
        if header["do"] == "forget":
            documents.pop(header["id"], None)
            continue
        spent = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(spent.ru_utime + spent.ru_stime) + 1 + cpu_seconds
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        answer = _answer(documents, header, content)
        answers.write(answer)
        answers.flush()
        if n_content + n_header + len(answer) > LARGE:
            give_back_freed_memory()


def _answer(
    documents: dict[int, TranslationJob[str] | TranslationJob[bytes]], header: dict[str, Any], content: bytes
) -> bytes:
    number = header["id"]
    try:
        if header["do"] == "open":
            documents[number] = _start(header, content)
            asked = next(documents[number])
            if (n_chars := n_chars_of(asked)) > header["max_chars"]:
                raise HeedError(f"Invalid request: request ({n_chars}) exceeds text limit ({header['max_chars']})")
        else:
            asked = documents[number].send(
                [Translated(text, links and [Link(*link) for link in links]) for text, links in header["translations"]]
            )
        return frame({"asks": asked})
    except StopIteration as stop:
        with suppress(KeyError):
            del documents[number]
        done = stop.value
        return frame({"done": True}, done if isinstance(done, bytes) else done.encode())
    except MemoryError:
        raise
    except HeedError as error:
        documents.pop(number, None)
        return frame({"error": str(error)})
    except Exception as error:
        documents.pop(number, None)
        return frame({"bug": f"{type(error).__name__} at {place_of(error)}"})  # its message may hold text


def _start(header: dict[str, Any], content: bytes) -> TranslationJob[str] | TranslationJob[bytes]:
    given, format = header["options"], header["format"]
    options = DocumentOptions(**given | {"keep": tuple(given["keep"])})
    if n_markup := header["n_markup"]:
        return marked_up_job(content[n_markup:].decode(), content[:n_markup], options, place=header["place"])
    if header["name"] is None:
        return text_job(content.decode(), format, options)
    return document_job(content, format, options, name=header["name"], max_text=header["max_text"])


if __name__ == "__main__":
    main()
