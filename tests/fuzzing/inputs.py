"""What targets share: a first byte that chooses the kind of an input, mutations of JSON, and what may be raised."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from heed.errors import HeedError
from tests.test_fuzz import mutated_bytes, mutated_value

MAX_MESSAGE = 1000  # characters
FIRST = ord("0")

Kind = TypeVar("Kind")


def of_kind(kinds: Sequence[Kind], kind: Kind, content: bytes) -> bytes:
    """An input that `kind_of` takes apart."""
    return bytes([FIRST + kinds.index(kind)]) + content


def kind_of(kinds: Sequence[Kind], data: bytes) -> tuple[Kind, bytes]:
    """The kind that the first byte chooses, and the content behind it. Every byte chooses one."""
    return kinds[(data[0] - FIRST) % len(kinds)], data[1:]


@contextmanager
def refused_in_one_line() -> Iterator[None]:
    """Lets a HeedError pass if its message is one line of bounded length."""
    try:
        yield
    except HeedError as error:
        message = str(error)
        assert "\n" not in message and len(message) < MAX_MESSAGE, f"not one short line: {message[:2000]!r}"


def mutated(data: bytes, draw: random.Random) -> bytes:
    """With changed bytes, often behind a request's head, or with a changed value of the JSON at its end."""
    head, brace, rest = data.partition(b"{")
    if draw.random() < 0.7:
        try:
            return head + json.dumps(mutated_value(json.loads(brace + rest), draw)).encode()
        except (ValueError, RecursionError):
            pass
    head, blank_line, body = data.partition(b"\r\n\r\n")
    if blank_line and draw.random() < 0.5:
        return head + blank_line + mutated_bytes(body, draw)
    return mutated_bytes(data, draw)
