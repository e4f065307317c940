"""A worker's side of a lease: a numbered part is asked for, and what became of it is answered.

A worker is called in this process, is an actor of Ray, or is a process of its own: it reads numbers of parts from
standard input, a line each, and answers with lines of JSON on standard output, first {"ready": true}, then what
`attempt` gives. It ends when standard input does.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from typing import IO, Any, Protocol

from heed.errors import HeedError, is_out_of_memory, place_of
from heed.leases.plan import InputWatch, Plan, StopAll
from heed.leases.storage import is_passing, write_whole
from heed.runtime.process_tuning import tune_process
from heed.runtime.python_process import python_command


class LeaseWorker(Protocol):
    """Makes the parts of a plan in a folder."""

    @property
    def plan(self) -> Plan: ...
    @property
    def folder(self) -> str: ...

    def done(self, part: int) -> dict[str, Any] | None:
        """What the sidecar of a part says; None unless the part is there and whole."""

    def make(self, part: int) -> dict[str, Any]:
        """Writes a part, whole or not at all; what its sidecar is to say."""

    def close(self) -> None:
        """Closes the files that are open; the worker can be used again."""


class WorkerSettings(Protocol):
    """The settings of a worker, a frozen dataclass of what JSON can write."""

    @property
    def threads(self) -> int: ...

    @property
    def device(self) -> str:
        """ "cpu", or a GPU of the worker's machine."""

    def make(self) -> LeaseWorker:
        """The worker. HeedError if it cannot work at all."""


class Attempts:
    """Attempts of a worker at parts. A part's sidecar comes last, so that a part that has one is whole."""

    def __init__(self, worker: LeaseWorker):
        self._worker, self._watch = worker, InputWatch()

    def sidecar(self, part: int) -> dict[str, Any]:
        """What the sidecar of a part says, which is made unless it is there ("made"), and the "seconds" it took."""
        worker, started = self._worker, time.monotonic()
        record = worker.done(part)
        is_new = record is None
        if record is None:
            inputs = worker.plan.files_of(part)
            self._watch.check(inputs)
            record = worker.make(part)
            self._watch.check(inputs)  # again: what was read must be what was planned
            write_whole(
                worker.plan.sidecar_of(worker.folder, part), json.dumps(record, indent=1, ensure_ascii=False) + "\n"
            )
        return {"seconds": time.monotonic() - started, **record, "made": is_new}

    def attempt(self, part: int) -> dict[str, Any]:
        """{"done": what `sidecar` gives}, or {"failed": a line, "again": whether another attempt may succeed}.

        {"stop": a line} for StopAll.
        """
        try:
            return {"done": self.sidecar(part)}
        except StopAll as error:
            return {"stop": str(error)}
        except HeedError as error:
            return {"failed": str(error), "again": is_passing(error)}
        except Exception as error:  # one part's fault must not end the others
            self.close()
            if not is_passing(error) and not is_out_of_memory(error):
                message = f"{type(error).__name__} at {place_of(error)}: {' '.join(str(error).split())}"
                return {"failed": f"internal error, {message}", "again": False}
            return {"failed": " ".join(str(error).split()) or type(error).__name__, "again": True}

    def close(self) -> None:
        """Closes what the worker has opened."""
        self._worker.close()


def command_of(loading: WorkerSettings) -> list[str]:
    """The command of a worker in a process of its own, which `main` reads."""
    settings: Any = loading  # of a class that is a dataclass
    kind = type(loading)
    return python_command("-m", __name__, f"{kind.__module__}:{kind.__qualname__}", json.dumps(asdict(settings)))


def serve(make: Callable[[], LeaseWorker]) -> None:
    """Makes the parts that standard input names, until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer
    tune_process()
    parts: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(parts,), daemon=True).start()
    try:
        attempts = Attempts(make())
    except HeedError as error:
        _answer(answers, {"refused": str(error)})
        sys.exit(1)
    except Exception as error:
        if not is_passing(error):
            raise
        sys.exit(f"A worker cannot start: {' '.join(str(error).split())}")  # whoever started it tries again
    _answer(answers, {"ready": True})
    while True:
        _answer(answers, attempts.attempt(parts.get()))


def _listen(parts: "queue.SimpleQueue[int]") -> None:
    """Takes what is asked. The end of standard input is the end of who asks: nobody waits for the part at hand."""
    for line in sys.stdin:
        parts.put(int(line))
    os._exit(0)


def _answer(answers: IO[str], content: dict[str, Any]) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


def main() -> None:
    """Serves as a process of its own, as `command_of` says."""

    def make() -> LeaseWorker:
        module, _, kind = sys.argv[1].partition(":")
        worker: LeaseWorker = getattr(import_module(module), kind)(**json.loads(sys.argv[2])).make()
        return worker

    serve(make)


if __name__ == "__main__":
    main()
