"""Errors that a user can fix, and the signal that stops a run."""

import re
from collections.abc import Iterable
from typing import Any

_OUT_OF_MEMORY = re.compile(
    "can't allocate memory|out of memory|not enough memory|STATUS_ALLOC_FAILED",  # PyTorch's, CUDA's, cuBLAS's words
    re.IGNORECASE,
)


class HeedError(Exception):
    """An error that a user can fix: the message, one line, says what was found, where, and what to do."""


class Stopped(Exception):
    """A signal asked a run to stop, and its state is saved. `signal`: its number."""

    def __init__(self, signal: int):
        super().__init__(signal)
        self.signal = signal


def refuse_text(**lists: object) -> None:
    """HeedError for a single text where a list of texts is expected: its characters would be taken for texts."""
    for name, given in lists.items():
        if isinstance(given, (str, bytes)):
            raise HeedError(f"{name} is one text; expected a list of texts: write [text] for a single one.")
        if not isinstance(given, Iterable):
            raise HeedError(f"{name} is of type {type(given).__name__}; expected a list of texts.")


def check_texts(**lists: Iterable[object]) -> None:
    """HeedError for lists that are not of texts alone, with the place of the first that is none, such as None."""
    refuse_text(**lists)
    for name, given in lists.items():
        for i, text in enumerate(given):
            if not isinstance(text, str):
                raise HeedError(f"{name}[{i}] is of type {type(text).__name__}; every one must be a text (str).")


def check_type(kind: Any, expected: str, **arguments: object) -> None:
    """HeedError names an argument that is of another type. expected: what `kind` is called."""
    for name, given in arguments.items():
        if not isinstance(given, kind):
            raise HeedError(f"{name} is of type {type(given).__name__}; expected {expected}.")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's, or a device's, for which PyTorch raises RuntimeError and its subclasses."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    )


def place_of(error: BaseException) -> str:
    """The file and line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "?" if trace is None else f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
