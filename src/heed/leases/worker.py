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
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import IO, Any

from heed.errors import HeedError, is_out_of_memory, place_of
from heed.leases.plan import InputWatch, Plan, StopAll
from heed.leases.storage import is_passing, write_whole
from heed.runtime.process_tuning import tune_process
from heed.runtime.python_process import python_command


@dataclass(eq=False)
class LeaseWorker(ABC):
    """A worker that makes parts of a plan in a folder.

    Its fields, which JSON can write, are its settings: by them another process makes the same worker. device: "cpu", or
    a GPU of the worker's machine. plan: once the worker is open.
    """

    folder: str
    threads: int
    device: str = "cpu"
    plan: Plan = field(init=False)

    def __post_init__(self) -> None:
        self._watch = InputWatch()

    @abstractmethod
    def open(self) -> None:
        """Loads what it works with. HeedError if it cannot work at all."""

    @abstractmethod
    def done(self, part: int) -> dict[str, Any] | None:
        """What the sidecar of a part says; None unless the part is there and whole."""

    @abstractmethod
    def make(self, part: int) -> dict[str, Any]:
        """Writes a part, whole or not at all; what its sidecar is to say."""

    @abstractmethod
    def close(self) -> None:
        """Closes the files that are open; the worker can be used again."""

    def sidecar(self, part: int) -> dict[str, Any]:
        """What the sidecar of a part says, which is made unless it is there ("made"), and the "seconds" it took.

        The sidecar comes last, so that a part that has one is whole.
        """
        started, record = time.monotonic(), self.done(part)
        is_new = record is None
        if record is None:
            inputs = self.plan.files_of(part)
            self._watch.check(inputs)
            record = self.make(part)
            self._watch.check(inputs)  # again: what was read must be what was planned
            write_whole(
                self.plan.sidecar_of(self.folder, part), json.dumps(record, indent=1, ensure_ascii=False) + "\n"
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

    def command(self) -> list[str]:
        """The command of this worker in a process of its own, which `main` reads."""
        kind, settings = type(self), {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        return python_command("-m", __name__, f"{kind.__module__}:{kind.__qualname__}", json.dumps(settings))


def main() -> None:
    """Serves as a process of its own: makes the parts that standard input names, until it ends."""
    module, _, kind = sys.argv[1].partition(":")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer
    tune_process()
    parts: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(parts,), daemon=True).start()
    try:
        worker: LeaseWorker = getattr(import_module(module), kind)(**json.loads(sys.argv[2]))
        worker.open()
    except HeedError as error:
        _answer(answers, {"refused": str(error)})
        sys.exit(1)
    except Exception as error:
        if not is_passing(error):
            raise
        sys.exit(f"A worker cannot start: {' '.join(str(error).split())}")  # whoever started it tries again
    _answer(answers, {"ready": True})
    while True:
        _answer(answers, worker.attempt(parts.get()))


def _listen(parts: "queue.SimpleQueue[int]") -> None:
    """Takes what is asked. The end of standard input is the end of who asks: nobody waits for the part at hand."""
    for line in sys.stdin:
        parts.put(int(line))
    os._exit(0)


def _answer(answers: IO[str], content: dict[str, Any]) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
