"""A worker's side of a lease: a numbered part is asked for, and what became of it is answered.

A worker is called in this process, is an actor of Ray, or is a process of its own, whose module calls `serve`: it reads
numbers of parts from standard input, a line each, and answers with lines of JSON on standard output, first {"ready":
true}, then what `attempt` gives. It ends when standard input does.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import IO, Any, ClassVar, Protocol

from heed.errors import HeedError, is_out_of_memory, place_of
from heed.leases.storage import is_passing
from heed.runtime.process_tuning import tune_process


class LeaseWorker(Protocol):
    """Makes parts."""

    def attempt(self, part: int) -> dict[str, Any]:
        """The answer of `attempted`."""

    def close(self) -> None:
        """Closes what the worker has opened."""


class Loading(Protocol):
    """The settings of a worker, a frozen dataclass of what JSON can write.

    module: the name of the module whose `main` serves in a process of its own, given the settings as its argument.
    """

    module: ClassVar[str]

    @property
    def threads(self) -> int: ...

    @property
    def device(self) -> str:
        """ "cpu", or a GPU of the worker's machine."""

    def make(self) -> LeaseWorker:
        """The worker. HeedError if it cannot work at all."""


class StopAll(HeedError):
    """A fault of a part for which no other part is worth making."""


def attempted(
    make: Callable[[int], dict[str, Any]], part: int, *, clean_up: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """{"done": what `make` returns}, or {"failed": a line, "again": whether another attempt may succeed}.

    {"stop": a line} for StopAll. clean_up: called after an error that is not a HeedError.
    """
    try:
        return {"done": make(part)}
    except StopAll as error:
        return {"stop": str(error)}
    except HeedError as error:
        return {"failed": str(error), "again": is_passing(error)}
    except Exception as error:  # one part's fault must not end the others
        clean_up()
        if not is_passing(error) and not is_out_of_memory(error):
            message = f"{type(error).__name__} at {place_of(error)}: {' '.join(str(error).split())}"
            return {"failed": f"internal error, {message}", "again": False}
        return {"failed": " ".join(str(error).split()) or type(error).__name__, "again": True}


def serve(make: Callable[[], LeaseWorker]) -> None:
    """Makes the parts that standard input names, until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer
    tune_process()
    parts: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(parts,), daemon=True).start()
    try:
        worker = make()
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
